//! The inbox of the simulated reader, where unhandled frames wait: on the socket, or in the reader, as with
//! libzmq. The inbox measures its backlog. The checker reads the frames.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use afterbay_types::parts;
use afterbay_wire::{DecodedFrame, Decoder, Layouts};
use serde::Serialize;
use thiserror::Error;
use tokio::runtime::Builder;
use tokio::sync::{Semaphore, mpsc};
use zeromq::{PullSocket, Socket, SocketRecv, ZmqError, ZmqMessage};

use crate::endpoint::{ListenError, listen};

/// The place where unhandled frames wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inbox {
    /// At most this many in the reader, further frames on its socket. With 0 the reader reads a frame when it
    /// has handled the one before.
    Frames(usize),
    /// All in the reader, like libzmq without high-water marks, as SGLang uses it.
    Unbounded,
}

/// The largest backlog of an inbox, including the frame in work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Backlog {
    /// The number of frames.
    pub frames: u64,
    /// The number of rows, including those of health checks.
    pub rows: u64,
    /// The number of bytes.
    pub bytes: u64,
}

/// An error of opening an inbox.
#[derive(Debug, Error)]
pub enum InboxError {
    /// The socket cannot listen on the endpoint.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The `zeromq` crate refused the listener.
    #[error("endpoint {endpoint}: {source}")]
    Bind {
        /// The endpoint.
        endpoint: String,
        /// The error of the socket.
        source: ZmqError,
    },
    /// The inbox's thread or its runtime could not start.
    #[error("inbox: {0}")]
    Thread(#[from] std::io::Error),
}

/// A bound socket and the frames that were read from it.
pub(crate) struct BoundInbox {
    source: InboxSource,
}

/// A frame to handle.
pub(crate) struct InboxFrame {
    /// `None` if a connection ended within a frame or was no ZMTP.
    pub(crate) message: Option<ZmqMessage>,
    _share: BacklogShare,
}

enum InboxSource {
    Socket(PullSocket),
    Thread { receiver: mpsc::Receiver<InboxFrame>, thread: Option<JoinHandle<()>> },
}

/// The current and the largest backlog.
#[derive(Debug, Default)]
pub(crate) struct BacklogGauge {
    frames: PeakCounter,
    rows: PeakCounter,
    bytes: PeakCounter,
}

#[derive(Debug, Default)]
struct PeakCounter {
    now: AtomicU64,
    peak: AtomicU64,
}

/// A frame's share of the backlog, until it is dropped: after it is handled, or at the end of its reader.
struct BacklogShare {
    gauge: Arc<BacklogGauge>,
    frames: u64,
    rows: u64,
    bytes: u64,
}

impl Inbox {
    /// Binds the socket.
    pub(crate) async fn open(
        self,
        endpoint: &str,
        gauge: &Arc<BacklogGauge>,
    ) -> Result<BoundInbox, InboxError> {
        let (sender, receiver) = match self {
            Inbox::Frames(0) => return Ok(BoundInbox { source: InboxSource::Socket(bind(endpoint).await?) }),
            Inbox::Frames(frames) => mpsc::channel(frames),
            Inbox::Unbounded => mpsc::channel(Semaphore::MAX_PERMITS),
        };
        let (endpoint, gauge) = (endpoint.to_owned(), Arc::clone(gauge));
        let (bound_sender, bound) = tokio::sync::oneshot::channel();
        // A separate thread reads frames while the reader works.
        let read = move || {
            let runtime = match Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime,
                Err(error) => return drop(bound_sender.send(Err(error.into()))),
            };
            runtime.block_on(async {
                match bind(&endpoint).await {
                    Err(error) => drop(bound_sender.send(Err(error))),
                    Ok(socket) => {
                        if bound_sender.send(Ok(())).is_ok() {
                            read_all(socket, sender, gauge).await;
                        }
                    }
                }
            });
        };
        let thread = std::thread::Builder::new().name("inbox".to_owned()).spawn(read)?;
        let inbox = BoundInbox { source: InboxSource::Thread { receiver, thread: Some(thread) } };
        match bound.await {
            Ok(bound) => bound.map(|()| inbox),
            Err(_) => Err(std::io::Error::other("the thread ended early").into()),
        }
    }
}

