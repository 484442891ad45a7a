//! The thread of a tap: takes copies out of the queue and gives them to the tap's socket. Has a poll and a clock of its own.

use afterbay_events::{Name, StreamTelemetry, TapCounters};
use bytes::Bytes;
use mio::event::Event;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

/// Time that a closed tap has to send its queued copies.
const LINGER: Duration = Duration::from_millis(200);
/// Longest wait of the poll.
const POLL_MAX: Duration = Duration::from_millis(500);
/// Events that one poll returns.
const POLL_EVENTS: usize = 64;

/// A frame on its way to the tap.
pub(super) struct FrameCopy {
    /// The frame's number in the journal, or its sequence number among the sent frames.
    pub(super) number: u64,
    pub(super) bytes: Bytes,
}

/// State that the stream and the tap's thread share beside the queue.
#[derive(Default)]
pub(super) struct Shared {
    pub(super) queued_bytes: AtomicU64,
    /// The queue's own end is not seen while the socket has no room.
    pub(super) is_closed: AtomicBool,
}

/// The socket of a tap.
pub(super) trait CopySocket: Send {
    /// The time at which [`CopySocket::tick`] is due.
    fn deadline(&self) -> Option<Instant>;
    /// Handles an event of the poll.
    fn ready(&mut self, event: &Event, now: Instant);
    /// Does what is due.
    fn tick(&mut self, now: Instant);
    /// Whether the socket takes a further copy.
    fn has_room(&self) -> bool;
    /// Queues a copy. The caller has checked [`CopySocket::has_room`].
    fn send(&mut self, copy: FrameCopy);
    /// Gives the kernel what it takes.
    fn flush(&mut self, now: Instant);
    /// Whether the kernel has every copy.
    fn is_drained(&self) -> bool;
    /// Publishes the socket's notices as events, and updates the counters.
    fn report(&mut self, tap: &Name, telemetry: &StreamTelemetry, counters: &TapCounters);
}

/// The state of the thread.
pub(super) struct TapThread {
    pub(super) name: Name,
    pub(super) poll: mio::Poll,
    pub(super) socket: Box<dyn CopySocket>,
    pub(super) copies: Receiver<FrameCopy>,
    pub(super) shared: Arc<Shared>,
    pub(super) telemetry: StreamTelemetry,
    pub(super) counters: Arc<TapCounters>,
}

impl TapThread {
    /// Runs until the stream has closed the tap.
    pub(super) fn run(mut self) {
        let mut events = mio::Events::with_capacity(POLL_EVENTS);
        let mut end_at: Option<Instant> = None;
        loop {
            let now = Instant::now();
            let next = [self.socket.deadline(), end_at].into_iter().flatten().min();
            let wait = next.map_or(POLL_MAX, |next| next.saturating_duration_since(now).min(POLL_MAX));
            // A failed poll has no events; the next round tries again.
            let _polled = self.poll.poll(&mut events, Some(wait));
            let now = Instant::now();
            events.iter().for_each(|event| self.socket.ready(event, now));
            self.socket.tick(now);
            if self.shared.is_closed.load(Ordering::Relaxed) {
                end_at.get_or_insert(now + LINGER);
            }
            let was_last = self.send_queued();
            self.socket.flush(now);
            self.counters.queue_bytes.set(self.shared.queued_bytes.load(Ordering::Relaxed));
            self.socket.report(&self.name, &self.telemetry, &self.counters);
            if end_at.is_some_and(|at| now >= at) || was_last && self.socket.is_drained() {
                self.counters.connected.set(0);
                self.counters.subscribers.set(0);
                return;
            }
        }
    }

    /// Moves copies from the queue to the socket. Returns whether the queue has ended.
    fn send_queued(&mut self) -> bool {
        while self.socket.has_room() {
            match self.copies.try_recv() {
                Ok(copy) => {
                    self.shared.queued_bytes.fetch_sub(copy.bytes.len() as u64, Ordering::Relaxed);
                    self.socket.send(copy);
                }
                Err(TryRecvError::Empty) => return false,
                Err(TryRecvError::Disconnected) => return true,
            }
        }
        false
    }
}
