//! The reader's count of finished frames: a page of 64 bytes in a file.

use std::path::PathBuf;

/// What is known of the page now. None of these stops a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CreditState {
    /// No page is configured.
    Off,
    /// The file is not there, or its writer has not filled it yet.
    Absent,
    /// The file is there and is not a page that can be used.
    Invalid(Invalid),
    /// The page is read and believed.
    Usable {
        /// The reader's generation.
        generation: u64,
        /// Frames this generation has finished.
        count: u64,
    },
    /// A new reader is connected, and the page is still its predecessor's (or its count stood still too long while in
    /// doubt): frames go on without credit until the page moves.
    Stale,
    /// The count ran ahead of what was sent: somebody else sends counted frames to this reader.
    RanAhead,
}

/// Why a file is not a page.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// Too short.
    #[error("credit page has {0} bytes, it needs 64")]
    Short(usize),
    /// Another file.
    #[error("credit page begins with {0:02x?}, not ABCREDIT")]
    Magic([u8; 8]),
    /// Of another version.
    #[error("credit page has version {0}, this is for 1")]
    Version(u32),
    /// The count became smaller within one generation.
    #[error("credit page's count went back from {from} to {to}")]
    WentBack {
        /// Before.
        from: u64,
        /// Now.
        to: u64,
    },
    /// A call failed.
    #[error("credit page {path}: {error}", path = .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// How.
        error: String,
    },
}
