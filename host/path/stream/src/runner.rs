//! The thread of a stream: polls the sockets, runs the pipeline, recovers from panics, and stops on command.
//!
//! Owns the poll, the turns and the clock: the stages below get the time from here, and read a clock only to measure their own
//! work. The path of a batch is in `pipeline.rs`, the events are in `report.rs`, the rebuild after a panic is in `build.rs`.

use crate::build::{self, Plan, WAKER, rescue};
use crate::change;
use crate::clock::Clock;
use crate::delivery::StartError;
use crate::hand_over::StreamState;
use crate::handle::{StreamCommand, StreamHandle};
use crate::pipeline::Pipeline;
use crate::report::Report;
use crate::setup::Setup;
use crate::stages::Stages;
use afterbay_batch::frame_log::FrameLog;
use afterbay_batch::hold::HoldTimes;
use afterbay_batch::{Timestamp, failpoint};
use afterbay_chain::CatchUpResult;
use afterbay_events::HoldEnd;
use afterbay_journal::Background;
use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

/// Time that records wait for a further frame, before they are written without one.
const RECORDS_WAIT: Duration = Duration::from_millis(2);
/// Time between two searches for abandoned requests.
const ABANDON_EVERY: Duration = Duration::from_secs(60);
/// Time after the drain's deadline for senders to end their connections. They need milliseconds; the rest is for a journal
/// that refuses frames.
const CLOSE_MAX: Duration = Duration::from_secs(2);
/// Longest wait of the poll.
const POLL_MAX: Duration = Duration::from_millis(500);
/// Rounds of answers to plugins before a hand-over. A plugin that asks again with each answer gets no more.
const ANSWER_ROUNDS_MAX: usize = 64;
/// Longest wait of the poll during the drain: the last frame may be sent without an event.
const DRAIN_POLL_MAX: Duration = Duration::from_millis(5);
/// Events that one poll returns.
const POLL_EVENTS: usize = 256;
/// Panics without a received or sent frame in between, after which the stream ends.
const PANICS_MAX: u32 = 8;
/// Time after a panic in which the journal cannot be opened, after which the stream ends.
const REOPEN_MAX: Duration = Duration::from_secs(60);
/// Pause after the second of two panics, and between two attempts to open the journal.
const PANIC_PAUSE: Duration = Duration::from_millis(100);

/// The end of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// Received frames that a reader has not taken. (Without credit, the kernel's word counts for the reader.) The journal has
    /// them, except for `unpersisted`.
    pub frames_left: usize,
    /// The bytes of `frames_left`.
    pub bytes_left: u64,
    /// Bytes that senders gave to the kernel and that could not be received, because the journal refused frames. They are lost.
    pub unread_bytes: u64,
    /// Received frames that the journal refused. They are lost.
    pub unpersisted: usize,
    /// The reason why the journal could not be ended. The next start recovers it.
    pub journal: Option<String>,
}

/// The state of a stream's thread.
pub(crate) struct Runner {
    poll: mio::Poll,
    /// The events of the last poll.
    events: mio::Events,
    clock: Arc<dyn Clock>,
    pub(crate) plan: Plan,
    pub(crate) pipeline: Pipeline,
    commands: Receiver<StreamCommand>,
    /// The results of catch-up rounds.
    catch_ups: (Sender<CatchUpResult>, Receiver<CatchUpResult>),
    background: Background,
    /// The number of turns, for the watchdog.
    turns: Arc<AtomicU64>,
    report: Report,
    abandon_after: Duration,
    /// The time of the next search for abandoned requests.
    abandon_at: Instant,
    /// Whether the last turn left work that can be done at once.
    is_busy: bool,
    /// The deadline of the drain, once the stream is to stop.
    stop: Option<Instant>,
    panics: Panics,
    /// Set while another process may take the stream over: the times of the held rows. The pipeline stands still, and its
    /// journal has its summary.
    handed_over: Option<Vec<HoldTimes>>,
    /// Whether a hand-over has failed after the sinks had prepared for it: the pipeline is rebuilt.
    resumes: bool,
    /// The commands that came meanwhile.
    deferred: VecDeque<StreamCommand>,
}

