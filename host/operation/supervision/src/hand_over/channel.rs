//! One end of the socket between the two processes: whole messages, each with at most one descriptor, until a deadline.

use crate::fdstore::{Message, send_message};
use crate::hand_over::{HandOverError, WHY_BYTES_MAX};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, socketpair};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Pause while the kernel has too many descriptors of this user under way.
const UNDER_WAY_PAUSE: Duration = Duration::from_millis(1);

/// One end of the socket.
#[derive(Debug)]
pub(crate) struct Channel(pub(crate) OwnedFd);

impl Channel {
    /// A channel, and the socket of its other end.
    pub(crate) fn pair() -> Result<(Channel, OwnedFd), Errno> {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok((Channel(ours), theirs))
    }

    pub(crate) fn send(
        &self,
        text: &str,
        fd: Option<BorrowedFd<'_>>,
        deadline: Instant,
    ) -> Result<(), HandOverError> {
        loop {
            set_socket_timeout(&self.0, Timeout::Send, Some(left(deadline)?)).map_err(error)?;
            match send_message(self.0.as_fd(), text, fd) {
                Err(Errno::INTR) => {}
                // The other process takes the descriptors that are under way, and makes room.
                Err(Errno::TOOMANYREFS) => std::thread::sleep(UNDER_WAY_PAUSE),
                sent => return sent.map_err(error),
            }
        }
    }

    pub(crate) fn receive(&self, deadline: Instant) -> Result<Message, HandOverError> {
        loop {
            set_socket_timeout(&self.0, Timeout::Recv, Some(left(deadline)?)).map_err(error)?;
            match Message::receive(self.0.as_fd(), RecvFlags::empty()) {
                Err(Errno::INTR) => {}
                Err(errno) => return Err(error(errno)),
                Ok(None) => return Err(HandOverError::Unexpected("a word")),
                Ok(Some(message)) if message.lacks_fds => return Err(HandOverError::NoRoom),
                Ok(Some(message)) if message.is_end => return Err(HandOverError::Closed),
                Ok(Some(message)) => return Ok(message),
            }
        }
    }
}

/// A reason as a part of a message: one line, cut to its bound.
pub(crate) fn one_line(why: &str) -> String {
    why[..why.floor_char_boundary(WHY_BYTES_MAX)].replace('\n', " ")
}

fn error(errno: Errno) -> HandOverError {
    match errno {
        Errno::AGAIN => HandOverError::Late,
        Errno::PIPE => HandOverError::Closed,
        // The kernel reports a reset if the last message was not read.
        Errno::CONNRESET => HandOverError::Unread,
        errno => HandOverError::Io(errno.into()),
    }
}

/// The time that is left. The system takes no timeout of 0.
fn left(deadline: Instant) -> Result<Duration, HandOverError> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(HandOverError::Late) } else { Ok(left.max(Duration::from_millis(1))) }
}
