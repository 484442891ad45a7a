//! The errors that the disk returns.

use std::io;

/// An error of the device.
pub(crate) fn eio() -> io::Error {
    io::Error::from_raw_os_error(5)
}

/// No room is left.
pub(crate) fn enospc() -> io::Error {
    io::Error::from_raw_os_error(28)
}
