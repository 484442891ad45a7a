//! Follows the journal, and writes the record of each request that has ended, once.
//!
//! The key decides what was recorded, not a place in the journal: after a power cut, the journal may lack the end of a request
//! whose record is on disk, and the request ends once more.

use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use afterbay_journal::reader::JournalReader;
use afterbay_journal::storage::{Lock, LockError, Storage};
use afterbay_journal::{HoldBack, ReadError, RemovedSegments, SegmentId};
use afterbay_journal_view::ended::{EndedReader, FrameUse};
use serde::Deserialize;

use crate::error::UsageError;
use crate::files::{FileName, Found, UsageFiles};
use crate::progress::{Progress, StreamProgress};
use crate::record::UsageRecord;
use crate::source::UsageSource;

/// Records of the journal that are read at once.
const RECORDS_AT_ONCE: usize = 2000;
/// Bytes of records after which they are written before more of the journal is read.
const WAITING_BYTES: usize = 1 << 20;

/// Records that were written and synced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Number of records.
    pub records: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Follows all streams of a journal where requests begin.
pub struct Follower {
    storage: Arc<dyn Storage>,
    journal: PathBuf,
    dir: PathBuf,
    source: Arc<dyn UsageSource>,
    /// Days (UTC), today included, whose files stay. `None`: all.
    kept_days: Option<u32>,
    /// The hold on segments that were not read. `None`: the journal may remove segments before.
    hold: Option<HoldBack>,
    opened: Option<Opened>,
    /// Damage that the start found, for [`Follower::take_found`].
    found: Vec<Found>,
    /// For [`Follower::take_written`].
    written: Written,
}

/// The state once the directory is this process's.
struct Opened {
    _lock: Box<dyn Lock>,
    instance: String,
    files: UsageFiles,
    /// The last progress that was written.
    progress: Progress,
    streams: Vec<FollowedStream>,
    /// The numbers of the requests that the files have, by stream: of streams that were not found yet.
    recorded: HashMap<String, Numbers>,
}

struct FollowedStream {
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
    recorded: Numbers,
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

/// Numbers of requests, as runs: nearly all numbers of a stream are recorded in the end.
#[derive(Clone, Debug, Default)]
pub struct Numbers(std::collections::BTreeMap<u64, u64>);

impl Numbers {
    /// Adds a number. False if it is there already.
    pub fn insert(&mut self, number: u64) -> bool {
        let before = self.0.range(..=number).next_back().map(|(first, last)| (*first, *last));
        if before.is_some_and(|(_, last)| number <= last) {
            return false;
        }
        let first = match before {
            Some((first, last)) if last + 1 == number => first,
            _ => number,
        };
        let last = number.checked_add(1).and_then(|next| self.0.remove(&next)).unwrap_or(number);
        self.0.insert(first, last);
        true
    }

    #[cfg(test)]
    pub(crate) fn runs(&self) -> Vec<(u64, u64)> {
        self.0.iter().map(|(first, last)| (*first, *last)).collect()
    }
}

impl Follower {
    /// Follows the journal in `journal`, and writes records to `dir`. Files of the last `kept_days` stay, by
    /// default all.
    pub fn new(
        storage: Arc<dyn Storage>,
        journal: &Path,
        dir: &Path,
        source: Arc<dyn UsageSource>,
        kept_days: Option<u32>,
        hold: Option<HoldBack>,
    ) -> Follower {
        Follower {
            storage,
            journal: journal.to_owned(),
            dir: dir.to_owned(),
            source,
            kept_days,
            hold,
            opened: None,
            found: Vec::new(),
            written: Written::default(),
        }
    }

    /// Reads at most one further segment of each stream, writes the records of the requests that have ended in it, and syncs. True
    /// if the journal has further segments: call it again at once. A process that is killed in between goes on behind the segment.
    ///
    /// # Errors
    /// The journal cannot be read, the files cannot be written, or another process writes them. Nothing is lost: call it again
    /// later.
    pub fn advance(&mut self) -> Result<bool, UsageError> {
        let mut opened = match self.opened.take() {
            Some(opened) => opened,
            None => self.open()?,
        };
        let mut written = self.written;
        let advanced = self.look(&mut opened, &mut written);
        (self.opened, self.written) = (Some(opened), written);
        advanced
    }

    /// Takes the sum of what was written since the last call.
    pub fn take_written(&mut self) -> Written {
        std::mem::take(&mut self.written)
    }

    /// Takes the damage that the start found.
    pub(crate) fn take_found(&mut self) -> Vec<Found> {
        std::mem::take(&mut self.found)
    }

    /// Takes the segments that were removed before their requests were recorded, by stream.
    pub(crate) fn take_removed(&self) -> Vec<(String, RemovedSegments)> {
        self.hold.as_ref().map(HoldBack::take_removed).unwrap_or_default().into_iter().collect()
    }

    fn open(&mut self) -> Result<Opened, UsageError> {
        let (storage, instance) = (&self.storage, self.source.instance()?);
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
        self.found.extend(found);
        Ok(Opened { _lock: lock, instance, files, progress, streams: Vec::new(), recorded })
    }

    fn look(&self, opened: &mut Opened, written: &mut Written) -> Result<bool, UsageError> {
        // The lines of an attempt that failed come first.
        commit(&mut opened.files, written)?;
        self.find_streams(opened)?;
        let Opened { instance, files, streams, .. } = opened;
        let mut has_more = false;
        for stream in streams {
            match stream.read(instance, &*self.source, files, written) {
                Ok(has_further) => has_more |= has_further,
                Err(error) => {
                    if matches!(error, UsageError::Journal(_)) {
                        stream.begin_again(&self.storage, &self.journal, &*self.source)?;
                    }
                    return Err(error);
                }
            }
        }
        commit(files, written)?;
        self.confirm(opened)?;
        Ok(has_more)
    }

