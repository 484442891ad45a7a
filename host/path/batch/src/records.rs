//! The records that the stages after persist write into the journal: what became of each frame and each request.
//!
//! Owns the journal's writer, which the [`FrameLog`](crate::frame_log::FrameLog) borrows for the frames, and the reaction to a
//! disk that refuses records.

mod disk;

use crate::{Location, Persisted, Timestamp};
use afterbay_config::OnError;
use afterbay_events::event::JournalNotice;
use afterbay_events::{Health, StreamTelemetry};
use afterbay_journal::reader::OperatorAbort;
use afterbay_journal::{
    BackgroundNotice, BacklogReader, Credit, FrameNo, HELD_SINK, JournalRequest, JournalWriter, Outcome,
    ReadError, RecoveredStream, RequestNo, SendRoom, SinkContent, SinkProgress, WriteError, as_read,
};
use afterbay_types::RecordDetail;
use disk::Disk;
use std::time::{Duration, Instant};

/// The rules of a stream for its journal.
#[derive(Clone, Copy, Debug)]
pub struct JournalPolicy {
    /// The reaction to a failing disk.
    pub on_error: OnError,
    /// Whether a frame waits until a sync has made the frame durable (`sync = "always"`).
    pub durable_first: bool,
    /// The part of a request's record that the journal gets.
    pub record_detail: RecordDetail,
}

impl Default for JournalPolicy {
    fn default() -> JournalPolicy {
        JournalPolicy { on_error: OnError::Stop, durable_first: false, record_detail: RecordDetail::Full }
    }
}

/// The records that the writer holds in memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Buffer {
    /// None: the journal's file has all.
    Empty,
    /// Some. The next frame takes them along.
    Filled,
    /// Some. They are written at this time if no frame comes first.
    FlushAt(Instant),
}

/// A copy of a record about frames, for a trial.
#[derive(Clone, Debug)]
pub enum RecordCopy {
    /// The outcome of a frame.
    Outcome(Outcome<'static>),
    /// The end of a request.
    Close(RequestNo),
}

/// The records of one stream's journal about its frames and requests.
pub struct Records {
    pub(crate) writer: JournalWriter,
    /// The rules of the stream for its journal.
    pub policy: JournalPolicy,
    pub(crate) disk: Disk,
    pub(crate) buffer: Buffer,
    /// Whether frames of an earlier run have no outcome yet. None is read back before it has one.
    pub lacks_outcomes: bool,
    /// Every row up to this frame that was held has been released, as the journal has it; `None` if no row is held.
    held_after: Option<FrameNo>,
    /// Copies of the records since the last [`Records::take_copies`]; `None` unless a trial wants them.
    copies: Option<Vec<RecordCopy>>,
    pub(crate) telemetry: StreamTelemetry,
}

impl Records {
    /// Continues a journal. A disk that refuses writes is reported at once, so that readiness does not wait for a frame.
    pub fn new(
        writer: JournalWriter,
        policy: JournalPolicy,
        recovered: &RecoveredStream,
        telemetry: StreamTelemetry,
        health: Health,
        now: Timestamp,
    ) -> Records {
        let mut records = Records {
            writer,
            policy,
            disk: Disk::new(telemetry.clone(), health),
            // The start has settled both for the earlier run.
            buffer: Buffer::Filled,
            lacks_outcomes: recovered.unfinished.first().is_some(),
            held_after: recovered.sinks.iter().find(|sink| !sink.is_reader()).map(SinkProgress::through),
            copies: None,
            telemetry,
        };
        let refused = records.writer.probe().err().map(|error| error.to_string());
        if let Some(error) = refused.or_else(|| recovered.refused.clone()) {
            records.disk.fail(policy.on_error, true, &error, now);
        }
        records
    }

    /// The memory of the journal's open requests in bytes.
    pub fn requests_memory(&self) -> u64 {
        self.writer.requests_memory()
    }

    /// Reads accounted frames from this one on, with their outcomes.
    pub fn backlog(&self, from: &Persisted) -> BacklogReader {
        match from.location() {
            Location::At(position) => self.writer.backlog_at(position),
            Location::ByNumber | Location::Nowhere => self.writer.backlog(from.frame()),
        }
        .with_outcomes()
    }

    /// Reads frames of an earlier run from this one on, with their outcomes.
    pub fn backlog_from(&self, from: FrameNo) -> BacklogReader {
        self.writer.backlog(from).with_outcomes()
    }

    /// Reads from the first frame of the live requests on, with outcomes. `None` if the records cannot be written, or no
    /// request is live.
    pub fn backlog_of_live_requests(&mut self) -> Option<BacklogReader> {
        let first = self.writer.first_of_open()?;
        self.flush().then(|| self.writer.backlog(first).with_outcomes())
    }

