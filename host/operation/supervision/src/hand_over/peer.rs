//! The process at the other end of the connection: who it is, and its end.

use crate::hand_over::bounds::{END_MAX, KILL_MAX};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, geteuid, getpid, pidfd_open, pidfd_send_signal};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// The process at the other end.
#[derive(Debug)]
pub(crate) struct Peer {
    pub pid: u32,
    /// `None` for this process itself, as in tests.
    process: Option<OwnedFd>,
}

impl Peer {
    /// The process that connected. The error is the reason why it may not take over.
    ///
    /// Another user is refused, also root: the running process must be able to end the new one, and the journal's files must stay
    /// readable for the next.
    pub fn of(socket: &UnixStream) -> Result<Peer, String> {
        let known = getsockopt(socket, PeerCredentials);
        let known = known.map_err(|error| format!("its user is unknown: {error}"))?;
        let (uid, ours) = (known.uid(), geteuid().as_raw());
        if uid != ours {
            return Err(format!("it runs as user {uid}, must be user {ours} as the running one"));
        }
        let pid = Pid::from_raw(known.pid());
        let pid = pid.ok_or("it runs in another pid namespace, must be the one of the running one")?;
        let process = match pid == getpid() {
            true => None,
            false => Some(pidfd_open(pid, PidfdFlags::empty()).map_err(|error| match error {
                Errno::SRCH => "it ended before it read an answer".to_owned(),
                _ => format!("process {pid:?}: {error}"),
            })?),
        };
        Ok(Peer { pid: pid.as_raw_nonzero().get().unsigned_abs(), process })
    }

    /// Waits for the end of the process. Kills it if it does not end by itself in [`END_MAX`]. A killed process runs no further
    /// instruction, even if the kernel needs longer than [`KILL_MAX`] to remove it.
    pub fn end(&self) {
        let Some(process) = &self.process else { return };
        if has_ended(process, END_MAX).unwrap_or(false) {
            return;
        }
        // An error means that the process has ended.
        let _sent = pidfd_send_signal(process, Signal::KILL);
        let _ended = has_ended(process, KILL_MAX);
    }
}

/// Waits until the process has ended, at most this time.
fn has_ended(process: &OwnedFd, within: Duration) -> io::Result<bool> {
    let within = Timespec { tv_sec: within.as_secs().cast_signed(), tv_nsec: within.subsec_nanos().into() };
    let mut polled = [PollFd::new(process, PollFlags::IN)];
    loop {
        match poll(&mut polled, Some(&within)) {
            Ok(ready) => return Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
