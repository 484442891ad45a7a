//! Records of usage: writes the record of each request that has ended, once.
//!
//! The key decides what was recorded, not a place in the journal: after a power cut, the journal may lack the end of a request
//! whose record is on disk, and the request ends once more.

use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use afterbay_events::UsageCounters;
use afterbay_events::event::{UsageCut, UsageDamaged};
use afterbay_journal::reader::{JournalReader, StreamReader};
use afterbay_journal::storage::{Lock, LockError, Storage};
use afterbay_journal::{Follower, ReadError, SegmentId};
use afterbay_journal_view::ended::{EndedReader, FrameUse};
use afterbay_journal_view::usage::{
    FileName, Found, Numbers, Progress, StreamProgress, UsageError, UsageFiles, UsageRecord,
};
use serde::Deserialize;

use crate::consumer::{Consumer, Failure, Look, RECORDS_AT_ONCE, Streams, layouts};
use crate::following::Telemetry;

/// The name of the consumer.
pub const NAME: &str = "usage";
/// Bytes of records after which they are written before more of the journal is read.
const WAITING_BYTES: usize = 1 << 20;
/// Most records of the journal that one step reads.
const RECORDS_OF_STEP: usize = 100 * RECORDS_AT_ONCE;

/// Writes records of usage to a directory.
pub struct Usage {
    storage: Arc<dyn Storage>,
    dir: PathBuf,
    /// Days (UTC), today included, whose files stay. `None`: all.
    kept_days: Option<u32>,
    telemetry: Telemetry,
    counters: Arc<UsageCounters>,
    opened: Option<Opened>,
}

/// The state once the directory is this process's.
struct Opened {
    _lock: Box<dyn Lock>,
    instance: String,
    files: UsageFiles,
    /// The last progress that was written.
    progress: Progress,
    /// The numbers of the requests that the files have, by stream.
    recorded: HashMap<String, Numbers>,
}

/// A stream where requests begin.
pub struct UsageStream {
    name: String,
    reader: EndedReader,
    /// The segment that is read.
    open: Option<SegmentId>,
    /// The segment that was read last, to its end.
    read: Option<SegmentId>,
    /// The segment to begin with; `None`: the oldest.
    begin: Option<SegmentId>,
    /// The newest segment that was there at the beginning. Requests that ended in it, or before, may be recorded already: their
    /// records are in `known_from` or in later files.
    known_until: Option<SegmentId>,
    known_from: Option<FileName>,
    /// As [`StreamProgress::complete_since_unix_ns`].
    complete_since_unix_ns: u64,
    /// The segments that were opened and may still be needed, oldest first, each with the newest file at that time.
    segments: VecDeque<(SegmentId, Option<FileName>)>,
}

/// The key of a line.
#[derive(Deserialize)]
struct Key<'a> {
    #[serde(borrow)]
    stream: std::borrow::Cow<'a, str>,
    request: u64,
    /// So that a line of another kind is no record.
    #[serde(rename = "key")]
    _key: serde::de::IgnoredAny,
}

impl Usage {
    /// Writes records to `dir`. Files of the last `kept_days` stay, by default all.
    pub fn new(
        storage: Arc<dyn Storage>,
        dir: &Path,
        kept_days: Option<u32>,
        telemetry: &Telemetry,
    ) -> Usage {
        let (dir, counters) = (dir.to_owned(), telemetry.metrics.usage());
        Usage { storage, dir, kept_days, telemetry: telemetry.clone(), counters, opened: None }
    }

