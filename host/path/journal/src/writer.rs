//! Appends frames and their outcomes. Each stream has one writer, on the stream's thread. Appending takes no
//! lock.

use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use crate::background::StreamShared;
use crate::backlog::BacklogReader;
use crate::bounds::{FRAME_BYTES_MAX, PENDING_BYTES_MAX, PENDING_WRITE_BYTES, SEGMENT_REQUESTS_MAX};
use crate::error::{IoError, OpenError, WriteError};
use crate::format::{self, RecordHead, RecordKind, checksum, cut, put, record};
use crate::mutex::lock;
use crate::notice::BackgroundNotice;
use crate::open_requests::OpenRequests;
use crate::options::Background;
use crate::outcome::Outcome;
use crate::plugin_component::PluginComponent;
use crate::position::{FrameNo, Position, RequestNo, SegmentId};
use crate::reader::StreamReader;
use crate::record::{SegmentTotals, Taken, bounded_attributes, put_outcome};
use crate::recovery::{LiveRequest, RecoveredStream, WriterStart};
use crate::request::{JournalRequest, OperatorAbort, RequestState};
use crate::rid::stored_rid;
use crate::root::Root;
use crate::segment::Segment;
use crate::segment_files::SegmentFiles;
use crate::sink_progress::SinkProgress;
use crate::storage::write_all;

mod plugins;
mod room;
mod segments;
mod sinks;

/// Requests whose number is further behind count as abandoned: records store the low 32 bits of request
/// numbers.
const REQUESTS_BEHIND_MAX: u64 = 1 << 30;

/// Writer of a stream's journal.
pub struct JournalWriter {
    root: Arc<Root>,
    shared: Arc<StreamShared>,
    thread: Option<JoinHandle<()>>,
    /// `None` if the next write must begin a segment.
    active: Option<ActiveSegment>,
    /// Records for the next write. Their checksums depend on the position and are filled in by the write.
    pending: Vec<u8>,
    requests: OpenRequests,
    /// Totals of the segment that is written.
    totals: SegmentTotals,
    /// For each sink, whether its progress is recorded.
    taken_recorded: Vec<bool>,
    /// Frames skipped since the last write: first frame, and number of frames.
    skipped: Option<(u64, u64)>,
    /// Records that did not fit into `pending`.
    lost: u64,
    keep_from: Option<FrameNo>,
    next_sequence: u32,
    previous_end: u64,
    previous_has_summary: bool,
    healthy: bool,
    /// Size of the last frame that found no room. Records about frames may still fit.
    refused: Option<usize>,
    /// Whether space is reserved in advance. False on a file system that cannot.
    reserves: bool,
    /// Whether frames were sent without a record. The manifest stores this.
    unrecorded: bool,
    /// Whether an earlier run sent frames without a record and the stream has not settled them yet.
    unsettled: bool,
    /// Whether [`JournalWriter::hand_over`] was called.
    is_handed_over: bool,
    /// Gives the attributes of the request with a rid.
    attributes: Option<JournaledAttributes>,
    /// Components of the plugins, as recorded last.
    plugins: Vec<PluginComponent>,
}

/// Returns the names and values of the attributes that the journal keeps for the request with this rid, of which the engine says
/// these. The call must not block.
pub type JournaledAttributes = Box<dyn Fn(&str, &[(String, String)]) -> Vec<(String, String)> + Send>;

/// Segment that is being written.
struct ActiveSegment {
    segment: Segment,
    /// End of the last complete record, where the next write goes.
    end: u64,
    /// End of what the segment was begun with.
    begins: u64,
    /// Requests opened in the segment.
    opened: usize,
    /// Size up to which the file can grow on a full disk.
    reserved: u64,
}

