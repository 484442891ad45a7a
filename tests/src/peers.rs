//! Blocking sockets of a scheduler and of a reader, with an own small ZMTP implementation. The test controls each byte.

use std::collections::VecDeque;
use std::io::{self, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use afterbay_types::parts;
use bytes::Bytes;

use crate::{PATIENCE, wait_for};

/// The first bytes of a socket of this type: the ZMTP 3.1 greeting with NULL, then READY.
pub fn hello(socket_type: &str) -> Vec<u8> {
    let mut bytes = vec![0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 1];
    bytes.extend_from_slice(b"NULL");
    bytes.resize(64, 0);
    let mut ready = b"\x05READY\x0bSocket-Type".to_vec();
    ready.extend_from_slice(&(socket_type.len() as u32).to_be_bytes());
    ready.extend_from_slice(socket_type.as_bytes());
    bytes.extend_from_slice(&[4, ready.len() as u8]);
    bytes.extend(ready);
    bytes
}

/// A frame as the bytes on the wire, in one part or several.
pub fn framed(frame: &[u8]) -> Vec<u8> {
    let parts = parts::split(&Bytes::copy_from_slice(frame)).unwrap();
    let part = |(number, part): (usize, &Bytes)| {
        let more = u8::from(number < parts.len());
        let mut bytes = match u8::try_from(part.len()) {
            Ok(length) => vec![more, length],
            Err(_) => [&[2 | more][..], &(part.len() as u64).to_be_bytes()].concat(),
        };
        bytes.extend_from_slice(part);
        bytes
    };
    (1..).zip(&parts).flat_map(part).collect()
}

/// A connection over either transport.
enum Socket {
    Ipc(UnixStream),
    Tcp(TcpStream),
}

impl Socket {
    fn connect(endpoint: &str) -> io::Result<Socket> {
        match endpoint.split_once("://") {
            Some(("ipc", path)) => Ok(Socket::Ipc(UnixStream::connect(path)?)),
            Some(("tcp", address)) => Ok(Socket::Tcp(TcpStream::connect(address)?)),
            _ => panic!("no endpoint: {endpoint}"),
        }
    }

    fn read_timeout(&self, timeout: Duration) {
        let timeout = Some(timeout.max(Duration::from_millis(1)));
        match self {
            Socket::Ipc(socket) => socket.set_read_timeout(timeout),
            Socket::Tcp(socket) => socket.set_read_timeout(timeout),
        }
        .unwrap();
    }

    fn write_timeout(&self, timeout: Duration) {
        match self {
            Socket::Ipc(socket) => socket.set_write_timeout(Some(timeout)),
            Socket::Tcp(socket) => socket.set_write_timeout(Some(timeout)),
        }
        .unwrap();
    }
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Ipc(socket) => socket.read(buffer),
            Socket::Tcp(socket) => socket.read(buffer),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Ipc(socket) => socket.write(bytes),
            Socket::Tcp(socket) => socket.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A scheduler's input socket, which connects: a PULL, or vLLM's DEALER. Afterbay sends aborts to it.
pub struct Input(Connection);

impl Input {
    /// Connects a PULL and shakes hands.
    #[track_caller]
    pub fn connect(endpoint: &str) -> Input {
        Input::shake_hands(endpoint, "PULL", "PUSH")
    }

    /// Connects a DEALER, shakes hands, and says that the engine is ready.
    #[track_caller]
    pub fn connect_engine(endpoint: &str) -> Input {
        let mut engine = Input::shake_hands(endpoint, "DEALER", "ROUTER");
        engine.0.0.get_mut().write_all(&framed(b"\x81\xacvllm_version\xa60.32.0")).unwrap();
        engine
    }

    #[track_caller]
    fn shake_hands(endpoint: &str, ours: &str, wanted: &str) -> Input {
        let mut socket = wait_for(&format!("a listener is on {endpoint}"), || Socket::connect(endpoint).ok());
        socket.write_timeout(PATIENCE);
        socket.write_all(&hello(ours)).unwrap();
        socket.read_timeout(PATIENCE);
        let mut theirs = vec![0; hello(wanted).len()];
        socket.read_exact(&mut theirs).unwrap();
        assert!(theirs.ends_with(wanted.as_bytes()), "the listener says {theirs:02x?}");
        Input(Connection(BufReader::new(socket)))
    }

    /// Receives the next message.
    #[track_caller]
    pub fn message(&mut self) -> Vec<u8> {
        self.next_within(PATIENCE).expect("no message")
    }

    /// Receives the next message if it begins within `time`.
    pub fn next_within(&mut self, time: Duration) -> Option<Vec<u8>> {
        let end = Instant::now() + time;
        loop {
            match self.0.next(end).unwrap() {
                None if Instant::now() < end => {}
                message => return message,
            }
        }
    }

    /// Receives an abort of one request and returns its rid.
    #[track_caller]
    pub fn abort(&mut self) -> String {
        let (rid, all) = afterbay_wire::read_abort(&self.message().into()).unwrap();
        assert!(!all);
        rid
    }
}

/// A scheduler's PUSH socket, which connects. Dropping it closes the connection.
pub struct Sender(Socket);

impl Sender {
    /// Connects and shakes hands.
    #[track_caller]
    pub fn connect(endpoint: &str) -> Sender {
        Sender::shake_hands(endpoint).unwrap()
    }

    /// Connects to a listener that may die and restart during the handshake.
    #[track_caller]
    pub fn connect_to_mortal(endpoint: &str) -> Sender {
        wait_for(&format!("a listener on {endpoint} answers"), || Sender::shake_hands(endpoint).ok())
    }

    #[track_caller]
    fn shake_hands(endpoint: &str) -> io::Result<Sender> {
        let mut sender = Sender::silent(endpoint);
        sender.0.write_all(&hello("PUSH"))?;
        sender.0.read_timeout(PATIENCE);
        let mut theirs = vec![0; hello("PULL").len()];
        sender.0.read_exact(&mut theirs)?;
        assert!(theirs.ends_with(b"PULL"), "the listener says {theirs:02x?}");
        Ok(sender)
    }

    /// Connects without a handshake.
    #[track_caller]
    pub fn silent(endpoint: &str) -> Sender {
        let socket = wait_for(&format!("a listener is on {endpoint}"), || Socket::connect(endpoint).ok());
        socket.write_timeout(PATIENCE);
        Sender(socket)
    }

    /// Sends a frame and waits while the kernel's buffer is full.
    #[track_caller]
    pub fn send(&mut self, frame: &[u8]) {
        self.raw(&framed(frame));
    }

    /// Sends a frame and returns whether the kernel took all of it within the time. After `false` the connection is unusable.
    pub fn try_send(&mut self, frame: &[u8], within: Duration) -> bool {
        self.0.write_timeout(within);
        self.0.write_all(&framed(frame)).is_ok()
    }

    /// Sends bytes without framing.
    #[track_caller]
    pub fn raw(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).unwrap();
    }

    /// Waits until Afterbay has closed the connection.
    #[track_caller]
    pub fn wait_closed(mut self) {
        self.0.read_timeout(PATIENCE);
        let mut rest = Vec::new();
        match self.0.read_to_end(&mut rest) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {}
            Err(error) => panic!("the connection was not closed: {error}"),
        }
    }
}