    fn open_dir(&self, journal: &JournalReader) -> Result<Opened, Failure> {
        let storage = &self.storage;
        let instance =
            journal.instance()?.ok_or_else(|| Failure::outside("the journal has no identity yet"))?;
        storage.make_dir(&self.dir).map_err(|error| UsageError::file("create", &self.dir, error))?;
        let lock = storage.lock(&self.dir).map_err(|error| match error {
            LockError::Held(pid) => UsageError::InUse { dir: self.dir.clone(), pid },
            LockError::Io(error) => UsageError::file("lock", &self.dir, error),
        })?;
        lock.write_pid();
        let progress = Progress::read(&**storage, &self.dir);
        let mut recorded: HashMap<String, Numbers> = HashMap::new();
        let mut record = |line: &[u8]| match serde_json::from_slice::<Key<'_>>(line) {
            Ok(key) => {
                match recorded.get_mut(&*key.stream) {
                    Some(numbers) => numbers.insert(key.request),
                    None => recorded.entry(key.stream.into_owned()).or_default().insert(key.request),
                };
                true
            }
            Err(_) => false,
        };
        let (from, synced) = (progress.records(), progress.synced.as_ref());
        let (files, found) =
            UsageFiles::open(storage.clone(), &self.dir, self.kept_days, from, synced, &mut record)?;
        for found in found {
            match found {
                Found::Cut { file, bytes } => {
                    self.telemetry.events.publish(UsageCut { file: file.to_string(), cut_bytes: bytes });
                }
                Found::Damaged { file, lines } => {
                    self.telemetry.events.publish(UsageDamaged { file: file.to_string(), lines });
                }
            }
        }
        Ok(Opened { _lock: lock, instance, files, progress, recorded })
    }

    fn opened(&mut self) -> Result<&mut Opened, Failure> {
        self.opened.as_mut().ok_or_else(|| Failure::outside("the directory is not open"))
    }

    fn write(&mut self) -> Result<(), Failure> {
        let (records, bytes) = self.opened()?.files.commit()?;
        self.counters.records.add(records);
        self.counters.bytes.add(bytes);
        Ok(())
    }
}

impl Consumer for Usage {
    type Stream = UsageStream;

    const LOOK_EVERY: Duration = Duration::from_millis(500);

    fn follower(&self) -> Follower {
        follower(&self.dir)
    }

    fn open(&mut self, journal: &JournalReader) -> Result<(), Failure> {
        if self.opened.is_none() {
            self.opened = Some(self.open_dir(journal)?);
        }
        // The lines of an attempt that failed come first.
        self.write()
    }

    fn begin(
        &mut self,
        reader: StreamReader,
        _from: Option<SegmentId>,
    ) -> Result<Option<UsageStream>, Failure> {
        if !reader.after()?.is_empty() {
            // Its requests begin, and are recorded, in another stream.
            return Ok(None);
        }
        let name = reader.name().to_owned();
        let known_until = reader.segments()?.pop();
        // The files say what is recorded: a directory that was removed is written again.
        let known = self.opened()?.progress.streams.get(&name);
        let begin = known.and_then(|known| SegmentId::parse(&known.segment));
        let (known_from, complete_since_unix_ns) =
            known.map_or((None, 0), |known| (known.records.clone(), known.complete_since_unix_ns));
        let layouts = layouts(&reader)?;
        Ok(Some(UsageStream {
            reader: EndedReader::new(reader, FrameUse::Facts, &layouts),
            name,
            open: None,
            read: None,
            begin,
            known_until,
            known_from,
            complete_since_unix_ns,
            segments: VecDeque::new(),
        }))
    }

    /// Reads at most to the end of one segment. After an error of the files, it continues where it was.
    fn step(&mut self, stream: &mut UsageStream, _look: Look) -> Result<bool, Failure> {
        // Listed first: the writer has left a segment before it begins the next.
        let listed = stream.reader.stream().segments()?;
        let open = match stream.open {
            Some(open) => open,
            None => {
                // Another engine may have come with the segment.
                let layouts = layouts(stream.reader.stream())?;
                stream.reader.set_layouts(&layouts);
                let newest = self.opened()?.files.newest();
                match stream.open_next(&listed, newest, &self.telemetry)? {
                    Some(opened) => opened,
                    None => return Ok(false),
                }
            }
        };
        let opened = self.opened()?;
        let (mut left, mut has_more) = (RECORDS_OF_STEP, true);
        while has_more && left > 0 && opened.files.waiting() < WAITING_BYTES {
            has_more = stream.reader.read(RECORDS_AT_ONCE)?;
            left -= RECORDS_AT_ONCE;
            opened.record(stream);
        }
        if has_more {
            return Ok(true);
        }
        let has_further = listed.last().is_some_and(|newest| *newest > open);
        if has_further {
            stream.reader.finish_segment();
            (stream.open, stream.read) = (None, Some(open));
            opened.record(stream);
        }
        Ok(has_further)
    }