impl JournalWriter {
    pub(crate) fn begin(
        root: Arc<Root>,
        shared: Arc<StreamShared>,
        recovery: WriterStart,
    ) -> Result<(JournalWriter, RecoveredStream), OpenError> {
        let WriterStart { state, mut found, next_sequence, previous_end, previous_has_summary, .. } =
            recovery;
        let mut writer = JournalWriter {
            thread: None,
            active: None,
            pending: Vec::new(),
            requests: OpenRequests::default(),
            taken_recorded: vec![true; state.totals.sinks.len()],
            totals: SegmentTotals { last_unix_ns: 0, ..state.totals },
            skipped: None,
            lost: 0,
            keep_from: None,
            next_sequence,
            previous_end,
            previous_has_summary,
            healthy: true,
            refused: found.refused.is_some().then_some(0),
            reserves: true,
            unrecorded: found.unrecorded,
            unsettled: found.unrecorded,
            is_handed_over: false,
            attributes: None,
            plugins: Vec::new(),
            root,
            shared,
        };
        let idle_before = writer.idle_before(writer.root.storage.now_unix_ns());
        let mut open: Vec<_> = state.requests.iter().filter(|entry| !entry.closed).cloned().collect();
        open.sort_by_key(|entry| entry.info.begins());
        let held = found.sinks.iter().find(|sink| !sink.is_reader());
        let held_after = held.map_or(FrameNo(u64::MAX), SinkProgress::through);
        for entry in open {
            let info = entry.info;
            // The last row of a finished request may be held.
            let is_finished = info.state == RequestState::Finished && info.last_frame <= held_after;
            // One without a row or a record begins in a frame that was not accounted, and has no time yet.
            let is_idle = info.is_seen() && info.last_unix_ns < idle_before;
            let over = is_finished || is_idle;
            let request = writer.requests.resume(info.clone(), writer.totals.unfinished.first());
            if over {
                writer.close(request);
            } else {
                found.live.push(LiveRequest { request, info });
            }
        }
        found.live.sort_by_key(|live| live.request.number);
        writer.publish_floor();
        if writer.root.background == Background::Threads {
            let shared = writer.shared.clone();
            let name = format!("journal-{}", shared.stream);
            let spawned = Builder::new().name(name).spawn(move || shared.run());
            let dir = &writer.shared.dir;
            writer.thread = Some(spawned.map_err(|error| IoError::new("start thread for", dir, error))?);
        }
        Ok((writer, found))
    }

    /// Writes the waiting records and the frame with one system call. On an error the journal holds nothing
    /// of the frame, and the caller may retry at any time: the journal recovers once the disk does.
    pub fn append(&mut self, frame: &[u8], received_unix_ns: u64) -> Result<Position, WriteError> {
        let limit = self.root.options.max_frame_bytes;
        if frame.len() > limit {
            return Err(WriteError::TooLarge { bytes: frame.len(), limit });
        }
        if let Some(held_back) = self.root.held_back() {
            return Err(held_back.into());
        }
        self.totals.last_unix_ns = received_unix_ns;
        if self.must_begin(frame.len()) {
            self.begin_segment(frame.len())?;
        }
        self.stage();
        self.make_room_for_frame(frame.len())?;
        let waiting = self.pending.len();
        let number = self.totals.next_frame;
        RecordHead { payload: frame.len() as u32, kind: RecordKind::FRAME, number, time: received_unix_ns }
            .encode(&mut self.pending);
        let written = self.write(frame);
        if written.is_err() {
            self.pending.truncate(waiting);
        }
        let (segment, offset) = written?;
        self.totals.next_frame += 1;
        let position = Position { frame: FrameNo(number), segment, offset: (offset + waiting as u64) as u32 };
        self.totals.unfinished.insert(number);
        self.totals.unfinished.drop_oldest_run();
        self.totals.count_frame(received_unix_ns, frame.len() as u64);
        self.wrote(position.frame);
        self.recorded();
        Ok(position)
    }

    /// Skips numbers for frames that were forwarded without being stored (`on_error = "forward"`). Returns
    /// the first number. The range is recorded once the disk accepts writes. Outcomes of skipped frames may
    /// be recorded.
    pub fn skipped(&mut self, count: u64, received_unix_ns: u64) -> FrameNo {
        self.totals.last_unix_ns = received_unix_ns;
        let first = self.totals.next_frame;
        self.totals.next_frame += count;
        match &mut self.skipped {
            Some((_, so_far)) => *so_far += count,
            none => *none = Some((first, count)),
        }
        FrameNo(first)
    }

    /// Opens a request. Each call gives a new number, even for the same rid. The journal has the rid as [`stored_rid`] returns
    /// it.
    pub fn open(&mut self, rid: impl AsRef<[u8]>) -> JournalRequest {
        self.open_with(rid, &[])
    }

    /// As [`JournalWriter::open`], with attributes that the engine says.
    pub fn open_with(&mut self, rid: impl AsRef<[u8]>, of_engine: &[(String, String)]) -> JournalRequest {
        let rid = &*stored_rid(rid.as_ref());
        // The first row is in a frame without an outcome.
        let keeps = self.totals.unfinished.first().unwrap_or(FrameNo(self.totals.next_frame));
        let request = self.requests.open(RequestNo(self.totals.next_request), rid, keeps);
        self.totals.next_request += 1;
        if let Some(active) = &mut self.active {
            active.opened += 1;
        }
        let (number, time) = (request.number.0, self.totals.last_unix_ns);
        self.add(|pending| put(pending, RecordKind::OPEN, number, time, &rid));
        self.refresh(request, rid, of_engine);
        request
    }