impl BoundInbox {
    /// BacklogShare for the next frame.
    pub(crate) async fn next(&mut self) -> Option<InboxFrame> {
        match &mut self.source {
            InboxSource::Socket(socket) => {
                let message = socket.recv().await.ok();
                Some(InboxFrame { message, _share: BacklogShare::nothing() })
            }
            InboxSource::Thread { receiver, .. } => receiver.recv().await,
        }
    }

    /// The number of frames behind the last one.
    pub(crate) fn waiting(&self) -> usize {
        match &self.source {
            InboxSource::Socket(_) => 0,
            InboxSource::Thread { receiver, .. } => receiver.len(),
        }
    }
}

impl Drop for BoundInbox {
    fn drop(&mut self) {
        if let InboxSource::Thread { receiver, thread } = &mut self.source {
            receiver.close();
            // The thread must end first: then its socket is closed and the name is free.
            let _ended = thread.take().map(JoinHandle::join);
        }
    }
}

async fn bind(endpoint: &str) -> Result<PullSocket, InboxError> {
    let mut socket = PullSocket::new();
    let bind = |source| InboxError::Bind { endpoint: endpoint.to_owned(), source };
    socket.bind_listener(listen(endpoint)?).await.map_err(bind)?;
    Ok(socket)
}

async fn read_all(mut socket: PullSocket, sender: mpsc::Sender<InboxFrame>, gauge: Arc<BacklogGauge>) {
    let mut decoder = Decoder::new(Layouts::any());
    loop {
        let message = tokio::select! {
            () = sender.closed() => return,
            message = socket.recv() => message.ok(),
        };
        let _share = match &message {
            Some(message) => BacklogShare::of(message, &mut decoder, &gauge),
            None => BacklogShare::nothing(),
        };
        if sender.send(InboxFrame { message, _share }).await.is_err() {
            return;
        }
    }
}

impl BacklogGauge {
    pub(crate) fn peak(&self) -> Backlog {
        let peak = |counter: &PeakCounter| counter.peak.load(Ordering::Relaxed);
        Backlog { frames: peak(&self.frames), rows: peak(&self.rows), bytes: peak(&self.bytes) }
    }
}

impl PeakCounter {
    fn add(&self, amount: u64) {
        let now = self.now.fetch_add(amount, Ordering::Relaxed) + amount;
        self.peak.fetch_max(now, Ordering::Relaxed);
    }

    fn subtract(&self, amount: u64) {
        self.now.fetch_sub(amount, Ordering::Relaxed);
    }
}

impl BacklogShare {
    fn of(message: &ZmqMessage, decoder: &mut Decoder, gauge: &Arc<BacklogGauge>) -> BacklogShare {
        let rows = match decoder.decode(parts::join(&message.clone().into_vec())) {
            DecodedFrame::Batch(batch) => u64::from(batch.rows()),
            DecodedFrame::Barrier(_) => 0,
        };
        let bytes = message.iter().map(|part| part.len() as u64).sum();
        gauge.frames.add(1);
        gauge.rows.add(rows);
        gauge.bytes.add(bytes);
        BacklogShare { gauge: Arc::clone(gauge), frames: 1, rows, bytes }
    }

    fn nothing() -> BacklogShare {
        BacklogShare { gauge: Arc::default(), frames: 0, rows: 0, bytes: 0 }
    }
}

impl Drop for BacklogShare {
    fn drop(&mut self) {
        self.gauge.frames.subtract(self.frames);
        self.gauge.rows.subtract(self.rows);
        self.gauge.bytes.subtract(self.bytes);
    }
}