/// A reader's PULL socket, which listens. It reads only when the test calls it.
pub struct Reader {
    listener: Listener,
    connections: VecDeque<Connection>,
    /// The number of accepted connections.
    pub accepted: usize,
}

enum Listener {
    Ipc(UnixListener, PathBuf),
    Tcp(TcpListener),
}

struct Connection(BufReader<Socket>);

impl Reader {
    /// Listens on an endpoint and replaces the socket file of an earlier reader.
    #[track_caller]
    pub fn bind(endpoint: &str) -> Reader {
        let listener = match endpoint.split_once("://") {
            Some(("ipc", path)) => {
                // The file may not exist.
                let _removed = std::fs::remove_file(path);
                let listener = UnixListener::bind(path).unwrap();
                listener.set_nonblocking(true).unwrap();
                Listener::Ipc(listener, Path::new(path).to_owned())
            }
            Some(("tcp", address)) => {
                let listener = TcpListener::bind(address).unwrap();
                listener.set_nonblocking(true).unwrap();
                Listener::Tcp(listener)
            }
            _ => panic!("no endpoint: {endpoint}"),
        };
        Reader { listener, connections: VecDeque::new(), accepted: 0 }
    }

    /// Receives the next frame.
    #[track_caller]
    pub fn frame(&mut self) -> Vec<u8> {
        self.next_within(PATIENCE).expect("a frame in time")
    }

    /// Receives `count` frames.
    #[track_caller]
    pub fn take(&mut self, count: usize) -> Vec<Vec<u8>> {
        let mut frames = Vec::with_capacity(count);
        while frames.len() < count {
            let Some(frame) = self.next_within(PATIENCE) else {
                panic!("{} of {count} frames were received in time", frames.len());
            };
            frames.push(frame);
        }
        frames
    }

