//! Reads a journal, also while another process writes it: no lock, a torn end is "not yet", removed segments are no error.

mod deliveries;
mod frames;
mod histories;
mod request_list;
mod tail;
mod types;

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use crate::error::{IoError, ReadError};
use crate::format::RecordKind;
use crate::manifest::MANIFEST;
use crate::mutex::lock;
use crate::outcome::Credit;
use crate::position::{FrameNo, Position, SegmentId};
use crate::segment::{Payloads, RawRecord, ScanStep, Segment};
use crate::segment_files::{SegmentFile, SegmentFiles};
use crate::sink_progress::Sink;
use crate::storage::{self, Disk, PART, Storage};
use crate::stream_state;
use crate::text_file;
use crate::verify::{self, Report};

pub use crate::request::{Ending, RequestInfo, State};
pub use crate::stored::{Action, Finish, Outcome, Passage};
pub use frames::Frames;
pub use request_list::Requests;
pub use tail::Tail;
pub use types::{Filter, Frame, From, Life, Record, Row};

/// A journal directory, for reading.
pub struct Journal {
    storage: Arc<dyn Storage>,
    dir: PathBuf,
}

impl Journal {
    /// Fails where there is no such directory, or it is no journal ([`ReadError::NoJournal`]).
    pub fn open(dir: &Path) -> Result<Journal, ReadError> {
        Journal::open_on(Arc::new(Disk), dir)
    }

    /// The same on a disk of the caller's.
    pub fn open_on(storage: Arc<dyn Storage>, dir: &Path) -> Result<Journal, ReadError> {
        let journal = Journal { storage, dir: dir.into() };
        let JournalFolders { locked, streams, others, has_segments } = journal.folders()?;
        if !locked && streams.is_empty() {
            return Err(ReadError::NoJournal { dir: dir.into(), folders: others, has_segments });
        }
        Ok(journal)
    }

    /// Where it is.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The names of its streams, sorted.
    pub fn streams(&self) -> Result<Vec<String>, ReadError> {
        Ok(self.folders()?.streams)
    }

    /// The names of folders beside them that hold no stream, or may not be read, sorted.
    pub fn others(&self) -> Result<Vec<String>, ReadError> {
        Ok(self.folders()?.others)
    }

    /// One of its streams.
    pub fn stream(&self, name: &str) -> Result<Stream, ReadError> {
        if !self.streams()?.iter().any(|known| known == name) {
            return Err(ReadError::NoStream { dir: self.dir.clone(), stream: name.into() });
        }
        let (storage, dir) = (self.storage.clone(), self.dir.join(name));
        Ok(Stream { segments: SegmentFiles { storage, dir }, name: name.into(), last_read: Mutex::default() })
    }
}

/// What stands in a directory.
struct JournalFolders {
    /// A writer has made it, or had it.
    locked: bool,
    streams: Vec<String>,
    others: Vec<String>,
    /// SegmentFiles stand in it, which belong in a stream's folder.
    has_segments: bool,
}

impl Journal {
    fn folders(&self) -> Result<JournalFolders, ReadError> {
        let list = |dir: &Path| self.storage.list(dir).map_err(|error| IoError::new("list", dir, error));
        let is_segment = |entry: &storage::DirEntry| !entry.is_dir && SegmentId::parse(&entry.name).is_some();
        let is_of_new_stream = |entry: &storage::DirEntry| {
            [text_file::AFTER, text_file::SHARES, MANIFEST].contains(&&*entry.name)
                || entry.name.ends_with(PART)
        };
        let entries = list(&self.dir)?;
        let locked = entries.iter().any(|entry| !entry.is_dir && entry.name == storage::LOCK);
        let has_segments = entries.iter().any(is_segment);
        let mut names: Vec<String> =
            entries.into_iter().filter(|entry| entry.is_dir).map(|entry| entry.name).collect();
        names.sort();
        let (mut streams, mut others) = (Vec::new(), Vec::new());
        for name in names {
            let is_stream = match list(&self.dir.join(&name)) {
                // A stream has no segment before its first frame.
                Ok(inside) => inside.iter().any(is_segment) || locked && inside.iter().all(is_of_new_stream),
                // As `lost+found`, where a disk of its own is mounted.
                Err(error) if error.source.kind() == ErrorKind::PermissionDenied => false,
                Err(error) if error.source.kind() == ErrorKind::NotFound => continue,
                Err(error) => return Err(error.into()),
            };
            if is_stream { &mut streams } else { &mut others }.push(name);
        }
        Ok(JournalFolders { locked, streams, others, has_segments })
    }
}

/// One stream of a journal.
pub struct Stream {
    segments: SegmentFiles,
    name: String,
    /// The segment that a frame was read from last: rows that wait are read back in order.
    last_read: Mutex<Option<Segment>>,
}

impl Stream {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The streams that it comes after: its requests' earlier legs are there. None where it is where a request begins.
    pub fn after(&self) -> Result<Vec<String>, ReadError> {
        let text = text_file::read(&*self.segments.storage, &self.segments.dir, text_file::AFTER)?;
        Ok(text.lines().map(str::to_owned).collect())
    }

    /// Requests that match, by the segment they ended in, those still open last. Reads summaries, not frames.
    pub fn requests(&self, filter: Filter) -> Result<Requests, ReadError> {
        Requests::new(self.segments.clone(), filter)
    }

    /// The life of every request with this very rid, oldest first (a rid may be used again).
    pub fn lives(&self, rid: &str) -> Result<Vec<Life>, ReadError> {
        histories::lives(self, rid)
    }

