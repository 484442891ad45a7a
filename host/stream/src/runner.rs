//! A stream's thread: waits for its sockets, turns the path, goes on after a panic, and stops when it is told to.
//!
//! Owns the poll and the loop; the path of a batch is in `path.rs`, what is told of it in `report.rs`, how it is made anew
//! in `build.rs`.

use crate::build::{Plan, Rescued};
use crate::change;
use crate::handle::StreamCommand;
use crate::pipeline::{Pipeline, PoisonFrame};
use crate::report::Report;
use afterbay_batch::Timestamp;
use afterbay_chain::CatchUpResult;
use afterbay_delivery::{Sink, end_taps};
use afterbay_events::HoldEnd;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

/// How long outcomes wait for a next frame to be written with, before they are written alone.
const JOURNAL_IDLE: Duration = Duration::from_millis(2);
/// How often requests that have gone silent are looked for.
const ABANDON_EVERY: Duration = Duration::from_secs(60);
/// From the drain's deadline on, a stream waits so long for senders to end their connections. They need milliseconds; it is
/// waited for where the journal takes no frames.
const CLOSE_MAX: Duration = Duration::from_secs(2);
/// The poll wakes at least so often.
const POLL_MAX: Duration = Duration::from_millis(500);
/// Events of the poll that one turn takes in.
const POLL_EVENTS: usize = 256;
/// So many panics with not a frame received or sent in between, and the stream is given up.
const PANICS_MAX: u32 = 8;
/// A journal that cannot be opened again for so long after a panic: the stream is given up.
const REOPEN_MAX: Duration = Duration::from_secs(60);
/// After a panic that follows on another, and while the journal cannot be opened, before the next try.
const PANIC_PAUSE: Duration = Duration::from_millis(100);

/// How a stream ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// Frames that were received and that the reader (or the kernel, for it) has not taken. They are in the journal.
    pub frames_left: usize,
    /// Their bytes.
    pub bytes_left: u64,
    /// Bytes of senders that the kernel had and that could not be received: the journal took no frames. They are lost.
    pub unread_bytes: u64,
    /// Frames among those that are left that the journal did not take: they are lost.
    pub unpersisted: usize,
    /// Why the journal could not be sealed; what was written is recovered at the next start.
    pub journal: Option<String>,
}

pub(crate) struct Runner {
    poll: mio::Poll,
    plan: Plan,
    path: Pipeline,
    control: Receiver<StreamCommand>,
    /// Instances that were shown what has come before.
    shown: (Sender<CatchUpResult>, Receiver<CatchUpResult>),
    report: Report,
    abandon_after: Duration,
    stop: Option<Instant>,
    panics: Panics,
}

/// Panics with no frame received or sent in between.
#[derive(Default)]
struct Panics {
    count: u32,
    /// Frames that had been received and sent at the last.
    frames: u64,
}

impl Runner {
    pub(crate) fn new(
        poll: mio::Poll,
        plan: Plan,
        path: Pipeline,
        control: Receiver<StreamCommand>,
        report: Report,
        abandon_after: Duration,
    ) -> Runner {
        Runner {
            poll,
            plan,
            path,
            control,
            shown: channel(),
            report,
            abandon_after,
            stop: None,
            panics: Panics::default(),
        }
    }

    /// Runs until told to stop.
    pub(crate) fn run(mut self) -> Ended {
        loop {
            // What a panic may have left half done is made anew; the sockets' own state is bytes and counts, which are
            // changed after the system calls that may fail.
            match catch_unwind(AssertUnwindSafe(|| self.turns())) {
                Ok(()) => return self.end(),
                Err(panic) => self = self.go_on(panic),
            }
        }
    }

