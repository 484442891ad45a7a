//! A peer made by hand: a std socket and ZMTP's bytes.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use afterbay_sockets::Endpoint;
use afterbay_sockets::zmtp::{Conversation, Role, ZmtpEvent, on_wire};
use bytes::Bytes;

pub trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

pub struct Raw {
    pub stream: Box<dyn Stream>,
    pub zmtp: Conversation,
}

pub fn dial(endpoint: &Endpoint) -> Box<dyn Stream> {
    match endpoint {
        Endpoint::Ipc(path) => {
            let stream = UnixStream::connect(path).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            Box::new(stream)
        }
        Endpoint::Tcp { host, port } => {
            let stream = TcpStream::connect((host.as_str(), *port)).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            Box::new(stream)
        }
    }
}

/// Greeting and READY of a socket of this type.
pub fn hello(role: Role) -> Vec<u8> {
    let mut peer = Conversation::new(role, 0);
    let greeting = peer.output().to_vec();
    peer.feed(&greeting).unwrap();
    peer.output().to_vec()
}

/// The bytes on the wire of a frame's message.
pub fn message(frame: &[u8]) -> Vec<u8> {
    let frame = Bytes::copy_from_slice(frame);
    let (header, rest) = on_wire(&frame);
    [header.as_bytes(), &rest].concat()
}

impl Raw {
    /// A PUSH that has sent its handshake and has read nothing.
    pub fn push(endpoint: &Endpoint) -> Raw {
        let mut raw = Raw { stream: dial(endpoint), zmtp: Conversation::new(Role::Push, 0) };
        raw.write(&hello(Role::Push));
        raw
    }

    pub fn write(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    pub fn send(&mut self, frame: &[u8]) {
        self.write(&message(frame));
    }

    /// Reads until `count` messages have arrived (and the handshake, if it is not complete).
    pub fn receive(&mut self, count: usize) -> Vec<Bytes> {
        let mut messages = Vec::new();
        let mut buffer = vec![0; 64 << 10];
        while messages.len() < count || !self.zmtp.is_ready() {
            let read = self.stream.read(&mut buffer).unwrap();
            assert!(read > 0, "ended after {} messages", messages.len());
            let mut input = &buffer[..read];
            while !input.is_empty() {
                let (used, event) = self.zmtp.feed(input).unwrap();
                input = &input[used..];
                if let Some(ZmtpEvent::Message(bytes)) = event {
                    messages.push(bytes);
                }
            }
            // The handshake was sent already.
            self.zmtp.sent(self.zmtp.output().len());
        }
        messages
    }
}
