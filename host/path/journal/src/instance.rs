//! The identity of a journal directory: the file `INSTANCE`. Copies of the journal elsewhere carry its text, so that the journals
//! of several machines stand beside each other.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::Path;

use crate::error::{OpenError, ReadError};
use crate::names::{INSTANCE_BYTES_MAX, is_instance};
use crate::storage::Storage;
use crate::text_file;

/// Name of the file in the journal directory.
pub(crate) const INSTANCE: &str = "INSTANCE";

/// Bytes of the host name in an instance: 8 digits and a hyphen follow.
const HOST_BYTES_MAX: usize = INSTANCE_BYTES_MAX - 9;

/// Reads the instance. Returns `None` if the file is missing.
pub(crate) fn read(storage: &dyn Storage, dir: &Path) -> Result<Option<String>, ReadError> {
    let text = text_file::read(storage, dir, INSTANCE)?;
    let instance = text.trim_end_matches('\n');
    match instance {
        "" => Ok(None),
        _ if is_instance(instance) => Ok(Some(instance.to_owned())),
        _ => Err(ReadError::Instance { path: dir.join(INSTANCE), text: instance.chars().take(80).collect() }),
    }
}

/// Reads the instance, and makes it if the file is missing. The directory is locked.
pub(crate) fn read_or_make(storage: &dyn Storage, dir: &Path) -> Result<String, OpenError> {
    if let Some(instance) = read(storage, dir)? {
        return Ok(instance);
    }
    let digits = RandomState::new().build_hasher().finish() as u32;
    let instance = format!("{}-{digits:08x}", host_name());
    text_file::write(storage, dir, INSTANCE, &format!("{instance}\n"))?;
    Ok(instance)
}

/// Name of this host, with a hyphen for each character that an instance may not have.
fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '_' { c } else { '-' };
    let name: String = name.trim().chars().map(plain).take(HOST_BYTES_MAX).collect();
    let name = name.trim_matches('-');
    if name.is_empty() { "host".to_owned() } else { name.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_is_one_token_of_a_subject_and_of_an_object_name() {
        assert!(is_instance("node-7-0a1b2c3d") && is_instance(&host_name()));
        let long = "a".repeat(65);
        for refused in ["", "a.b", "a/b", "..", "a b", "é", &long] {
            assert!(!is_instance(refused), "{refused:?}");
        }
    }
}
