//! A copy for whoever looks on: of what came, or of what was sent. It never holds the stream back.
//!
//! Owns a thread for each tap with its PUSH socket, and the bounded queue before it. What finds no room there is dropped,
//! counted and told; nothing is kept for a tap that is away.

use crate::build::push_options;
use crate::telemetry::Telemetry;
use crate::{StartError, TapSetup};
use afterbay_config::TapOf;
use afterbay_events::event::{SinkConnected, SinkLost, SinkWaiting, TapDropped, TapDropping};
use afterbay_events::{Name, TapCounters};
use afterbay_sockets::{Outgoing, Push, PushNotice, TokenRange};
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::time::{Duration, Instant};

const WAKER: mio::Token = mio::Token(0);
const SOCKET: TokenRange = TokenRange { first: 1, count: 1 };
/// At the stream's end a tap may take so long for what it was given.
const LINGER: Duration = Duration::from_millis(200);
/// The thread wakes at least so often.
const POLL_MAX: Duration = Duration::from_millis(500);

/// The stream's end of a tap.
pub(crate) struct Tap {
    name: Name,
    pub(crate) of: TapOf,
    copies: SyncSender<Bytes>,
    waker: Arc<mio::Waker>,
    /// Copies wait that the thread was not woken for.
    unseen: bool,
    queued_bytes: Arc<AtomicU64>,
    max_bytes: u64,
    dropping: Option<Dropping>,
    telemetry: Telemetry,
    counters: Arc<TapCounters>,
}

/// Since the queue was full.
struct Dropping {
    first: u64,
    last: u64,
    frames: u64,
}

impl Tap {
    /// Connects, and starts its thread.
    pub(crate) fn start(
        setup: TapSetup,
        telemetry: Telemetry,
        counters: Arc<TapCounters>,
    ) -> Result<Tap, StartError> {
        let stream = telemetry.stream.to_string();
        let system = |error| StartError::System { stream: stream.clone(), error };
        let TapSetup { config, connect } = setup;
        let poll = mio::Poll::new().map_err(system)?;
        let waker = Arc::new(mio::Waker::new(poll.registry(), WAKER).map_err(system)?);
        let push = Push::connect(poll.registry(), SOCKET, &connect, push_options(), Instant::now())
            .map_err(|error| StartError::Connect { stream: stream.clone(), error })?;
        let (copies, receiver) = sync_channel(config.queue.frames);
        let name: Name = config.name.as_str().into();
        let queued_bytes = Arc::new(AtomicU64::new(0));
        let end = End {
            name: name.clone(),
            poll,
            push,
            copies: receiver,
            queued_bytes: queued_bytes.clone(),
            telemetry: telemetry.clone(),
            counters: counters.clone(),
            sequence: 0,
        };
        let thread = std::thread::Builder::new().name(format!("tap {name}"));
        thread.spawn(move || end.run()).map_err(system)?;
        let max_bytes = config.queue.bytes;
        let (of, unseen, dropping) = (config.of, false, None);
        Ok(Tap { name, of, copies, waker, unseen, queued_bytes, max_bytes, dropping, telemetry, counters })
    }

    /// Gives it a copy, where there is room. `number`: of the frame in the journal, or of what left for the sink.
    pub(crate) fn copy(&mut self, number: u64, bytes: &Bytes) {
        let size = bytes.len() as u64;
        let has_room = self.queued_bytes.load(Ordering::Relaxed) + size <= self.max_bytes;
        // Counted first: the thread takes off what it takes out.
        self.queued_bytes.fetch_add(size, Ordering::Relaxed);
        if has_room && self.copies.try_send(bytes.clone()).is_ok() {
            self.unseen = true;
            self.told_dropped();
            return;
        }
        self.queued_bytes.fetch_sub(size, Ordering::Relaxed);
        self.counters.frames_dropped.add(1);
        self.counters.bytes_dropped.add(size);
        let Some(dropping) = &mut self.dropping else {
            self.dropping = Some(Dropping { first: number, last: number, frames: 1 });
            let (stream, tap) = (self.telemetry.stream.clone(), self.name.clone());
            return self.telemetry.publish(TapDropping { stream, tap, first: number });
        };
        dropping.last = number;
        dropping.frames += 1;
    }