    /// Sets the function that gives the attributes of a request. Asked when a request is opened.
    pub fn set_attributes(&mut self, attributes: JournaledAttributes) {
        self.attributes = Some(attributes);
    }

    /// Asks again for the attributes of an open request.
    pub fn refresh(&mut self, request: JournalRequest, rid: &str, of_engine: &[(String, String)]) {
        let Some(attributes) = self.attributes.as_ref().map(|of| bounded_attributes(of(rid, of_engine)))
        else {
            return;
        };
        let Some(info) = self.requests.set_attributes(request, attributes) else { return };
        let (number, attributes) = (info.number.0, info.attributes.clone());
        self.add(|pending| put(pending, RecordKind::ATTRIBUTES, number, 0, &attributes));
    }

    /// Adds the outcome of a frame. The next `append` or `flush` writes it.
    pub fn outcome(&mut self, outcome: &Outcome<'_, JournalRequest>) {
        debug_assert_eq!(outcome.requests.len(), outcome.tokens.len());
        self.totals.unfinished.remove(outcome.frame.0);
        self.totals.unfinished.drop_oldest_run();
        self.requests.count(outcome);
        self.add(|pending| put_outcome(pending, outcome));
    }

    /// Closes a request: no rows follow. A request without a finish reason is listed as abandoned.
    pub fn close(&mut self, request: JournalRequest) {
        self.close_as(request, "");
    }

    /// Closes a request that its sender ended without a row. `finish` is the finish reason, at most 4,096 bytes. A
    /// request with a finish reason keeps it.
    pub fn close_as(&mut self, request: JournalRequest, finish: &str) {
        // The summary of a segment has bounded room. If one frame ends more requests, the next segment lists
        // the others.
        if self.requests.ended() >= 2 * SEGMENT_REQUESTS_MAX && self.healthy && self.refused.is_none() {
            // On an error the requests without room are dropped and counted.
            let _ = self.begin_segment(0);
        }
        let remember = self.requests.ended() < 2 * SEGMENT_REQUESTS_MAX;
        let Some(state) = self.requests.close(request, finish, remember) else { return };
        self.lost += u64::from(!remember);
        let (number, time) = (request.number.0, self.totals.last_unix_ns);
        self.add(|pending| put(pending, RecordKind::CLOSE, number, time, &(state, cut(finish))));
    }

    /// Records the progress of an operator's abort. The next start finds it among the live requests.
    pub fn ending(&mut self, request: JournalRequest, ending: OperatorAbort) {
        if self.requests.set_operator_abort(request, ending) {
            let (number, time) = (request.number.0, self.totals.last_unix_ns);
            self.add(|pending| put(pending, RecordKind::ABORT, number, time, &ending));
        }
    }

    /// Makes retention keep this frame and all after it, for backlogs and held rows. `None` lets retention
    /// remove everything. Live requests and frames without an outcome are kept in any case.
    pub fn keep_from(&mut self, frame: Option<FrameNo>) {
        self.keep_from = frame;
        if let Some(frame) = frame {
            self.shared.floor.fetch_min(frame.0, Ordering::Relaxed);
        }
    }

    /// Writes the waiting records. Call it when the stream is idle, and after a notice. Does nothing if no
    /// records wait, except after a failed write: it then writes a probe to find out whether the disk has
    /// recovered. On a disk that is full for frames, records go to the segment's spare
    /// ([`JournalWriter::probe`] tells when frames fit again).
    pub fn flush(&mut self) -> Result<(), WriteError> {
        let renew = self.is_to_end();
        self.stage();
        if self.pending.is_empty() && self.lost == 0 && !renew {
            if self.healthy {
                self.publish_floor();
                return Ok(());
            }
            // Only a write shows whether the disk has recovered.
            record(&mut self.pending, RecordKind::PROBE, 0, self.totals.last_unix_ns, |_| {});
        }
        if self.active.is_none() || self.lost > 0 || renew || self.is_grown() {
            let begun = self.begin_segment(self.refused.unwrap_or(0));
            // If there is no room for a next segment, use the spare of this one.
            let may_stay = self.refused.is_some() && self.active.is_some() && self.lost == 0 && !renew;
            if begun.is_ok() || !may_stay {
                self.recorded();
                return begun;
            }
        }
        self.write_pending()?;
        self.recorded();
        Ok(())
    }