    /// After a panic: with the same connections, and all else out of the journal.
    fn go_on(mut self, panic: Box<dyn Any + Send>) -> Runner {
        let why = message(&*panic);
        let sent: u64 = self.path.sinks.iter().map(|sink| sink.send.frames).sum();
        let frames = self.path.receive.frames + sent;
        self.panics.count = if frames == self.panics.frames { self.panics.count + 1 } else { 1 };
        self.panics.frames = frames;
        self.report.panicked(self.path.settling, &why);
        if self.panics.count > PANICS_MAX {
            resume_unwind(panic);
        }
        if self.panics.count > 1 {
            std::thread::sleep(PANIC_PAUSE);
        }
        let (begun, mut rescued) = (Instant::now(), rescue(self.path, why));
        let path = loop {
            rescued = match self.plan.rebuild(rescued) {
                Ok(path) => break path,
                Err((rescued, why)) => {
                    self.report.not_reopened(&why);
                    if begun.elapsed() > REOPEN_MAX {
                        resume_unwind(panic);
                    }
                    std::thread::sleep(PANIC_PAUSE);
                    *rescued
                }
            }
        };
        Runner { path, ..self }
    }

    fn turns(&mut self) {
        let mut events = mio::Events::with_capacity(POLL_EVENTS);
        let mut abandon_at = Instant::now() + ABANDON_EVERY;
        let mut busy = true;
        loop {
            let now = Instant::now();
            let wait = if busy { Duration::ZERO } else { self.wait(now, self.stop) };
            let polled = self.poll.poll(&mut events, Some(wait));
            if let Err(error) = polled.as_ref()
                && error.kind() != std::io::ErrorKind::Interrupted
            {
                self.report.poll_failed(error);
            }
            let now = Timestamp::now();
            for event in &events {
                self.path.ready(event, now.instant);
            }
            self.path.tick(now);
            self.stop = self.controls(self.stop, now);
            self.replays(now);
            let report = &mut self.report;
            busy = self.path.turn(now, |took| report.took(took));
            if !busy {
                self.path.persister.flush_when_idle(now.instant, JOURNAL_IDLE);
            }
            if now.instant >= abandon_at {
                abandon_at = now.instant + ABANDON_EVERY;
                let Pipeline { chain, ledger, held_rows, persister, .. } = &mut self.path;
                let gone = ledger.abandon(self.abandon_after, now.instant, held_rows, persister);
                chain.close_requests(&gone, ledger, now);
                chain.restart_after_close(ledger, now);
            }
            self.path.ledger.report_restart_gap(now.instant);
            self.report.tell(&mut self.path, now.instant);
            if let Some(deadline) = self.stop {
                self.path.receive.close(now.instant);
                let is_closed = self.path.receive.is_closed();
                if is_closed && !busy {
                    // No row comes that could release what waits.
                    self.path.held_rows.end_all(HoldEnd::Stop, None);
                }
                let ends = if is_closed {
                    self.path.is_drained() || now.instant >= deadline
                } else {
                    now.instant >= deadline + CLOSE_MAX
                };
                if ends {
                    return;
                }
            }
        }
    }

    /// Instances that are to see what has come before are shown it, and those that have take over.
    fn replays(&mut self, now: Timestamp) {
        while let Ok(result) = self.shown.1.try_recv() {
            self.change(|it| it.path.chain.finish_catch_up(result, &it.path.ledger, now));
        }
        if !self.path.chain.has_catch_ups() {
            return;
        }
        let (shown, waker) = (self.shown.0.clone(), self.plan.waker.clone());
        self.path.catch_up(&self.plan.layouts, move |replayed| {
            // Both fail only where the stream has ended.
            let _shown = shown.send(replayed);
            let _woken = waker.wake();
        });
    }

