//! A copy for whoever looks on: of what came, or of what was sent. It never holds the stream back.
//!
//! Owns the stream's end of each tap: the bounded queue to the tap's own thread, where its socket is (`tap/thread.rs`). What
//! finds no room there is dropped, counted and told; nothing is kept for a tap that is away.

mod publish;
mod push;
mod thread;

use crate::error::StartError;
use crate::sender::push_options;
use afterbay_config as config;
use afterbay_config::{TapOf, TapSocket};
use afterbay_events::StreamTelemetry;
use afterbay_events::event::{TapDropped, TapDropping, TapListening};
use afterbay_events::{Name, TapCounters};
use afterbay_sockets::{Dropped, Endpoint, Pub, PubOptions, Push, TokenRange};
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Instant;
use thread::{Copied, End, Socket};

const WAKER: mio::Token = mio::Token(0);
const SOCKET_FIRST: usize = 1;

/// The stream's end of a tap.
pub struct Tap {
    name: Name,
    pub of: TapOf,
    /// Until it is told to end.
    copies: Option<SyncSender<Copied>>,
    waker: Arc<mio::Waker>,
    thread: Option<JoinHandle<()>>,
    /// Copies wait that the thread was not woken for.
    unseen: bool,
    queued_bytes: Arc<AtomicU64>,
    ends: Arc<AtomicBool>,
    max_bytes: u64,
    /// Since the queue was full.
    dropped: Option<Dropped>,
    telemetry: StreamTelemetry,
    counters: Arc<TapCounters>,
}

impl Tap {
    /// Connects or binds, and starts its thread.
    pub fn start(
        setup: TapSetup,
        telemetry: StreamTelemetry,
        counters: Arc<TapCounters>,
    ) -> Result<Tap, StartError> {
        let stream = telemetry.stream.to_string();
        let system = |error| StartError::System { stream: stream.clone(), error };
        let TapSetup { config, endpoint } = setup;
        let poll = mio::Poll::new().map_err(system)?;
        let waker = Arc::new(mio::Waker::new(poll.registry(), WAKER).map_err(system)?);
        let name: Name = config.name.as_str().into();
        let now = Instant::now();
        let socket: Box<dyn Socket> = match config.socket {
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
        let queued_bytes = Arc::new(AtomicU64::new(0));
        let ends = Arc::new(AtomicBool::new(false));
        let end = End {
            name: name.clone(),
            poll,
            socket,
            copies: receiver,
            queued_bytes: queued_bytes.clone(),
            ends: ends.clone(),
            telemetry: telemetry.clone(),
            counters: counters.clone(),
        };
        let thread = std::thread::Builder::new().name(format!("tap {name}"));
        let thread = Some(thread.spawn(move || end.run()).map_err(system)?);
        let (max_bytes, of, copies) = (config.queue.bytes, config.of, Some(copies));
        let (unseen, dropped) = (false, None);
        Ok(Tap {
            name,
            of,
            copies,
            waker,
            thread,
            unseen,
            queued_bytes,
            ends,
            max_bytes,
            dropped,
            telemetry,
            counters,
        })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Gives it a copy, where there is room. `number`: of the frame in the journal, or of what left for the sink.
    pub fn copy(&mut self, number: u64, bytes: &Bytes) {
        let size = bytes.len() as u64;
        // Counted first: the thread takes off what it takes out.
        let queued = self.queued_bytes.fetch_add(size, Ordering::Relaxed);
        // One frame always fits.
        let has_room = queued == 0 || queued + size <= self.max_bytes;
        let copied = Copied { number, bytes: bytes.clone() };
        if has_room && self.copies.as_ref().is_some_and(|copies| copies.try_send(copied).is_ok()) {
            self.unseen = true;
            self.told_dropped();
            return;
        }
        self.queued_bytes.fetch_sub(size, Ordering::Relaxed);
        self.counters.frames_dropped.add(1);
        self.counters.bytes_dropped.add(size);
        if Dropped::note(&mut self.dropped, number) {
            let (stream, tap) = (self.telemetry.stream.clone(), self.name.clone());
            self.telemetry.publish(TapDropping { stream, tap, first: number });
        }
    }

    fn told_dropped(&mut self) {
        let Some(Dropped { first, last, frames }) = self.dropped.take() else { return };
        let (stream, tap) = (self.telemetry.stream.clone(), self.name.clone());
        self.telemetry.publish(TapDropped { stream, tap, frames, first, last });
    }

    /// After a turn: lets its thread know.
    pub fn wake(&mut self) {
        if std::mem::take(&mut self.unseen) {
            // It fails only where the thread has ended; then copies are dropped and told.
            let _woken = self.waker.wake();
        }
    }

    /// Its thread ends when it has sent what is there, or soon after.
    fn close(&mut self) {
        self.told_dropped();
        self.copies = None;
        self.ends.store(true, Ordering::Relaxed);
        self.unseen = true;
        self.wake();
    }
}

impl Drop for Tap {
    /// Waits for its thread: when the stream has ended, the name that a tap was bound to is free.
    fn drop(&mut self) {
        self.close();
        if let Some(thread) = self.thread.take() {
            // A panic there has told itself; copies were dropped since.
            let _ended = thread.join();
        }
    }
}

/// Ends taps: they send what they have beside each other.
pub fn end(mut taps: Vec<Tap>) {
    taps.iter_mut().for_each(Tap::close);
}

/// One tap of a stream.
pub struct TapSetup {
    /// The checked configuration of the tap.
    pub config: config::Tap,
    /// Where it connects, or listens.
    pub endpoint: Endpoint,
}
