//! The state of one connection, from the first byte to the last.

use bytes::Bytes;

use crate::command::{self, COMMAND_BYTES_MAX, Command};
use crate::error::Error;
use crate::frame::{self, Announced, HEADER_BYTES_MAX};
use crate::greeting::{self, GREETING, GREETING_BYTES};

/// Bytes waiting to be sent by [`Peer::output`]. A PONG past it is left out: a peer that does not read its PONGs does not
/// need them.
pub const OUTPUT_BYTES_MAX: usize = 1 << 10;

/// Which end of the pipe we are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// We receive; the peer must be a PUSH.
    Pull,
    /// We send; the peer must be a PULL.
    Push,
    /// We send to whoever has subscribed; the peer must be a SUB or an XSUB.
    Pub,
}

impl Role {
    /// What we are, what the peer must be, and that in words.
    fn names(self) -> (&'static str, &'static [&'static str], &'static str) {
        match self {
            Role::Pull => ("PULL", &["PUSH"], "PUSH"),
            Role::Push => ("PUSH", &["PULL"], "PULL"),
            Role::Pub => ("PUB", &["SUB", "XSUB"], "SUB or XSUB"),
        }
    }
}

/// What the peer said of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handshake {
    /// PUSH, PULL, SUB or XSUB.
    pub socket_type: String,
    /// Mostly empty.
    pub identity: Vec<u8>,
    /// Of the ZMTP version: 0 or 1.
    pub minor_version: u8,
}

/// What the bytes meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The handshake is done: messages may be sent.
    Ready(Handshake),
    /// A whole message, in an allocation of its own.
    Message(Bytes),
    /// To a PUB: frames that begin with this are wanted. Empty: all.
    Subscribe(Bytes),
    /// To a PUB: one subscription to this is taken back.
    Cancel(Bytes),
    /// A command that the connection has dealt with itself, such as PING. An event so that a caller can count commands.
    Command,
}

/// What came of something that is not whole, for the words of a connection that ends in the middle of it. In bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfinished {
    /// Greeting and READY.
    Handshake {
        /// That came.
        had: usize,
    },
    /// A frame's header.
    Header {
        /// That came.
        had: usize,
    },
    /// A command's body.
    Command {
        /// That came.
        had: usize,
        /// By its header.
        of: usize,
    },
    /// A message's body.
    Message {
        /// That came.
        had: usize,
        /// By its header.
        of: usize,
    },
}

/// One connection: bytes in by [`Peer::feed`], events out, bytes to send by [`Peer::output`].
#[derive(Debug)]
pub struct Peer {
    role: Role,
    message_bytes_max: usize,
    minor_version: u8,
    /// The handshake is done.
    is_ready: bool,
    /// Taken until then.
    handshake_bytes: usize,
    state: State,
    output: Vec<u8>,
}

#[derive(Debug)]
enum State {
    Greeting {
        bytes: [u8; GREETING_BYTES],
        have: usize,
    },
    Header {
        bytes: [u8; HEADER_BYTES_MAX],
        have: usize,
    },
    Command {
        body: Vec<u8>,
        size: usize,
    },
    /// `body` has room for `size` bytes.
    Message {
        body: Vec<u8>,
        size: usize,
    },
    Failed(Error),
}

const BETWEEN_FRAMES: State = State::Header { bytes: [0; HEADER_BYTES_MAX], have: 0 };

impl Peer {
    /// A connection that has just been made. Our greeting is the first output. READY follows on the peer's greeting and not
    /// at once: a libzmq that it does not suit ends the connection before it has said what it is.
    pub fn new(role: Role, message_bytes_max: usize) -> Peer {
        Peer {
            role,
            message_bytes_max,
            minor_version: 0,
            is_ready: false,
            handshake_bytes: 0,
            state: State::Greeting { bytes: [0; GREETING_BYTES], have: 0 },
            output: GREETING.to_vec(),
        }
    }

    /// Takes bytes from the front of `input` until an event or until they are used up: how many were taken, and the event.
    /// Without an event all were. After an error the connection is of no use; the same error comes again.
    pub fn feed(&mut self, input: &[u8]) -> Result<(usize, Option<Event>), Error> {
        let mut used = 0;
        while used < input.len() {
            let (taken, event) = match self.step(&input[used..]) {
                Ok(step) => step,
                Err(error) => {
                    self.state = State::Failed(error.clone());
                    return Err(error);
                }
            };
            used += taken;
            self.handshake_bytes += if self.is_ready { 0 } else { taken };
            if event.is_some() {
                return Ok((used, event));
            }
        }
        Ok((used, None))
    }