    /// Publishes an event about frames that could not be read back.
    pub fn report_read_error(&self, error: &ReadError) {
        self.publish_notice(error.to_string());
    }

    fn publish_notice(&self, what: String) {
        let stream = self.telemetry.stream.clone();
        self.telemetry.publish(JournalNotice { stream, is_wrong: true, what });
    }

    /// Makes retention leave the frames from this one on: a sink has them nowhere else.
    pub fn retain_from(&mut self, frame: Option<FrameNo>) {
        self.writer.keep_from(frame);
    }

    /// Records the beginning of a request, and numbers the request.
    pub fn open_request(&mut self, rid: &str, of_engine: &[(String, String)]) -> JournalRequest {
        self.writer.open_with(rid.as_bytes(), of_engine)
    }

    /// Records an open request's attributes, which have changed, and the age at which the request is to be erased.
    pub fn refresh_request(&mut self, request: JournalRequest, rid: &str, of_engine: &[(String, String)]) {
        self.fill_buffer();
        self.writer.refresh(request, rid, of_engine);
    }

    /// Records the components of all plugins, where they differ from those recorded last: name, version and SHA-256 of each. The
    /// outcomes from now on have their verdicts.
    pub fn record_plugins<'p>(
        &mut self,
        plugins: impl Iterator<Item = (&'p str, &'p str, &'p [u8; 32])> + Clone,
    ) {
        if self.writer.plugins(plugins) {
            self.fill_buffer();
        }
    }

    /// Records what became of a frame.
    pub fn record_outcome(&mut self, outcome: &Outcome<'_, JournalRequest>) {
        self.fill_buffer();
        self.writer.outcome(outcome);
        if let Some(copies) = &mut self.copies {
            copies.extend(as_read(outcome).map(RecordCopy::Outcome));
        }
    }

    /// Records that a row of frame `oldest` is the first held row of the stream, if no other is held. Call before
    /// [`Records::record_outcome`]: one write takes both, so that the next start finds the row.
    pub fn record_first_held(&mut self, oldest: Option<FrameNo>) {
        if self.held_after.is_none() && oldest.is_some() {
            self.record_held_from(oldest);
        }
    }

    /// Records the frame of the oldest held row, or that no row is held. Call after [`Records::record_outcome`].
    pub fn record_held_from(&mut self, oldest: Option<FrameNo>) {
        let after = oldest.map(|oldest| FrameNo(oldest.0.saturating_sub(1)));
        if self.held_after == after {
            return;
        }
        self.held_after = after;
        self.fill_buffer();
        match after {
            Some(after) => self.writer.taken(HELD_SINK, 0, after, None, 0),
            None => self.writer.forget(HELD_SINK),
        }
    }

    /// The frame after which the oldest held row was received, as the journal has it. The row may have been released since.
    pub fn held_after(&self) -> Option<FrameNo> {
        self.held_after
    }

    /// Records the progress of an operator's abort, and writes it at once: the scheduler is told afterwards.
    pub fn record_abort(&mut self, request: JournalRequest, abort: OperatorAbort) {
        self.fill_buffer();
        self.writer.ending(request, abort);
        self.flush();
    }

    /// Records the end of a request. `finish` is the finish reason if the sender ended the request without a row, else empty.
    pub fn record_close(&mut self, request: JournalRequest, finish: &str) {
        self.fill_buffer();
        self.writer.close_as(request, finish);
        if let Some(copies) = &mut self.copies {
            copies.push(RecordCopy::Close(request.number()));
        }
    }

    /// Copies outcomes and ends of requests from now on, for [`Records::take_copies`].
    pub fn keep_copies(&mut self) {
        self.copies = Some(Vec::new());
    }

