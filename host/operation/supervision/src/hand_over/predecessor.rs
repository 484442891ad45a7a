//! The new process's side.

use crate::fdstore::FdName;
use crate::hand_over::channel::{Channel, one_line};
use crate::hand_over::{ANSWER_MAX, HandOverError, STATE_BYTES_MAX};
use rustix::net::SocketType;
use rustix::net::sockopt::socket_type;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::Instant;

/// The running process that has started this one.
#[derive(Debug)]
pub struct Predecessor(Channel);

/// The descriptors and the state of the running process, which stands still. This process must not move a byte of a stream until
/// [`Predecessor::wait_until_released`] has returned.
#[derive(Debug)]
pub struct Taken {
    /// The descriptors, as a supervisor passes them: one under each numbered name.
    pub passed: Vec<(String, OwnedFd)>,
    /// The state that a crash would lose.
    pub state: Vec<u8>,
}

impl Predecessor {
    /// The process at the other end of standard input.
    ///
    /// # Errors
    /// `afterbay upgrade` has not started this process.
    pub fn from_stdin() -> Result<Predecessor, HandOverError> {
        let stdin = io::stdin();
        match socket_type(&stdin) {
            Ok(SocketType::SEQPACKET) => Ok(Predecessor(Channel(stdin.as_fd().try_clone_to_owned()?))),
            _ => Err(HandOverError::NotStarted),
        }
    }

    /// Asks for the place of the running process, and receives everything. `formats` names the version of each format of this
    /// binary.
    ///
    /// # Errors
    /// The running process refuses, has ended, or gave something wrong. It knows why.
    pub fn ask(&self, version: &str, formats: &str) -> Result<Taken, HandOverError> {
        self.receive(version, formats).inspect_err(|error| self.fail(&error.to_string()))
    }

    fn receive(&self, version: &str, formats: &str) -> Result<Taken, HandOverError> {
        let deadline = Instant::now() + ANSWER_MAX;
        let pid = std::process::id();
        self.0.send(&format!("VERSION={version}\nFORMATS={formats}\nMAINPID={pid}"), None, deadline)?;
        let mut passed = Vec::new();
        loop {
            let mut message = self.0.receive(deadline)?;
            let fd = message.fds.pop().ok_or(HandOverError::Unexpected("a descriptor"))?;
            match message.value("FDNAME") {
                Some(name) => passed.push((name.to_owned(), fd)),
                None if message.says("STATE") => return Ok(Taken { passed, state: read(fd)? }),
                None => return Err(HandOverError::Unexpected("FDNAME or STATE")),
            }
        }
    }

    /// Says why this process cannot take over. The running process then ends it and resumes.
    pub fn fail(&self, why: &str) {
        // The running process may have given up already.
        let _sent = self.0.send(&format!("FAILED={}", one_line(why)), None, Instant::now() + ANSWER_MAX);
    }

    /// Says that everything is built, and waits for the release. From then on, the streams belong to this process.
    ///
    /// # Errors
    /// The running process has resumed. This process must end without a byte to a stream's socket or the journal.
    pub fn wait_until_released(self) -> Result<(), HandOverError> {
        let deadline = Instant::now() + ANSWER_MAX;
        self.0.send("READY=1", None, deadline)?;
        if !self.0.receive(deadline)?.says("RELEASED") {
            return Err(HandOverError::Unexpected("RELEASED"));
        }
        // The earlier process ends, whether it reads this or not.
        let _sent = self.0.send("RUNNING=1", None, deadline);
        Ok(())
    }
}

impl Taken {
    /// Takes the one descriptor of this name.
    pub fn take(&mut self, name: &FdName) -> Option<OwnedFd> {
        let name = name.numbered(0, 1);
        let index = self.passed.iter().position(|(passed, _)| *passed == name)?;
        Some(self.passed.remove(index).1)
    }
}

/// The content of a memory file.
fn read(file: OwnedFd) -> Result<Vec<u8>, HandOverError> {
    let file = File::from(file);
    let bytes = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
    if bytes > STATE_BYTES_MAX {
        return Err(HandOverError::State(bytes));
    }
    let mut state = vec![0; bytes];
    file.read_exact_at(&mut state, 0)?;
    Ok(state)
}
