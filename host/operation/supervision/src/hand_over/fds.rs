//! Descriptors with a name.

use std::os::fd::OwnedFd;

/// A named entry of the descriptors that go over, for example a socket and its memory. The order of an entry's descriptors stays.
#[derive(Debug)]
pub struct NamedFds {
    /// The name, at most [`NAME_BYTES_MAX`](crate::hand_over::bounds::NAME_BYTES_MAX) bytes.
    pub name: String,
    /// The descriptors, 1 to [`ENTRY_DESCRIPTORS_MAX`](crate::hand_over::bounds::ENTRY_DESCRIPTORS_MAX).
    pub fds: Vec<OwnedFd>,
}
