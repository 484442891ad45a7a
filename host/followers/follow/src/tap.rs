//! The tap: publishes each received frame of all streams for observers, with PUB of the `zeromq` crate.
//!
//! The crate queues 100,000 messages for each subscriber and drops further ones without a word. So the tap counts what the crate holds,
//! and stays below: at the tap's own bound, the frames to come wait in the journal. If they wait for long, a subscriber does not
//! read. The tap then ends all connections, and with them what waits, and lets subscribers connect again.

use std::fs::DirBuilder;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use afterbay_config as config;
use afterbay_events::TapCounters;
use afterbay_events::event::{TapDropped, TapListening};
use afterbay_journal::reader::{JournalReader, JournalRecord, ReadFrom, StoredFrame, StreamReader, Tail};
use afterbay_journal::{Follower, ReadError, SegmentId};
use afterbay_sockets::{Endpoint, Listener};
use bytes::Bytes;
use tokio::runtime::Runtime;
use zeromq::{PubSocket, Socket, SocketSend, ZmqMessage};

use crate::consumer::{Consumer, Failure, Look, Streams};
use crate::following::Telemetry;

/// Most bytes that wait for the slowest subscriber. A bigger frame waits alone.
const WAITING_BYTES_MAX: u64 = 64 << 20;
/// Most frames that wait for it.
const WAITING_FRAMES_MAX: u64 = 1 << 14;
/// Time in which at least half of what waits must be sent once a bound is reached.
const PATIENCE: Duration = Duration::from_secs(1);
/// Time that subscribers get to connect again. Libzmq tries every 100 ms.
const RECONNECT: Duration = Duration::from_secs(1);
/// Time at a stop to send what waits.
const LINGER: Duration = Duration::from_millis(200);
/// Most frames of a stream in one step.
const STEP_FRAMES_MAX: usize = 256;

/// The tap, as the configuration describes it.
pub struct Tap {
    config: config::Tap,
    telemetry: Telemetry,
    counters: Arc<TapCounters>,
    /// `None` before the first attempt to listen, and after a failed one.
    listener: Option<Listener>,
    socket: Option<PublishSocket>,
    waiting: Arc<Waiting>,
    /// The time since which the frames to come wait in the journal.
    full_since: Option<Instant>,
    /// The time from which on frames are published, after all connections were closed.
    silent_until: Option<Instant>,
    /// Frames that were received before are not published, unix nanoseconds.
    begin_unix_ns: u64,
}

/// The frames of one stream that are not published yet.
pub struct TappedStream {
    name: Bytes,
    tail: Tail,
    /// A frame that was read and has found no room yet.
    next: Option<StoredFrame>,
}

/// Frames that the `zeromq` crate holds.
#[derive(Default)]
struct Waiting {
    frames: AtomicU64,
    bytes: AtomicU64,
}

/// A frame that the `zeromq` crate holds. It is dropped when no subscriber needs it any more.
struct WaitingFrame {
    bytes: Vec<u8>,
    waiting: Arc<Waiting>,
}

/// A PUB with the threads that serve its connections.
struct PublishSocket {
    /// Dropped first, with all connections: a PUB that is dropped while its tasks run removes the socket's file.
    runtime: Runtime,
    socket: PubSocket,
}

impl Tap {
    /// A tap that does not listen yet.
    #[must_use]
    pub fn new(config: config::Tap, telemetry: &Telemetry) -> Tap {
        Tap {
            config,
            telemetry: telemetry.clone(),
            counters: telemetry.metrics.tap(),
            listener: None,
            socket: None,
            waiting: Arc::default(),
            full_since: None,
            silent_until: None,
            begin_unix_ns: 0,
        }
    }

    /// Whether a frame of this size may be given to the socket. Ends all connections if the frames before have waited for too long.
    fn has_room(&mut self, bytes: u64) -> Result<bool, Failure> {
        let now = Instant::now();
        if self.silent_until.is_some_and(|until| now < until) {
            return Ok(false);
        }
        self.silent_until = None;
        let (frames, waiting) = self.waiting.size();
        let fits = |share: u64| {
            frames < WAITING_FRAMES_MAX / share
                && (waiting == 0 || waiting + bytes <= WAITING_BYTES_MAX / share)
        };
        if fits(2) {
            self.full_since = None;
        } else if self.full_since.is_some() || !fits(1) {
            let since = *self.full_since.get_or_insert(now);
            if now.saturating_duration_since(since) >= PATIENCE {
                self.disconnect(now)?;
            }
            return Ok(false);
        }
        Ok(true)
    }

    /// Drops the frames that wait, closes all connections, and lets subscribers connect again.
    fn disconnect(&mut self, now: Instant) -> Result<(), Failure> {
        let (frames, bytes) = self.waiting.size();
        self.counters.frames_dropped.add(frames);
        if let Some(listener) = &self.listener {
            let endpoint = listener.endpoint().to_string();
            self.telemetry.events.publish(TapDropped { endpoint, frames, bytes });
        }
        (self.socket, self.full_since) = (None, None);
        self.silent_until = Some(now + RECONNECT);
        self.listen()
    }

