//! Where frames wait that the simulated reader has not handled: on its socket, or in the reader, as libzmq keeps them.
//! It knows how much waits; what a frame says is the checker's.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use afterbay_wire::{Decoded, Decoder, Layouts};
use bytes::Bytes;
use serde::Serialize;
use tokio::runtime::Builder;
use tokio::sync::{Semaphore, mpsc};
use zeromq::{PullSocket, Socket, SocketRecv, ZmqMessage};

use crate::endpoint::listen;
use crate::reader::ReaderError;

/// Where frames wait that the reader has not handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inbox {
    /// Up to so many in the reader, then on its socket; 0: it reads a frame when the one before is handled.
    Frames(usize),
    /// In the reader, however many: libzmq without high-water marks, as SGLang uses it.
    Unbounded,
}

/// What waited in a reader's inbox at the most, the frame that it worked on included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Backlog {
    /// Frames.
    pub frames: u64,
    /// Rows in them, those of health checks included.
    pub rows: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// A bound socket with what was read off it.
pub(crate) struct Door {
    source: Source,
}

/// What is there to be handled.
pub(crate) struct Arrived {
    /// `None`: a connection ended in the middle of a frame, or was no ZMTP.
    pub(crate) message: Option<ZmqMessage>,
    _waits: Waits,
}

enum Source {
    Socket(PullSocket),
    Thread { receiver: mpsc::Receiver<Arrived>, thread: Option<JoinHandle<()>> },
}

/// How much waits now, and waited at the most.
#[derive(Debug, Default)]
pub(crate) struct Gauge {
    frames: Level,
    rows: Level,
    bytes: Level,
}

#[derive(Debug, Default)]
struct Level {
    now: AtomicU64,
    most: AtomicU64,
}

/// A frame's part of the gauge, until it is dropped: when it is handled, or gone with its reader.
struct Waits {
    gauge: Arc<Gauge>,
    frames: u64,
    rows: u64,
    bytes: u64,
}

impl Inbox {
    /// Binds.
    pub(crate) async fn open(self, endpoint: &str, gauge: &Arc<Gauge>) -> Result<Door, ReaderError> {
        let (sender, receiver) = match self {
            Inbox::Frames(0) => return Ok(Door { source: Source::Socket(bind(endpoint).await?) }),
            Inbox::Frames(frames) => mpsc::channel(frames),
            Inbox::Unbounded => mpsc::channel(Semaphore::MAX_PERMITS),
        };
        let (endpoint, gauge) = (endpoint.to_owned(), Arc::clone(gauge));
        let (told, bound) = tokio::sync::oneshot::channel();
        // A thread of its own: it reads while the reader works.
        let read = move || {
            let runtime = match Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime,
                Err(error) => return drop(told.send(Err(error.into()))),
            };
            runtime.block_on(async {
                match bind(&endpoint).await {
                    Err(error) => drop(told.send(Err(error))),
                    Ok(socket) => {
                        if told.send(Ok(())).is_ok() {
                            read_all(socket, sender, gauge).await;
                        }
                    }
                }
            });
        };
        let thread = std::thread::Builder::new().name("inbox".to_owned()).spawn(read)?;
        let door = Door { source: Source::Thread { receiver, thread: Some(thread) } };
        match bound.await {
            Ok(bound) => bound.map(|()| door),
            Err(_) => Err(std::io::Error::other("the thread of the inbox has ended").into()),
        }
    }
}

impl Door {
    /// The next frame.
    pub(crate) async fn next(&mut self) -> Option<Arrived> {
        match &mut self.source {
            Source::Socket(socket) => {
                let message = socket.recv().await.ok();
                Some(Arrived { message, _waits: Waits::nothing() })
            }
            Source::Thread { receiver, .. } => receiver.recv().await,
        }
    }

    /// Frames that wait behind the last one.
    pub(crate) fn waiting(&self) -> usize {
        match &self.source {
            Source::Socket(_) => 0,
            Source::Thread { receiver, .. } => receiver.len(),
        }
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        if let Source::Thread { receiver, thread } = &mut self.source {
            receiver.close();
            // Its socket is gone when it has ended, so that the name can be taken again.
            let _ended = thread.take().map(JoinHandle::join);
        }
    }
}

async fn bind(endpoint: &str) -> Result<PullSocket, ReaderError> {
    let mut socket = PullSocket::new();
    let bind = |source| ReaderError::Bind { endpoint: endpoint.to_owned(), source };
    socket.bind_listener(listen(endpoint)?).await.map_err(bind)?;
    Ok(socket)
}

async fn read_all(mut socket: PullSocket, sender: mpsc::Sender<Arrived>, gauge: Arc<Gauge>) {
    let mut decoder = Decoder::new(Layouts::builtin());
    loop {
        let message = tokio::select! {
            () = sender.closed() => return,
            message = socket.recv() => message.ok(),
        };
        let _waits = match &message {
            Some(message) => Waits::of(message, &mut decoder, &gauge),
            None => Waits::nothing(),
        };
        if sender.send(Arrived { message, _waits }).await.is_err() {
            return;
        }
    }
}

impl Gauge {
    pub(crate) fn most(&self) -> Backlog {
        let most = |level: &Level| level.most.load(Ordering::Relaxed);
        Backlog { frames: most(&self.frames), rows: most(&self.rows), bytes: most(&self.bytes) }
    }
}

impl Level {
    fn add(&self, amount: u64) {
        let now = self.now.fetch_add(amount, Ordering::Relaxed) + amount;
        self.most.fetch_max(now, Ordering::Relaxed);
    }

    fn take(&self, amount: u64) {
        self.now.fetch_sub(amount, Ordering::Relaxed);
    }
}

impl Waits {
    fn of(message: &ZmqMessage, decoder: &mut Decoder, gauge: &Arc<Gauge>) -> Waits {
        let rows = |frame: &Bytes| match decoder.decode(frame.clone()) {
            Decoded::Batch(batch) => u64::from(batch.rows()),
            Decoded::Barrier(_) => 0,
        };
        let rows = message.get(0).map_or(0, rows);
        let bytes = message.iter().map(|part| part.len() as u64).sum();
        gauge.frames.add(1);
        gauge.rows.add(rows);
        gauge.bytes.add(bytes);
        Waits { gauge: Arc::clone(gauge), frames: 1, rows, bytes }
    }

    fn nothing() -> Waits {
        Waits { gauge: Arc::default(), frames: 0, rows: 0, bytes: 0 }
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.gauge.frames.take(self.frames);
        self.gauge.rows.take(self.rows);
        self.gauge.bytes.take(self.bytes);
    }
}
