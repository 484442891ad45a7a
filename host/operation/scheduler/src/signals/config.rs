//! The configuration of a source.

use std::path::{Path, PathBuf};
use std::time::Duration;

use blake2::digest::consts::U4;
use blake2::{Blake2s, Digest};

/// The source, and the age at which its readings are stale.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadConfig {
    /// The source.
    pub source: LoadSource,
    /// The scheduler's data parallel rank.
    pub dp_rank: u32,
    /// A reading older than this is stale.
    pub stale_after: Duration,
    /// The time between two reads of the LoadSnapshot file, each a few system calls on memory.
    pub load_snapshot_every: Duration,
}

/// The place of the scheduler's load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadSource {
    /// SGLang's LoadSnapshot file in shared memory (0.5.13 and later, always written), at this path.
    File(PathBuf),
    /// The statistics in vLLM's frames, which the owner of the stream hands on: see [`crate::signals::LoadReader::frames`].
    Frames,
}

impl LoadConfig {
    /// Reads this source for rank 0: stale after 5 s; the file every 20 ms.
    pub fn new(source: LoadSource) -> LoadConfig {
        LoadConfig {
            source,
            dp_rank: 0,
            stale_after: Duration::from_secs(5),
            load_snapshot_every: Duration::from_millis(20),
        }
    }
}

/// The path of the LoadSnapshot file of an SGLang server, as its `shm_path_for` makes it (sglang 0.5.23,
/// `srt/managers/load_snapshot.py`): `/dev/shm/sglang_loads_<name>_<blake2s of the id, 4 bytes, in hex>.shm`.
/// The name is the last path component of the id; characters other than letters, digits, `.`, `_` and `-`
/// become `_`.
pub fn instance_path(instance_id: &str) -> PathBuf {
    let name = instance_id.trim_end_matches('/').rsplit('/').next().filter(|name| !name.is_empty());
    let name: String = name
        .unwrap_or("default")
        .chars()
        .map(|c| if c.is_alphanumeric() || "._-".contains(c) { c } else { '_' })
        .collect();
    let digest: String =
        Blake2s::<U4>::digest(instance_id.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
    Path::new("/dev/shm").join(format!("sglang_loads_{name}_{digest}.shm"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_of_an_instance_is_that_of_sglang() {
        // The path that `shm_path_for` of sglang 0.5.23 makes.
        let path = "/dev/shm/sglang_loads_0123456789ab_042e6e5d.shm";
        assert_eq!(instance_path("0123456789ab"), Path::new(path));
    }
}
