//! Messages and descriptors over a connected Unix socket.
//!
//! Every read asks for descriptors too. The kernel ends a read after the bytes that carry descriptors, so the descriptors of a
//! message have arrived when its last byte has.

use crate::hand_over::bounds::{ENTRY_DESCRIPTORS_MAX, GROUP_MAX, MESSAGE_BYTES_MAX, NAME_BYTES_MAX};
use crate::hand_over::error::ChannelError;
use crate::hand_over::message::{Entry, Group, Message};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Bytes of a message's length.
const LENGTH_BYTES: usize = 4;
/// Bytes of one read: a message's claimed length reserves no memory.
const READ_BYTES: usize = 1 << 20;
/// Pause while the kernel has too many descriptors of this user under way.
const UNDER_WAY_PAUSE: Duration = Duration::from_millis(1);

/// Named descriptors that are lent for a message.
pub(crate) type Lent<'f> = (&'f str, Vec<BorrowedFd<'f>>);

/// One end of the connection.
#[derive(Debug)]
pub(crate) struct Channel {
    socket: UnixStream,
    /// Descriptors that arrived and belong to the message that is being read.
    arrived: Vec<OwnedFd>,
}

impl Channel {
    pub fn new(socket: UnixStream) -> Channel {
        Channel { socket, arrived: Vec::new() }
    }

    /// Sends a message, at the latest at the deadline.
    pub fn send(&self, message: &Message, deadline: Instant) -> Result<(), ChannelError> {
        self.send_bytes(&encode(message)?, &[], deadline)
    }

