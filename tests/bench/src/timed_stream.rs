//! A stream under load: measures how long each frame waits, and checks that each frame arrives once and unchanged.

use crate::peers::{Reader, Sender};
use afterbay_cost::traffic::Traffic;
use anyhow::{Context, ensure};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// The most frames in flight at full load: one in each stage, and one that waits for the first.
const IN_FLIGHT: u64 = 4;
/// The most frames in flight at a fixed rate. The bound keeps the backlog small while the stream stands still.
const WAITING_MAX: u64 = 64;

/// The rate at which frames are sent.
#[derive(Clone, Copy)]
pub(crate) enum Pace {
    /// As soon as fewer than [`IN_FLIGHT`] frames are in flight.
    Full,
    /// One frame per interval, like a scheduler.
    Every(Duration),
}

/// A sender, and a reader that compares each received frame with the one that was sent.
pub(crate) struct TimedStream<'t> {
    traffic: &'t Traffic,
    sender: Sender,
    received: Arc<AtomicU64>,
    sent_at: mpsc::Sender<Instant>,
    arrivals: mpsc::Receiver<Arrival>,
    _reader: Reader,
}

struct Arrival {
    /// Time since the send; `None` for a frame that was not sent.
    waited: Option<Duration>,
    is_as_sent: bool,
}

impl<'t> TimedStream<'t> {
    pub(crate) fn start(
        ingress: &str,
        reader: &str,
        traffic: &'t Traffic,
    ) -> anyhow::Result<TimedStream<'t>> {
        let received = Arc::new(AtomicU64::new(0));
        let (sent_at, sent) = mpsc::channel::<Instant>();
        let (arrived, arrivals) = mpsc::channel();
        let (frames, count) = (traffic.frames.clone(), received.clone());
        let take = move |bytes: bytes::Bytes| {
            let waited = sent.try_recv().ok().map(|at| at.elapsed());
            let number = count.load(Ordering::Relaxed) as usize;
            let is_as_sent = bytes == frames[number % frames.len()];
            // The receiver is dropped only at the end.
            let _sent = arrived.send(Arrival { waited, is_as_sent });
            count.fetch_add(1, Ordering::Release);
        };
        let reader = Reader::start(reader, take)?;
        let sender = Sender::connect(ingress)?;
        Ok(TimedStream { traffic, sender, received, sent_at, arrivals, _reader: reader })
    }

    /// Sends until `is_over`. Returns the sorted times from each frame's send to its receipt. A lost, repeated or changed frame is an
    /// error.
    pub(crate) fn drive(&mut self, pace: Pace, is_over: impl Fn() -> bool) -> anyhow::Result<Vec<Duration>> {
        let mut due = Instant::now();
        while !is_over() {
            match pace {
                Pace::Full => self.sender.wait_for(&self.received, IN_FLIGHT)?,
                Pace::Every(step) => {
                    self.sender.wait_for(&self.received, WAITING_MAX)?;
                    std::thread::sleep(due.saturating_duration_since(Instant::now()));
                    due = Instant::now().max(due + step);
                }
            }
            self.sent_at.send(Instant::now()).context("the reader has ended")?;
            self.sender.send(self.traffic.frame(self.sender.sent))?;
            self.sender.settle()?;
        }
        self.sender.wait_for(&self.received, 1)?;
        let mut waits = Vec::new();
        for (number, arrival) in (1..).zip(self.arrivals.try_iter()) {
            ensure!(arrival.is_as_sent, "frame {number} was lost, repeated or changed");
            waits.push(arrival.waited.context("a frame was received that was not sent")?);
        }
        waits.sort_unstable();
        Ok(waits)
    }

    /// The number of frames sent. All have arrived.
    pub(crate) fn sent(&self) -> u64 {
        self.sender.sent
    }

    /// Ends the stream. More frames than were sent are an error.
    pub(crate) fn end(self) -> anyhow::Result<()> {
        let received = self.received.load(Ordering::Acquire);
        ensure!(received == self.sender.sent, "{received} frames received, {} sent", self.sender.sent);
        Ok(())
    }
}
