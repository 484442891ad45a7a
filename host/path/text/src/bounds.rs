//! The bounds of this crate. A file or text past one of them is refused with an error.

/// The longest file that is read: 256 MiB. The largest known one (Gemma's, 262,144 tokens) has 33 MB.
pub const MAX_FILE_BYTES: u64 = 256 << 20;

/// The most tokens of a vocabulary. All ids are below this limit.
pub const MAX_TOKENS: usize = 4_000_000;

/// The longest text that is encoded at once: 64 KiB, about 30 ms. The library cannot be interrupted.
pub const MAX_TEXT_BYTES: usize = 64 << 10;
