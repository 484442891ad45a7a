//! A start of the worker, with the kept descriptors.
//!
//! systemd's protocol wants the worker's own process id in `LISTEN_PID`, which nobody knows before the fork. So a first stage
//! sets it and becomes the worker: the keeper starts its own program with a hidden command, and that calls [`become_worker`].

use crate::fdstore::StoredFds;
use command_fds::{CommandFdExt, FdMapping};
use nix::sys::signal::SigSet;
use rustix::process::Pid;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// The first number of a passed descriptor.
const LISTEN_FDS_START: RawFd = 3;

/// The start of a worker.
pub(crate) struct Start<'a> {
    /// The hidden command of the first stage.
    pub(crate) stage: &'a OsStr,
    pub(crate) program: &'a Path,
    pub(crate) arguments: &'a [OsString],
    pub(crate) notify_socket: &'a Path,
    /// The number of descriptors that the keeper keeps.
    pub(crate) stored_max: usize,
}

impl Start<'_> {
    /// Starts the first stage, which becomes the worker.
    pub(crate) fn spawn(&self, stored: &StoredFds) -> io::Result<Pid> {
        // The keeper's own program, also after its file was replaced.
        let mut command = Command::new("/proc/self/exe");
        command.arg0("afterbay").arg(self.stage).arg(self.program).args(self.arguments).stdin(Stdio::null());
        command.env("NOTIFY_SOCKET", self.notify_socket).env("FDSTORE", self.stored_max.to_string());
        // The watchdog of a supervisor above watches the worker: the keeper passes its messages on.
        for name in ["WATCHDOG_PID", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"] {
            command.env_remove(name);
        }
        if !stored.is_empty() {
            let (fds, names) = stored.to_pass()?;
            command.env("LISTEN_FDS", fds.len().to_string()).env("LISTEN_FDNAMES", names);
            let mapping = |(child_fd, parent_fd): (RawFd, OwnedFd)| FdMapping { parent_fd, child_fd };
            let mappings = (LISTEN_FDS_START..).zip(fds).map(mapping).collect();
            command.fd_mappings(mappings).map_err(io::Error::other)?;
        }
        let child = command.spawn()?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        pid.ok_or_else(|| io::Error::other(format!("process id {}", child.id())))
    }
}

/// The first stage: becomes `program` with these arguments, with its own process id in `LISTEN_PID`. Returns only an error.
pub fn become_worker(program: &OsStr, arguments: &[OsString]) -> io::Error {
    let mut command = Command::new(program);
    command.arg0("afterbay").args(arguments);
    if std::env::var_os("LISTEN_FDS").is_some() {
        command.env("LISTEN_PID", std::process::id().to_string());
    }
    // The keeper reads its signals from a descriptor, so it blocks them, and a child inherits that.
    match SigSet::all().thread_unblock() {
        Ok(()) => command.exec(),
        Err(error) => error.into(),
    }
}
