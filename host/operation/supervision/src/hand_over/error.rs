//! Errors of the connection between the two processes.

use crate::hand_over::bounds::{GROUP_MAX, NAME_BYTES_MAX};
use std::io;

/// The connection cannot continue.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// The other process closed the connection, or ended.
    #[error("the other process closed the connection")]
    Closed,
    /// The other process ended without reading the last message.
    #[error("the other process ended before it read the last message")]
    Unread,
    /// Nothing arrived, or could be written, before the deadline.
    #[error("the other process did not answer in time")]
    Late,
    /// A message is larger than its bound.
    #[error("a message of {bytes} bytes, at most {limit} are allowed")]
    TooLarge {
        /// The size that the message claims.
        bytes: usize,
        /// The bound.
        limit: usize,
    },
    /// A message that is no JSON of this protocol.
    #[error("a message that is not of this protocol: {0}")]
    Garbage(serde_json::Error),
    /// A message that does not belong here.
    #[error("the message {found:?}, {expected:?} was expected")]
    Unexpected {
        /// The message that arrived.
        found: &'static str,
        /// The message that belongs here.
        expected: &'static str,
    },
    /// The descriptors of a message are not those that it names.
    #[error("a message names {named} descriptors and carries {carried}, at most {GROUP_MAX} are allowed")]
    Descriptors {
        /// The descriptors that the message names.
        named: usize,
        /// The descriptors that arrived.
        carried: usize,
    },
    /// The kernel could not give this process all descriptors of a message.
    #[error("no room for further descriptors: raise the limit of open files (ulimit -n, LimitNOFILE=)")]
    NoRoom,
    /// More of something than a hand-over may have.
    #[error("{count} {what}, at most {limit} are allowed")]
    TooMany {
        /// The things that are counted.
        what: &'static str,
        /// Their number.
        count: usize,
        /// The bound.
        limit: usize,
    },
    /// A name is empty or too long.
    #[error("a name of {bytes} bytes, must be 1 to {NAME_BYTES_MAX}")]
    Name {
        /// The length of the name.
        bytes: usize,
    },
    /// The system refused a call.
    #[error(transparent)]
    Io(io::Error),
}

impl From<io::Error> for ChannelError {
    fn from(error: io::Error) -> ChannelError {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => ChannelError::Late,
            io::ErrorKind::ConnectionReset => ChannelError::Unread,
            io::ErrorKind::BrokenPipe | io::ErrorKind::UnexpectedEof => ChannelError::Closed,
            _ => ChannelError::Io(error),
        }
    }
}

impl From<rustix::io::Errno> for ChannelError {
    fn from(error: rustix::io::Errno) -> ChannelError {
        io::Error::from(error).into()
    }
}

/// Whether there are few enough.
pub(crate) fn check(what: &'static str, count: usize, limit: usize) -> Result<(), ChannelError> {
    if count > limit { Err(ChannelError::TooMany { what, count, limit }) } else { Ok(()) }
}
