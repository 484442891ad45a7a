//! The supervisor's side of the protocol: the socket that receives messages, and the store of descriptors.
//!
//! `afterbay run --keep` is made of it. It does what systemd does: a descriptor that is already stored is not stored again,
//! and a removal takes all descriptors of a name.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};

use crate::fdstore::name::MEMBERS_MAX;
use crate::fdstore::supervisor::NAMES_BYTES_MAX;

/// The longest message, in bytes, as in systemd. A longer one is ignored.
pub const MESSAGE_BYTES_MAX: usize = 4096;

/// The socket of `NOTIFY_SOCKET`. Whoever may write to its path may send, so the path must be in a private directory.
#[derive(Debug)]
pub struct NotifySocket {
    socket: UnixDatagram,
    path: PathBuf,
}

/// One message of the supervised process.
#[derive(Debug, Default)]
pub struct Message {
    words: Vec<(String, String)>,
    pub(crate) fds: Vec<OwnedFd>,
    /// The connection has ended.
    pub(crate) is_end: bool,
    /// This process had no room for a descriptor of the message.
    pub(crate) lacks_fds: bool,
}

impl NotifySocket {
    /// Binds a socket that does not block.
    pub fn bind(path: PathBuf) -> io::Result<NotifySocket> {
        let socket = UnixDatagram::bind(&path)?;
        socket.set_nonblocking(true)?;
        Ok(NotifySocket { socket, path })
    }

    /// The path for `NOTIFY_SOCKET`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Receives the next message that waits. Skips messages that are too long or no text.
    pub fn receive(&self) -> io::Result<Option<Message>> {
        loop {
            match Message::receive(self.socket.as_fd(), RecvFlags::DONTWAIT) {
                Ok(None) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(None),
                received => return Ok(received?),
            }
        }
    }
}

impl AsFd for NotifySocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Message {
    /// Receives one message. `None`: it is too long or no text. At the end of a connection it is empty.
    pub(crate) fn receive(socket: BorrowedFd<'_>, flags: RecvFlags) -> Result<Option<Message>, Errno> {
        let mut text = [0; MESSAGE_BYTES_MAX + 1];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MEMBERS_MAX))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = flags | RecvFlags::CMSG_CLOEXEC;
        let received = recvmsg(socket, &mut [IoSliceMut::new(&mut text)], &mut ancillary, flags)?;
        let rights = ancillary.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds),
            _ => None,
        });
        let fds = rights.flatten().collect();
        let text = text.get(..received.bytes).filter(|text| text.len() <= MESSAGE_BYTES_MAX);
        let text = text.and_then(|text| std::str::from_utf8(text).ok());
        Ok(text.map(|text| Message {
            is_end: received.bytes == 0,
            lacks_fds: received.flags.contains(ReturnFlags::CTRUNC),
            ..Message::new(text, fds)
        }))
    }

    fn new(text: &str, fds: Vec<OwnedFd>) -> Message {
        let words = text.lines().filter_map(|line| line.split_once('='));
        let words = words.map(|(word, value)| (word.to_owned(), value.to_owned())).collect();
        Message { words, fds, ..Message::default() }
    }

    /// The value of a word; of the last one, if the word is there twice.
    pub fn value(&self, word: &str) -> Option<&str> {
        self.words.iter().rfind(|(known, _)| known == word).map(|(_, value)| value.as_str())
    }

    /// Whether the message says `WORD=1`.
    pub fn says(&self, word: &str) -> bool {
        self.value(word) == Some("1")
    }

    /// The lines that a further supervisor should get: all but those about descriptors and process ids.
    pub fn to_relay(&self) -> String {
        const OURS: [&str; 6] = ["FDSTORE", "FDSTOREREMOVE", "FDNAME", "FDPOLL", "MAINPID", "BARRIER"];
        let lines = self.words.iter().filter(|(word, _)| !OURS.contains(&word.as_str()));
        lines.map(|(word, value)| format!("{word}={value}")).collect::<Vec<_>>().join("\n")
    }
}

/// The stored descriptors of one supervised process, in the order in which they came.
#[derive(Debug)]
pub struct StoredFds {
    entries: Vec<Stored>,
    max: usize,
}

#[derive(Debug)]
struct Stored {
    name: String,
    fd: OwnedFd,
    /// Device and inode.
    identity: (u64, u64),
}

impl StoredFds {
    /// A store of up to `max` descriptors. Their names together have at most 100 KiB, since the kernel bounds a variable of
    /// the environment to 128 KiB.
    pub fn new(max: usize) -> StoredFds {
        StoredFds { entries: Vec::new(), max }
    }

    /// Stores or removes the descriptors of a message. Returns how many found no room.
    pub fn apply(&mut self, message: &mut Message) -> usize {
        let name = message.value("FDNAME").unwrap_or("stored").to_owned();
        if message.says("FDSTOREREMOVE") {
            self.entries.retain(|stored| stored.name != name);
        }
        let fds = std::mem::take(&mut message.fds);
        if !message.says("FDSTORE") {
            return 0;
        }
        fds.into_iter().filter(|_| is_name(&name)).map(|fd| usize::from(!self.store(&name, fd))).sum()
    }

    /// Returns false if there is no room.
    fn store(&mut self, name: &str, fd: OwnedFd) -> bool {
        let Ok(stat) = rustix::fs::fstat(&fd) else { return false };
        let identity = (stat.st_dev, stat.st_ino);
        if self.entries.iter().any(|stored| stored.identity == identity) {
            return true;
        }
        let bytes: usize = self.entries.iter().map(|stored| stored.name.len() + 1).sum();
        if self.entries.len() >= self.max || bytes + name.len() > NAMES_BYTES_MAX {
            return false;
        }
        self.entries.push(Stored { name: name.to_owned(), fd, identity });
        true
    }

    /// The number of stored descriptors.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether nothing is stored.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Duplicates of the descriptors, and their names for `LISTEN_FDNAMES`.
    pub fn to_pass(&self) -> io::Result<(Vec<OwnedFd>, String)> {
        let fds = self.entries.iter().map(|stored| stored.fd.try_clone()).collect::<io::Result<_>>()?;
        let names: Vec<&str> = self.entries.iter().map(|stored| stored.name.as_str()).collect();
        Ok((fds, names.join(":")))
    }
}

/// Whether systemd would take this name.
fn is_name(name: &str) -> bool {
    (1..=255).contains(&name.len()) && name.bytes().all(|byte| (b' '..=b'~').contains(&byte) && byte != b':')
}
