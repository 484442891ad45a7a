//! The journal's place in the path: a frame is written before anything else happens to it.
//!
//! Owns the journal's writer and what waits for it. A [`Received`] comes in; a [`Kept`], which only this file can make,
//! goes on to decode. What a failing disk means is decided here.

use crate::receive::{Arrival, Received};
use crate::resume::Resume;
use crate::spill::Spill;
use crate::telemetry::Telemetry;
use afterbay_config::OnError;
use afterbay_events::Health;
use afterbay_events::event::{JournalHealed, JournalNotice, JournalWriteFailed};
use afterbay_journal::{
    Credit, FrameNo, Notice, Outcome, Position, ReadError, Request, RequestError, RequestNo, Sent,
    WriteError, Writer, reader,
};
use afterbay_outbox::Leaving;
use bytes::Bytes;
use std::collections::VecDeque;
use std::time::{Duration, Instant, SystemTime};

/// Between two tries of a write that failed.
const RETRY: Duration = Duration::from_millis(100);
/// Bytes of frames that wait in memory, for the disk (`sync = "always"`) or for room in the outbox; further ones wait in the
/// journal alone.
const WAITING_BYTES_MAX: usize = 16 << 20;
/// Frames likewise.
const WAITING_FRAMES_MAX: usize = 4096;

/// A frame that is in the journal, or that the operator allowed to go on without it.
pub(crate) struct Kept {
    pub(crate) frame: FrameNo,
    pub(crate) bytes: Bytes,
    pub(crate) at: Arrival,
    /// What an earlier run has done with it.
    pub(crate) outcome: Option<Box<reader::Outcome>>,
    /// Not in the journal (`on_error = "forward"`).
    skipped: bool,
    /// So that no other file can make one.
    _made_here: (),
}

impl Kept {
    /// A frame that was read back out of the journal.
    pub(crate) fn read_back(
        frame: FrameNo,
        bytes: Bytes,
        at: Arrival,
        outcome: Option<Box<reader::Outcome>>,
    ) -> Kept {
        Kept { frame, bytes, at, outcome, skipped: false, _made_here: () }
    }
}

/// Since the first write that failed.
struct Failing {
    since: Instant,
    /// Frames that went on without the journal.
    skipped: u64,
}

/// The journal of a stream.
pub(crate) struct Keep {
    writer: Writer,
    on_error: OnError,
    /// A frame goes on only when it is on the disk.
    durable_first: bool,
    waiting: VecDeque<Kept>,
    waiting_bytes: usize,
    /// What came after those.
    spill: Option<Spill>,
    /// Bytes that may wait in the journal; then nothing more is received.
    spill_max: u64,
    /// When to read the spill again after the disk would not let it.
    read_at: Option<Instant>,
    /// A frame that could not be written and is tried again.
    refused: Option<(Received, Instant)>,
    failing: Option<Failing>,
    telemetry: Telemetry,
    health: Health,
    /// What is told of a frame that leaves.
    rows: Vec<(RequestNo, FrameNo)>,
    /// Outcomes wait to be written.
    dirty: bool,
    flush_at: Option<Instant>,
}

impl Keep {
    pub(crate) fn new(
        writer: Writer,
        on_error: OnError,
        durable_first: bool,
        spill_max: u64,
        telemetry: Telemetry,
        health: Health,
    ) -> Keep {
        Keep {
            writer,
            on_error,
            durable_first,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            spill: None,
            spill_max,
            read_at: None,
            refused: None,
            failing: None,
            telemetry,
            health,
            rows: Vec::new(),
            dirty: false,
            flush_at: None,
        }
    }

    /// A further frame may be given to [`Keep::keep`].
    pub(crate) fn has_room(&self) -> bool {
        self.full().is_none()
    }

