//! The journal's place in the path: a frame is written before anything else happens to it.
//!
//! Owns the journal's writer and what waits for it. A [`Received`] comes in; a [`Persisted`], which only this file can make,
//! goes on to decode. What a failing disk means is decided here.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]
#![expect(missing_docs, reason = "written with the words of this crate")]

use afterbay_batch::failpoint;
use afterbay_batch::{Location, Persisted, Received, Timestamp};
use afterbay_config::OnError;
use afterbay_events::StreamTelemetry;
use afterbay_events::event::{JournalHealed, JournalNotice, JournalWriteFailed};
use afterbay_events::{Health, Severity};
use afterbay_journal::reader::OperatorAbort;
use afterbay_journal::{
    BackgroundNotice, BacklogItem, BacklogReader, Credit, FrameNo, FrameSet, HELD_SINK, HandedOver,
    JournalRequest, JournalWriter, Outcome, ReadError, RecoveredStream, RequestError, RequestNo, SinkContent,
    SinkProgress, WriteError,
};
use afterbay_outbox::FrameToSend;
use std::collections::VecDeque;
use std::time::{Duration, Instant, SystemTime};

/// Between two tries of a write that failed.
const RETRY: Duration = Duration::from_millis(100);
/// Between two looks whether a disk that failed has room again, where no frame comes to be tried.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Bytes of frames that wait for the disk (`sync = "always"`); then nothing more is received.
const WAITING_BYTES_MAX: usize = 16 << 20;
/// Frames likewise.
const WAITING_FRAMES_MAX: usize = 4096;

/// Since the first write that failed.
struct Failing {
    since: Instant,
    /// Frames that went on without the journal.
    skipped: u64,
    /// Frames were refused; else only records about frames that were to leave.
    refuses_frames: bool,
    /// When to look whether the disk has room again.
    look_at: Instant,
}

/// The journal of a stream.
pub struct Persister {
    writer: JournalWriter,
    last: FrameNo,
    on_error: OnError,
    /// A frame goes on only when it is on the disk.
    durable_first: bool,
    waiting: VecDeque<Persisted>,
    waiting_bytes: usize,
    /// What an earlier run has kept and not accounted: it goes first.
    unaccounted: Option<Unaccounted>,
    /// When to read those again after the disk would not let it.
    read_at: Option<Instant>,
    /// A frame that could not be written and is tried again.
    refused: Option<(Received, Instant)>,
    failing: Option<Failing>,
    /// Frames left of which no record says so, since the disk failed.
    is_unrecorded: bool,
    telemetry: StreamTelemetry,
    health: Health,
    /// What is told of a frame that leaves.
    rows: Vec<(RequestNo, FrameNo)>,
    /// What the journal was told of rows that are held: all frames up to this one are done with.
    held_after: Option<FrameNo>,
    /// Outcomes wait to be written.
    dirty: bool,
    flush_at: Option<Instant>,
}

impl Persister {
    pub fn new(
        writer: JournalWriter,
        on_error: OnError,
        durable_first: bool,
        recovered: &RecoveredStream,
        telemetry: StreamTelemetry,
        health: Health,
    ) -> Persister {
        let unaccounted = Unaccounted::of(recovered, &writer);
        let mut persister = Persister {
            writer,
            last: recovered.last_frame,
            on_error,
            durable_first,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            unaccounted,
            read_at: None,
            refused: None,
            failing: None,
            is_unrecorded: false,
            telemetry,
            health,
            rows: Vec::new(),
            held_after: recovered.sinks.iter().find(|sink| !sink.is_reader()).map(SinkProgress::through),
            dirty: false,
            flush_at: None,
        };
        // Not only when the first frame comes: whoever looks whether the process is ready is to know.
        let refused = persister.writer.probe().err().map(|error| error.to_string());
        if let Some(why) = refused.or_else(|| recovered.refused.clone()) {
            persister.fail(on_error, true, &why);
        }
        persister
    }

