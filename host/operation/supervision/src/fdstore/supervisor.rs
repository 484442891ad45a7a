//! Messages to the supervisor: systemd, or `afterbay run --keep`. The protocol is sd_notify(3).
//!
//! The crate sd-notify knows the words. It sends without a bound of time, so the sending is here.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

/// One word of the protocol with its value.
pub use sd_notify::NotifyState as State;

/// The longest time that one message may wait for a supervisor that does not read.
pub const SEND_WAIT_MAX: Duration = Duration::from_millis(200);

/// The most descriptors in a supervisor's store, whatever the supervisor allows. The names of all descriptors are one
/// variable of the environment, which the kernel bounds to 128 KiB.
pub const DESCRIPTORS_MAX: usize = 4096;

/// The most bytes of names in a supervisor's store, with a separator each.
pub(crate) const NAMES_BYTES_MAX: usize = 100 * 1024;

/// The process that started this one and listens on `NOTIFY_SOCKET`.
#[derive(Clone, Debug)]
pub struct Supervisor {
    address: SocketAddr,
    descriptors_max: usize,
    watchdog: Option<Duration>,
}

impl Supervisor {
    /// The supervisor of the environment: `NOTIFY_SOCKET`, `FDSTORE`, `WATCHDOG_USEC` and `WATCHDOG_PID`. None without
    /// `NOTIFY_SOCKET`.
    ///
    /// # Errors
    ///
    /// `NOTIFY_SOCKET` names no Unix socket.
    pub fn from_env() -> io::Result<Option<Supervisor>> {
        let Some(name) = std::env::var_os("NOTIFY_SOCKET") else {
            return Ok(None);
        };
        let bytes = name.as_encoded_bytes();
        let address = match bytes.first() {
            Some(b'@') => SocketAddr::from_abstract_name(&bytes[1..]),
            Some(b'/') => SocketAddr::from_pathname(&name),
            _ => Err(io::Error::from(io::ErrorKind::InvalidInput)),
        };
        let address = address.map_err(|_| {
            let reason =
                format!("NOTIFY_SOCKET is {name:?}, must be a path or an abstract name of a Unix socket");
            io::Error::new(io::ErrorKind::InvalidInput, reason)
        })?;
        let descriptors_max = std::env::var("FDSTORE").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
        Ok(Some(Supervisor::new(address, descriptors_max, sd_notify::watchdog_enabled())))
    }

    /// A supervisor that listens on this address, keeps this many descriptors, and restarts this process after `watchdog`
    /// without [`State::Watchdog`].
    pub fn new(address: SocketAddr, descriptors_max: usize, watchdog: Option<Duration>) -> Supervisor {
        Supervisor { address, descriptors_max: descriptors_max.min(DESCRIPTORS_MAX), watchdog }
    }

    /// The number of descriptors that the supervisor keeps, at most [`DESCRIPTORS_MAX`]. 0 if it has no store
    /// (`FileDescriptorStoreMax=`).
    pub fn descriptors_max(&self) -> usize {
        self.descriptors_max
    }

    /// The longest time between two [`State::Watchdog`]. None if the supervisor does not watch.
    pub fn watchdog(&self) -> Option<Duration> {
        self.watchdog
    }

    /// Sends these words in one message. The call takes at most [`SEND_WAIT_MAX`].
    pub fn send(&self, words: &[State<'_>]) -> io::Result<()> {
        self.send_with(words, None)
    }

    /// Sends these words and a descriptor in one message. The call takes at most [`SEND_WAIT_MAX`].
    pub(crate) fn send_with(&self, words: &[State<'_>], fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let text = words.iter().map(|word| format!("{word}\n")).collect::<String>();
        let socket = UnixDatagram::unbound()?;
        socket.set_write_timeout(Some(SEND_WAIT_MAX))?;
        socket.connect_addr(&self.address)?;
        Ok(send_message(socket.as_fd(), &text, fd)?)
    }
}

/// Sends one message on a socket whose messages stay apart, so that all or nothing of the text is sent.
pub(crate) fn send_message(
    socket: BorrowedFd<'_>,
    text: &str,
    fd: Option<BorrowedFd<'_>>,
) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if let Some(fd) = &fd {
        ancillary.push(SendAncillaryMessage::ScmRights(std::slice::from_ref(fd)));
    }
    sendmsg(socket, &[IoSlice::new(text.as_bytes())], &mut ancillary, SendFlags::NOSIGNAL).map(drop)
}