    /// The message that is being received, if one is: its missing bytes may be read straight into it.
    pub fn body(&mut self) -> Option<Body<'_>> {
        match &self.state {
            // Only where a read into the spare capacity cannot take bytes of the next frame.
            State::Message { body, size } if body.capacity() == *size && self.role != Role::Pub => {
                Some(Body { peer: self })
            }
            _ => None,
        }
    }

    /// What came of a frame, command or greeting that is not whole. `None`: between two frames.
    pub fn unfinished(&self) -> Option<Unfinished> {
        match &self.state {
            State::Failed(_) => None,
            _ if !self.is_ready => Some(Unfinished::Handshake { had: self.handshake_bytes }),
            State::Greeting { .. } | State::Header { have: 0, .. } => None,
            State::Header { have, .. } => Some(Unfinished::Header { had: *have }),
            State::Command { body, size } => Some(Unfinished::Command { had: body.len(), of: *size }),
            State::Message { body, size } => Some(Unfinished::Message { had: body.len(), of: *size }),
        }
    }

    /// The handshake is done.
    pub fn is_ready(&self) -> bool {
        self.is_ready
    }

    /// Bytes to send: greeting, READY, PONG, ERROR. A PUSH sends them between two frames.
    pub fn output(&self) -> &[u8] {
        &self.output
    }

    /// The first `bytes` of [`Peer::output`] were sent.
    pub fn sent(&mut self, bytes: usize) {
        self.output.drain(..bytes.min(self.output.len()));
    }

    fn step(&mut self, input: &[u8]) -> Result<(usize, Option<Event>), Error> {
        // Nearly always the header is whole, and often the message too.
        if let State::Header { have: 0, .. } = self.state
            && let Some((announced, len)) = frame::parse(input)?
        {
            self.begin(announced)?;
            let (taken, event) = self.fill(&input[len..])?;
            return Ok((len + taken, event));
        }
        match &mut self.state {
            State::Failed(error) => Err(error.clone()),
            State::Greeting { bytes, have } => {
                let taken = copy(bytes, have, input);
                if let Some(minor) = greeting::check(&bytes[..*have])? {
                    self.minor_version = minor;
                    self.state = BETWEEN_FRAMES;
                    self.output.extend_from_slice(&command::ready(self.role.names().0));
                }
                Ok((taken, None))
            }
            State::Header { bytes, have } => {
                // Byte by byte: a header's length is known from its first byte, and nothing past it may be taken.
                bytes[*have] = input[0];
                *have += 1;
                match frame::parse(&bytes[..*have])? {
                    None => Ok((1, None)),
                    Some((announced, _)) => {
                        self.begin(announced)?;
                        Ok((1, self.finish()?))
                    }
                }
            }
            State::Command { .. } | State::Message { .. } => self.fill(input),
        }
    }

    /// Takes what the command or message that is being received still misses.
    fn fill(&mut self, input: &[u8]) -> Result<(usize, Option<Event>), Error> {
        let (State::Command { body, size } | State::Message { body, size }) = &mut self.state else {
            return Ok((0, None));
        };
        let taken = input.len().min(*size - body.len());
        body.extend_from_slice(&input[..taken]);
        Ok((taken, self.finish()?))
    }

    /// A header is whole: checks its bounds, makes room.
    fn begin(&mut self, announced: Announced) -> Result<(), Error> {
        self.state = match announced {
            Announced::Message(_) if !self.is_ready => return Err(Error::EarlyMessage),
            Announced::Message(_) if self.role == Role::Push => return Err(Error::MessageFromPull),
            Announced::Message(bytes) => {
                let limit = self.message_bytes_max;
                let size = usize::try_from(bytes)
                    .ok()
                    .filter(|size| *size <= limit)
                    .ok_or(Error::MessageTooLong { bytes, limit })?;
                let mut body = Vec::new();
                body.try_reserve_exact(size).map_err(|_| Error::NoMemory { bytes: size })?;
                State::Message { body, size }
            }
            Announced::Command(bytes) => {
                let limit = COMMAND_BYTES_MAX;
                let size = usize::try_from(bytes)
                    .ok()
                    .filter(|size| *size <= limit)
                    .ok_or(Error::CommandTooLong { bytes, limit })?;
                State::Command { body: Vec::with_capacity(size), size }
            }
        };
        Ok(())
    }

    /// If the frame that is being received is whole: what it means.
    fn finish(&mut self) -> Result<Option<Event>, Error> {
        match &mut self.state {
            State::Message { body, size } if body.len() == *size => {
                let message = Bytes::from(std::mem::take(body));
                self.state = BETWEEN_FRAMES;
                match self.role {
                    Role::Pub => Ok(subscription(&message)),
                    _ => Ok(Some(Event::Message(message))),
                }
            }
            State::Command { body, size } if body.len() == *size => {
                let body = std::mem::take(body);
                self.state = BETWEEN_FRAMES;
                self.obey(&body)
            }
            _ => Ok(None),
        }
    }

    fn obey(&mut self, body: &[u8]) -> Result<Option<Event>, Error> {
        match command::parse(body)? {
            Command::Error { reason } => Err(Error::Peer(reason)),
            Command::Ready { metadata } if !self.is_ready => {
                let (ours, types, wanted) = self.role.names();
                let (socket_type, identity) = command::parse_metadata(metadata)?;
                if !types.contains(&socket_type.as_str()) {
                    let error = Error::SocketType { theirs: socket_type, ours, wanted };
                    self.output.extend_from_slice(&command::error(&error.to_string()));
                    return Err(error);
                }
                self.is_ready = true;
                let minor_version = self.minor_version;
                Ok(Some(Event::Ready(Handshake { socket_type, identity, minor_version })))
            }
            Command::Ping { .. } if !self.is_ready => Err(Error::NotReady("PING".to_owned())),
            Command::Subscribe { .. } if !self.is_ready => Err(Error::NotReady("SUBSCRIBE".to_owned())),
            Command::Cancel { .. } if !self.is_ready => Err(Error::NotReady("CANCEL".to_owned())),
            Command::Other { name } if !self.is_ready => {
                Err(Error::NotReady(String::from_utf8_lossy(name).into_owned()))
            }
            Command::Ping { context } => {
                let pong = command::pong(context);
                if self.output.len() + pong.len() <= OUTPUT_BYTES_MAX {
                    self.output.extend_from_slice(&pong);
                }
                Ok(Some(Event::Command))
            }
            Command::Subscribe { topic } if self.role == Role::Pub => {
                Ok(Some(Event::Subscribe(Bytes::copy_from_slice(topic))))
            }
            Command::Cancel { topic } if self.role == Role::Pub => {
                Ok(Some(Event::Cancel(Bytes::copy_from_slice(topic))))
            }
            _ => Ok(Some(Event::Command)),
        }
    }
}

