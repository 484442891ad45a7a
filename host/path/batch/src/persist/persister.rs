//! The writer of one stream's journal: frames in order, and records of what became of them.

use crate::outbox::FrameToSend;
use crate::persist::disk::Disk;
use crate::persist::unaccounted::UnaccountedFrames;
use crate::{Location, Persisted, Received, Timestamp, failpoint};
use afterbay_config::OnError;
use afterbay_events::event::JournalNotice;
use afterbay_events::{Health, StreamTelemetry};
use afterbay_journal::reader::OperatorAbort;
use afterbay_journal::{
    BackgroundNotice, BacklogReader, Credit, FrameNo, HELD_SINK, HandedOver, JournalRequest, JournalWriter,
    Outcome, ReadError, RecoveredStream, RequestNo, SendRoom, SinkContent, SinkProgress, WriteError, as_read,
};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Time between two attempts to write a refused frame, or to read after a failed read.
const RETRY_EVERY: Duration = Duration::from_millis(100);
/// Bytes of frames that may wait for a sync (`sync = "always"`). The stream then stops receiving.
const QUEUE_BYTES_MAX: usize = 16 << 20;
/// Frames that may wait for a sync. The stream then stops receiving.
const QUEUE_FRAMES_MAX: usize = 4096;

/// The rules of a stream for its journal.
#[derive(Clone, Copy, Debug)]
pub struct JournalPolicy {
    /// The reaction to a failing disk.
    pub on_error: OnError,
    /// Whether a frame waits until a sync has made the frame durable (`sync = "always"`).
    pub durable_first: bool,
}

/// A received frame that the journal has not confirmed.
struct UnwrittenFrame {
    received: Received,
    /// The time to write the frame again after the disk refused it; `None` while the write runs.
    retry_at: Option<Instant>,
}

/// Persisted frames that decode has not taken yet.
#[derive(Default)]
struct PersistedQueue {
    frames: VecDeque<Persisted>,
    bytes: usize,
}

/// The records that the writer holds in memory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Records {
    /// None: the journal's file has all.
    Written,
    /// Some. The next frame takes them along.
    Buffered,
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

/// The persist stage of one stream.
pub struct Persister {
    writer: JournalWriter,
    policy: JournalPolicy,
    /// The last frame that has a number.
    last: FrameNo,
    /// The last frame that was forwarded without the journal.
    last_skipped: FrameNo,
    unwritten: Option<UnwrittenFrame>,
    queue: PersistedQueue,
    unaccounted: Option<UnaccountedFrames>,
    disk: Disk,
    records: Records,
    /// Every row up to this frame that was held has been released, as the journal has it; `None` if no row is held.
    held_after: Option<FrameNo>,
    /// Scratch space of [`Persister::record_sent`].
    rows: Vec<(RequestNo, FrameNo)>,
    /// Copies of the records since the last [`Persister::take_copies`]; `None` unless a trial wants them.
    copies: Option<Vec<RecordCopy>>,
    telemetry: StreamTelemetry,
}

impl Persister {
    /// Continues a journal. A disk that refuses writes is reported at once, so that readiness does not wait for a frame.
    pub fn new(
        writer: JournalWriter,
        policy: JournalPolicy,
        recovered: &RecoveredStream,
        telemetry: StreamTelemetry,
        health: Health,
        now: Timestamp,
    ) -> Persister {
        let mut persister = Persister {
            unaccounted: UnaccountedFrames::of(recovered, &writer),
            writer,
            policy,
            last: recovered.last_frame,
            last_skipped: FrameNo(0),
            unwritten: None,
            queue: PersistedQueue::default(),
            disk: Disk::new(telemetry.clone(), health),
            // The start has settled both for the earlier run.
            records: Records::Buffered,
            held_after: recovered.sinks.iter().find(|sink| !sink.is_reader()).map(SinkProgress::through),
            rows: Vec::new(),
            copies: None,
            telemetry,
        };
        let refused = persister.writer.probe().err().map(|error| error.to_string());
        if let Some(error) = refused.or_else(|| recovered.refused.clone()) {
            persister.disk.fail(policy.on_error, true, &error, now);
        }
        persister
    }

    /// The last frame that has a number.
    pub fn last_frame(&self) -> FrameNo {
        self.last
    }