    /// Whether the current segment is to be ended, although no frame asks for it. [`JournalWriter::flush`] does it.
    pub fn is_to_end(&self) -> bool {
        let is_asked =
            self.shared.renew.load(Ordering::SeqCst) || self.shared.must_end.load(Ordering::SeqCst);
        is_asked && self.active.is_some()
    }

    /// Reads appended frames back, from this frame on, while the writer goes on. `keep_from` keeps them in
    /// the journal. Finds its first frame by the record heads of one segment; [`JournalWriter::backlog_at`]
    /// does not need to.
    pub fn backlog(&self, from: FrameNo) -> BacklogReader {
        BacklogReader::new(self.shared.clone(), from, None)
    }

    /// Reads what is written, also from another thread.
    pub fn reader(&self) -> StreamReader {
        let (storage, dir) = (self.shared.storage.clone(), self.shared.dir.clone());
        StreamReader::new(SegmentFiles { storage, dir }, &self.shared.stream)
    }

    /// The memory of the open requests in bytes.
    pub fn requests_memory(&self) -> u64 {
        self.requests.memory() as u64
    }

    /// First frame that may hold a row of an open request, if any is open.
    pub fn first_of_open(&mut self) -> Option<FrameNo> {
        self.requests.first_frame_needed()
    }

    /// As [`JournalWriter::backlog`], from a position that `append` returned.
    pub fn backlog_at(&self, from: Position) -> BacklogReader {
        BacklogReader::new(self.shared.clone(), from.frame, Some(from))
    }

    /// Last frame up to which every frame survives a power cut. 0 with `SyncPolicy::None`.
    pub fn durable(&self) -> FrameNo {
        FrameNo(self.shared.durable.load(Ordering::SeqCst))
    }

    /// Sets the waker that journal threads call after `durable` advances or a notice is published. Only the
    /// first call counts.
    pub fn on_change(&mut self, wake: Box<dyn Fn() + Send + Sync>) {
        self.shared.on_change(wake);
    }

    /// Sets the function that gets the time of each sync of a segment. The journal's thread calls it. Only the first call
    /// counts.
    pub fn on_sync(&mut self, synced: Box<dyn Fn(Duration) + Send + Sync>) {
        self.shared.on_sync(synced);
    }

    /// Returns the oldest notice.
    pub fn next_notice(&mut self) -> Option<BackgroundNotice> {
        self.shared.next_notice()
    }

    /// Whether the last write succeeded, frames have room, and no segment must be rewritten.
    pub fn is_healthy(&self) -> bool {
        self.healthy
            && self.refused.is_none()
            && !self.shared.renew.load(Ordering::SeqCst)
            && !self.shared.is_damaged()
    }

    /// Writes the waiting records, ends the segment and syncs (unless `SyncPolicy::None`), so that the next
    /// start has nothing to scan. Fails if records are not written or the segment has no summary: the next
    /// start scans it, as after dropping the writer.
    pub fn finish(mut self) -> Result<(), WriteError> {
        self.close_segment()
    }

    /// Does what [`JournalWriter::finish`] does, and lets the stream be opened again: by this process, or by another one that
    /// has the lock. Only drop this writer afterwards. If the waiting records cannot be written, the writer continues. An
    /// segment without a summary is no error: the next start scans it.
    pub fn hand_over(&mut self) -> Result<(), WriteError> {
        match self.close_segment() {
            Ok(()) | Err(WriteError::NoSummary { .. }) => {}
            Err(error) => return Err(error),
        }
        self.is_handed_over = true;
        lock(&self.root.streams).remove(&self.shared.stream);
        Ok(())
    }

    fn close_segment(&mut self) -> Result<(), WriteError> {
        self.flush()?;
        let left = self.active.as_ref().map(|active| active.segment.id);
        self.leave(true, true);
        self.stop();
        let no_summary = lock(&self.shared.no_summary).take();
        match no_summary.filter(|(segment, _)| Some(*segment) == left) {
            Some((segment, why)) => Err(WriteError::NoSummary { segment, why }),
            None => Ok(()),
        }
    }

    /// Runs the work of the stream's background thread, for `Background::Caller`.
    pub fn tend(&self) {
        if !self.is_handed_over {
            self.shared.pass();
        }
    }

    fn stop(&mut self) {
        match self.thread.take() {
            Some(thread) => {
                self.shared.stop();
                // Nobody is left to report a panic of the thread to.
                let _ = thread.join();
            }
            None => self.tend(),
        }
    }

