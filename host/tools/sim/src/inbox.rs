//! The inbox of the simulated reader, where unhandled frames wait. It measures its backlog. The checker reads the frames.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use afterbay_types::parts;
use afterbay_wire::{DecodedFrame, Decoder, Layouts};
use anyhow::Context;
use serde::Serialize;
use tokio::sync::mpsc;
use zeromq::{PullSocket, Socket, SocketRecv, ZmqMessage};

use crate::endpoint::listen;

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

/// The frames that were read from a bound socket.
pub(crate) struct Inbox {
    frames: mpsc::Receiver<InboxFrame>,
}

/// A frame to handle.
pub(crate) struct InboxFrame {
    /// `None` if a connection ended within a frame or was no ZMTP.
    pub(crate) message: Option<ZmqMessage>,
    _share: BacklogShare,
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
    /// Binds the socket. At most `frames_max` frames wait in the inbox, further ones on the socket.
    pub(crate) async fn open(
        endpoint: &str,
        frames_max: usize,
        gauge: &Arc<BacklogGauge>,
    ) -> anyhow::Result<Inbox> {
        let mut socket = PullSocket::new();
        let bound = socket.bind_listener(listen(endpoint)?).await;
        bound.with_context(|| format!("endpoint {endpoint}"))?;
        let (sender, frames) = mpsc::channel(frames_max);
        // A worker of the runtime reads frames while the reader works.
        tokio::spawn(read_all(socket, sender, Arc::clone(gauge)));
        Ok(Inbox { frames })
    }

    /// The next frame.
    pub(crate) async fn next(&mut self) -> Option<InboxFrame> {
        self.frames.recv().await
    }

    /// The number of frames behind the last one.
    pub(crate) fn waiting(&self) -> usize {
        self.frames.len()
    }
}

async fn read_all(mut socket: PullSocket, sender: mpsc::Sender<InboxFrame>, gauge: Arc<BacklogGauge>) {
    let mut decoder = Decoder::new(Layouts::builtin());
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
