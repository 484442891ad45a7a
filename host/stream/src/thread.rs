//! A stream's thread: waits for its sockets, turns the path, and stops when it is told to.
//!
//! Owns the poll and the loop; the path of a batch is in `path.rs`, what is told of it in `report.rs`.

use crate::path::Path;
use crate::report::Report;
use afterbay_runtime::{Plugin, ReloadError};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

/// How long outcomes wait for a next frame to be written with, before they are written alone.
const JOURNAL_IDLE: Duration = Duration::from_millis(2);
/// How often requests that have gone silent are looked for.
const ABANDON_EVERY: Duration = Duration::from_secs(60);
/// The poll wakes at least so often.
const POLL_MAX: Duration = Duration::from_millis(500);
/// Events of the poll that one turn takes in.
const POLL_EVENTS: usize = 256;

/// The token of the waker; the sockets' follow.
pub(crate) const WAKER: mio::Token = mio::Token(0);

/// What a stream is told from outside.
pub(crate) enum Control {
    /// A component has changed.
    Reload { plugin: String, result: Box<Result<Plugin, ReloadError>> },
    /// Send what was received, then end; give up at the deadline.
    Stop { deadline: Instant },
}

/// How a stream ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// Frames that were received and that the reader (or the kernel, for it) has not taken. They are in the journal.
    pub frames_left: usize,
    /// Their bytes.
    pub bytes_left: u64,
    /// Why the journal could not be sealed; what was written is recovered at the next start.
    pub journal: Option<String>,
}

pub(crate) struct Thread {
    pub(crate) poll: mio::Poll,
    pub(crate) path: Path,
    pub(crate) control: Receiver<Control>,
    pub(crate) report: Report,
    pub(crate) abandon_after: Duration,
}

impl Thread {
    /// Runs until told to stop.
    pub(crate) fn run(mut self) -> Ended {
        let mut events = mio::Events::with_capacity(POLL_EVENTS);
        let mut stop: Option<Instant> = None;
        let mut abandon_at = Instant::now() + ABANDON_EVERY;
        let mut busy = true;
        loop {
            let now = Instant::now();
            let wait = if busy { Duration::ZERO } else { self.wait(now, stop) };
            let polled = self.poll.poll(&mut events, Some(wait));
            if let Err(error) = polled.as_ref()
                && error.kind() != std::io::ErrorKind::Interrupted
            {
                self.report.poll_failed(error);
            }
            let now = Instant::now();
            for event in &events {
                self.path.ready(event, now);
            }
            self.path.tick(now);
            stop = self.controls(stop);
            let report = &mut self.report;
            busy = self.path.turn(now, |took| report.took(took));
            if !busy {
                self.path.keep.idle(now, JOURNAL_IDLE);
            }
            if now >= abandon_at {
                abandon_at = now + ABANDON_EVERY;
                let gone = self.path.ledger.abandon(self.abandon_after, now, &mut self.path.keep);
                let crate::path::Path { chain, ledger, .. } = &mut self.path;
                chain.forget(&gone, ledger);
                chain.revive(ledger);
            }
            self.report.tell(&mut self.path, now);
            if let Some(deadline) = stop {
                // Nothing more is there to be read: the end of what this process answers for.
                if !busy && events.is_empty() {
                    self.path.receive.close();
                }
                if (self.path.receive.is_closed() && self.path.is_drained()) || now >= deadline {
                    return self.end();
                }
            }
        }
    }

    /// What was told since the last turn; when to stop.
    fn controls(&mut self, mut stop: Option<Instant>) -> Option<Instant> {
        loop {
            match self.control.try_recv() {
                Ok(Control::Reload { plugin, result }) => self.path.reload(&plugin, *result),
                Ok(Control::Stop { deadline }) => stop = Some(deadline),
                Err(TryRecvError::Empty) => return stop,
                // Nobody is left to tell it anything: it ends as if told to, at once.
                Err(TryRecvError::Disconnected) => return Some(stop.unwrap_or_else(Instant::now)),
            }
        }
    }

    fn wait(&self, now: Instant, stop: Option<Instant>) -> Duration {
        let deadlines = [self.path.deadline(), self.report.deadline(), stop];
        let next = deadlines.into_iter().flatten().min();
        // While it drains it looks again soon: the last frame may have left without an event.
        let most = if stop.is_some() { Duration::from_millis(5) } else { POLL_MAX };
        next.map_or(most, |next| next.saturating_duration_since(now).min(most))
    }

    fn end(mut self) -> Ended {
        let (frames_left, bytes_left) = self.path.left();
        let now = Instant::now();
        self.path.tell_taken();
        self.report.tell(&mut self.path, now);
        let journal = self.path.keep.finish().err().map(|error| error.to_string());
        Ended { frames_left, bytes_left, journal }
    }
}