/// The consequence of a turn.
enum TurnEnd {
    Continue,
    /// The stream has drained.
    Stop,
    /// No other process took the stream over.
    Resume,
    /// Another process runs the stream.
    Leave,
}

/// The panics without a received or sent frame in between.
#[derive(Default)]
struct Panics {
    count: u32,
    /// Frames that were received and sent until the last panic.
    frames: u64,
}

impl Runner {
    /// Binds, connects, and builds the first pipeline, on a poll of its own. Returns the handle of the stream, too.
    pub(crate) fn new(setup: Setup) -> Result<(Box<Runner>, StreamHandle), StartError> {
        let name = setup.config.name.to_string();
        let system = |error| StartError::System { stream: name.clone(), error };
        let poll = mio::Poll::new().map_err(system)?;
        let waker = Arc::new(mio::Waker::new(poll.registry(), WAKER).map_err(system)?);
        let (abandon_after, clock, background) = (setup.abandon_after, setup.clock.clone(), setup.background);
        let (plan, pipeline, report) = build::start(setup, poll.registry(), &waker)?;
        let (sender, commands) = channel();
        let turns = Arc::new(AtomicU64::new(0));
        let handle = StreamHandle { sender, waker, turns: Arc::downgrade(&turns) };
        let abandon_at = clock.now().instant + ABANDON_EVERY;
        let runner = Runner {
            poll,
            events: mio::Events::with_capacity(POLL_EVENTS),
            clock,
            plan,
            pipeline,
            commands,
            catch_ups: channel(),
            background,
            turns,
            report,
            abandon_after,
            abandon_at,
            is_busy: true,
            stop: None,
            panics: Panics::default(),
            handed_over: None,
            resumes: false,
            deferred: VecDeque::new(),
        };
        Ok((Box::new(runner), handle))
    }

    /// Runs until the stream is stopped.
    pub(crate) fn run(mut self: Box<Runner>) -> Ended {
        loop {
            let wait = self.wait();
            match self.turn(wait) {
                Ok(runner) => self = runner,
                Err(ended) => return ended,
            }
        }
    }

    /// Makes one turn: polls for up to `wait`, then does all work that is due. `Err`: the stream has ended.
    pub(crate) fn turn(mut self: Box<Runner>, wait: Duration) -> Result<Box<Runner>, Ended> {
        // A panic may leave any stage half changed, so the stages are rebuilt. The sockets are kept: their state is bytes
        // and counts, which change only after the system calls.
        match catch_unwind(AssertUnwindSafe(|| self.work(wait))) {
            Ok(TurnEnd::Continue) => Ok(self),
            Ok(TurnEnd::Stop) => Err(self.end()),
            Ok(TurnEnd::Resume) => Ok(self.resume()),
            Ok(TurnEnd::Leave) => Err(self.leave()),
            Err(panic) if failpoint::is_crash(&*panic) => resume_unwind(panic),
            Err(panic) => Ok(self.rebuild_after_panic(panic)),
        }
    }

    /// Rebuilds the pipeline after a panic: on the same connections, and from the journal.
    fn rebuild_after_panic(mut self: Box<Runner>, panic: Box<dyn Any + Send>) -> Box<Runner> {
        let why = message(&*panic);
        let sent: u64 = self.pipeline.delivery.sinks.iter().map(|sink| sink.sender.frames).sum();
        let frames = self.pipeline.receive.frames + sent;
        self.panics.count = if frames == self.panics.frames { self.panics.count + 1 } else { 1 };
        self.panics.frames = frames;
        self.report.panicked(self.pipeline.poison.current(), &why);
        if self.panics.count > PANICS_MAX {
            resume_unwind(panic);
        }
        if self.panics.count > 1 {
            self.clock.sleep(PANIC_PAUSE);
        }
        self.rebuild(Some(&why), None, panic)
    }

