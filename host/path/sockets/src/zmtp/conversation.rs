//! The state of one ZMTP connection, from the first byte to the last.

use afterbay_types::parts;
use bytes::Bytes;

use crate::zmtp::command::{self, COMMAND_BYTES_MAX, Command};
use crate::zmtp::error::ZmtpError;
use crate::zmtp::frame::{self, FrameStart, HEADER_BYTES_MAX};
use crate::zmtp::greeting::{self, GREETING, GREETING_BYTES};

/// The most bytes in [`Conversation::output`]. A PONG past it is dropped: a peer that does not read its PONGs does not need
/// them.
pub const OUTPUT_BYTES_MAX: usize = 1 << 10;

/// Our socket type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// We receive. The peer must be a PUSH.
    Pull,
    /// We send. The peer must be a PULL.
    Push,
    /// We send to one peer and receive from it. The peer must be a DEALER.
    Router,
}

impl Role {
    /// Our socket type, the accepted types of the peer, and these as text.
    fn names(self) -> (&'static str, &'static [&'static str], &'static str) {
        match self {
            Role::Pull => ("PULL", &["PUSH"], "PUSH"),
            Role::Push => ("PUSH", &["PULL"], "PULL"),
            Role::Router => ("ROUTER", &["DEALER"], "DEALER"),
        }
    }
}

/// The peer's data from the handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handshake {
    /// PUSH, PULL or DEALER.
    pub socket_type: String,
    /// The peer's identity, usually empty.
    pub identity: Vec<u8>,
    /// The minor ZMTP version: 0 or 1.
    pub minor_version: u8,
}

/// An event that the received bytes caused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ZmtpEvent {
    /// The handshake is complete: messages may be sent.
    Ready(Handshake),
    /// A whole message, in an allocation of its own. Several parts are one frame (`afterbay_types::parts`).
    Message(Bytes),
    /// A command that the connection has handled itself, such as PING. Callers count these events.
    Command,
}

/// The part that the received bytes left incomplete, in bytes. It explains a connection that ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnfinishedPart {
    /// The greeting or READY.
    Handshake {
        /// Bytes received.
        had: usize,
    },
    /// A frame's header.
    Header {
        /// Bytes received.
        had: usize,
    },
    /// A command's body.
    Command {
        /// Bytes received.
        had: usize,
        /// Its size.
        of: usize,
    },
    /// A message's body, or a part's.
    Message {
        /// Bytes received.
        had: usize,
        /// Its size.
        of: usize,
    },
    /// A message of several parts, at the end of a part that is not the last.
    Parts {
        /// Parts received.
        had: usize,
    },
}

/// One connection: [`Conversation::feed`] takes received bytes and returns events; [`Conversation::output`] has the bytes to send.
#[derive(Debug)]
pub struct Conversation {
    role: Role,
    message_bytes_max: usize,
    minor_version: u8,
    /// Whether the handshake is complete.
    is_ready: bool,
    /// Bytes received during the handshake.
    handshake_bytes: usize,
    state: ConversationState,
    /// The parts of the present message before the one that is being received.
    parts: Vec<Bytes>,
    /// Bytes of all frames since the present message's first part began, each with the longest header. A command between two
    /// parts counts, too, so that a later process finds all of them in the receive buffer. 0: between two messages.
    message_bytes: u64,
    output: Vec<u8>,
}

#[derive(Debug)]
enum ConversationState {
    Greeting { bytes: [u8; GREETING_BYTES], have: usize },
    Header { bytes: [u8; HEADER_BYTES_MAX], have: usize },
    Command { body: Vec<u8>, size: usize },
    Message { body: Vec<u8>, size: usize, is_last: bool },
    Failed(ZmtpError),
}

const BETWEEN_FRAMES: ConversationState = ConversationState::Header { bytes: [0; HEADER_BYTES_MAX], have: 0 };

impl Conversation {
    /// Starts a connection. Our greeting is its first output. READY follows the peer's greeting: if we sent READY at
    /// once, a libzmq of a wrong socket type would close before it has said its type.
    pub fn new(role: Role, message_bytes_max: usize) -> Conversation {
        Conversation {
            role,
            message_bytes_max,
            minor_version: 0,
            is_ready: false,
            handshake_bytes: 0,
            state: ConversationState::Greeting { bytes: [0; GREETING_BYTES], have: 0 },
            parts: Vec::new(),
            message_bytes: 0,
            output: GREETING.to_vec(),
        }
    }