    /// Why no further frame may be given.
    pub(crate) fn full(&self) -> Option<&'static str> {
        if self.refused.is_some() {
            return Some("the journal does not take frames, so the scheduler's queue holds");
        }
        let spill = self.spill.as_ref()?;
        if spill.has_unkept() {
            return Some(
                "the sink's queue is full and the journal does not take frames, so the scheduler's queue holds",
            );
        }
        let (_, bytes) = spill.backlog();
        (bytes >= self.spill_max).then_some(
            "as many bytes wait in the journal for the sink as it may retain, so the scheduler's queue holds",
        )
    }

    /// Writes a frame. Where the disk refuses it, it waits here (`stop`) or goes on unkept (`forward`).
    pub(crate) fn keep(&mut self, received: Received) {
        let begun = Instant::now();
        let appended = self.writer.append(&received.bytes, received.at.unix_ns);
        self.telemetry.counters.journal_append_seconds.add(begun.elapsed());
        match appended {
            Ok(position) => {
                // What waited went out with the frame.
                (self.dirty, self.flush_at) = (false, None);
                self.telemetry.counters.journal_frame.set(position.frame.0);
                self.healed();
                self.admit(received, position.frame, Some(position));
            }
            Err(error) => self.refuse(received, error),
        }
    }

    fn refuse(&mut self, received: Received, error: WriteError) {
        // A frame over the journal's bound would never be taken, so that holding it would hold the stream for ever.
        let hopeless = matches!(error, WriteError::TooLarge { .. });
        let stops = self.on_error == OnError::Stop && !hopeless;
        let failing = self.failing.get_or_insert_with(|| {
            let stream = self.telemetry.stream.clone();
            let on_error = if stops { "stop" } else { "forward" };
            self.health.set(&health_key(&stream), error.to_string(), SystemTime::now());
            self.telemetry.counters.journal_failing.set(1);
            self.telemetry.publish(JournalWriteFailed { stream, on_error, why: error.to_string() });
            Failing { since: Instant::now(), skipped: 0 }
        });
        if stops {
            self.refused = Some((received, Instant::now() + RETRY));
            return;
        }
        failing.skipped += 1;
        self.telemetry.counters.journal_frames_skipped.add(1);
        let frame = self.writer.skipped(1, received.at.unix_ns);
        self.admit(received, frame, None);
    }

    fn healed(&mut self) {
        let Some(Failing { since, skipped }) = self.failing.take() else { return };
        let stream = self.telemetry.stream.clone();
        self.health.clear(&health_key(&stream));
        self.telemetry.counters.journal_failing.set(0);
        let failing_ms = u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.telemetry.publish(JournalHealed { stream, failing_ms, skipped_frames: skipped });
    }

    /// A frame waits: in memory, or where too much does, in the journal, where its place is.
    fn admit(&mut self, received: Received, frame: FrameNo, place: Option<Position>) {
        let Received { bytes, at } = received;
        let kept = Kept { frame, bytes, at, outcome: None, skipped: place.is_none(), _made_here: () };
        if self.spill.is_none()
            && self.waiting.len() < WAITING_FRAMES_MAX
            && self.waiting_bytes < WAITING_BYTES_MAX
        {
            self.waiting_bytes += kept.bytes.len();
            return self.waiting.push_back(kept);
        }
        let writer = &self.writer;
        let spill = self.spill.get_or_insert_with(|| {
            Spill::new(place.map_or_else(|| writer.backlog(frame), |place| writer.backlog_at(place)))
        });
        match place {
            Some(_) => spill.push(frame, kept.bytes.len()),
            None => spill.push_unkept(kept),
        }
    }

    /// Something may go on.
    pub(crate) fn has_next(&self) -> bool {
        let Some(next) = self.waiting.front() else {
            let next = self.spill.as_ref().map(Spill::position);
            return self.read_at.is_none() && next.is_some_and(|next| self.may_go_on(next, false));
        };
        self.may_go_on(next.frame, next.skipped)
    }

    fn may_go_on(&self, frame: FrameNo, skipped: bool) -> bool {
        !self.durable_first || skipped || frame <= self.writer.durable()
    }

    /// The next frame that may go on, in the order they came.
    pub(crate) fn next(&mut self) -> Option<Kept> {
        if !self.has_next() {
            return None;
        }
        if let Some(kept) = self.waiting.pop_front() {
            self.waiting_bytes -= kept.bytes.len();
            return Some(kept);
        }
        loop {
            let spill = self.spill.as_mut()?;
            let read = spill.next();
            if spill.is_empty() {
                self.spill = None;
            }
            match read {
                Ok(Some(kept)) => return Some(kept),
                Ok(None) => {
                    self.read_at = self.spill.is_some().then(|| Instant::now() + RETRY);
                    return None;
                }
                Err(error) => {
                    let is_missing = matches!(error, ReadError::Missing { .. });
                    let (stream, what) = (self.telemetry.stream.clone(), error.to_string());
                    self.telemetry.publish(JournalNotice { stream, is_wrong: true, what });
                    // What is behind them may be whole; a disk that does not read is asked again.
                    if !is_missing {
                        self.read_at = Some(Instant::now() + RETRY);
                        return None;
                    }
                }
            }
        }
    }

    /// When [`Keep::tick`] is due.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let refused = self.refused.as_ref().map(|(_, at)| *at);
        [refused, self.flush_at, self.read_at].into_iter().flatten().min()
    }

    /// Tries a refused frame again.
    pub(crate) fn tick(&mut self, now: Instant) {
        if let Some((received, _)) = self.refused.take_if(|(_, at)| *at <= now) {
            self.keep(received);
        }
        self.read_at.take_if(|at| *at <= now);
    }

    /// Frames that have not gone on, and their bytes.
    pub(crate) fn backlog(&self) -> (usize, u64) {
        let refused = self.refused.as_ref().map(|(received, _)| received.bytes.len());
        let (frames, bytes) = self.spilled();
        (
            frames + self.waiting.len() + usize::from(refused.is_some()),
            bytes + (self.waiting_bytes + refused.unwrap_or(0)) as u64,
        )
    }

    /// Frames that wait in the journal alone, and their bytes.
    pub(crate) fn spilled(&self) -> (usize, u64) {
        self.spill.as_ref().map_or((0, 0), Spill::backlog)
    }

    pub(crate) fn request(&mut self, rid: &str) -> Result<Request, RequestError> {
        self.writer.request(rid)
    }

    pub(crate) fn outcome(&mut self, outcome: &Outcome<'_>) {
        self.dirty = true;
        self.writer.outcome(outcome);
    }

    pub(crate) fn close(&mut self, request: Request) {
        self.dirty = true;
        self.writer.close(request);
    }

    /// A frame is about to be handed to the sink's socket. A composed one is told before the kernel gets it; a whole one
    /// goes out with the next write: a start finds it by the reader's count.
    pub(crate) fn sent(&mut self, sink: &str, leaving: &Leaving) {
        self.dirty = true;
        self.rows.clear();
        self.rows.extend(leaving.rows.iter().map(|(request, frame)| (RequestNo(*request), FrameNo(*frame))));
        let told = match leaving.frame {
            Some(frame) => self.writer.sent(sink, leaving.sequence, Sent::Whole(FrameNo(frame))),
            None => {
                let told = self.writer.sent(sink, leaving.sequence, Sent::Rows(&self.rows));
                // Where it cannot be written the disk is failing, which `append` tells.
                self.dirty = self.writer.flush().is_err();
                told
            }
        };
        if let Err(error) = told {
            let (stream, what) = (self.telemetry.stream.clone(), error.to_string());
            self.telemetry.publish(JournalNotice { stream, is_wrong: true, what });
        }
    }

    /// The sink has taken what left up to `sequence`, and with it everything of the frames up to `through`.
    pub(crate) fn taken(&mut self, sink: &str, sequence: u64, through: FrameNo, credit: Option<Credit>) {
        self.dirty = true;
        self.writer.taken_sent(sink, sequence, through, credit);
    }

    /// Frames of an earlier run come back, before any that is new.
    pub(crate) fn resume(&mut self, resume: &Resume) {
        if resume.frames() > 0 {
            let backlog = self.writer.backlog_with_outcomes(FrameNo(resume.done().0 + 1));
            self.spill = Some(Spill::of_earlier_run(backlog, resume));
        }
    }

    /// The stream has nothing else to do: what has waited for so long is written.
    pub(crate) fn idle(&mut self, now: Instant, after: Duration) {
        match self.flush_at {
            None if self.dirty => self.flush_at = Some(now + after),
            Some(at) if at <= now => {
                self.flush_at = None;
                // What cannot be written now stays with the writer, and goes out with the next frame.
                self.dirty = self.writer.flush().is_err();
            }
            _ => {}
        }
    }

    /// What happened on the journal's own threads. The writer must have its turn after each, which it gets when idle.
    pub(crate) fn next_notice(&mut self) -> Option<Notice> {
        let notice = self.writer.next_notice()?;
        self.dirty = true;
        Some(notice)
    }

    /// The last write worked, and what a failed sync had left in doubt is written again.
    pub(crate) fn is_healthy(&self) -> bool {
        self.writer.is_healthy()
    }

    /// The last frame that survives a power cut.
    pub(crate) fn durable(&self) -> FrameNo {
        self.writer.durable()
    }

    /// Seals the journal.
    pub(crate) fn finish(self) -> Result<(), WriteError> {
        self.writer.finish()
    }
}

fn health_key(stream: &str) -> String {
    format!("journal:{stream}")
}
