//! A tap: a copy of the received or of the sent frames for an observer. A tap never slows the stream down.
//!
//! Owns the stream's end: the bounded queue to the tap's own thread, which owns the socket (`tap/thread.rs`). When the queue
//! is full, Afterbay drops the copy, counts it, and emits an event. The journal retains nothing for taps.

mod publish;
mod push;
mod thread;

use crate::delivery::error::StartError;
use crate::delivery::sender::push_options;
use afterbay_config as config;
use afterbay_config::{TapOf, TapSocket};
use afterbay_events::event::{TapDropped, TapDropping, TapListening};
use afterbay_events::{Metrics, Name, StreamTelemetry, TapCounters};
use afterbay_sockets::{Dropped, Endpoint, Pub, PubOptions, Push, TokenRange};
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Instant;
use thread::{CopySocket, FrameCopy, Shared, TapThread};

const WAKER: mio::Token = mio::Token(0);
const SOCKET_FIRST: usize = 1;

/// One tap of a stream, checked and ready to start.
#[derive(Clone)]
pub struct TapSetup {
    /// The checked configuration of the tap.
    pub config: config::Tap,
    /// The endpoint that the tap connects to, or listens on.
    pub endpoint: Endpoint,
}

/// The stream's end of a tap. Dropping it waits until the thread has ended, so that the endpoint is free again.
pub struct Tap {
    name: Name,
    /// The frames that the tap copies.
    pub of: TapOf,
    /// `None` once the tap is closed.
    copies: Option<SyncSender<FrameCopy>>,
    bytes_max: u64,
    shared: Arc<Shared>,
    waker: Arc<mio::Waker>,
    /// Whether copies were queued since the thread was woken.
    is_wake_due: bool,
    thread: Option<JoinHandle<()>>,
    /// The copies that were dropped since the queue was last not full.
    dropped: Option<Dropped>,
    telemetry: StreamTelemetry,
    counters: Arc<TapCounters>,
}

impl Tap {
    /// Connects or binds the socket, and starts the thread.
    pub fn start(
        setup: TapSetup,
        telemetry: StreamTelemetry,
        metrics: &Metrics,
        now: Instant,
    ) -> Result<Tap, StartError> {
        let stream = telemetry.stream.to_string();
        let system = |error| StartError::System { stream: stream.clone(), error };
        let TapSetup { config, endpoint } = setup;
        let poll = mio::Poll::new().map_err(system)?;
        let waker = Arc::new(mio::Waker::new(poll.registry(), WAKER).map_err(system)?);
        let name = config.name.clone();
        let socket: Box<dyn CopySocket> = match config.socket {
            TapSocket::Push(_) => {
                let tokens = TokenRange { first: SOCKET_FIRST, count: 1 };
                let push = Push::connect(poll.registry(), tokens, &endpoint, push_options(), now);
                Box::new(push.map_err(|error| StartError::Connect { stream: stream.clone(), error })?)
            }
            TapSocket::Pub { listen: _, listen_mode, max_subscribers } => {
                let tokens = TokenRange { first: SOCKET_FIRST, count: 1 + max_subscribers };
                let options = PubOptions {
                    max_queue_frames: config.queue.frames,
                    max_queue_bytes: config.queue.bytes,
                    max_subscribers,
                    listen_mode,
                    ..PubOptions::default()
                };
                let publish = Pub::bind(poll.registry(), tokens, &endpoint, options, now)
                    .map_err(|error| StartError::Bind { stream: stream.clone(), error })?;
                let (stream, tap) = (telemetry.stream.clone(), name.clone());
                let endpoint = publish.endpoint().to_string();
                telemetry.publish(TapListening { stream, tap, endpoint });
                Box::new(publish)
            }
        };
        let (copies, receiver) = sync_channel(config.queue.frames);
        let shared = Arc::new(Shared::default());
        let counters = metrics.tap(&stream, name.as_str());
        let thread = TapThread {
            name: name.clone(),
            poll,
            socket,
            copies: receiver,
            shared: shared.clone(),
            telemetry: telemetry.clone(),
            counters: counters.clone(),
        };
        let spawned = std::thread::Builder::new().name(format!("tap {name}")).spawn(move || thread.run());
        Ok(Tap {
            name,
            of: config.of,
            copies: Some(copies),
            bytes_max: config.queue.bytes,
            shared,
            waker,
            is_wake_due: false,
            thread: Some(spawned.map_err(system)?),
            dropped: None,
            telemetry,
            counters,
        })
    }

    /// The tap's name in the configuration.
    pub fn name(&self) -> &str {
        self.name.as_str()
    }

    /// Queues a copy, or drops it if the queue is full. `number` is the frame's number in the journal, or for a sent frame its
    /// sequence number.
    pub fn copy(&mut self, number: u64, bytes: &Bytes) {
        let size = bytes.len() as u64;
        // Added before the copy is queued: the thread subtracts when it takes the copy.
        let queued = self.shared.queued_bytes.fetch_add(size, Ordering::Relaxed);
        // A single frame fits whatever its size.
        let has_room = queued == 0 || queued + size <= self.bytes_max;
        let copy = FrameCopy { number, bytes: bytes.clone() };
        if has_room && self.copies.as_ref().is_some_and(|copies| copies.try_send(copy).is_ok()) {
            self.is_wake_due = true;
            self.report_dropped();
            return;
        }
        self.shared.queued_bytes.fetch_sub(size, Ordering::Relaxed);
        self.counters.frames_dropped.add(1);
        self.counters.bytes_dropped.add(size);
        if Dropped::note(&mut self.dropped, number) {
            let (stream, tap) = (self.telemetry.stream.clone(), self.name.clone());
            self.telemetry.publish(TapDropping { stream, tap, first: number });
        }
    }

    fn report_dropped(&mut self) {
        let Some(Dropped { first, last, frames }) = self.dropped.take() else { return };
        let (stream, tap) = (self.telemetry.stream.clone(), self.name.clone());
        self.telemetry.publish(TapDropped { stream, tap, frames, first, last });
    }

    /// Wakes the thread if copies were queued. Call after each round of the stream.
    pub fn wake(&mut self) {
        if std::mem::take(&mut self.is_wake_due) {
            // This fails only if the thread has ended. Further copies are then dropped and reported.
            let _woken = self.waker.wake();
        }
    }

    /// Makes the thread end when it has sent the queued copies, or after 200 ms.
    fn close(&mut self) {
        self.report_dropped();
        self.copies = None;
        self.shared.is_closed.store(true, Ordering::Relaxed);
        self.is_wake_due = true;
        self.wake();
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.close();
        if let Some(thread) = self.thread.take() {
            // The panic hook has reported a panic of the thread.
            let _ended = thread.join();
        }
    }
}

/// Ends taps. All of them send their queued copies at the same time.
pub fn close_taps(mut taps: Vec<Tap>) {
    taps.iter_mut().for_each(Tap::close);
}
