//! A stream under load while something else happens: how long each of its frames waits, and that each is the one that was sent.

use crate::load::{Reader, Sender};
use crate::traffic::Traffic;
use anyhow::{Context, ensure};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// Frames under way at full load: one in each stage, and one that waits for the first.
const UNDER_WAY: u64 = 4;
/// Frames under way where they come at their times: a stream that stands still for long is not buried.
const WAITING_MAX: u64 = 64;

/// How frames follow each other.
#[derive(Clone, Copy)]
pub(crate) enum Pace {
    /// As soon as there is room.
    Full,
    /// One every so often, as of a scheduler.
    Every(Duration),
}

/// A sender, and a reader that holds what comes against what was sent.
pub(crate) struct Line<'t> {
    traffic: &'t Traffic,
    sender: Sender,
    received: Arc<AtomicU64>,
    sent_at: mpsc::Sender<Instant>,
    arrivals: mpsc::Receiver<Arrival>,
    _reader: Reader,
}

struct Arrival {
    /// `None` of a frame that nobody sent.
    waited: Option<Duration>,
    is_as_sent: bool,
}

impl<'t> Line<'t> {
    pub(crate) fn start(ingress: &str, reader: &str, traffic: &'t Traffic) -> anyhow::Result<Line<'t>> {
        let received = Arc::new(AtomicU64::new(0));
        let (sent_at, sent) = mpsc::channel::<Instant>();
        let (arrived, arrivals) = mpsc::channel();
        let (frames, count) = (traffic.frames.clone(), received.clone());
        let take = move |bytes: bytes::Bytes| {
            let waited = sent.try_recv().ok().map(|at| at.elapsed());
            let number = count.load(Ordering::Relaxed) as usize;
            let is_as_sent = bytes == frames[number % frames.len()];
            // The other end is gone only at the end.
            let _told = arrived.send(Arrival { waited, is_as_sent });
            count.fetch_add(1, Ordering::Release);
        };
        let reader = Reader::start(reader, take)?;
        let sender = Sender::connect(ingress)?;
        Ok(Line { traffic, sender, received, sent_at, arrivals, _reader: reader })
    }

    /// Sends until it is over; how long each frame waited, from its send to its receipt. An error where one is lost, repeated
    /// or another than was sent.
    pub(crate) fn drive(&mut self, pace: Pace, is_over: impl Fn() -> bool) -> anyhow::Result<Vec<Duration>> {
        let mut due = Instant::now();
        while !is_over() {
            match pace {
                Pace::Full => self.sender.wait_for(&self.received, UNDER_WAY)?,
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
            ensure!(arrival.is_as_sent, "frame {number} of these is lost, repeated or changed");
            waits.push(arrival.waited.context("a frame came that nobody sent")?);
        }
        waits.sort_unstable();
        Ok(waits)
    }

    /// Frames sent, each of which has arrived.
    pub(crate) fn sent(&self) -> u64 {
        self.sender.sent
    }

    /// Whether more came than was sent.
    pub(crate) fn end(self) -> anyhow::Result<()> {
        let received = self.received.load(Ordering::Acquire);
        ensure!(received == self.sender.sent, "{received} frames came, {} were sent", self.sender.sent);
        Ok(())
    }
}

/// The longest but for such a part of them, in milliseconds; they are sorted.
pub(crate) fn at(waits: &[Duration], share: f64) -> f64 {
    let last = waits.len().saturating_sub(1) as f64;
    waits.get((last * share) as usize).map_or(f64::NAN, |wait| wait.as_secs_f64() * 1e3)
}