    /// Frames in order with what was done with them, up to the last there is.
    pub fn frames(&self, from: From) -> Result<Frames, ReadError> {
        Frames::new(self.tail(from)?)
    }

    /// Every record, as it is written; goes on across segments.
    pub fn tail(&self, from: From) -> Result<Tail, ReadError> {
        Tail::new(self.segments.clone(), from)
    }

    /// The bytes of one frame, checked.
    pub fn frame(&self, position: &Position) -> Result<Frame, ReadError> {
        let mut last_read = lock(&self.last_read);
        let segment = match last_read.as_ref().filter(|segment| segment.id == position.segment) {
            Some(segment) => segment,
            None => {
                let opened = self.segments.open(position.segment)?;
                let opened = opened.ok_or(ReadError::NoFrame { frame: position.frame.0 })?;
                last_read.insert(opened)
            }
        };
        let mut scan = segment.scan(u64::from(position.offset), u64::MAX, Payloads::All);
        let corrupt = || ReadError::Corrupt { path: segment.path.clone(), offset: position.offset.into() };
        let record = scan.next_here()?.ok_or_else(corrupt)?;
        if (record.head.kind, record.head.number) != (RecordKind::FRAME, position.frame.0) {
            return Err(corrupt());
        }
        Ok(Frame {
            position: *position,
            received_unix_ns: record.head.time,
            bytes: scan.payload(&record).to_vec(),
        })
    }

    /// Where a frame stands. Goes through the heads of its segment.
    pub fn position(&self, frame: FrameNo) -> Result<Position, ReadError> {
        let listed = self.segments.list()?;
        let at = listed.partition_point(|segment| segment.id.first <= frame);
        let candidates = listed[..at].iter().rev();
        for SegmentFile { id, .. } in candidates {
            let Some(segment) = self.segments.open(*id)? else { continue };
            let mut scan = segment.records(u64::MAX, Payloads::NotFrames);
            loop {
                match scan.step()? {
                    ScanStep::Record(RawRecord { head, offset })
                        if (head.kind, head.number) == (RecordKind::FRAME, frame.0) =>
                    {
                        return Ok(Position { frame, segment: *id, offset: offset as u32 });
                    }
                    ScanStep::End { .. } => break,
                    _ => {}
                }
            }
            // Another segment holds it only where two begin at the same frame.
            if id.first < frame {
                break;
            }
        }
        Err(ReadError::NoFrame { frame: frame.0 })
    }

    /// The last frame there is now; 0 where there is none. Goes through the heads of the last segment that has one.
    pub fn last_frame(&self) -> Result<FrameNo, ReadError> {
        for SegmentFile { id, .. } in self.segments.list()?.iter().rev() {
            let Some(segment) = self.segments.open(*id)? else { continue };
            let mut scan = segment.records(u64::MAX, Payloads::NotFrames);
            let mut last = None;
            loop {
                match scan.step()? {
                    ScanStep::Record(RawRecord { head, .. }) if head.kind == RecordKind::FRAME => {
                        last = Some(head.number)
                    }
                    ScanStep::End { .. } => break,
                    _ => {}
                }
            }
            if let Some(frame) = last {
                return Ok(FrameNo(frame));
            }
        }
        Ok(FrameNo::default())
    }

    /// How far each sink has taken the stream.
    pub fn taken(&self) -> Result<Vec<(String, FrameNo, Option<Credit>)>, ReadError> {
        let mut walk = SegmentFold::new(self.segments.clone())?;
        while walk.next_segment()?.is_some() {}
        let taken = |sink: &Sink| (sink.name().to_owned(), sink.through(), sink.credit());
        let readers = walk.state.sinks.iter().filter(|sink| sink.is_reader());
        Ok(readers.map(taken).collect())
    }

    /// Reads everything and checks everything.
    pub fn verify(&self) -> Result<Report, ReadError> {
        verify::verify(&self.segments)
    }
}

/// Goes through segments in order and keeps the figures, from summaries where there are any.
pub(crate) struct SegmentFold {
    pub segments: SegmentFiles,
    listed: std::collections::VecDeque<SegmentId>,
    pub state: stream_state::StreamState,
}

impl SegmentFold {
    pub fn new(segments: SegmentFiles) -> Result<SegmentFold, ReadError> {
        let listed = segments.list()?.into_iter().map(|segment| segment.id).collect();
        Ok(SegmentFold { segments, listed, state: stream_state::StreamState::new() })
    }

    /// Whether there is another segment.
    pub fn has_next(&self) -> bool {
        !self.listed.is_empty()
    }

    /// Takes in the next segment: `state` is then how things stood at its end. `None` at the end.
    pub fn next_segment(&mut self) -> Result<Option<Segment>, ReadError> {
        loop {
            let Some(id) = self.listed.pop_front() else { return Ok(None) };
            let Some(segment) = self.segments.open(id)? else { continue };
            match segment.summary()? {
                Some(summary) => self.state = stream_state::StreamState::at_end_of(&summary),
                None => self.scan(&segment)?,
            }
            return Ok(Some(segment));
        }
    }

    fn scan(&mut self, segment: &Segment) -> Result<(), ReadError> {
        self.state.begin_segment(&segment.header);
        let limit = self.segments.seen_from(self.listed.front().copied(), segment.id)?.limit;
        let mut scan = segment.records(limit, Payloads::NotFrames);
        loop {
            match scan.step()? {
                ScanStep::Record(record) => {
                    if let Some(body) = scan.body(&record) {
                        self.state.apply(&record, &body);
                    }
                }
                ScanStep::Corrupt { .. } => {}
                ScanStep::End { .. } => return Ok(()),
            }
        }
    }
}
