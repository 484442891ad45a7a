//! The new process's side.

use crate::hand_over::bounds::{
    ANSWER_MAX, DESCRIPTORS_MAX, HELLO_MAX, MESSAGE_BYTES_MAX, PART_BYTES_MAX, PARTS_BYTES_MAX, PARTS_MAX,
};
use crate::hand_over::channel::Channel;
use crate::hand_over::error::{ChannelError, check};
use crate::hand_over::fds::NamedFds;
use crate::hand_over::message::{Group, Head, Hello, Message, Nothing, Part, StreamId, Why};
use crate::hand_over::socket::connect_in;
use crate::hand_over::version::Versions;
use std::io;
use std::path::Path;
use std::time::Instant;

/// The running process, which has not been asked yet.
#[derive(Debug)]
pub struct Predecessor {
    channel: Channel,
}

/// The state of the earlier process, which stands still and waits. This process must not move a byte of a stream until
/// [`Confirmation::wait_until_released`] has returned.
#[derive(Debug)]
pub struct Taken {
    /// The parts, in the order of the earlier process.
    pub parts: Vec<Part>,
    /// The descriptors, in the order of the earlier process.
    pub fds: Vec<NamedFds>,
    /// The version of the earlier process.
    pub afterbay: String,
    /// The pid of the earlier process.
    pub pid: u32,
    /// The connection, which must stay open.
    pub confirmation: Confirmation,
}

/// The connection over which the new process confirms.
#[derive(Debug)]
pub struct Confirmation {
    channel: Channel,
}

/// Nothing was taken over. The running process goes on.
#[derive(Debug, thiserror::Error)]
pub enum TakeError {
    /// The running process refuses, and has not stopped.
    #[error("the running process refuses: {0}")]
    Refused(String),
    /// The connection broke.
    #[error("the running process goes on: {0}")]
    Channel(#[from] ChannelError),
}

impl Predecessor {
    /// Connects to the process that has locked the journal in this directory. `None`: no process runs there, or its version has no
    /// hand-over.
    ///
    /// # Errors
    /// The system refuses a call.
    pub fn connect(dir: &Path) -> io::Result<Option<Predecessor>> {
        Ok(connect_in(dir)?.map(|socket| Predecessor { channel: Channel::new(socket) }))
    }

    /// Asks for the place of the running process, and receives its state.
    ///
    /// # Errors
    /// The running process refuses, or the connection breaks.
    pub fn ask(
        mut self,
        versions: &Versions,
        descriptors: u64,
        streams: Vec<StreamId>,
    ) -> Result<Taken, TakeError> {
        let Versions { afterbay, formats } = versions.clone();
        let hello = Hello { afterbay, formats, descriptors, streams };
        self.channel.send(&Message::Hello(hello), Instant::now() + HELLO_MAX)?;
        let deadline = Instant::now() + ANSWER_MAX;
        let head = match self.channel.receive_plain(deadline)? {
            Message::State(head) => head,
            Message::Refused(Why { why }) => return Err(TakeError::Refused(why)),
            other => return Err(ChannelError::Unexpected { found: other.name(), expected: "state" }.into()),
        };
        match self.receive_state(&head, deadline) {
            Ok((parts, fds)) => {
                let Head { afterbay, pid, .. } = head;
                Ok(Taken { parts, fds, afterbay, pid, confirmation: Confirmation { channel: self.channel } })
            }
            Err(error) => {
                Confirmation { channel: self.channel }.fail(&error.to_string());
                Err(error.into())
            }
        }
    }

    fn receive_state(
        &mut self,
        head: &Head,
        deadline: Instant,
    ) -> Result<(Vec<Part>, Vec<NamedFds>), ChannelError> {
        check("parts", head.parts, PARTS_MAX)?;
        check("descriptors", head.descriptors, DESCRIPTORS_MAX)?;
        let (mut parts, mut bytes) = (Vec::new(), 0);
        while parts.len() < head.parts {
            let (message, read) = self.channel.receive_part(PART_BYTES_MAX, deadline)?;
            bytes += read;
            check("bytes of all parts", bytes, PARTS_BYTES_MAX)?;
            match message {
                Message::Part(part) => parts.push(part),
                other => return Err(ChannelError::Unexpected { found: other.name(), expected: "part" }),
            }
        }
        let (mut entries, mut count) = (Vec::new(), 0);
        while count < head.descriptors {
            let (message, fds) = self.channel.receive(MESSAGE_BYTES_MAX, deadline)?;
            let Message::Descriptors(Group { entries: named }) = message else {
                return Err(ChannelError::Unexpected { found: message.name(), expected: "descriptors" });
            };
            if fds.is_empty() {
                return Err(ChannelError::Descriptors { named: 0, carried: 0 });
            }
            count += fds.len();
            let mut fds = fds.into_iter();
            for entry in named {
                entries.push(NamedFds { name: entry.name, fds: fds.by_ref().take(entry.count).collect() });
            }
        }
        match count == head.descriptors {
            true => Ok((parts, entries)),
            false => Err(ChannelError::Descriptors { named: head.descriptors, carried: count }),
        }
    }
}

impl Confirmation {
    /// Says why this process cannot take over. The running process resumes after this process has ended.
    pub fn fail(self, why: &str) {
        // The running process may have given up already.
        let _sent = self.channel.send(&Message::Failed(Why::new(why)), Instant::now() + HELLO_MAX);
    }

    /// Says that everything is built, and waits for the release. From then on, the streams belong to this process.
    ///
    /// # Errors
    /// The running process has resumed. This process must end without a byte to a stream's socket or the journal.
    pub fn wait_until_released(mut self) -> Result<(), TakeError> {
        let deadline = Instant::now() + ANSWER_MAX;
        self.channel.send(&Message::Ready(Nothing {}), deadline)?;
        match self.channel.receive_plain(deadline)? {
            Message::Released(_) => {
                // The earlier process ends, whether it reads this or not.
                let _sent = self.channel.send(&Message::Running(Nothing {}), deadline);
                Ok(())
            }
            other => Err(ChannelError::Unexpected { found: other.name(), expected: "released" }.into()),
        }
    }
}
