//! The running process's side.

use crate::fdstore::FdName;
use crate::hand_over::channel::Channel;
use crate::hand_over::{END_LOOK_EVERY, END_MAX, HandOverError, RUNNING_MAX, STATE_BYTES_MAX};
use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A new process that is to take this one's place. Unless it was released, it is killed at the drop, so that it never writes to the
/// journal of a process that goes on.
#[derive(Debug)]
pub struct Successor {
    channel: Channel,
    child: Child,
    is_released: bool,
}

impl Successor {
    /// Starts the new process.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn start(mut command: Command) -> io::Result<Successor> {
        let (channel, theirs) = Channel::pair()?;
        let child = command.stdin(Stdio::from(theirs)).spawn()?;
        Ok(Successor { channel, child, is_released: false })
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the new process asks for this one's place. Returns its version and its formats.
    ///
    /// # Errors
    /// It has ended, said something else, or not asked before the deadline.
    pub fn wait_until_asked(&mut self, deadline: Instant) -> Result<(String, String), HandOverError> {
        let asked = self.channel.receive(deadline).and_then(|message| {
            let word = |word: &'static str| message.value(word).ok_or(HandOverError::Unexpected(word));
            let (version, formats, pid) = (word("VERSION")?, word("FORMATS")?, word("MAINPID")?);
            // A wrapper's child would outlive the wrapper.
            match pid == self.pid().to_string() {
                true => Ok((version.to_owned(), formats.to_owned())),
                false => Err(HandOverError::Wrapper),
            }
        });
        asked.map_err(|error| self.end(error))
    }

    /// Gives everything, waits until the new process is ready, and releases it. The streams have stopped.
    ///
    /// If the new process ended before it read the release, nothing has moved. If it read the release and ended before it could
    /// answer, it counts as released: it may have moved bytes.
    ///
    /// # Errors
    /// Nothing was handed over. The new process has ended, so this one can resume.
    pub fn hand_over(
        mut self,
        entries: &[(FdName, Vec<OwnedFd>)],
        state: &[u8],
        deadline: Instant,
    ) -> Result<(), HandOverError> {
        let done = self.give(entries, state, deadline).and_then(|()| self.release(deadline));
        done.map_err(|error| self.end(error))
    }

    fn give(
        &self,
        entries: &[(FdName, Vec<OwnedFd>)],
        state: &[u8],
        deadline: Instant,
    ) -> Result<(), HandOverError> {
        if state.len() > STATE_BYTES_MAX {
            return Err(HandOverError::State(state.len()));
        }
        for (name, fds) in entries {
            for (index, fd) in fds.iter().enumerate() {
                self.channel.send(&name.stored(index, fds.len()), Some(fd.as_fd()), deadline)?;
            }
        }
        let mut file =
            File::from(memfd_create("afterbay-state", MemfdFlags::CLOEXEC).map_err(io::Error::from)?);
        file.write_all(state)?;
        self.channel.send("STATE=1", Some(file.as_fd()), deadline)
    }

    fn release(&mut self, deadline: Instant) -> Result<(), HandOverError> {
        let answer = self.channel.receive(deadline)?;
        match (answer.value("FAILED"), answer.says("READY")) {
            (Some(why), _) => return Err(HandOverError::Failed(why.to_owned())),
            (None, false) => return Err(HandOverError::Unexpected("READY")),
            (None, true) => {}
        }
        let deadline = Instant::now() + RUNNING_MAX;
        self.channel.send("RELEASED=1", None, deadline)?;
        if let Err(HandOverError::Unread) = self.channel.receive(deadline) {
            return Err(HandOverError::Unread);
        }
        self.is_released = true;
        Ok(())
    }

    /// Ends the new process. If it has closed the connection, its last message or its exit code is the reason.
    fn end(&mut self, error: HandOverError) -> HandOverError {
        let is_over =
            matches!(error, HandOverError::Closed | HandOverError::Unread | HandOverError::Failed(_));
        let deadline = Instant::now() + if is_over { END_MAX } else { Duration::ZERO };
        while Instant::now() < deadline && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(END_LOOK_EVERY);
        }
        // An error means that it has ended.
        let _killed = self.child.kill();
        match (error, self.child.wait()) {
            (HandOverError::Closed | HandOverError::Unread, Ok(status)) => {
                self.last_reason().map_or(HandOverError::Ended(status), HandOverError::Failed)
            }
            (error, _) => error,
        }
    }

    /// The reason that a process which has ended gave. The kernel may report the end first, once.
    fn last_reason(&self) -> Option<String> {
        (0..2).find_map(|_| {
            let last = self.channel.receive(Instant::now() + RUNNING_MAX).ok()?;
            last.value("FAILED").map(str::to_owned)
        })
    }
}

impl Drop for Successor {
    fn drop(&mut self) {
        if !self.is_released {
            let _killed = self.child.kill();
            let _status = self.child.wait();
        }
    }
}