    /// What was told since the last turn; when to stop.
    fn controls(&mut self, mut stop: Option<Instant>, now: Timestamp) -> Option<Instant> {
        loop {
            match self.control.try_recv() {
                Ok(StreamCommand::Reload { plugin, result }) => {
                    self.change(|it| it.path.chain.reload(&plugin, *result, &it.path.ledger, now));
                }
                Ok(StreamCommand::AttributesChanged { rid }) => {
                    self.path.chain.refresh_attributes(&rid, &self.path.ledger, now)
                }
                Ok(StreamCommand::PluginStatuses { reply }) => reply(self.path.chain.statuses()),
                Ok(StreamCommand::Change { change, reply }) => {
                    self.change(|it| change.apply(&mut it.plan, &mut it.path, now));
                    reply();
                }
                Ok(StreamCommand::Reinstate { plugin, reply }) => {
                    reply(self.path.chain.reinstate(&plugin, &self.path.ledger, now));
                }
                Ok(StreamCommand::Promote { plugin, reply }) => {
                    reply(self.path.chain.promote(&plugin, now));
                }
                Ok(StreamCommand::Joins { sink, joins }) => {
                    self.change(|it| change::set_joins(&sink, joins, &mut it.plan, &mut it.path));
                }
                Ok(StreamCommand::RequestStatus { rid, reply }) => {
                    reply(self.path.ledger.request_status(&rid))
                }
                Ok(StreamCommand::End { rid, number, ending, reply }) => {
                    self.path.ledger.set_operator_abort(&rid, number, ending, &mut self.path.persister);
                    reply();
                }
                Ok(StreamCommand::Stop { deadline }) => stop = Some(deadline),
                Err(TryRecvError::Empty) => return stop,
                // Nobody is left to tell it anything: it ends as if told to, at once.
                Err(TryRecvError::Disconnected) => return Some(stop.unwrap_or(now.instant)),
            }
        }
    }

    /// Lets another component or configuration take over: batches wait for it.
    fn change(&mut self, take_over: impl FnOnce(&mut Runner)) {
        let begun = Instant::now();
        take_over(self);
        self.plan.telemetry.counters.change_seconds.observe(begun.elapsed());
    }

    fn wait(&self, now: Instant, stop: Option<Instant>) -> Duration {
        let deadlines = [self.path.deadline(), self.report.deadline(), stop];
        let next = deadlines.into_iter().flatten().min();
        // While it drains it looks again soon: the last frame may have left without an event.
        let most = if stop.is_some() { Duration::from_millis(5) } else { POLL_MAX };
        next.map_or(most, |next| next.saturating_duration_since(now).min(most))
    }

    fn end(mut self) -> Ended {
        let now = Instant::now();
        // What a disk without room had held up leaves if it has room now: else its record would be written without it.
        self.path.send_staged(now);
        let (frames_left, bytes_left) = self.path.left();
        let unread_bytes = self.path.receive.abandon();
        let unpersisted = self.path.persister.unpersisted() + self.path.returned.len();
        self.path.tell_taken();
        let Pipeline { sinks, persister, .. } = &mut self.path;
        sinks.iter().for_each(|sink| sink.tell_never_written(persister));
        self.path.ledger.close_restart_gap();
        self.report.end(&mut self.path, now);
        end_taps(self.path.taps);
        let journal = self.path.persister.finish().err().map(|error| error.to_string());
        Ended { frames_left, bytes_left, unread_bytes, unpersisted, journal }
    }
}

/// What outlives a panic. The journal's writer writes what it still holds when it is dropped.
fn rescue(path: Pipeline, why: String) -> Rescued {
    let Pipeline {
        receive,
        persister,
        mut ledger,
        sinks,
        taps,
        chain,
        pressure,
        route,
        arrived,
        mut returned,
        settling,
        poison,
        ..
    } = path;
    let poison = settling.map(|frame| {
        let same = |poison: &PoisonFrame| poison.frame == frame && poison.why == why;
        let before = poison.as_ref().filter(|poison| same(poison)).map_or(0, |poison| poison.times);
        PoisonFrame { frame, times: before + 1, why }
    });
    let sends = sinks.into_iter().map(Sink::into_send).collect();
    // Its end may panic too; then what it held back is lost to the journal, and found again where that matters.
    let refused = catch_unwind(AssertUnwindSafe(|| persister.into_refused())).ok().flatten();
    refused.into_iter().for_each(|received| returned.push_front(received));
    // A ledger that is made anew does not know what the start has seen.
    ledger.close_restart_gap();
    let aborts = ledger.into_upstream_aborts();
    Rescued { receive, sends, aborts, chain, pressure, route, taps, arrived, returned, poison }
}

/// What a panic says.
pub(crate) fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}
