//! A tap's own thread: takes copies out of the queue and gives them to its socket.

use afterbay_events::StreamTelemetry;
use afterbay_events::{Name, TapCounters};
use bytes::Bytes;
use mio::event::Event;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

/// At the stream's end a tap may take so long for what it was given.
const LINGER: Duration = Duration::from_millis(200);
/// The thread wakes at least so often.
const POLL_MAX: Duration = Duration::from_millis(500);

/// A copy on its way.
pub(super) struct Copied {
    /// Of the frame in the journal, or of what left for the sink.
    pub(super) number: u64,
    pub(super) bytes: Bytes,
}

/// What a tap's socket is asked for.
pub(super) trait Socket: Send {
    /// When [`Socket::tick`] is due.
    fn deadline(&self) -> Option<Instant>;
    /// Notes an event of the poll, if it is the socket's.
    fn woken(&mut self, event: &Event, now: Instant);
    /// Does what is due.
    fn tick(&mut self, now: Instant);
    /// Whether it takes a further copy.
    fn has_room(&self) -> bool;
    /// Takes a copy; there is room.
    fn give(&mut self, copied: Copied);
    /// Writes what the kernel takes.
    fn flush(&mut self, now: Instant);
    /// Nothing that it was given waits.
    fn is_drained(&self) -> bool;
    /// What happened, and how it stands.
    fn tell(&mut self, tap: &Name, telemetry: &StreamTelemetry, counters: &TapCounters);
}

/// The thread's end of a tap.
pub(super) struct End {
    pub(super) name: Name,
    pub(super) poll: mio::Poll,
    pub(super) socket: Box<dyn Socket>,
    pub(super) copies: Receiver<Copied>,
    pub(super) queued_bytes: Arc<AtomicU64>,
    /// Told apart from the queue's end, which is not seen while the socket has no room.
    pub(super) ends: Arc<AtomicBool>,
    pub(super) telemetry: StreamTelemetry,
    pub(super) counters: Arc<TapCounters>,
}

impl End {
    /// Until the stream's end is gone.
    pub(super) fn run(mut self) {
        let mut events = mio::Events::with_capacity(64);
        let mut end_at: Option<Instant> = None;
        loop {
            let now = Instant::now();
            let next = [self.socket.deadline(), end_at].into_iter().flatten().min();
            let wait = next.map_or(POLL_MAX, |next| next.saturating_duration_since(now).min(POLL_MAX));
            // Interrupted, or out of something: then it is looked at again after the wait.
            let _polled = self.poll.poll(&mut events, Some(wait));
            let now = Instant::now();
            events.iter().for_each(|event| self.socket.woken(event, now));
            self.socket.tick(now);
            if self.ends.load(Ordering::Relaxed) {
                end_at.get_or_insert(now + LINGER);
            }
            let was_last = self.take();
            self.socket.flush(now);
            self.counters.queue_bytes.set(self.queued_bytes.load(Ordering::Relaxed));
            self.socket.tell(&self.name, &self.telemetry, &self.counters);
            if end_at.is_some_and(|at| now >= at) || was_last && self.socket.is_drained() {
                // One that takes its place may be long in coming.
                self.counters.connected.set(0);
                self.counters.subscribers.set(0);
                return;
            }
        }
    }

    /// Takes copies out of the queue while the socket has room. True: there will be no more.
    fn take(&mut self) -> bool {
        while self.socket.has_room() {
            match self.copies.try_recv() {
                Ok(copied) => {
                    self.queued_bytes.fetch_sub(copied.bytes.len() as u64, Ordering::Relaxed);
                    self.socket.give(copied);
                }
                Err(TryRecvError::Empty) => return false,
                Err(TryRecvError::Disconnected) => return true,
            }
        }
        false
    }
}