    /// Receives the next frame if it begins within `time`.
    pub fn next_within(&mut self, time: Duration) -> Option<Vec<u8>> {
        let end = Instant::now() + time;
        loop {
            self.accept();
            match self.connections.front_mut() {
                None => std::thread::sleep(Duration::from_millis(1)),
                Some(connection) => match connection.next(end) {
                    Ok(Some(frame)) => return Some(frame),
                    Ok(None) => {}
                    // The connection ended. A part of a frame is lost.
                    Err(_) => drop(self.connections.pop_front()),
                },
            }
            if Instant::now() >= end {
                return None;
            }
        }
    }

    /// Receives all frames that are left. Afterbay must have ended.
    #[track_caller]
    pub fn rest(&mut self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        self.accept();
        while let Some(connection) = self.connections.front_mut() {
            match connection.next(Instant::now() + PATIENCE) {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => panic!("the other side is still there"),
                Err(_) => drop(self.connections.pop_front()),
            }
        }
        frames
    }

    /// Receives frames until Afterbay has closed the present connections.
    #[track_caller]
    pub fn until_closed(&mut self) -> Vec<Vec<u8>> {
        let (mut frames, end) = (Vec::new(), Instant::now() + PATIENCE);
        while let Some(connection) = self.connections.front_mut() {
            match connection.next(end) {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => assert!(Instant::now() < end, "the other side is still there"),
                Err(_) => drop(self.connections.pop_front()),
            }
        }
        frames
    }

    /// Waits for a connection and its handshake without reading a frame.
    #[track_caller]
    pub fn wait_connected(&mut self) {
        let before = self.accepted;
        crate::until("Afterbay connects to the reader", || {
            self.accept();
            self.accepted > before
        });
    }

    fn accept(&mut self) {
        let accepted = match &self.listener {
            Listener::Ipc(listener, _) => listener.accept().map(|(socket, _)| {
                socket.set_nonblocking(false).unwrap();
                Socket::Ipc(socket)
            }),
            Listener::Tcp(listener) => listener.accept().map(|(socket, _)| {
                socket.set_nonblocking(false).unwrap();
                Socket::Tcp(socket)
            }),
        };
        let Ok(mut socket) = accepted else { return };
        socket.read_timeout(PATIENCE);
        let mut theirs = vec![0; hello("PUSH").len()];
        // A connection that is closed during the handshake does not count.
        if socket.write_all(&hello("PULL")).is_err() || socket.read_exact(&mut theirs).is_err() {
            return;
        }
        assert!(theirs.ends_with(b"PUSH"), "the connector says {theirs:02x?}");
        self.accepted += 1;
        self.connections.push_back(Connection(BufReader::with_capacity(1 << 16, socket)));
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if let Listener::Ipc(_, path) = &self.listener {
            // The directory may be removed already.
            let _removed = std::fs::remove_file(path);
        }
    }
}

impl Connection {
    /// A frame, or `None` if no frame begins before `end`. An error means that the connection has ended.
    fn next(&mut self, end: Instant) -> io::Result<Option<Vec<u8>>> {
        let mut flags = [0];
        self.0
            .get_ref()
            .read_timeout(end.saturating_duration_since(Instant::now()).min(Duration::from_millis(20)));
        match self.0.read_exact(&mut flags) {
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                return Ok(None);
            }
            read => read?,
        }
        // The rest of the frame follows, or the connection ends.
        self.0.get_ref().read_timeout(PATIENCE);
        let mut parts = vec![self.part(flags[0])?];
        while flags[0] & 1 != 0 {
            self.0.read_exact(&mut flags)?;
            parts.push(self.part(flags[0])?);
        }
        Ok(Some(parts::join(&parts).to_vec()))
    }

    fn part(&mut self, flags: u8) -> io::Result<Bytes> {
        let length = match flags {
            0 | 1 => {
                let mut length = [0];
                self.0.read_exact(&mut length)?;
                u64::from(length[0])
            }
            2 | 3 => {
                let mut length = [0; 8];
                self.0.read_exact(&mut length)?;
                u64::from_be_bytes(length)
            }
            flags => panic!("a frame with flags {flags:#x}"),
        };
        let mut part = vec![0; length as usize];
        self.0.read_exact(&mut part)?;
        Ok(part.into())
    }
}
