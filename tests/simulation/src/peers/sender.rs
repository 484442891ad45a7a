//! A simulated scheduler: a PUSH that sends a load's frames as libzmq does.
//!
//! A frame that the kernel does not have whole when the connection ends is sent again on the next connection.

use crate::zmtp;
use afterbay_sim::frames::{Encoding, Frame, frames};
use afterbay_sim::load::Load;
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The kernel's buffer of a sender. The kernel takes no smaller one.
const SEND_BUFFER_BYTES: usize = 4608;

/// How far a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameState {
    /// The kernel does not have the frame whole.
    Waits,
    /// The kernel has the frame whole, on a connection to this life of the process.
    Sent { life: u64 },
}

/// A simulated scheduler.
pub struct Sender {
    path: PathBuf,
    pub frames: Vec<Frame>,
    pub states: Vec<FrameState>,
    /// The frame to put on the wire next.
    next: usize,
    link: Option<Link>,
    /// A connection that the sender has ended and the stream has not read to its end. The sender does not connect meanwhile:
    /// frames of two connections have no order.
    ending: Option<UnixStream>,
}

struct Link {
    stream: UnixStream,
    /// The peer's bytes until its READY is whole. No message is sent before.
    heard: Vec<u8>,
    is_ready: bool,
    life: u64,
    /// Bytes for the kernel, and the ends of frames in them.
    out: Vec<u8>,
    written: usize,
    ends: Vec<(usize, usize)>,
}

impl Sender {
    pub fn new(path: &Path, load: &Load, encoding: Encoding) -> Sender {
        let frames = frames(load, encoding, Duration::from_millis(10)).unwrap();
        let states = vec![FrameState::Waits; frames.len()];
        Sender { path: path.to_owned(), frames, states, next: 0, link: None, ending: None }
    }

    /// A scheduler whose frames are added one by one.
    pub fn without_frames(path: &Path) -> Sender {
        let (frames, states) = (Vec::new(), Vec::new());
        Sender { path: path.to_owned(), frames, states, next: 0, link: None, ending: None }
    }

    /// Adds a frame behind all others.
    pub fn add(&mut self, frame: Frame) {
        self.frames.push(frame);
        self.states.push(FrameState::Waits);
    }

    /// Forgets the frames that the kernel does not have whole.
    pub fn forget_rest(&mut self) {
        let sent = self.states.iter().position(|state| *state == FrameState::Waits);
        let sent = sent.unwrap_or(self.frames.len());
        self.frames.truncate(sent);
        self.states.truncate(sent);
        self.next = self.next.min(sent);
    }

    /// Connects, unless it is connected. `life` is the process's.
    pub fn connect(&mut self, life: u64) -> bool {
        self.notice_end();
        if self.link.is_some() {
            return true;
        }
        if let Some(ending) = &self.ending {
            if !has_ended(ending, &mut Vec::new()) {
                return false;
            }
            self.ending = None;
        }
        let Ok(stream) = UnixStream::connect(&self.path) else { return false };
        stream.set_nonblocking(true).unwrap();
        rustix::net::sockopt::set_socket_send_buffer_size(&stream, SEND_BUFFER_BYTES).unwrap();
        let out = [zmtp::greeting(), zmtp::ready("PUSH")].concat();
        self.next =
            self.states.iter().position(|state| *state == FrameState::Waits).unwrap_or(self.frames.len());
        self.link = Some(Link {
            stream,
            heard: Vec::new(),
            is_ready: false,
            life,
            out,
            written: 0,
            ends: Vec::new(),
        });
        self.flush(usize::MAX);
        true
    }

    /// Puts up to `frames` frames on the wire. Returns whether the kernel took bytes.
    pub fn send(&mut self, frames: usize, life: u64) -> bool {
        let is_new = self.link.is_none();
        if self.connect(life) {
            self.put(frames);
        }
        self.flush(usize::MAX) || (is_new && self.link.is_some())
    }

    /// Puts up to `frames` frames behind the bytes that wait for the kernel.
    pub fn put(&mut self, frames: usize) {
        self.notice_end();
        let Some(link) = self.link.as_mut().filter(|link| link.is_ready) else { return };
        for _ in 0..frames {
            let Some(frame) = self.frames.get(self.next) else { break };
            link.out.extend(zmtp::message(&frame.bytes));
            link.ends.push((link.out.len(), self.next));
            self.next += 1;
        }
    }

    /// Gives up to `bytes` bytes to the kernel. Returns whether it took any.
    pub fn flush(&mut self, bytes: usize) -> bool {
        let Some(link) = &mut self.link else { return false };
        let before = link.written;
        let limit = link.written.saturating_add(bytes).min(link.out.len());
        while link.written < limit {
            match link.stream.write(&link.out[link.written..limit]) {
                Ok(written) => link.written += written,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => {
                    self.link = None;
                    return false;
                }
            }
        }
        let (written, life) = (link.written, link.life);
        for (_, frame) in link.ends.extract_if(.., |(end, _)| *end <= written) {
            self.states[frame] = FrameState::Sent { life };
        }
        link.written > before
    }

    /// Sends a PING after what waits.
    pub fn ping(&mut self) {
        self.notice_end();
        if let Some(link) = self.link.as_mut().filter(|link| link.is_ready) {
            link.out.extend(zmtp::ping());
        }
        self.flush(usize::MAX);
    }

    /// Sends bytes that are no ZMTP, and closes.
    pub fn send_garbage(&mut self) {
        let Some(link) = &mut self.link else { return };
        if link.written == link.out.len() {
            let _ = link.stream.write(&[0xff; 40]);
        }
        self.close();
    }

    /// Ends the connection, in the middle of a frame if one is on its way.
    pub fn close(&mut self) {
        let Some(link) = self.link.take() else { return };
        let _ = link.stream.shutdown(Shutdown::Write);
        self.ending = Some(link.stream);
    }

    /// Whether every frame is with the kernel.
    pub fn is_done(&self) -> bool {
        self.states.iter().all(|state| *state != FrameState::Waits)
    }

    /// Reads, and notices that the other side has ended its direction, as libzmq does.
    pub fn notice_end(&mut self) {
        self.link.take_if(|link| has_ended(&link.stream, &mut link.heard));
        if let Some(link) = self.link.as_mut().filter(|link| !link.is_ready) {
            link.is_ready =
                link.heard.get(zmtp::GREETING_BYTES..).is_some_and(|rest| zmtp::take(rest).is_some());
        }
    }
}

/// Reads. Returns whether the other side has ended its direction.
fn has_ended(mut stream: &UnixStream, heard: &mut Vec<u8>) -> bool {
    let mut buffer = [0; 256];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return true,
            Ok(bytes) => heard.extend_from_slice(&buffer[..bytes]),
            Err(error) => return error.kind() != ErrorKind::WouldBlock,
        }
    }
}
