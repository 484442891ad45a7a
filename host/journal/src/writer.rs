//! Appends frames and what became of them. One per stream, on the stream's thread, without locks on the path.

use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{Builder, JoinHandle};

use crate::background::StreamShared;
use crate::backlog::Backlog;
use crate::bounds::{FRAME_BYTES_MAX, PENDING_BYTES_MAX, PENDING_WRITE_BYTES, SEGMENT_REQUESTS_MAX};
use crate::error::{IoError, OpenError, RequestError, WriteError};
use crate::format::{self, RecordHead, RecordKind, checksum, put_text, record};
use crate::frame_set::FrameSet;
use crate::mutex::lock;
use crate::notice::Notice;
use crate::open_requests::OpenRequests;
use crate::options::Background;
use crate::outcome::Outcome;
use crate::position::{FrameNo, Position, RequestNo, SegmentId};
use crate::record::{put_outcome, put_taken, put_u64, state_code};
use crate::recovery::{LiveRequest, Recovered, WriterStart};
use crate::request::{Ending, Request, State};
use crate::root::Root;
use crate::segment::Segment;
use crate::sink_progress::Sink;
use crate::storage::write_all;

mod room;
mod segments;
mod sinks;

/// OpenRequests further behind than this count as abandoned: numbers are written as their low 32 bits.
const REQUESTS_BEHIND_MAX: u64 = 1 << 30;