    /// Accepts connections, if it does not yet.
    fn listen(&mut self) -> Result<(), Failure> {
        let listener = match &mut self.listener {
            Some(listener) => listener,
            none => {
                let config::Tap { listen, listen_mode } = &self.config;
                if let Endpoint::Ipc(path) = listen
                    && let Some(directory) = path.parent()
                {
                    DirBuilder::new()
                        .recursive(true)
                        .mode(0o700)
                        .create(directory)
                        .map_err(Failure::outside)?;
                }
                let bound = Listener::bind(listen, *listen_mode, None).map_err(Failure::outside)?;
                self.telemetry.events.publish(TapListening { endpoint: bound.endpoint().to_string() });
                self.begin_unix_ns = now_unix_ns();
                none.insert(bound)
            }
        };
        if self.socket.is_none() {
            self.socket = Some(PublishSocket::open(listener)?);
        }
        Ok(())
    }
}

impl Consumer for Tap {
    type Stream = TappedStream;

    const LOOK_EVERY: Duration = Duration::from_millis(100);

    fn follower(&self) -> Follower {
        Follower { name: "tap", copy: self.config.listen.to_string(), needs_ended_segments: false }
    }

    fn open(&mut self, _: &JournalReader) -> Result<(), Failure> {
        self.listen()
    }

    fn begin(&mut self, reader: StreamReader, _: Option<SegmentId>) -> Result<Option<TappedStream>, Failure> {
        let name = Bytes::copy_from_slice(reader.name().as_bytes());
        let tail = reader.tail(ReadFrom::Time(self.begin_unix_ns))?;
        Ok(Some(TappedStream { name, tail, next: None }))
    }

    fn step(&mut self, stream: &mut TappedStream, _: Look) -> Result<bool, Failure> {
        for _ in 0..STEP_FRAMES_MAX {
            // A stream that begins again after an error does not repeat frames.
            let size = stream.size_of_next().inspect_err(|_| self.begin_unix_ns = now_unix_ns())?;
            let Some(size) = size else { return Ok(false) };
            if !self.has_room(size)? {
                return Ok(false);
            }
            if let (Some(frame), Some(socket)) = (stream.next.take(), &mut self.socket) {
                socket.send(stream.name.clone(), frame, &self.waiting)?;
                self.counters.frames.add(1);
            }
        }
        Ok(true)
    }

    fn commit(&mut self, _: &mut Streams<TappedStream>, look: Look) -> Result<(), Failure> {
        let until = Instant::now() + LINGER;
        while look.is_last && self.waiting.size().0 > 0 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        self.counters.waiting_bytes.set(self.waiting.size().1);
        Ok(())
    }

    fn needed(&mut self, _: &mut TappedStream) -> Option<SegmentId> {
        None
    }
}

impl TappedStream {
    /// The bytes of the next frame. `None` if there is none yet.
    fn size_of_next(&mut self) -> Result<Option<u64>, ReadError> {
        while self.next.is_none() {
            match self.tail.next()? {
                Some(JournalRecord::Frame(frame)) => self.next = Some(frame),
                Some(_) => {}
                None => return Ok(None),
            }
        }
        Ok(self.next.as_ref().map(|frame| frame.bytes.len() as u64))
    }
}

impl PublishSocket {
    /// Accepts the connections of the listener.
    fn open(listener: &Listener) -> Result<PublishSocket, Failure> {
        let mut threads = tokio::runtime::Builder::new_multi_thread();
        let runtime = threads
            .worker_threads(1)
            .thread_name("tap-socket")
            .enable_all()
            .build()
            .map_err(Failure::outside)?;
        let descriptor: OwnedFd = listener.descriptor().map_err(Failure::outside)?;
        let listening: zeromq::Listener = match listener.endpoint() {
            Endpoint::Ipc(_) => std::os::unix::net::UnixListener::from(descriptor).into(),
            Endpoint::Tcp { .. } => std::net::TcpListener::from(descriptor).into(),
        };
        let socket = runtime.block_on(async {
            let mut socket = PubSocket::new();
            socket.bind_listener(listening).await.map(|_| socket)
        });
        Ok(PublishSocket { runtime, socket: socket.map_err(Failure::outside)? })
    }

    fn send(&mut self, stream: Bytes, frame: StoredFrame, waiting: &Arc<Waiting>) -> Result<(), Failure> {
        let number = Bytes::copy_from_slice(&frame.position.frame.0.to_be_bytes());
        let bytes = if frame.is_release_marker() { Vec::new() } else { frame.bytes };
        let mut message = ZmqMessage::from(stream);
        message.push_back(number);
        message.push_back(Bytes::from_owner(WaitingFrame::new(bytes, waiting)));
        self.runtime.block_on(self.socket.send(message)).map_err(Failure::outside)
    }
}

impl Waiting {
    /// The number of frames, and their bytes.
    fn size(&self) -> (u64, u64) {
        (self.frames.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }
}

impl WaitingFrame {
    fn new(bytes: Vec<u8>, waiting: &Arc<Waiting>) -> WaitingFrame {
        waiting.frames.fetch_add(1, Ordering::Relaxed);
        waiting.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        WaitingFrame { bytes, waiting: waiting.clone() }
    }
}

impl AsRef<[u8]> for WaitingFrame {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for WaitingFrame {
    fn drop(&mut self) {
        self.waiting.frames.fetch_sub(1, Ordering::Relaxed);
        self.waiting.bytes.fetch_sub(self.bytes.len() as u64, Ordering::Relaxed);
    }
}

fn now_unix_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}