    /// The last frame that was given a number.
    pub fn last_frame(&self) -> FrameNo {
        self.last
    }

    /// What outlives a panic: the frame that the journal has refused.
    pub fn into_refused(mut self) -> Option<Received> {
        self.refused.take().map(|(received, _)| received)
    }

    /// Why no further frame may be given.
    pub fn full(&self) -> Option<&'static str> {
        if self.refused.is_some() {
            return Some("the journal does not take frames, so the scheduler's queue holds");
        }
        let is_full = self.waiting.len() >= WAITING_FRAMES_MAX || self.waiting_bytes >= WAITING_BYTES_MAX;
        is_full.then_some("as many frames wait for the disk as may, so the scheduler's queue holds")
    }

    /// Writes a frame. Where the disk refuses it, it waits here (`stop`) or goes on unkept (`forward`).
    pub fn persist(&mut self, received: Received) {
        failpoint::at("keep");
        let begun = Instant::now();
        let appended = self.writer.append(&received.bytes, received.at.unix_ns);
        self.telemetry.counters.journal_append_seconds.add(begun.elapsed());
        failpoint::at("kept");
        match appended {
            Ok(position) => {
                // What waited went out with the frame.
                (self.dirty, self.flush_at) = (false, None);
                self.telemetry.counters.journal_frame.set(position.frame.0);
                self.healed();
                self.admit(received, position.frame, Location::At(position));
            }
            Err(error) => self.refuse(received, error),
        }
    }

    fn refuse(&mut self, received: Received, error: WriteError) {
        // A frame over the journal's bound would never be taken, so that holding it would hold the stream for ever.
        let hopeless = matches!(error, WriteError::TooLarge { .. });
        let stops = self.on_error == OnError::Stop && !hopeless;
        let does = if stops { OnError::Stop } else { OnError::Forward };
        let failing = self.fail(does, true, &error.to_string());
        if stops {
            self.refused = Some((received, Instant::now() + RETRY));
            return;
        }
        failing.skipped += 1;
        self.telemetry.counters.journal_frames_skipped.add(1);
        let frame = self.writer.skipped(1, received.at.unix_ns);
        self.admit(received, frame, Location::Nowhere);
    }

    /// The disk does not take what it should: told at the first time.
    fn fail(&mut self, does: OnError, refuses_frames: bool, why: &str) -> &mut Failing {
        let failing = self.failing.get_or_insert_with(|| {
            let stream = self.telemetry.stream.clone();
            let (on_error, severity, what) = match does {
                OnError::Stop => {
                    ("stop", Severity::NotReady, "nothing is received or sent that cannot be recorded")
                }
                OnError::Forward => ("forward", Severity::Degraded, "frames are forwarded and not kept"),
            };
            let why = format!("{what}: {why}");
            self.health.set(&health_key(&stream), severity, why.clone(), SystemTime::now());
            self.telemetry.counters.journal_failing.set(1);
            self.telemetry.publish(JournalWriteFailed { stream, on_error, why });
            let now = Instant::now();
            Failing { since: now, skipped: 0, refuses_frames, look_at: now + LOOK_EVERY }
        });
        failing.refuses_frames |= refuses_frames;
        failing
    }

    fn healed(&mut self) {
        let Some(Failing { since, skipped, .. }) = self.failing.take() else { return };
        self.is_unrecorded = false;
        let stream = self.telemetry.stream.clone();
        self.health.clear(&health_key(&stream));
        self.telemetry.counters.journal_failing.set(0);
        let failing_ms = u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.telemetry.publish(JournalHealed { stream, failing_ms, skipped_frames: skipped });
    }

    fn admit(&mut self, received: Received, frame: FrameNo, location: Location) {
        self.last = frame;
        self.waiting_bytes += received.bytes.len();
        self.waiting.push_back(Persisted::new(received, frame, location));
    }

    /// Something may go on.
    pub fn has_next(&self) -> bool {
        if self.unaccounted.is_some() {
            return self.read_at.is_none();
        }
        self.waiting.front().is_some_and(|next| {
            !self.durable_first || !next.is_in_journal() || next.frame() <= self.writer.durable()
        })
    }

    /// The next frame that may go on, in the order they came.
    pub fn next(&mut self) -> Option<Persisted> {
        while self.has_next() {
            let Some(unaccounted) = &mut self.unaccounted else {
                let persisted = self.waiting.pop_front()?;
                self.waiting_bytes -= persisted.bytes().len();
                return Some(persisted);
            };
            match unaccounted.next() {
                Ok(Some(persisted)) => return Some(persisted),
                Ok(None) => self.unaccounted = None,
                Err(error) => {
                    // What is behind missing frames may be whole; a disk that does not read is asked again.
                    if !error.is_missing() {
                        self.read_at = Some(Instant::now() + RETRY);
                    }
                    self.report_read_error(&error);
                }
            }
        }
        None
    }

    /// Frames of an earlier run are still to be accounted.
    pub fn has_unaccounted(&self) -> bool {
        self.unaccounted.is_some()
    }

    /// Reads back what was accounted, from this frame on, with what was done with each.
    pub fn backlog(&self, from: &Persisted) -> BacklogReader {
        match from.location() {
            Location::At(position) => self.writer.backlog_at(position),
            Location::ByNumber | Location::Nowhere => self.writer.backlog(from.frame()),
        }
        .with_outcomes()
    }

    /// The same, of an earlier run.
    pub fn backlog_from(&self, from: FrameNo) -> BacklogReader {
        self.writer.backlog(from).with_outcomes()
    }

    /// What there is of the requests that are open, with what was done with it; `None` where it cannot be read.
    pub fn backlog_of_open(&mut self) -> Option<BacklogReader> {
        let first = self.writer.first_of_open()?;
        self.flush().then(|| self.writer.backlog(first).with_outcomes())
    }

    /// Frames could not be read back.
    pub fn report_read_error(&self, error: &ReadError) {
        let (stream, what) = (self.telemetry.stream.clone(), error.to_string());
        self.telemetry.publish(JournalNotice { stream, is_wrong: true, what });
    }

    /// Retention leaves what waits for a sink from this frame on.
    pub fn retain_from(&mut self, frame: Option<FrameNo>) {
        self.writer.keep_from(frame);
    }

    /// When [`Persister::tick`] is due.
    pub fn deadline(&self) -> Option<Instant> {
        let refused = self.refused.as_ref().map(|(_, at)| *at);
        let looks = self.failing.as_ref().map(|failing| failing.look_at);
        [refused, looks, self.flush_at, self.read_at].into_iter().flatten().min()
    }

    /// Looks whether the disk has room again, where no refused frame tells.
    fn look(&mut self, now: Instant) {
        let Some(failing) = self.failing.as_mut().filter(|failing| failing.look_at <= now) else { return };
        failing.look_at = now + LOOK_EVERY;
        let refuses_frames = failing.refuses_frames;
        // Where only a frame can tell, the next one does.
        let knows = self.refused.is_none() && self.writer.probe().is_ok_and(|knows| knows || !refuses_frames);
        if knows {
            self.healed();
        }
    }

    /// Tries a refused frame again.
    pub fn tick(&mut self, now: Instant) {
        self.look(now);
        if let Some((received, _)) = self.refused.take_if(|(_, at)| *at <= now) {
            self.persist(received);
        }
        self.read_at.take_if(|at| *at <= now);
    }

    /// When the oldest of the frames came that wait for the disk.
    pub fn oldest_received_at(&self) -> Option<Instant> {
        self.waiting.front().map(|persisted| persisted.at().instant)
    }

    /// Frames that have not gone on, and their bytes.
    pub fn backlog_size(&self) -> (usize, u64) {
        let refused = self.refused.as_ref().map(|(received, _)| received.bytes.len());
        let unaccounted = self.unaccounted.as_ref().map_or(0, |unaccounted| unaccounted.left);
        (
            unaccounted + self.waiting.len() + usize::from(refused.is_some()),
            (self.waiting_bytes + refused.unwrap_or(0)) as u64,
        )
    }

    pub fn open_request(&mut self, rid: &str) -> Result<JournalRequest, RequestError> {
        self.writer.request(rid)
    }

    pub fn record_outcome(&mut self, outcome: &Outcome<'_, JournalRequest>) {
        self.dirty = true;
        self.writer.outcome(outcome);
    }

    /// Before the outcome of a frame whose rows wait, if they are the first: the oldest of those came in this frame. The two
    /// are written together, so that a next start looks for them.
    pub fn record_first_held(&mut self, oldest: Option<FrameNo>) {
        if self.held_after.is_none() && oldest.is_some() {
            self.record_held_from(oldest);
        }
    }

    /// After an outcome: the oldest row that waits came in this frame, or none waits.
    pub fn record_held_from(&mut self, oldest: Option<FrameNo>) {
        let after = oldest.map(|oldest| FrameNo(oldest.0.saturating_sub(1)));
        if self.held_after == after {
            return;
        }
        (self.held_after, self.dirty) = (after, true);
        match after {
            Some(after) => self.writer.taken_sent(HELD_SINK, 0, after, None),
            None => self.writer.forget(HELD_SINK),
        }
    }

    /// What an earlier run held came after this frame; it may have gone on since.
    pub fn held_after(&self) -> Option<FrameNo> {
        self.held_after
    }

    /// How far the operator's end of a request has come. It is written at once: what is told the scheduler comes after it.
    pub fn record_abort(&mut self, request: JournalRequest, ending: OperatorAbort) {
        self.dirty = true;
        self.writer.ending(request, ending);
        self.flush();
    }

    pub fn record_close(&mut self, request: JournalRequest) {
        self.dirty = true;
        self.writer.close(request);
    }

    /// To which of these sinks each row of a frame goes.
    pub fn record_routes(&mut self, frame: FrameNo, sinks: &[String], requests: &[u64], targets: &[u32]) {
        self.dirty = true;
        self.writer.routed(frame, sinks, requests, targets);
    }

    /// A frame is about to be handed to the sink's socket; it goes out with the next write.
    pub fn record_sent(&mut self, sink: &str, leaving: &FrameToSend) {
        self.dirty = true;
        self.rows.clear();
        self.rows.extend(leaving.rows.iter().map(|(request, frame)| (RequestNo(*request), FrameNo(*frame))));
        let content = match leaving.frame {
            Some(frame) => SinkContent::Whole(FrameNo(frame)),
            None => SinkContent::Rows((&self.rows).into()),
        };
        if let Err(error) = self.writer.sent(sink, leaving.sequence, content) {
            let (stream, what) = (self.telemetry.stream.clone(), error.to_string());
            self.telemetry.publish(JournalNotice { stream, is_wrong: true, what });
        }
    }

    /// What of that the kernel has.
    pub fn record_handed_over(&mut self, sink: &str, handed: HandedOver) {
        self.dirty = true;
        self.writer.handed(sink, handed);
    }

    /// Whether what the journal was told leaves may leave: it is on record, or the operator lets frames go on without that, and
    /// the next start will know that it does not know.
    pub fn may_send(&mut self) -> bool {
        if !self.dirty {
            return true;
        }
        self.flush_at = None;
        let Err(error) = self.writer.flush() else {
            self.dirty = false;
            return true;
        };
        let why = error.to_string();
        self.fail(self.on_error, false, &why);
        if self.on_error == OnError::Stop {
            return false;
        }
        let was_told = std::mem::replace(&mut self.is_unrecorded, true);
        if !self.writer.unrecorded() && !was_told {
            let stream = self.telemetry.stream.clone();
            let what = format!("frames leave unrecorded, and a restart may send them again: {why}");
            self.telemetry.publish(JournalNotice { stream, is_wrong: true, what });
        }
        true
    }

    /// Writes what was told. False: the disk is failing, which `append` tells; it stays with the writer.
    pub fn flush(&mut self) -> bool {
        if self.dirty {
            self.flush_at = None;
            self.dirty = self.writer.flush().is_err();
        }
        !self.dirty
    }

    /// The sink has taken what left up to `sequence`, and with it everything of the frames up to `through`.
    pub fn record_taken(&mut self, sink: &str, sequence: u64, through: FrameNo, credit: Option<Credit>) {
        self.dirty = true;
        self.writer.taken_sent(sink, sequence, through, credit);
    }

    /// The stream ends: of what left for the sink the kernel has what is numbered up to `written`, and nothing after that. So
    /// the next start sends the rest.
    pub fn record_never_written(&mut self, sink: &str, taken: u64, written: u64, credit: Option<Credit>) {
        let Some(known) = self.writer.known_sink(sink).filter(|known| known.last_sent() > written).cloned()
        else {
            return;
        };
        self.dirty = true;
        self.writer.resume(sink, taken, credit);
        for (sequence, content) in
            known.sent().filter(|(sequence, _)| (taken + 1..=written).contains(sequence))
        {
            // Refused only where far more is ahead than could be when it left.
            let _told = self.writer.sent(sink, sequence, content.clone());
        }
        if let Some(handed) = known.handed() {
            self.writer.handed(sink, handed);
        }
    }

    /// The stream has nothing else to do: what has waited for so long is written.
    pub fn flush_when_idle(&mut self, now: Instant, after: Duration) {
        match self.flush_at {
            None if self.dirty => self.flush_at = Some(now + after),
            Some(at) if at <= now => {
                self.flush_at = None;
                self.flush();
            }
            _ => {}
        }
    }

    /// What happened on the journal's own threads. The writer must have its turn after each, which it gets when idle.
    pub fn next_notice(&mut self) -> Option<BackgroundNotice> {
        let notice = self.writer.next_notice()?;
        self.dirty = true;
        Some(notice)
    }

    /// The last write worked, and what a failed sync had left in doubt is written again.
    pub fn is_healthy(&self) -> bool {
        self.writer.is_healthy()
    }

    /// Whether a frame goes on only once a sync has made it durable.
    pub fn is_durable_first(&self) -> bool {
        self.durable_first
    }

    /// The last frame that survives a power cut.
    pub fn durable_frame(&self) -> FrameNo {
        self.writer.durable()
    }

    /// Frames that were received and are neither in the journal nor gone on: at a stop they are lost.
    pub fn unpersisted(&self) -> usize {
        usize::from(self.refused.is_some())
    }

    /// Seals the journal.
    pub fn finish(self) -> Result<(), WriteError> {
        self.writer.finish()
    }
}