/// The writing end of a stream's journal.
pub struct Writer {
    root: Arc<Root>,
    shared: Arc<StreamShared>,
    thread: Option<JoinHandle<()>>,
    /// `None`: one must be begun before the next write.
    active: Option<ActiveSegment>,
    /// Records that go out with the next write. Their checksums are filled in then, for the place they go to.
    pending: Vec<u8>,
    requests: OpenRequests,
    unfinished: FrameSet,
    sinks: Vec<Sink>,
    /// Of each sink, whether a record says how far it is.
    told: Vec<Told>,
    /// Frames given up since the last write: the first, and how many.
    skipped: Option<(u64, u64)>,
    /// Records that found no room in `pending`.
    lost: u64,
    keep_from: Option<FrameNo>,
    next_frame: u64,
    next_request: u64,
    next_sequence: u32,
    previous_end: u64,
    previous_sealed: bool,
    last_unix_ns: u64,
    healthy: bool,
    /// The size of the last frame, if it found no room; records about frames may.
    refused: Option<usize>,
    /// Room is set aside before it is needed; not on a file system that cannot.
    reserves: bool,
    /// Something left of which no record says so; the manifest says that.
    unrecorded: bool,
    /// The same of an earlier run, and what that means for each sink is not settled yet.
    unsettled: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Told {
    /// A record says so.
    Yes,
    No,
}

/// The segment that is being written.
struct ActiveSegment {
    segment: Segment,
    /// Where the next write goes: every byte before it is of a whole record.
    end: u64,
    /// Where its first own record begins: behind what it was begun with.
    begins: u64,
    frames: u64,
    frame_bytes: u64,
    first_unix_ns: u64,
    /// OpenRequests that were opened in it.
    opened: usize,
    /// It can grow to this size on a full disk, too.
    reserved: u64,
}

impl Writer {
    pub(crate) fn begin(
        root: Arc<Root>,
        shared: Arc<StreamShared>,
        recovery: WriterStart,
    ) -> Result<(Writer, Recovered), OpenError> {
        let WriterStart { state, mut found, next_sequence, previous_end, previous_sealed, .. } = recovery;
        let mut writer = Writer {
            thread: None,
            active: None,
            pending: Vec::new(),
            requests: OpenRequests::default(),
            unfinished: state.unfinished,
            told: vec![Told::Yes; state.sinks.len()],
            sinks: state.sinks,
            skipped: None,
            lost: 0,
            keep_from: None,
            next_frame: state.next_frame,
            next_request: state.next_request,
            next_sequence,
            previous_end,
            previous_sealed,
            last_unix_ns: 0,
            healthy: true,
            refused: found.refused.is_some().then_some(0),
            reserves: true,
            unrecorded: found.unrecorded,
            unsettled: found.unrecorded,
            root,
            shared,
        };
        let idle_before = writer.idle_before(writer.root.storage.now_unix_ns());
        let mut open: Vec<_> = state.requests.into_values().filter(|entry| !entry.closed).collect();
        open.sort_by_key(|entry| entry.info.first_frame);
        for entry in open {
            let info = entry.info;
            let over = info.state == State::Finished || info.last_unix_ns < idle_before;
            let request = writer.requests.resume(info.clone(), writer.unfinished.first());
            if over {
                writer.close(request);
            } else {
                found.live.push(LiveRequest::new(request, info));
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

    /// Writes what waits, then the frame, with one system call. On an error nothing of the frame is in the journal,
    /// and the same call may be made again at any time; it heals by itself when the disk does.
    pub fn append(&mut self, frame: &[u8], received_unix_ns: u64) -> Result<Position, WriteError> {
        let limit = self.root.options.max_frame_bytes;
        if frame.len() > limit {
            return Err(WriteError::TooLarge { bytes: frame.len(), limit });
        }
        self.last_unix_ns = received_unix_ns;
        if self.must_begin(frame.len()) {
            self.begin_segment(frame.len())?;
        }
        self.stage();
        self.make_room_for_frame(frame.len())?;
        let waiting = self.pending.len();
        let number = self.next_frame;
        RecordHead { payload: frame.len() as u32, kind: RecordKind::FRAME, number, time: received_unix_ns }
            .encode(&mut self.pending);
        let written = self.write(frame);
        if written.is_err() {
            self.pending.truncate(waiting);
        }
        let (segment, offset) = written?;
        self.next_frame += 1;
        let position = Position { frame: FrameNo(number), segment, offset: (offset + waiting as u64) as u32 };
        self.unfinished.insert(number);
        self.unfinished.give_up();
        if let Some(active) = &mut self.active {
            if active.frames == 0 {
                active.first_unix_ns = received_unix_ns;
            }
            active.frames += 1;
            active.frame_bytes += frame.len() as u64;
        }
        self.wrote(position.frame);
        self.recorded();
        Ok(position)
    }

    /// Gives up numbers for frames that went on without being kept (`on_error = "forward"`); the first of them.
    /// Written when the disk heals, so that `verify` can tell. Their outcomes may be told like any other's.
    pub fn skipped(&mut self, count: u64, received_unix_ns: u64) -> FrameNo {
        self.last_unix_ns = received_unix_ns;
        let first = self.next_frame;
        self.next_frame += count;
        match &mut self.skipped {
            Some((_, so_far)) => *so_far += count,
            none => *none = Some((first, count)),
        }
        FrameNo(first)
    }

    /// A new request's number. The same rid may come again: each call is a new request. `rid` is as `kept_rid` makes it.
    pub fn request(&mut self, rid: &str) -> Result<Request, RequestError> {
        // Its first row is in a frame whose outcome is awaited still.
        let keeps = self.unfinished.first().unwrap_or(FrameNo(self.next_frame));
        let request = self.requests.open(RequestNo(self.next_request), rid, keeps)?;
        self.next_request += 1;
        if let Some(active) = &mut self.active {
            active.opened += 1;
        }
        let (number, time) = (request.number.0, self.last_unix_ns);
        self.add(|pending| record(pending, RecordKind::OPEN, number, time, |out| put_text(out, rid)));
        Ok(request)
    }

    /// What was done with a frame; goes out with the next `append` or `flush`.
    pub fn outcome(&mut self, outcome: &Outcome<'_>) {
        debug_assert_eq!(outcome.requests.len(), outcome.tokens.len());
        self.unfinished.remove(outcome.frame.0);
        self.unfinished.give_up();
        self.requests.count(outcome);
        self.add(|pending| put_outcome(pending, outcome));
    }

    /// No more rows will come for it. One that had no finish reason is listed as abandoned.
    pub fn close(&mut self, request: Request) {
        // The summary of a segment has room for so many. A frame may end more: then the next segment has the others.
        if self.requests.ended() >= 2 * SEGMENT_REQUESTS_MAX && self.healthy && self.refused.is_none() {
            // On an error those are lost that have no room, which is counted.
            let _ = self.begin_segment(0);
        }
        let remember = self.requests.ended() < 2 * SEGMENT_REQUESTS_MAX;
        let Some(state) = self.requests.close(request, remember) else { return };
        self.lost += u64::from(!remember);
        let (number, time) = (request.number.0, self.last_unix_ns);
        self.add(|pending| {
            record(pending, RecordKind::CLOSE, number, time, |out| out.push(state_code(state)))
        });
    }

    /// How far the operator's end of a request has come: a next start finds it among those that are live.
    pub fn ending(&mut self, request: Request, ending: Ending) {
        if self.requests.set_ending(request, ending) {
            let (number, time) = (request.number.0, self.last_unix_ns);
            self.add(|pending| {
                record(pending, RecordKind::ENDING, number, time, |out| out.push(ending.code()))
            });
        }
    }

    /// Retention keeps this frame and all after it (rows that wait in the journal); `None`: as far as the stream is
    /// concerned all may go. Live requests and frames without an outcome are kept by themselves.
    pub fn keep_from(&mut self, frame: Option<FrameNo>) {
        self.keep_from = frame;
        if let Some(frame) = frame {
            self.shared.floor.fetch_min(frame.0, Ordering::Relaxed);
        }
    }

    /// Writes what waits. For when the stream goes idle, and after a notice; cheap when nothing waits. After a write has
    /// failed it always writes: this is how the stream finds that the disk has healed. On a disk that is full for frames it goes
    /// on to work while the room lasts that is set aside for these records ([`Writer::probe`] tells when frames fit again).
    pub fn flush(&mut self) -> Result<(), WriteError> {
        let renew = self.shared.renew.load(Ordering::SeqCst) && self.active.is_some();
        self.stage();
        if self.pending.is_empty() && self.lost == 0 && !renew {
            if self.healthy {
                self.publish_floor();
                return Ok(());
            }
            // Whether the disk has healed shows only when it is written to.
            record(&mut self.pending, RecordKind::PROBE, 0, self.last_unix_ns, |_| {});
        }
        if self.active.is_none() || self.lost > 0 || renew || self.is_grown() {
            let begun = self.begin_segment(self.refused.unwrap_or(0));
            // Without room for a next one, the room that this one has for records is used.
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

    /// Reads back what was appended, from this frame on, while the writer goes on. For frames that wait in the journal
    /// alone; `keep_from` keeps them there. Finds its first frame by going through the heads of one segment;
    /// [`Writer::backlog_at`] need not.
    pub fn backlog(&self, from: FrameNo) -> Backlog {
        Backlog::new(self.shared.clone(), from, None)
    }

    /// No frame before this one holds a row of a request that is open; `None` where none is.
    pub fn first_of_open(&mut self) -> Option<FrameNo> {
        self.requests.keeps()
    }

    /// As [`Writer::backlog`], from a place that `append` gave.
    pub fn backlog_at(&self, from: Position) -> Backlog {
        Backlog::new(self.shared.clone(), from.frame, Some(from))
    }

    /// Every frame up to this one survives a power cut. Stays at 0 with `SyncPolicy::None`.
    pub fn durable(&self) -> FrameNo {
        FrameNo(self.shared.durable.load(Ordering::SeqCst))
    }

    /// Called on the journal's threads after `durable` has moved and when there is a notice: to wake the stream.
    /// May be set once.
    pub fn on_change(&mut self, wake: Box<dyn Fn() + Send + Sync>) {
        self.shared.on_change(wake);
    }

    /// What happened off the path, oldest first.
    pub fn next_notice(&mut self) -> Option<Notice> {
        self.shared.next_notice()
    }

    /// Whether the last write worked, there is room for frames, and no segment waits to be written again.
    pub fn is_healthy(&self) -> bool {
        self.healthy
            && self.refused.is_none()
            && !self.shared.renew.load(Ordering::SeqCst)
            && !self.shared.is_damaged()
    }

    /// Writes what waits, seals the segment and syncs (unless `SyncPolicy::None`): the next start has nothing to scan.
    /// A writer that is dropped instead leaves its segment to be scanned. Fails where something is not written, or the segment
    /// has no summary: the next start scans it.
    pub fn finish(mut self) -> Result<(), WriteError> {
        self.flush()?;
        let left = self.active.as_ref().map(|active| active.segment.id);
        self.leave(true, true);
        self.stop();
        let unsealed = lock(&self.shared.unsealed).take();
        match unsealed.filter(|(segment, _)| Some(*segment) == left) {
            Some((segment, why)) => Err(WriteError::Unsealed { segment, why }),
            None => Ok(()),
        }
    }

    /// Does what the stream's own thread does; for `Background::Caller`.
    pub fn tend(&self) {
        self.shared.pass();
    }

    fn stop(&mut self) {
        match self.thread.take() {
            Some(thread) => {
                self.shared.stop();
                // A panic of the thread has nobody left to be told to.
                let _ = thread.join();
            }
            None => self.tend(),
        }
    }

    /// Adds a record to those that wait, unless too many do.
    fn add(&mut self, put: impl FnOnce(&mut Vec<u8>)) {
        let before = self.pending.len();
        if before < PENDING_BYTES_MAX {
            put(&mut self.pending);
        }
        // None that a reader would refuse either.
        if before >= PENDING_BYTES_MAX || self.pending.len() - before > FRAME_BYTES_MAX {
            self.pending.truncate(before);
            self.lost += 1;
        }
        if self.pending.len() >= PENDING_WRITE_BYTES && self.healthy {
            // What cannot be written still waits, and is tried again with the next frame.
            let _ = self.flush();
        }
    }

    /// Adds what is told of only once before a write, however often it changed.
    fn stage(&mut self) {
        if self.pending.len() >= PENDING_BYTES_MAX {
            return;
        }
        if let Some((first, count)) = self.skipped.take() {
            record(&mut self.pending, RecordKind::SKIPPED, first, self.last_unix_ns, |out| {
                put_u64(out, count)
            });
        }
        for (sink, told) in self.sinks.iter().zip(&mut self.told) {
            if std::mem::replace(told, Told::Yes) == Told::No {
                put_taken(&mut self.pending, sink, 0);
            }
        }
    }

    fn write_pending(&mut self) -> Result<(), WriteError> {
        if self.pending.is_empty() {
            return Ok(());
        }
        self.write(&[])?;
        self.publish_floor();
        self.wrote(FrameNo(self.next_frame - 1));
        Ok(())
    }

    fn wrote(&self, frame: FrameNo) {
        if let Some(active) = &self.active {
            self.shared.wrote(frame, active.segment.id, active.end);
        }
    }

    /// Writes what waits and, where that ends with a frame's head, the frame; says where it was written.
    ///
    /// On an error the segment is cut back to what it was, or else left behind: what waits still waits.
    fn write(&mut self, frame: &[u8]) -> Result<(SegmentId, u64), WriteError> {
        let Some(active) = &self.active else { return Err(self.no_segment()) };
        let offset = active.end;
        let head = format::seal(&mut self.pending, active.segment.header.salt, offset);
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
                // What it grew past that is its own now.
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

    /// Tells retention what may go: now that all is written. What still waits to be written keeps what it is about, as a
    /// killed process would leave it unsaid.
    fn publish_floor(&mut self) {
        let floor =
            [self.requests.keeps(), self.unfinished.first(), self.keep_from, Some(FrameNo(self.next_frame))];
        let numbered = self.sinks.iter().filter(|sink| sink.is_numbered());
        let sinks = numbered.map(|sink| FrameNo(sink.through().0 + 1));
        let floor = floor.into_iter().flatten().chain(sinks).min().unwrap_or_default();
        self.shared.floor.store(floor.0, Ordering::Relaxed);
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // After `finish` there is nothing left to do; after a panic what waits is true all the same.
        let _ = self.flush();
        self.stop();
        lock(&self.root.streams).remove(&self.shared.stream);
    }
}