    fn told_dropped(&mut self) {
        let Some(Dropping { first, last, frames }) = self.dropping.take() else { return };
        let (stream, tap) = (self.telemetry.stream.clone(), self.name.clone());
        self.telemetry.publish(TapDropped { stream, tap, frames, first, last });
    }

    /// After a turn: lets its thread know.
    pub(crate) fn wake(&mut self) {
        if std::mem::take(&mut self.unseen) {
            // It fails only where the thread has ended; then copies are dropped and told.
            let _woken = self.waker.wake();
        }
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.told_dropped();
        // The thread ends when it has sent what is there.
        self.unseen = true;
        self.wake();
    }
}

/// The tap's own thread.
struct End {
    name: Name,
    poll: mio::Poll,
    push: Push,
    copies: Receiver<Bytes>,
    queued_bytes: Arc<AtomicU64>,
    telemetry: Telemetry,
    counters: Arc<TapCounters>,
    sequence: u64,
}

impl End {
    fn run(mut self) {
        let mut events = mio::Events::with_capacity(16);
        let mut end_at: Option<Instant> = None;
        loop {
            let now = Instant::now();
            let next = [self.push.deadline(), end_at].into_iter().flatten().min();
            let wait = next.map_or(POLL_MAX, |next| next.saturating_duration_since(now).min(POLL_MAX));
            // Interrupted, or out of something: then it is looked at again after the wait.
            let _polled = self.poll.poll(&mut events, Some(wait));
            let now = Instant::now();
            for event in &events {
                if self.push.owns(event.token()) {
                    self.push.ready(event, now);
                }
            }
            self.push.tick(now);
            if self.take() {
                end_at.get_or_insert(now + LINGER);
            }
            self.push.flush(now);
            self.tell();
            if end_at.is_some_and(|at| now >= at || self.push.pending().frames == 0) {
                return;
            }
        }
    }

    /// Takes copies out of the queue while the socket has room. True: there will be no more.
    fn take(&mut self) -> bool {
        while self.push.room() {
            match self.copies.try_recv() {
                Ok(bytes) => {
                    self.queued_bytes.fetch_sub(bytes.len() as u64, Ordering::Relaxed);
                    self.sequence += 1;
                    // There is room.
                    let _sent = self.push.send(Outgoing { sequence: self.sequence, bytes, counted: false });
                }
                Err(TryRecvError::Empty) => return false,
                Err(TryRecvError::Disconnected) => return true,
            }
        }
        false
    }

    fn tell(&mut self) {
        let totals = self.push.totals();
        self.counters.connected.set(u64::from(self.push.is_connected()));
        self.counters.frames_written.set(totals.frames_written);
        self.counters.bytes_written.set(totals.bytes_written);
        self.counters.queue_bytes.set(self.queued_bytes.load(Ordering::Relaxed));
        while let Some(notice) = self.push.next_notice() {
            let (stream, sink) = (self.telemetry.stream.clone(), self.name.clone());
            let endpoint = self.push.endpoint().to_string();
            match notice {
                PushNotice::Connected { .. } => {
                    self.telemetry.publish(SinkConnected { stream, sink, endpoint });
                }
                PushNotice::Waiting { why } => {
                    self.telemetry.publish(SinkWaiting { stream, sink, endpoint, why: why.to_string() });
                }
                PushNotice::Lost { why, .. } => {
                    self.telemetry.publish(SinkLost { stream, sink, why: why.to_string() });
                }
                // What a tap had and did not read is nobody's loss.
                PushNotice::Settled { .. } | PushNotice::Credit { .. } | PushNotice::Missed { .. } => {}
            }
        }
    }
}