    /// Rebuilds the pipeline after a hand-over that failed. The instances of the plugins and the held rows stay.
    fn resume(mut self: Box<Runner>) -> Box<Runner> {
        let holds = self.handed_over.take().unwrap_or_default();
        self.rebuild(None, Some(holds), Box::new("the journal cannot be opened after a hand-over"))
    }

    /// Rebuilds the pipeline. Ends the thread with `panic` if the journal cannot be opened.
    fn rebuild(
        self: Box<Runner>,
        why: Option<&str>,
        holds: Option<Vec<HoldTimes>>,
        panic: Box<dyn Any + Send>,
    ) -> Box<Runner> {
        let this = *self;
        let (started, mut rescued) = (this.clock.now().instant, rescue(this.pipeline, why, holds));
        let pipeline = loop {
            let now = this.clock.now();
            rescued = match this.plan.rebuild(rescued, now) {
                Ok(pipeline) => break pipeline,
                Err((rescued, why)) => {
                    this.report.not_reopened(&why);
                    if now.instant.saturating_duration_since(started) > REOPEN_MAX {
                        resume_unwind(panic);
                    }
                    this.clock.sleep(PANIC_PAUSE);
                    *rescued
                }
            }
        };
        Box::new(Runner { pipeline, is_busy: true, ..this })
    }

    /// Does the work of the journal's background thread, for [`Background::Caller`].
    pub(crate) fn tend_journal(&self) {
        self.pipeline.stages.frame_log.records.tend_journal();
    }

    /// The work of one turn.
    fn work(&mut self, wait: Duration) -> TurnEnd {
        self.turns.fetch_add(1, Ordering::Relaxed);
        if self.handed_over.is_some() {
            return self.await_end_of_hand_over(wait);
        }
        let polled = self.poll.poll(&mut self.events, Some(wait));
        if let Err(error) = polled.as_ref()
            && error.kind() != std::io::ErrorKind::Interrupted
        {
            self.report.poll_failed(error);
        }
        let now = self.clock.now();
        for event in &self.events {
            self.pipeline.ready(event, now.instant);
        }
        self.pipeline.tick(now);
        self.obey_commands(now);
        if std::mem::take(&mut self.resumes) {
            return TurnEnd::Resume;
        }
        if self.handed_over.is_some() {
            return TurnEnd::Continue;
        }
        self.run_catch_ups(now);
        let has_answers = self.pipeline.deliver_answers(now);
        self.report.publish_notices(&mut self.pipeline, now);
        let (report, clock) = (&mut self.report, &*self.clock);
        self.is_busy = self.pipeline.run(now, clock, &mut |written| {
            let written_at = clock.now().instant;
            written.for_each(|frame| report.frame_written(&frame, written_at));
        });
        self.is_busy |= has_answers;
        if !self.is_busy {
            self.pipeline.stages.frame_log.records.flush_when_idle(now.instant, RECORDS_WAIT);
        }
        if now.instant >= self.abandon_at {
            self.abandon_at = now.instant + ABANDON_EVERY;
            self.pipeline.close_abandoned(self.abandon_after, now);
        }
        self.pipeline.stages.ledger.report_restart_gap(now.instant);
        self.report.update(&mut self.pipeline, now);
        if self.is_stopped(now.instant) { TurnEnd::Stop } else { TurnEnd::Continue }
    }