/// Frames that an earlier run has kept and had no time to account.
struct Unaccounted {
    backlog: BacklogReader,
    frames: FrameSet,
    left: usize,
}

impl Unaccounted {
    fn of(recovered: &RecoveredStream, writer: &JournalWriter) -> Option<Unaccounted> {
        let frames = recovered.unfinished.clone();
        let left = usize::try_from(frames.len()).unwrap_or(usize::MAX);
        Some(Unaccounted { backlog: writer.backlog(frames.first()?), frames, left })
    }

    /// `None`: that was the last.
    fn next(&mut self) -> Result<Option<Persisted>, ReadError> {
        while self.frames.last().is_some_and(|last| last >= self.backlog.position()) {
            let Some(next) = self.backlog.next()? else { return Ok(None) };
            let BacklogItem::Frame(frame) = next else { continue };
            if self.frames.contains(frame.frame) {
                self.left = self.left.saturating_sub(1);
                let received = Received {
                    bytes: frame.bytes,
                    at: Timestamp::from_unix_ns(frame.received_unix_ns, Timestamp::now()),
                };
                return Ok(Some(Persisted::new(received, frame.frame, Location::ByNumber)));
            }
        }
        Ok(None)
    }
}

fn health_key(stream: &str) -> String {
    format!("journal:{stream}")
}