    /// Sends entries of descriptors in groups of at most [`GROUP_MAX`].
    pub fn send_descriptors(&self, entries: &[Lent<'_>], deadline: Instant) -> Result<(), ChannelError> {
        for group in groups(entries)? {
            let named = group.iter().map(|(name, fds)| Entry { name: (*name).to_owned(), count: fds.len() });
            let message = encode(&Message::Descriptors(Group { entries: named.collect() }))?;
            let fds: Vec<BorrowedFd<'_>> = group.iter().flat_map(|(_, fds)| fds.iter().copied()).collect();
            self.send_bytes(&message, &fds, deadline)?;
        }
        Ok(())
    }

    /// Receives a message of at most `limit` bytes, and its descriptors.
    pub fn receive(
        &mut self,
        limit: usize,
        deadline: Instant,
    ) -> Result<(Message, Vec<OwnedFd>), ChannelError> {
        let (message, fds, _) = self.receive_counted(limit, deadline)?;
        Ok((message, fds))
    }

    /// As [`Channel::receive`], for a message without descriptors. Returns the bytes of its JSON, too.
    pub fn receive_part(
        &mut self,
        limit: usize,
        deadline: Instant,
    ) -> Result<(Message, usize), ChannelError> {
        let (message, _, bytes) = self.receive_counted(limit, deadline)?;
        Ok((message, bytes))
    }

    fn receive_counted(
        &mut self,
        limit: usize,
        deadline: Instant,
    ) -> Result<(Message, Vec<OwnedFd>, usize), ChannelError> {
        self.arrived.clear();
        let head = self.read(LENGTH_BYTES, deadline)?;
        let bytes = head.iter().rev().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
        if bytes > limit {
            return Err(ChannelError::TooLarge { bytes, limit });
        }
        let json = self.read(bytes, deadline)?;
        let message: Message = serde_json::from_slice(&json).map_err(ChannelError::Garbage)?;
        let named = match &message {
            Message::Descriptors(Group { entries }) => count(entries)?,
            _ => 0,
        };
        let fds = std::mem::take(&mut self.arrived);
        match fds.len() == named {
            true => Ok((message, fds, bytes)),
            false => Err(ChannelError::Descriptors { named, carried: fds.len() }),
        }
    }

    /// Receives a message that carries no descriptors.
    pub fn receive_plain(&mut self, deadline: Instant) -> Result<Message, ChannelError> {
        Ok(self.receive(MESSAGE_BYTES_MAX, deadline)?.0)
    }

    fn send_bytes(
        &self,
        mut bytes: &[u8],
        mut fds: &[BorrowedFd<'_>],
        deadline: Instant,
    ) -> Result<(), ChannelError> {
        while !bytes.is_empty() {
            self.socket.set_write_timeout(Some(left(deadline)?))?;
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(GROUP_MAX))];
            let mut rights = SendAncillaryBuffer::new(&mut space);
            if !fds.is_empty() && !rights.push(SendAncillaryMessage::ScmRights(fds)) {
                return Err(ChannelError::Descriptors { named: fds.len(), carried: fds.len() });
            }
            match sendmsg(&self.socket, &[IoSlice::new(bytes)], &mut rights, SendFlags::NOSIGNAL) {
                Ok(sent) => (bytes, fds) = (&bytes[sent..], &[]),
                Err(Errno::INTR) => {}
                // The other process takes the descriptors that are under way, and makes room.
                Err(Errno::TOOMANYREFS) => std::thread::sleep(UNDER_WAY_PAUSE),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn read(&mut self, bytes: usize, deadline: Instant) -> Result<Vec<u8>, ChannelError> {
        let mut read = Vec::new();
        while read.len() < bytes {
            self.socket.set_read_timeout(Some(left(deadline)?))?;
            let at = read.len();
            read.resize(bytes.min(at + READ_BYTES), 0);
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(GROUP_MAX))];
            let mut rights = RecvAncillaryBuffer::new(&mut space);
            let buffer = &mut [IoSliceMut::new(&mut read[at..])];
            let received = match recvmsg(&self.socket, buffer, &mut rights, RecvFlags::CMSG_CLOEXEC) {
                Err(Errno::INTR) => {
                    read.truncate(at);
                    continue;
                }
                received => received?,
            };
            read.truncate(at + received.bytes);
            for message in rights.drain() {
                if let RecvAncillaryMessage::ScmRights(fds) = message {
                    self.arrived.extend(fds);
                }
            }
            if received.flags.contains(ReturnFlags::CTRUNC) {
                return Err(ChannelError::NoRoom);
            }
            if received.bytes == 0 {
                return Err(ChannelError::Closed);
            }
            if self.arrived.len() > GROUP_MAX {
                return Err(ChannelError::Descriptors { named: 0, carried: self.arrived.len() });
            }
        }
        Ok(read)
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The bytes of a message.
fn encode(message: &Message) -> Result<Vec<u8>, ChannelError> {
    let mut bytes = vec![0; LENGTH_BYTES];
    serde_json::to_writer(&mut bytes, message).map_err(ChannelError::Garbage)?;
    let limit = match message {
        Message::Part(_) => crate::hand_over::bounds::PART_BYTES_MAX,
        _ => MESSAGE_BYTES_MAX,
    };
    let json = bytes.len() - LENGTH_BYTES;
    match u32::try_from(json) {
        Ok(length) if json <= limit => bytes[..LENGTH_BYTES].copy_from_slice(&length.to_le_bytes()),
        _ => return Err(ChannelError::TooLarge { bytes: json, limit }),
    }
    Ok(bytes)
}

/// Splits entries into groups. An entry stays whole.
fn groups<'e, 'f>(entries: &'e [Lent<'f>]) -> Result<Vec<&'e [Lent<'f>]>, ChannelError> {
    let (mut groups, mut first, mut fds) = (Vec::new(), 0, 0);
    for (at, (name, of_entry)) in entries.iter().enumerate() {
        check_entry(name.len(), of_entry.len())?;
        if fds + of_entry.len() > GROUP_MAX {
            groups.push(&entries[first..at]);
            (first, fds) = (at, 0);
        }
        fds += of_entry.len();
    }
    if first < entries.len() {
        groups.push(&entries[first..]);
    }
    Ok(groups)
}

/// The descriptors that the entries name.
fn count(entries: &[Entry]) -> Result<usize, ChannelError> {
    let mut named = 0;
    for entry in entries {
        check_entry(entry.name.len(), entry.count)?;
        named += entry.count;
    }
    Ok(named)
}

fn check_entry(name_bytes: usize, fds: usize) -> Result<(), ChannelError> {
    if !(1..=NAME_BYTES_MAX).contains(&name_bytes) {
        return Err(ChannelError::Name { bytes: name_bytes });
    }
    match fds {
        1..=ENTRY_DESCRIPTORS_MAX => Ok(()),
        count => {
            let what = "descriptors in one entry (and at least 1)";
            Err(ChannelError::TooMany { what, count, limit: ENTRY_DESCRIPTORS_MAX })
        }
    }
}

/// The time that is left. The system takes no timeout of 0.
fn left(deadline: Instant) -> Result<Duration, ChannelError> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(ChannelError::Late) } else { Ok(left.max(Duration::from_millis(1))) }
}