    /// Continues a connection whose earlier part another process had, at the end of a message or command that the peer sent, or
    /// of its greeting. We have sent our greeting and READY. `is_ready`: the peer's READY was received, too.
    pub fn resumed(role: Role, message_bytes_max: usize, is_ready: bool) -> Conversation {
        let new = Conversation::new(role, message_bytes_max);
        Conversation { is_ready, state: BETWEEN_FRAMES, output: Vec::new(), ..new }
    }

    /// Takes bytes from the front of `input` until there is an event or no byte is left. Returns how many bytes it
    /// took, and the event. After an error every call returns the same error.
    pub fn feed(&mut self, input: &[u8]) -> Result<(usize, Option<ZmtpEvent>), ZmtpError> {
        let mut used = 0;
        while used < input.len() {
            let (taken, event) = match self.step(&input[used..]) {
                Ok(step) => step,
                Err(error) => {
                    self.state = ConversationState::Failed(error.clone());
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

    /// The incomplete message, command or greeting. `None`: the last byte ended a message, or a command between two messages.
    pub fn unfinished(&self) -> Option<UnfinishedPart> {
        match &self.state {
            ConversationState::Failed(_) => None,
            _ if !self.is_ready => Some(UnfinishedPart::Handshake { had: self.handshake_bytes }),
            ConversationState::Header { have: 0, .. } if !self.parts.is_empty() => {
                Some(UnfinishedPart::Parts { had: self.parts.len() })
            }
            ConversationState::Greeting { .. } | ConversationState::Header { have: 0, .. } => None,
            ConversationState::Header { have, .. } => Some(UnfinishedPart::Header { had: *have }),
            ConversationState::Command { body, size } => {
                Some(UnfinishedPart::Command { had: body.len(), of: *size })
            }
            ConversationState::Message { body, size, .. } => {
                Some(UnfinishedPart::Message { had: body.len(), of: *size })
            }
        }
    }

    /// Whether the peer's greeting was received. READY is then a part of the output.
    pub fn has_greeting(&self) -> bool {
        !matches!(self.state, ConversationState::Greeting { .. } | ConversationState::Failed(_))
    }

    /// Whether the handshake is complete.
    pub fn is_ready(&self) -> bool {
        self.is_ready
    }

    /// The bytes to send: greeting, READY, PONG, ERROR. A PUSH sends them between two frames.
    pub fn output(&self) -> &[u8] {
        &self.output
    }

    /// Removes the first `bytes` of [`Conversation::output`], which were sent.
    pub fn sent(&mut self, bytes: usize) {
        self.output.drain(..bytes.min(self.output.len()));
    }

    fn step(&mut self, input: &[u8]) -> Result<(usize, Option<ZmtpEvent>), ZmtpError> {
        // The fast path: the header is usually whole, and often the message too.
        if let ConversationState::Header { have: 0, .. } = self.state
            && let Some((start, len)) = frame::parse(input)?
        {
            self.begin(start)?;
            let (taken, event) = self.fill(&input[len..])?;
            return Ok((len + taken, event));
        }
        match &mut self.state {
            ConversationState::Failed(error) => Err(error.clone()),
            ConversationState::Greeting { bytes, have } => {
                let taken = copy(bytes, have, input);
                if let Some(minor) = greeting::check(&bytes[..*have])? {
                    self.minor_version = minor;
                    self.state = BETWEEN_FRAMES;
                    self.output.extend_from_slice(&command::ready(self.role.names().0));
                }
                Ok((taken, None))
            }
            ConversationState::Header { bytes, have } => {
                // One byte at a time: the first byte gives the header's length, and no byte past the header may be
                // taken.
                bytes[*have] = input[0];
                *have += 1;
                match frame::parse(&bytes[..*have])? {
                    None => Ok((1, None)),
                    Some((start, _)) => {
                        self.begin(start)?;
                        Ok((1, self.finish()?))
                    }
                }
            }
            ConversationState::Command { .. } | ConversationState::Message { .. } => self.fill(input),
        }
    }

    /// Takes the missing bytes of the command or message that is being received.
    fn fill(&mut self, input: &[u8]) -> Result<(usize, Option<ZmtpEvent>), ZmtpError> {
        let (ConversationState::Command { body, size } | ConversationState::Message { body, size, .. }) =
            &mut self.state
        else {
            return Ok((0, None));
        };
        let taken = input.len().min(*size - body.len());
        body.extend_from_slice(&input[..taken]);
        Ok((taken, self.finish()?))
    }

    /// Handles a whole header: checks the limits and allocates the body.
    fn begin(&mut self, start: FrameStart) -> Result<(), ZmtpError> {
        self.state = match start {
            FrameStart::Message { .. } if !self.is_ready => return Err(ZmtpError::EarlyMessage),
            FrameStart::Message { .. } if self.role == Role::Push => return Err(ZmtpError::MessageFromPull),
            FrameStart::Message { bytes, is_last } => {
                let is_only_part = is_last && self.message_bytes == 0;
                if !is_only_part {
                    self.count(bytes)?;
                }
                let limit = self.message_bytes_max;
                let size = usize::try_from(bytes)
                    .ok()
                    .filter(|size| *size <= limit)
                    .ok_or(ZmtpError::MessageTooLong { bytes, limit })?;
                if self.parts.len() == parts::PARTS_MAX {
                    return Err(ZmtpError::TooManyParts { limit: parts::PARTS_MAX });
                }
                let mut body = Vec::new();
                body.try_reserve_exact(size).map_err(|_| ZmtpError::NoMemory { bytes: size })?;
                ConversationState::Message { body, size, is_last }
            }
            FrameStart::Command(bytes) => {
                let limit = COMMAND_BYTES_MAX;
                let size = usize::try_from(bytes)
                    .ok()
                    .filter(|size| *size <= limit)
                    .ok_or(ZmtpError::CommandTooLong { bytes, limit })?;
                if self.message_bytes > 0 {
                    self.count(bytes)?;
                }
                ConversationState::Command { body: Vec::with_capacity(size), size }
            }
        };
        Ok(())
    }

    /// Counts a frame of the present message of several parts. All of them together have the limit of one message.
    fn count(&mut self, bytes: u64) -> Result<(), ZmtpError> {
        let limit = self.message_bytes_max;
        self.message_bytes = self.message_bytes.saturating_add(bytes).saturating_add(HEADER_BYTES_MAX as u64);
        match self.message_bytes {
            bytes if bytes > limit as u64 => Err(ZmtpError::MessageTooLong { bytes, limit }),
            _ => Ok(()),
        }
    }

    /// Handles the body, once it is whole.
    fn finish(&mut self) -> Result<Option<ZmtpEvent>, ZmtpError> {
        match &mut self.state {
            ConversationState::Message { body, size, is_last } if body.len() == *size => {
                let (part, is_last) = (Bytes::from(std::mem::take(body)), *is_last);
                self.state = BETWEEN_FRAMES;
                if !is_last {
                    self.parts.push(part);
                    return Ok(None);
                }
                let message = if self.parts.is_empty() && !parts::is_envelope(&part) {
                    part
                } else {
                    self.message_bytes = 0;
                    self.parts.push(part);
                    parts::join(&std::mem::take(&mut self.parts))
                };
                Ok(Some(ZmtpEvent::Message(message)))
            }
            ConversationState::Command { body, size } if body.len() == *size => {
                let body = std::mem::take(body);
                self.state = BETWEEN_FRAMES;
                self.obey(&body)
            }
            _ => Ok(None),
        }
    }

    fn obey(&mut self, body: &[u8]) -> Result<Option<ZmtpEvent>, ZmtpError> {
        match command::parse(body)? {
            Command::Error { reason } => Err(ZmtpError::Peer(reason)),
            Command::Ready { metadata } if !self.is_ready => {
                let (ours, types, wanted) = self.role.names();
                let (socket_type, identity) = command::parse_metadata(metadata)?;
                if !types.contains(&socket_type.as_str()) {
                    let error = ZmtpError::SocketType { theirs: socket_type, ours, wanted };
                    self.output.extend_from_slice(&command::error(&error.to_string()));
                    return Err(error);
                }
                self.is_ready = true;
                let minor_version = self.minor_version;
                Ok(Some(ZmtpEvent::Ready(Handshake { socket_type, identity, minor_version })))
            }
            Command::Ping { .. } if !self.is_ready => Err(ZmtpError::NotReady("PING".to_owned())),
            Command::Other { name } if !self.is_ready => {
                Err(ZmtpError::NotReady(String::from_utf8_lossy(name).into_owned()))
            }
            Command::Ping { context } => {
                let pong = command::pong(context);
                if self.output.len() + pong.len() <= OUTPUT_BYTES_MAX {
                    self.output.extend_from_slice(&pong);
                }
                Ok(Some(ZmtpEvent::Command))
            }
            _ => Ok(Some(ZmtpEvent::Command)),
        }
    }
}

/// Copies from `input` to `bytes` at `have`, and returns how many bytes it copied.
fn copy(bytes: &mut [u8], have: &mut usize, input: &[u8]) -> usize {
    let taken = input.len().min(bytes.len() - *have);
    bytes[*have..*have + taken].copy_from_slice(&input[..taken]);
    *have += taken;
    taken
}

#[cfg(test)]
mod tests;
