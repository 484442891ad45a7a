//! The running process's side. Each step consumes the last: nothing is sent twice, and nothing runs before it may.

use crate::hand_over::bounds::{DESCRIPTORS_MAX, DESCRIPTORS_SPARE, HELLO_MAX, PARTS_MAX, RUNNING_MAX};
use crate::hand_over::channel::{Channel, Lent};
use crate::hand_over::error::{ChannelError, check};
use crate::hand_over::fds::NamedFds;
use crate::hand_over::message::{Head, Hello, Message, Nothing, Part, Why};
use crate::hand_over::peer::Peer;
use crate::hand_over::version::Versions;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Instant;

/// A process asks to take over. Nothing has stopped yet.
#[derive(Debug)]
pub struct Asked {
    channel: Channel,
    peer: Peer,
    hello: Hello,
    versions: Versions,
}

/// The state is with the new process, which builds. The streams stand still.
#[derive(Debug)]
pub struct Given {
    channel: Channel,
    peer: Peer,
}

/// The new process runs. The earlier one must end without another byte to a stream's socket or the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Released;

/// The hand-over has failed. The new process has ended, and the running one can resume.
#[derive(Debug, thiserror::Error)]
pub enum GiveError {
    /// The new process says why.
    #[error("the new process: {0}")]
    Failed(String),
    /// The connection broke, or the deadline passed.
    #[error(transparent)]
    Channel(#[from] ChannelError),
}

impl Asked {
    /// Reads what a new process asks for. Refuses, with a reason, a process of another user and one with other formats.
    ///
    /// # Errors
    /// The reason, which the other process got too if it could read it.
    pub fn read(socket: UnixStream, versions: &Versions) -> Result<Asked, String> {
        let deadline = Instant::now() + HELLO_MAX;
        let peer = Peer::of(&socket);
        let mut channel = Channel::new(socket);
        let hello = match channel.receive_plain(deadline) {
            Ok(Message::Hello(hello)) => Ok(hello),
            Ok(other) => Err(ChannelError::Unexpected { found: other.name(), expected: "hello" }.to_string()),
            Err(error) => Err(error.to_string()),
        };
        let checked = peer.and_then(|peer| {
            let hello = hello?;
            versions.refuse(&hello).map_or(Ok((peer, hello)), Err)
        });
        match checked {
            Ok((peer, hello)) => Ok(Asked { channel, peer, hello, versions: versions.clone() }),
            Err(why) => {
                // The other process may be gone.
                let _sent = channel.send(&Message::Refused(Why::new(&why)), deadline);
                Err(why)
            }
        }
    }

    /// The new process's versions and streams.
    pub fn hello(&self) -> &Hello {
        &self.hello
    }

    /// The new process's pid.
    pub fn pid(&self) -> u32 {
        self.peer.pid
    }

    /// Refuses, with a reason.
    pub fn refuse(self, why: &str) {
        // The other process may be gone.
        let _sent = self.channel.send(&Message::Refused(Why::new(why)), Instant::now() + HELLO_MAX);
    }

    /// The reason why this many descriptors cannot go over.
    pub fn refuses_descriptors(&self, count: usize) -> Option<String> {
        if count > DESCRIPTORS_MAX {
            return Some(format!("{count} descriptors would go over, at most {DESCRIPTORS_MAX} are allowed"));
        }
        let (needed, limit) = (count as u64 + DESCRIPTORS_SPARE, self.hello.descriptors);
        (needed > limit).then(|| {
            format!(
                "its limit is {limit} open files, and it needs {needed}: raise the limit (ulimit -n, LimitNOFILE=)"
            )
        })
    }

    /// Sends the state. The streams have stopped.
    ///
    /// # Errors
    /// The hand-over has failed, and the new process has ended.
    pub fn give(self, parts: Vec<Part>, fds: &[NamedFds], deadline: Instant) -> Result<Given, GiveError> {
        let given = Given { channel: self.channel, peer: self.peer };
        match send(&given.channel, &self.versions, parts, fds, deadline) {
            Ok(()) => Ok(given),
            Err(error) => Err(given.fail(error.into())),
        }
    }
}

fn send(
    channel: &Channel,
    versions: &Versions,
    parts: Vec<Part>,
    fds: &[NamedFds],
    deadline: Instant,
) -> Result<(), ChannelError> {
    let descriptors = fds.iter().map(|entry| entry.fds.len()).sum();
    check("parts", parts.len(), PARTS_MAX)?;
    check("descriptors", descriptors, DESCRIPTORS_MAX)?;
    let (afterbay, pid) = (versions.afterbay.clone(), std::process::id());
    let head = Head { afterbay, pid, parts: parts.len(), descriptors };
    channel.send(&Message::State(head), deadline)?;
    for part in parts {
        channel.send(&Message::Part(part), deadline)?;
    }
    let borrowed = fds.iter().map(|entry| (entry.name.as_str(), entry.fds.iter().map(AsFd::as_fd).collect()));
    let entries: Vec<Lent<'_>> = borrowed.collect();
    channel.send_descriptors(&entries, deadline)
}

impl Given {
    /// Waits until the new process has built everything.
    ///
    /// # Errors
    /// The hand-over has failed, and the new process has ended.
    pub fn wait_until_ready(mut self, deadline: Instant) -> Result<Ready, GiveError> {
        let why = match self.channel.receive_plain(deadline) {
            Ok(Message::Ready(_)) => return Ok(Ready(self)),
            Ok(Message::Failed(Why { why })) => GiveError::Failed(why),
            Ok(other) => ChannelError::Unexpected { found: other.name(), expected: "ready" }.into(),
            Err(error) => error.into(),
        };
        Err(self.fail(why))
    }

    /// Ends the new process.
    fn fail(self, why: GiveError) -> GiveError {
        let Given { channel, peer } = self;
        drop(channel);
        peer.end();
        why
    }
}

/// The new process has built everything and waits.
#[derive(Debug)]
pub struct Ready(Given);

impl Ready {
    /// Releases the streams to the new process, and waits until it says that it runs.
    ///
    /// If the new process ended before it read `released`, nothing has moved, and the running process can resume. If it read
    /// `released` and ended before it could answer, the result is [`Released`] all the same: it may have moved bytes.
    ///
    /// # Errors
    /// The new process never read `released`, and has ended.
    pub fn release(mut self) -> Result<Released, GiveError> {
        let deadline = Instant::now() + RUNNING_MAX;
        if let Err(error) = self.0.channel.send(&Message::Released(Nothing {}), deadline) {
            return Err(self.0.fail(error.into()));
        }
        match self.0.channel.receive_plain(deadline) {
            // The kernel reports a reset if the last message was not read.
            Err(ChannelError::Unread) => Err(self.0.fail(ChannelError::Unread.into())),
            _ => Ok(Released),
        }
    }
}
