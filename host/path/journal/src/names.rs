//! The names that become files and directories of a journal.

/// Bytes of the longest name of a stream.
const STREAM_BYTES_MAX: usize = 128;
/// Bytes of the longest instance.
pub(crate) const INSTANCE_BYTES_MAX: usize = 64;

/// Whether this is the name of a stream: 1 to 128 bytes of a-z, A-Z, 0-9, '.', '_', '-', and no '.' at the beginning. The journal's
/// own files have such names, too.
pub fn is_stream_name(name: &str) -> bool {
    is_plain(name, STREAM_BYTES_MAX)
}

/// Whether this is the name of a stream in a copy of several journals: an instance, a dot and a stream, 1 to 193 bytes. A journal's own
/// streams have such names, too.
pub fn is_copied_stream_name(name: &str) -> bool {
    is_plain(name, INSTANCE_BYTES_MAX + 1 + STREAM_BYTES_MAX)
}

/// Whether this is an instance: 1 to 64 bytes of a-z, A-Z, 0-9, '_', '-'. Without '.', so that it is one token of a name.
pub fn is_instance(name: &str) -> bool {
    is_plain(name, INSTANCE_BYTES_MAX) && !name.contains('.')
}

/// Whether the name cannot leave its directory and is not hidden there.
fn is_plain(name: &str, bytes_max: usize) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=bytes_max).contains(&name.len()) && !name.starts_with('.') && name.bytes().all(plain)
}