    fn find_streams(&self, opened: &mut Opened) -> Result<(), UsageError> {
        let journal = JournalReader::open_on(self.storage.clone(), &self.journal)?;
        for name in journal.streams()? {
            if opened.streams.iter().any(|known| known.name == name) {
                continue;
            }
            let reader = journal.stream(&name)?;
            // The streams before it are known before its first segment.
            let Some(newest) = reader.segments()?.pop() else { continue };
            if !reader.after()?.is_empty() {
                // Its requests begin, and are recorded, in another stream.
                if let Some(hold) = &self.hold {
                    hold.confirm(&name, newest);
                }
                continue;
            }
            let known = opened.progress.streams.get(&name);
            let begin = known.and_then(|known| SegmentId::parse(&known.segment));
            let known_from = known.and_then(|known| known.records.clone());
            opened.streams.push(FollowedStream {
                reader: EndedReader::new(reader, FrameUse::Facts, &self.source.layouts(&name)),
                recorded: opened.recorded.remove(&name).unwrap_or_default(),
                name,
                open: None,
                read: None,
                begin,
                known_until: Some(newest),
                known_from,
                complete_since_unix_ns: known.map_or(0, |known| known.complete_since_unix_ns),
                segments: VecDeque::new(),
            });
        }
        Ok(())
    }

    /// Writes the progress, and confirms the segments that are no longer needed.
    fn confirm(&self, opened: &mut Opened) -> Result<(), UsageError> {
        let mut next = opened.progress.clone();
        let mut needed = Vec::new();
        for stream in &mut opened.streams {
            let Some((segment, records)) = stream.oldest_needed() else { continue };
            let complete_since_unix_ns = stream.complete_since_unix_ns;
            let progress = StreamProgress { segment: segment.to_string(), records, complete_since_unix_ns };
            next.streams.insert(stream.name.clone(), progress);
            needed.push((&*stream.name, segment));
        }
        next.first = next.first.or_else(|| opened.files.first().cloned());
        if (&next.streams, &next.first) != (&opened.progress.streams, &opened.progress.first) {
            next.synced = opened.files.synced();
            next.write(&*self.storage, &self.dir)?;
            opened.progress = next;
        }
        if let Some(hold) = &self.hold {
            needed.into_iter().for_each(|(name, segment)| hold.confirm(name, segment));
        }
        Ok(())
    }
}

impl FollowedStream {
    /// Makes the reader anew after the journal could not be read. What it reads again is recorded already.
    fn begin_again(
        &mut self,
        storage: &Arc<dyn Storage>,
        journal: &Path,
        source: &dyn UsageSource,
    ) -> Result<(), ReadError> {
        if let Some((oldest, records)) = self.oldest_needed() {
            (self.begin, self.known_from) = (Some(oldest), records);
            self.known_until = self.open.or(self.read).max(self.known_until);
        }
        let stream = JournalReader::open_on(storage.clone(), journal)?.stream(&self.name)?;
        self.reader = EndedReader::new(stream, FrameUse::Facts, &source.layouts(&self.name));
        (self.open, self.read) = (None, None);
        self.segments.clear();
        Ok(())
    }

    /// Reads to the end of one segment. True if a further one was there before. After an error of the files, it continues where it
    /// was.
    fn read(
        &mut self,
        instance: &str,
        source: &dyn UsageSource,
        files: &mut UsageFiles,
        written: &mut Written,
    ) -> Result<bool, UsageError> {
        // Listed first: the writer has left a segment before it begins the next.
        let listed = self.reader.stream().segments()?;
        let open = match self.open {
            Some(open) => open,
            None => {
                // Another engine may have come with the segment.
                self.reader.set_layouts(&source.layouts(&self.name));
                let Some(opened) = self.open_next(&listed, files)? else { return Ok(false) };
                opened
            }
        };
        while self.reader.read(RECORDS_AT_ONCE)? {
            self.record(instance, files);
            if files.waiting() >= WAITING_BYTES {
                commit(files, written)?;
            }
        }
        let has_further = listed.last().is_some_and(|newest| *newest > open);
        if has_further {
            self.reader.finish_segment();
            (self.open, self.read) = (None, Some(open));
        }
        self.record(instance, files);
        Ok(has_further)
    }

    /// Opens the segment after the one that was read, or the one to begin with. `None` if there is none yet.
    fn open_next(
        &mut self,
        listed: &[SegmentId],
        files: &UsageFiles,
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
                }
                self.open = Some(*id);
                let is_known = Some(*id) <= self.known_until;
                let records = if is_known { self.known_from.clone() } else { files.newest() };
                self.segments.push_back((*id, records));
                break;
            }
        }
        Ok(self.open)
    }

    /// Adds the lines of the requests that have ended.
    fn record(&mut self, instance: &str, files: &mut UsageFiles) {
        for ended in self.reader.requests() {
            if self.recorded.insert(ended.info.number.0) {
                files.push(&UsageRecord::new(instance, &ended).line());
            }
        }
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

fn commit(files: &mut UsageFiles, written: &mut Written) -> Result<(), UsageError> {
    let (records, bytes) = files.commit()?;
    written.records += records;
    written.bytes += bytes;
    Ok(())
}