    /// Takes the copies since the last call.
    pub fn take_copies(&mut self) -> Vec<RecordCopy> {
        self.copies.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Records which of these sinks each row of a frame goes to.
    pub fn record_routes(&mut self, frame: FrameNo, sinks: &[String], requests: &[u64], targets: &[u32]) {
        self.fill_buffer();
        self.writer.routed(frame, sinks, requests, targets);
    }

    /// Records that a frame is about to be given to the sink's socket.
    pub fn record_sent(&mut self, sink: &str, sequence: u64, content: SinkContent<'_>, now: Timestamp) {
        self.fill_buffer();
        self.writer.sent(sink, sequence, content, now.unix_ns);
    }

    /// Which frames the sink may be sent now, so that each has its record.
    pub fn send_room(&self, sink: &str) -> SendRoom {
        self.writer.send_room(sink)
    }

    /// Records that the sink's reader has taken the sent frames up to `sequence`, and with them the received frames up to
    /// `through`.
    pub fn record_taken(
        &mut self,
        sink: &str,
        sequence: u64,
        through: FrameNo,
        credit: Option<Credit>,
        now: Timestamp,
    ) {
        self.fill_buffer();
        self.writer.taken(sink, sequence, through, credit, now.unix_ns);
    }

    /// Records at the end of the stream that the kernel has the sent frames up to `written` and no later one. The next start
    /// sends the later ones again.
    pub fn record_never_written(&mut self, sink: &str, taken: u64, written: u64, credit: Option<Credit>) {
        let known = self.writer.known_sink(sink).filter(|known| known.last_sent() > written);
        let Some(known) = known.cloned() else { return };
        self.fill_buffer();
        self.writer.resume(sink, taken, credit);
        let with_kernel = taken + 1..=written;
        for sent in known.sent().filter(|sent| with_kernel.contains(&sent.sequence)) {
            self.writer.sent(sink, sent.sequence, sent.content.clone(), sent.unix_ns);
        }
    }

    fn fill_buffer(&mut self) {
        if self.buffer == Buffer::Empty {
            self.buffer = Buffer::Filled;
        }
    }

    /// Writes the records, and says whether the frames in them may be sent: the records are written, or the operator allows
    /// frames without records (`on_error = "forward"`). In the second case the journal's manifest says that records are
    /// missing.
    pub fn may_send(&mut self, now: Timestamp) -> bool {
        if self.buffer == Buffer::Empty {
            return true;
        }
        let Err(error) = self.writer.flush() else {
            self.buffer = Buffer::Empty;
            return true;
        };
        self.buffer = Buffer::Filled;
        let why = error.to_string();
        let failure = self.disk.fail(self.policy.on_error, false, &why, now);
        if self.policy.on_error == OnError::Stop {
            return false;
        }
        let is_first = !std::mem::replace(&mut failure.has_unrecorded, true);
        if !self.writer.unrecorded() && is_first {
            self.publish_notice(format!(
                "frames are sent without a record, and a restart may send them again: {why}"
            ));
        }
        true
    }

    /// Writes the records. Returns false if the disk refuses them: the writer keeps them, and [`Records::may_send`] or the
    /// next frame reports the failure.
    pub fn flush(&mut self) -> bool {
        if self.buffer != Buffer::Empty {
            let is_written = self.writer.flush().is_ok();
            self.buffer = if is_written { Buffer::Empty } else { Buffer::Filled };
        }
        self.buffer == Buffer::Empty
    }

    /// The time at which [`Records::flush_when_idle`] or the next probe of a failed disk is due.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let flush_at = match self.buffer {
            Buffer::FlushAt(at) => Some(at),
            Buffer::Empty | Buffer::Filled => None,
        };
        [flush_at, self.disk.probe_at()].into_iter().flatten().min()
    }

    /// Call when the stream has nothing else to do. Writes records that have waited for `after`.
    pub fn flush_when_idle(&mut self, now: Instant, after: Duration) {
        match self.buffer {
            Buffer::Filled => self.buffer = Buffer::FlushAt(now + after),
            Buffer::FlushAt(at) if at <= now => drop(self.flush()),
            // The journal's owner asked for the end of the segment.
            Buffer::Empty if self.writer.is_to_end() => {
                self.fill_buffer();
                self.flush();
            }
            Buffer::FlushAt(_) | Buffer::Empty => {}
        }
    }

    /// The next notice of the journal's background threads. The writer must be flushed after each.
    pub fn next_notice(&mut self) -> Option<BackgroundNotice> {
        let notice = self.writer.next_notice()?;
        self.fill_buffer();
        Some(notice)
    }

    /// Does the work of the journal's background thread, if the journal has none.
    pub fn tend_journal(&self) {
        self.writer.tend();
    }

    /// Whether the last write succeeded and a failed sync was made up for.
    pub fn is_healthy(&self) -> bool {
        self.writer.is_healthy()
    }

    /// The last frame that survives a power cut.
    pub fn durable_frame(&self) -> FrameNo {
        self.writer.durable()
    }

    /// Writes the records and ends the journal, so that it can be opened again by whoever takes the stream over. Only drop the
    /// stage afterwards. On an error the stage continues.
    pub fn hand_over(&mut self) -> Result<(), WriteError> {
        self.writer.hand_over()
    }

    /// Ends the journal, with a summary.
    pub fn finish(self) -> Result<(), WriteError> {
        self.writer.finish()
    }
}