    /// Adds a record to those that wait, unless the bound is reached.
    fn add(&mut self, put: impl FnOnce(&mut Vec<u8>)) {
        let before = self.pending.len();
        if before < PENDING_BYTES_MAX {
            put(&mut self.pending);
        }
        // Readers would refuse a record of this size.
        if before >= PENDING_BYTES_MAX || self.pending.len() - before > FRAME_BYTES_MAX {
            self.pending.truncate(before);
            self.lost += 1;
        }
        if self.pending.len() >= PENDING_WRITE_BYTES && self.healthy {
            // On an error the records wait for the next write.
            let _ = self.flush();
        }
    }

    /// Adds records that are written once per write, however often their content changed.
    fn stage(&mut self) {
        if self.pending.len() >= PENDING_BYTES_MAX {
            return;
        }
        if let Some((first, count)) = self.skipped.take() {
            let time = self.totals.last_unix_ns;
            self.totals.skip(first, count, false);
            put(&mut self.pending, RecordKind::SKIPPED, first, time, &(count, false));
        }
        for (sink, is_recorded) in self.totals.sinks.iter().zip(&mut self.taken_recorded) {
            if !std::mem::replace(is_recorded, true) {
                put(&mut self.pending, RecordKind::TAKEN, 0, 0, &Taken::by(sink));
            }
        }
    }

    fn write_pending(&mut self) -> Result<(), WriteError> {
        if self.pending.is_empty() {
            return Ok(());
        }
        self.write(&[])?;
        self.publish_floor();
        self.wrote(FrameNo(self.totals.next_frame - 1));
        Ok(())
    }

    fn wrote(&self, frame: FrameNo) {
        if let Some(active) = &self.active {
            self.shared.wrote(frame, active.segment.id, active.end);
        }
    }

    /// Writes the waiting records and, if they end with a frame's head, the frame. Returns the position of
    /// the write.
    ///
    /// On an error the segment is cut back, or left if that fails. The records keep waiting.
    fn write(&mut self, frame: &[u8]) -> Result<(SegmentId, u64), WriteError> {
        let Some(active) = &self.active else { return Err(self.no_segment()) };
        let offset = active.end;
        let head = format::add_checksums(&mut self.pending, active.segment.header.salt, offset);
        let crc = head.map(|head| checksum(head, frame).to_le_bytes());
        let crc = crc.as_ref().map_or(&[][..], |crc| crc);
        let bytes = (self.pending.len() + frame.len() + crc.len()) as u64;
        if self.reserves && frame.is_empty() && offset + bytes > active.reserved {
            self.make_room(offset + bytes)?;
        }
        let Some(active) = &mut self.active else { return Err(self.no_segment()) };
        let mut parts = [IoSlice::new(&self.pending), IoSlice::new(frame), IoSlice::new(crc)];
        let written = write_all(&*active.segment.file, &mut parts, offset);
        self.healthy = written.is_ok();
        match written {
            Ok(()) => {
                active.end += bytes;
                // The file has grown past its reservation.
                active.reserved = active.reserved.max(active.end);
                self.pending.clear();
                Ok((active.segment.id, offset))
            }
            Err(error) => {
                let error = IoError::new("write", &active.segment.path, error);
                if active.segment.file.truncate(offset).is_err() {
                    self.leave(false, false);
                }
                Err(error.into())
            }
        }
    }

    fn no_segment(&self) -> WriteError {
        let gone = io::Error::from(io::ErrorKind::NotFound);
        IoError::new("write", &self.shared.dir, gone).into()
    }

    fn idle_before(&self, now_unix_ns: u64) -> u64 {
        now_unix_ns.saturating_sub(self.root.options.abandon_after_ns())
    }

    /// Tells retention what may be removed. Called after everything is written: a waiting record keeps the
    /// frames it describes, because a killed process would never write it.
    fn publish_floor(&mut self) {
        let floor = [
            self.requests.first_frame_needed(),
            self.totals.unfinished.first(),
            self.keep_from,
            Some(FrameNo(self.totals.next_frame)),
        ];
        let numbered = self.totals.sinks.iter().filter(|sink| sink.is_numbered());
        let sinks = numbered.map(|sink| FrameNo(sink.through().0 + 1));
        let floor = floor.into_iter().flatten().chain(sinks).min().unwrap_or_default();
        self.shared.floor.store(floor.0, Ordering::Relaxed);
    }
}

impl Drop for JournalWriter {
    fn drop(&mut self) {
        if self.is_handed_over {
            return;
        }
        // After `finish` nothing is left to do. After a panic the waiting records are still correct.
        let _ = self.flush();
        self.stop();
        lock(&self.root.streams).remove(&self.shared.stream);
    }
}