    /// The reason why no further frame may be persisted now.
    pub fn full(&self) -> Option<&'static str> {
        if self.unwritten.is_some() {
            return Some("the disk refuses a frame");
        }
        let is_full = self.queue.frames.len() >= QUEUE_FRAMES_MAX || self.queue.bytes >= QUEUE_BYTES_MAX;
        is_full.then_some("4096 frames or 16 MiB wait for a sync of the disk")
    }

    /// Appends a frame to the journal. If the disk refuses the frame, it waits here (`on_error = "stop"`) or goes on without
    /// the journal (`"forward"`).
    pub fn persist(&mut self, received: Received, now: Timestamp) {
        self.unwritten = Some(UnwrittenFrame { received: received.clone(), retry_at: None });
        failpoint::at("persist");
        let appended = self.writer.append(&received.bytes, received.at.unix_ns);
        failpoint::at("persisted");
        match appended {
            Ok(position) => {
                // The buffered records were written with the frame.
                self.records = Records::Written;
                self.telemetry.counters.journal_frame.set(position.frame.0);
                self.disk.recover(now.instant);
                self.queue(received, position.frame, Location::At(position));
            }
            Err(error) => self.refuse(received, &error, now),
        }
    }

    fn refuse(&mut self, received: Received, error: &WriteError, now: Timestamp) {
        // A frame over the journal's size limit would be refused forever.
        let is_retried =
            self.policy.on_error == OnError::Stop && !matches!(error, WriteError::TooLarge { .. });
        let effect = if is_retried { OnError::Stop } else { OnError::Forward };
        let failure = self.disk.fail(effect, true, &error.to_string(), now);
        if is_retried {
            if let Some(unwritten) = &mut self.unwritten {
                unwritten.retry_at = Some(now.instant + RETRY_EVERY);
            }
            return;
        }
        failure.skipped_frames += 1;
        self.telemetry.counters.journal_frames_skipped.add(1);
        let frame = self.writer.skipped(1, received.at.unix_ns);
        self.last_skipped = frame;
        self.queue(received, frame, Location::Nowhere);
    }

    fn queue(&mut self, received: Received, frame: FrameNo, location: Location) {
        self.last = frame;
        self.unwritten = None;
        self.queue.bytes += received.bytes.len();
        self.queue.frames.push_back(Persisted::new(received, frame, location));
    }

    /// Whether [`Persister::next`] may have a frame.
    pub fn has_next(&self) -> bool {
        if let Some(unaccounted) = &self.unaccounted {
            return unaccounted.retry_at.is_none();
        }
        self.queue.frames.front().is_some_and(|next| {
            !self.policy.durable_first || !next.is_in_journal() || next.frame() <= self.writer.durable()
        })
    }

    /// The next frame to decode, in the order of receipt.
    pub fn next(&mut self, now: Timestamp) -> Option<Persisted> {
        while self.has_next() {
            let Some(unaccounted) = &mut self.unaccounted else {
                let persisted = self.queue.frames.pop_front()?;
                self.queue.bytes -= persisted.bytes().len();
                return Some(persisted);
            };
            match unaccounted.next(now) {
                Ok(Some(persisted)) => return Some(persisted),
                Ok(None) => self.unaccounted = None,
                Err(error) => {
                    // Missing frames are skipped, for the frames behind them may be whole. Other errors may pass.
                    if !error.is_missing() {
                        unaccounted.retry_at = Some(now.instant + RETRY_EVERY);
                    }
                    self.report_read_error(&error);
                }
            }
        }
        None
    }

    /// Whether frames of an earlier run are still to be accounted.
    pub fn has_unaccounted(&self) -> bool {
        self.unaccounted.is_some()
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

    /// The time at which [`Persister::tick`] or [`Persister::flush_when_idle`] is due.
    pub fn deadline(&self) -> Option<Instant> {
        let write_at = self.unwritten.as_ref().and_then(|unwritten| unwritten.retry_at);
        let read_at = self.unaccounted.as_ref().and_then(|unaccounted| unaccounted.retry_at);
        let flush_at = match self.records {
            Records::FlushAt(at) => Some(at),
            Records::Written | Records::Buffered => None,
        };
        [write_at, read_at, flush_at, self.disk.probe_at()].into_iter().flatten().min()
    }

    /// Does what is due: probes a failed disk, writes a refused frame again, and allows reading again.
    pub fn tick(&mut self, now: Timestamp) {
        if let Some(must_accept_frames) = self.disk.take_due_probe(now.instant) {
            // A refused frame is a better probe, and has its own retry.
            let is_well = self.unwritten.is_none()
                && self.writer.probe().is_ok_and(|accepts_frames| accepts_frames || !must_accept_frames);
            if is_well {
                self.disk.recover(now.instant);
            }
        }
        let is_due = |at: &mut Instant| *at <= now.instant;
        let due = self.unwritten.take_if(|unwritten| unwritten.retry_at.as_mut().is_some_and(is_due));
        if let Some(unwritten) = due {
            self.persist(unwritten.received, now);
        }
        if let Some(unaccounted) = &mut self.unaccounted {
            unaccounted.retry_at.take_if(is_due);
        }
    }

    /// The time at which the oldest frame was received that decode has not taken.
    pub fn oldest_received_at(&self) -> Option<Instant> {
        self.queue.frames.front().map(|persisted| persisted.at().instant)
    }

    /// Number and bytes of the frames that decode has not taken. Frames of an earlier run count without their bytes.
    pub fn backlog_size(&self) -> (usize, u64) {
        let unwritten = self.unwritten.as_ref().map(|unwritten| unwritten.received.bytes.len());
        let unaccounted = self.unaccounted.as_ref().map_or(0, |unaccounted| unaccounted.left);
        let frames = unaccounted + self.queue.frames.len() + usize::from(unwritten.is_some());
        (frames, (self.queue.bytes + unwritten.unwrap_or(0)) as u64)
    }

    /// Records the beginning of a request, and numbers the request.
    pub fn open_request(&mut self, rid: &str) -> JournalRequest {
        self.writer.open(rid.as_bytes())
    }

    /// Records an open request's attributes, which have changed, and the age at which the request is to be erased.
    pub fn refresh_request(&mut self, request: JournalRequest, rid: &str) {
        self.buffer_records();
        self.writer.refresh(request, rid);
    }

    /// Records the components of all plugins, where they differ from those recorded last: name, version and SHA-256 of each. The
    /// outcomes from now on have their verdicts.
    pub fn record_plugins<'p>(
        &mut self,
        plugins: impl Iterator<Item = (&'p str, &'p str, &'p [u8; 32])> + Clone,
    ) {
        if self.writer.plugins(plugins) {
            self.buffer_records();
        }
    }

    /// Records what became of a frame.
    pub fn record_outcome(&mut self, outcome: &Outcome<'_, JournalRequest>) {
        self.buffer_records();
        self.writer.outcome(outcome);
        if let Some(copies) = &mut self.copies {
            copies.extend(as_read(outcome).map(RecordCopy::Outcome));
        }
    }

    /// Records that a row of frame `oldest` is the first held row of the stream, if no other is held. Call before
    /// [`Persister::record_outcome`]: one write takes both, so that the next start finds the row.
    pub fn record_first_held(&mut self, oldest: Option<FrameNo>) {
        if self.held_after.is_none() && oldest.is_some() {
            self.record_held_from(oldest);
        }
    }

    /// Records the frame of the oldest held row, or that no row is held. Call after [`Persister::record_outcome`].
    pub fn record_held_from(&mut self, oldest: Option<FrameNo>) {
        let after = oldest.map(|oldest| FrameNo(oldest.0.saturating_sub(1)));
        if self.held_after == after {
            return;
        }
        self.held_after = after;
        self.buffer_records();
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
        self.buffer_records();
        self.writer.ending(request, abort);
        self.flush();
    }

    /// Records the end of a request. `finish` is the finish reason if the sender ended the request without a row, else empty.
    pub fn record_close(&mut self, request: JournalRequest, finish: &str) {
        self.buffer_records();
        self.writer.close_as(request, finish);
        if let Some(copies) = &mut self.copies {
            copies.push(RecordCopy::Close(request.number()));
        }
    }

    /// Copies outcomes and ends of requests from now on, for [`Persister::take_copies`].
    pub fn keep_copies(&mut self) {
        self.copies = Some(Vec::new());
    }

    /// Takes the copies since the last call.
    pub fn take_copies(&mut self) -> Vec<RecordCopy> {
        self.copies.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Records which of these sinks each row of a frame goes to.
    pub fn record_routes(&mut self, frame: FrameNo, sinks: &[String], requests: &[u64], targets: &[u32]) {
        self.buffer_records();
        self.writer.routed(frame, sinks, requests, targets);
    }

    /// Records that a frame is about to be given to the sink's socket.
    pub fn record_sent(&mut self, sink: &str, outgoing: &FrameToSend, now: Timestamp) {
        self.buffer_records();
        self.rows.clear();
        self.rows.extend(outgoing.rows.iter().map(|(request, frame)| (RequestNo(*request), FrameNo(*frame))));
        let content = match outgoing.frame {
            Some(frame) => SinkContent::Whole(FrameNo(frame)),
            None => SinkContent::Rows((&self.rows).into()),
        };
        self.writer.sent(sink, outgoing.sequence, content, now.unix_ns);
    }

    /// Which frames the sink may be sent now, so that each has its record.
    pub fn send_room(&self, sink: &str) -> SendRoom {
        self.writer.send_room(sink)
    }

    /// Records which of the sent frames the kernel has.
    pub fn record_handed_over(&mut self, sink: &str, handed: HandedOver) {
        self.buffer_records();
        self.writer.handed(sink, handed);
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
        self.buffer_records();
        self.writer.taken(sink, sequence, through, credit, now.unix_ns);
    }

    /// Records at the end of the stream that the kernel has the sent frames up to `written` and no later one. The next start
    /// sends the later ones again.
    pub fn record_never_written(&mut self, sink: &str, taken: u64, written: u64, credit: Option<Credit>) {
        let known = self.writer.known_sink(sink).filter(|known| known.last_sent() > written);
        let Some(known) = known.cloned() else { return };
        self.buffer_records();
        self.writer.resume(sink, taken, credit);
        let with_kernel = taken + 1..=written;
        for sent in known.sent().filter(|sent| with_kernel.contains(&sent.sequence)) {
            self.writer.sent(sink, sent.sequence, sent.content.clone(), sent.unix_ns);
        }
        if let Some(handed) = known.handed() {
            self.writer.handed(sink, handed);
        }
    }

    fn buffer_records(&mut self) {
        if self.records == Records::Written {
            self.records = Records::Buffered;
        }
    }

    /// Writes the records, and says whether the frames in them may be sent: the records are written, or the operator allows
    /// frames without records (`on_error = "forward"`). In the second case the journal's manifest says that records are
    /// missing.
    pub fn may_send(&mut self, now: Timestamp) -> bool {
        if self.records == Records::Written {
            return true;
        }
        let Err(error) = self.writer.flush() else {
            self.records = Records::Written;
            return true;
        };
        self.records = Records::Buffered;
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

    /// Writes the records. Returns false if the disk refuses them: the writer keeps them, and [`Persister::may_send`] or the
    /// next frame reports the failure.
    pub fn flush(&mut self) -> bool {
        if self.records != Records::Written {
            let is_written = self.writer.flush().is_ok();
            self.records = if is_written { Records::Written } else { Records::Buffered };
        }
        self.records == Records::Written
    }

    /// Call when the stream has nothing else to do. Writes records that have waited for `after`.
    pub fn flush_when_idle(&mut self, now: Instant, after: Duration) {
        match self.records {
            Records::Buffered => self.records = Records::FlushAt(now + after),
            Records::FlushAt(at) if at <= now => drop(self.flush()),
            // The journal's owner asked for the end of the segment.
            Records::Written if self.writer.is_to_end() => {
                self.buffer_records();
                self.flush();
            }
            Records::FlushAt(_) | Records::Written => {}
        }
    }

    /// The next notice of the journal's background threads. The writer must be flushed after each.
    pub fn next_notice(&mut self) -> Option<BackgroundNotice> {
        let notice = self.writer.next_notice()?;
        self.buffer_records();
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

    /// Whether a frame waits until a sync has made the frame durable.
    pub fn is_durable_first(&self) -> bool {
        self.policy.durable_first
    }

    /// The last frame that survives a power cut.
    pub fn durable_frame(&self) -> FrameNo {
        self.writer.durable()
    }

    /// Received frames that the journal does not have and that were not forwarded. A stop loses them.
    pub fn unpersisted(&self) -> usize {
        usize::from(self.unwritten.is_some())
    }

    /// Writes the records and seals the journal, so that it can be opened again by whoever takes the stream over. Only drop the
    /// stage afterwards. On an error the stage continues.
    pub fn hand_over(&mut self) -> Result<(), WriteError> {
        self.writer.hand_over()
    }

    /// The last frame that was forwarded without the journal; 0 if there was none.
    pub fn last_skipped(&self) -> FrameNo {
        self.last_skipped
    }

    /// Seals the journal.
    pub fn finish(self) -> Result<(), WriteError> {
        self.writer.finish()
    }
}