    /// Stops between two frames: the journal gets all records and its summary. Returns the rest of the state. On an error the
    /// stream continues.
    fn hand_over(&mut self, now: Timestamp) -> Result<StreamState, String> {
        if self.stop.is_some() {
            return Err("the stream is stopping".to_owned());
        }
        // The sockets' notices of this turn, such as the loss of a reader, do not go over.
        self.report.update(&mut self.pipeline, now);
        for _ in 0..ANSWER_ROUNDS_MAX {
            if !self.pipeline.deliver_answers(now) {
                break;
            }
        }
        let Pipeline { stages, delivery, .. } = &mut self.pipeline;
        let Stages { frame_log, ledger, chain, held_rows, .. } = stages;
        let skipped = frame_log.last_skipped();
        let records = &mut frame_log.records;
        if delivery.sinks.iter().any(|sink| sink.outbox.taken_through() < skipped.0) {
            return Err(format!(
                "the disk has refused frame {skipped}, which no reader has yet and no journal"
            ));
        }
        // Afterwards the sinks forget what the next process does not have.
        if !records.flush() {
            return Err("the journal refuses records".to_owned());
        }
        let plugins = chain.hand_over(ledger, now);
        delivery.record_hand_over(records, now);
        let (stream, holds) = (self.plan.config.name.to_string(), held_rows.times(now.instant));
        self.handed_over = Some(holds.clone());
        if let Err(error) = records.hand_over() {
            self.resumes = true;
            return Err(format!("the journal refuses records: {error}"));
        }
        Ok(StreamState { stream, plugins, holds })
    }

    /// Waits for the end of the hand-over. The poll would take events that the pipeline needs later.
    fn await_end_of_hand_over(&mut self, wait: Duration) -> TurnEnd {
        match self.commands.recv_timeout(wait) {
            Ok(StreamCommand::Resume) => return TurnEnd::Resume,
            Ok(StreamCommand::Leave) => return TurnEnd::Leave,
            Ok(StreamCommand::HandOver { reply }) => {
                reply(Err("the stream is handed over already".to_owned()))
            }
            Ok(command) => self.deferred.push_back(command),
            Err(RecvTimeoutError::Timeout) => {}
            // Nobody is left who could have handed the stream over.
            Err(RecvTimeoutError::Disconnected) => return TurnEnd::Resume,
        }
        TurnEnd::Continue
    }

    /// Ends a stream that another process has taken over. Its connections are not shut down: that process has them.
    fn leave(self: Box<Runner>) -> Ended {
        let Pipeline { mut stages, receive, .. } = self.pipeline;
        receive.pull.leave();
        stages.ledger.close_restart_gap();
        Ended::default()
    }

    /// Drains the stream once it is to stop. Returns whether it may end.
    fn is_stopped(&mut self, now: Instant) -> bool {
        let Some(deadline) = self.stop else { return false };
        self.pipeline.receive.pull.close(now);
        if !self.pipeline.receive.pull.is_closed() {
            return now >= deadline + CLOSE_MAX;
        }
        if !self.is_busy && !self.pipeline.stages.chain.has_open_calls() {
            // Neither a further row nor an answer can release the held ones.
            self.pipeline.stages.held_rows.end_all(HoldEnd::Stop);
        }
        self.pipeline.is_drained() || now >= deadline
    }

    /// Finishes catch-up rounds of new plugin instances, and starts further ones.
    fn run_catch_ups(&mut self, now: Timestamp) {
        while let Ok(result) = self.catch_ups.1.try_recv() {
            self.change(|it| {
                it.pipeline.stages.chain.finish_catch_up(result, &it.pipeline.stages.ledger, now)
            });
        }
        if !self.pipeline.stages.chain.has_catch_ups() {
            return;
        }
        let (results, waker) = (self.catch_ups.0.clone(), self.plan.waker.clone());
        self.pipeline.start_catch_ups(self.background, move |result| {
            // Both fail only if the stream has ended.
            let _sent = results.send(result);
            let _woken = waker.wake();
        });
    }

    fn obey_commands(&mut self, now: Timestamp) {
        while self.handed_over.is_none() {
            let command = self.deferred.pop_front().map_or_else(|| self.commands.try_recv(), Ok);
            match command {
                Ok(command) => self.obey(command, now),
                Err(TryRecvError::Empty) => return,
                // Every handle is gone, so nothing could stop the stream later.
                Err(TryRecvError::Disconnected) => {
                    self.stop.get_or_insert(now.instant);
                    return;
                }
            }
        }
    }

