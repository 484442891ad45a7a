//! The persist stage: the journal gets a frame before anything else happens to the frame.
//!
//! Takes a [`Received`] and returns a [`Persisted`], which the pipeline decodes next. Owns the frames that wait for the disk, and
//! the [`Records`], through which it writes to the journal's file. The later stages get the records alone.

mod unaccounted;

use crate::records::{Buffer, Records};
use crate::{Location, Persisted, Received, Timestamp, failpoint};
use afterbay_config::OnError;
use afterbay_journal::{FrameNo, RecoveredStream, WriteError};
use afterbay_wire::RequestRecord;
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use unaccounted::UnaccountedFrames;

/// Time between two attempts to write a refused frame, or to read after a failed read.
const RETRY_EVERY: Duration = Duration::from_millis(100);
/// Bytes of frames that may wait for a sync (`sync = "always"`). The stream then stops receiving.
const QUEUE_BYTES_MAX: usize = 16 << 20;
/// Frames that may wait for a sync. The stream then stops receiving.
const QUEUE_FRAMES_MAX: usize = 4096;

/// A received frame that the journal has not confirmed.
struct UnwrittenFrame {
    received: Received,
    /// The time to write the frame again after the disk refused it; `None` while the write runs.
    retry_at: Option<Instant>,
}

/// Persisted frames that wait for decode.
#[derive(Default)]
struct PersistedQueue {
    frames: VecDeque<Persisted>,
    bytes: usize,
}

/// The log of one stream's frames, in the order of receipt.
pub struct FrameLog {
    /// The records about the frames, in the same file.
    pub records: Records,
    /// The last frame that has a number.
    last: FrameNo,
    /// The last frame that was forwarded without the journal.
    last_skipped: FrameNo,
    unwritten: Option<UnwrittenFrame>,
    queue: PersistedQueue,
    unaccounted: Option<UnaccountedFrames>,
}

impl FrameLog {
    /// Continues the log of an earlier run. The frames that have no outcome come out first.
    pub fn new(records: Records, recovered: &RecoveredStream) -> FrameLog {
        FrameLog {
            unaccounted: UnaccountedFrames::of(recovered, &records.writer),
            records,
            last: recovered.last_frame,
            last_skipped: FrameNo(0),
            unwritten: None,
            queue: PersistedQueue::default(),
        }
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

    /// Appends a frame to the journal. The record of a request is cut to the part that is wanted. If the disk refuses the frame, it
    /// waits here (`on_error = "stop"`) or goes on without the journal (`"forward"`).
    pub fn persist(&mut self, mut received: Received, now: Timestamp) {
        received.bytes = RequestRecord::reduce(received.bytes, self.records.policy.record_detail);
        self.unwritten = Some(UnwrittenFrame { received: received.clone(), retry_at: None });
        failpoint::at("persist");
        let appended = self.records.writer.append(&received.bytes, received.at.unix_ns);
        failpoint::at("persisted");
        match appended {
            Ok(position) => {
                // The buffered records were written with the frame.
                self.records.buffer = Buffer::Empty;
                self.records.telemetry.counters.journal_frame.set(position.frame.0);
                self.records.disk.heal(now.instant);
                self.queue(received, position.frame, Location::At(position));
            }
            Err(error) => self.refuse(received, &error, now),
        }
    }

    fn refuse(&mut self, received: Received, error: &WriteError, now: Timestamp) {
        // A frame over the journal's size limit would be refused forever.
        let is_retried =
            self.records.policy.on_error == OnError::Stop && !matches!(error, WriteError::TooLarge { .. });
        let effect = if is_retried { OnError::Stop } else { OnError::Forward };
        let failure = self.records.disk.fail(effect, true, &error.to_string(), now);
        if is_retried {
            if let Some(unwritten) = &mut self.unwritten {
                unwritten.retry_at = Some(now.instant + RETRY_EVERY);
            }
            return;
        }
        failure.skipped_frames += 1;
        self.records.telemetry.counters.journal_frames_skipped.add(1);
        let frame = self.records.writer.skipped(1, received.at.unix_ns);
        self.last_skipped = frame;
        self.queue(received, frame, Location::Nowhere);
    }

    fn queue(&mut self, received: Received, frame: FrameNo, location: Location) {
        self.last = frame;
        self.unwritten = None;
        self.queue.bytes += received.bytes.len();
        self.queue.frames.push_back(Persisted::new(received, frame, location));
    }

    /// Whether [`FrameLog::next`] may have a frame.
    pub fn has_next(&self) -> bool {
        if let Some(unaccounted) = &self.unaccounted {
            return unaccounted.retry_at.is_none();
        }
        self.queue.frames.front().is_some_and(|next| {
            !self.records.policy.durable_first
                || !next.is_in_journal()
                || next.frame() <= self.records.writer.durable()
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
                Ok(None) => (self.unaccounted, self.records.lacks_outcomes) = (None, false),
                Err(error) => {
                    // Missing frames are skipped, for the frames behind them may be whole. Other errors may pass.
                    if !error.is_missing() {
                        unaccounted.retry_at = Some(now.instant + RETRY_EVERY);
                    }
                    self.records.report_read_error(&error);
                }
            }
        }
        None
    }

    /// The time at which [`FrameLog::tick`] or [`Records::flush_when_idle`] is due.
    pub fn deadline(&self) -> Option<Instant> {
        let write_at = self.unwritten.as_ref().and_then(|unwritten| unwritten.retry_at);
        let read_at = self.unaccounted.as_ref().and_then(|unaccounted| unaccounted.retry_at);
        [write_at, read_at, self.records.deadline()].into_iter().flatten().min()
    }

    /// Does what is due: probes a failed disk, writes a refused frame again, and allows reading again.
    pub fn tick(&mut self, now: Timestamp) {
        if let Some(must_accept_frames) = self.records.disk.take_due_probe(now.instant) {
            // A refused frame is a better probe, and has its own retry.
            let is_well = self.unwritten.is_none()
                && self
                    .records
                    .writer
                    .probe()
                    .is_ok_and(|accepts_frames| accepts_frames || !must_accept_frames);
            if is_well {
                self.records.disk.heal(now.instant);
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

    /// The time at which the oldest frame was received that waits for decode.
    pub fn oldest_received_at(&self) -> Option<Instant> {
        self.queue.frames.front().map(|persisted| persisted.at().instant)
    }

    /// Number and bytes of the frames that wait for decode. Frames of an earlier run count without their bytes.
    pub fn backlog_size(&self) -> (usize, u64) {
        let unwritten = self.unwritten.as_ref().map(|unwritten| unwritten.received.bytes.len());
        let unaccounted = self.unaccounted.as_ref().map_or(0, |unaccounted| unaccounted.left);
        let frames = unaccounted + self.queue.frames.len() + usize::from(unwritten.is_some());
        (frames, (self.queue.bytes + unwritten.unwrap_or(0)) as u64)
    }

    /// Received frames that the journal does not have and that were not forwarded. A stop loses them.
    pub fn unpersisted(&self) -> usize {
        usize::from(self.unwritten.is_some())
    }

    /// The last frame that was forwarded without the journal; 0 if there was none.
    pub fn last_skipped(&self) -> FrameNo {
        self.last_skipped
    }
}