    /// Writes the records, and the progress.
    fn commit(&mut self, streams: &mut Streams<UsageStream>, _look: Look) -> Result<(), Failure> {
        self.write()?;
        let (storage, dir) = (self.storage.clone(), self.dir.clone());
        let opened = self.opened()?;
        let mut next = opened.progress.clone();
        for stream in streams.values_mut().flatten() {
            let Some((segment, records)) = stream.oldest_needed() else { continue };
            let complete_since_unix_ns = stream.complete_since_unix_ns;
            let progress = StreamProgress { segment: segment.to_string(), records, complete_since_unix_ns };
            next.streams.insert(stream.name.clone(), progress);
        }
        next.first = next.first.or_else(|| opened.files.first().cloned());
        if (&next.streams, &next.first) != (&opened.progress.streams, &opened.progress.first) {
            next.synced = opened.files.synced();
            next.write(&*storage, &dir)?;
            opened.progress = next;
        }
        Ok(())
    }

    fn needed(&mut self, stream: &mut UsageStream) -> Option<SegmentId> {
        Some(stream.oldest_needed()?.0)
    }
}

/// The follower that writes to this directory.
#[must_use]
pub fn follower(dir: &Path) -> Follower {
    Follower { name: NAME, copy: dir.display().to_string(), needs_ended_segments: false }
}

impl Opened {
    /// Adds the lines of the requests that have ended.
    fn record(&mut self, stream: &mut UsageStream) {
        let recorded = match self.recorded.get_mut(&stream.name) {
            Some(recorded) => recorded,
            None => self.recorded.entry(stream.name.clone()).or_default(),
        };
        for ended in stream.reader.requests() {
            if recorded.insert(ended.info.number.0) {
                self.files.push(&UsageRecord::new(&self.instance, &ended).line());
            }
        }
    }
}

impl UsageStream {
    /// Opens the segment after the one that was read, or the one to begin with. `None` if there is none yet.
    fn open_next(
        &mut self,
        listed: &[SegmentId],
        newest_file: Option<FileName>,
        telemetry: &Telemetry,
    ) -> Result<Option<SegmentId>, ReadError> {
        let at = match (self.read, self.begin) {
            (Some(read), _) => listed.partition_point(|id| *id <= read),
            // The disk may have lost the segment to begin with, and the newer ones.
            (None, Some(begin)) => {
                listed.partition_point(|id| *id < begin).min(listed.len().saturating_sub(1))
            }
            (None, None) => 0,
        };
        // One that cannot be opened was removed, or is damaged.
        for id in &listed[at..] {
            if self.reader.open(*id)? {
                // The first segment of a stream has the number 0.
                let expected = match (self.read, self.begin) {
                    (Some(read), _) => read.sequence + 1,
                    (None, Some(begin)) => begin.sequence,
                    (None, None) => 0,
                };
                if id.sequence > expected {
                    let begun = self.reader.stream().begun_unix_ns(*id)?.unwrap_or_default();
                    self.complete_since_unix_ns = begun.max(1);
                    if self.read.or(self.begin).is_some() {
                        telemetry.missed(NAME, &self.name, id.sequence - expected, *id);
                    }
                }
                self.open = Some(*id);
                let is_known = Some(*id) <= self.known_until;
                let records = if is_known { self.known_from.clone() } else { newest_file };
                self.segments.push_back((*id, records));
                break;
            }
        }
        Ok(self.open)
    }

    /// The oldest segment that a start needs, with the newest file when it was opened.
    fn oldest_needed(&mut self) -> Option<(SegmentId, Option<FileName>)> {
        let at = self.open.or(self.read)?;
        let oldest = self.reader.needs().map_or(at, |needs| needs.min(at));
        while self.segments.get(1).is_some_and(|(next, _)| *next <= oldest) {
            self.segments.pop_front();
        }
        self.segments.front().cloned()
    }
}

impl From<UsageError> for Failure {
    fn from(error: UsageError) -> Failure {
        Failure::outside(error)
    }
}

#[cfg(test)]
mod tests;