    fn obey(&mut self, command: StreamCommand, now: Timestamp) {
        let engine = self.plan.config.engine;
        let Stages { chain, ledger, frame_log: FrameLog { records, .. }, .. } = &mut self.pipeline.stages;
        match command {
            StreamCommand::Reload { plugin, result } => {
                self.change(|it| {
                    it.pipeline.stages.chain.reload(&plugin, *result, &it.pipeline.stages.ledger, now)
                });
            }
            StreamCommand::AttributesChanged { id, reply } => {
                for (_, request) in ledger.with_id(engine, &id) {
                    ledger.refresh_attributes(request);
                    chain.attributes_changed(request.number().0, ledger, now);
                    ledger.record_attributes(request, records);
                }
                reply();
            }
            StreamCommand::RequestsWithId { id, reply } => {
                reply(ledger.with_id(engine, &id).into_iter().map(|(rid, _)| rid).collect());
            }
            StreamCommand::PluginStatuses { reply } => reply(chain.statuses()),
            StreamCommand::Change { change, reply } => {
                self.change(|it| change.apply(&mut it.plan, &mut it.pipeline, now));
                reply();
            }
            StreamCommand::Reinstate { plugin, reply } => reply(chain.reinstate(&plugin, ledger, now)),
            StreamCommand::Promote { plugin, reply } => reply(chain.promote(&plugin, now)),
            StreamCommand::Joins { sink, joins } => {
                self.change(|it| change::set_joins(&sink, joins, &mut it.plan, &mut it.pipeline));
            }
            StreamCommand::RequestStatus { rid, reply } => reply(ledger.request_status(&rid)),
            StreamCommand::RecordAbort { rid, number, abort, reply } => {
                ledger.set_operator_abort(&rid, number, abort, records);
                reply();
            }
            StreamCommand::NotMigrated { number, why, reply } => {
                reply(self.pipeline.stages.not_migrated(number, &why, now));
            }
            StreamCommand::Stop { deadline } => self.stop = Some(deadline),
            StreamCommand::HandOver { reply } => reply(self.hand_over(now)),
            // The stream does not wait for these.
            StreamCommand::Resume | StreamCommand::Leave => {}
        }
    }

    /// Makes a change between two batches. Its duration is a metric, because batches wait.
    fn change(&mut self, apply: impl FnOnce(&mut Runner)) {
        let started = self.clock.now().instant;
        apply(self);
        let took = self.clock.now().instant.saturating_duration_since(started);
        self.plan.telemetry.counters.change_seconds.observe(took);
    }

    /// The longest time that the next turn may poll.
    pub(crate) fn wait(&self) -> Duration {
        if self.handed_over.is_some() {
            return POLL_MAX;
        }
        if self.is_busy {
            return Duration::ZERO;
        }
        let now = self.clock.now().instant;
        // Past the drain's deadline, only senders that do not close are waited for.
        let stop = self.stop.map(|deadline| if now < deadline { deadline } else { deadline + CLOSE_MAX });
        let deadlines = [self.pipeline.deadline(now), self.report.deadline(), stop];
        let next = deadlines.into_iter().flatten().min();
        let longest = if self.stop.is_some() { DRAIN_POLL_MAX } else { POLL_MAX };
        next.map_or(longest, |next| next.saturating_duration_since(now).min(longest))
    }

    fn end(mut self) -> Ended {
        let now = self.clock.now();
        let Pipeline { receive, stages: Stages { frame_log, ledger, .. }, delivery, .. } = &mut self.pipeline;
        // Frames whose record a full disk refused are sent if the disk now has room.
        delivery.send_staged(&mut frame_log.records, now);
        let unread_bytes = receive.pull.abandon();
        let unpersisted = frame_log.unpersisted();
        delivery.record_end(&mut frame_log.records, now);
        ledger.close_restart_gap();
        let (frames_left, bytes_left) = self.pipeline.backlog_size();
        self.report.end(&mut self.pipeline, now);
        let journal = self.pipeline.stages.frame_log.records.finish().err().map(|error| error.to_string());
        Ended { frames_left, bytes_left, unread_bytes, unpersisted, journal }
    }
}

/// The message of a panic.
pub(crate) fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}