/// The buffer of a message that is being received.
#[derive(Debug)]
pub struct Body<'a> {
    peer: &'a mut Peer,
}

impl Body<'_> {
    /// Bytes of the message that have not come.
    pub fn missing(&self) -> usize {
        match &self.peer.state {
            State::Message { body, size } => *size - body.len(),
            _ => 0,
        }
    }

    /// Lets `read` append to the buffer, whose spare capacity is exactly [`Body::missing`]; anything it appends beyond that
    /// is cut off. What `read` returns, and the message, if that was its last byte.
    pub fn fill<T>(self, read: impl FnOnce(&mut Vec<u8>) -> T) -> (T, Option<Bytes>) {
        let State::Message { body, size } = &mut self.peer.state else {
            return (read(&mut Vec::new()), None);
        };
        let had = body.len();
        let result = read(body);
        debug_assert!(body.len() >= had && body.len() <= *size, "read past the message");
        body.truncate(*size);
        if body.len() < *size {
            return (result, None);
        }
        let message = Bytes::from(std::mem::take(body));
        self.peer.state = BETWEEN_FRAMES;
        (result, Some(message))
    }
}

/// A subscription as ZMTP 3.0 has it, a message that begins with 1 or 0. What else an XSUB sends is for an XPUB.
fn subscription(message: &Bytes) -> Option<Event> {
    match message.first()? {
        1 => Some(Event::Subscribe(message.slice(1..))),
        0 => Some(Event::Cancel(message.slice(1..))),
        _ => None,
    }
}

/// Copies from `input` to `bytes` at `have`: how many.
fn copy(bytes: &mut [u8], have: &mut usize, input: &[u8]) -> usize {
    let taken = input.len().min(bytes.len() - *have);
    bytes[*have..*have + taken].copy_from_slice(&input[..taken]);
    *have += taken;
    taken
}

#[cfg(test)]
mod tests;
