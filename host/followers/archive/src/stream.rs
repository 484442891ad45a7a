//! The archive of one stream: reads ended segments into local files, uploads a file when it is large enough or its hour is over,
//! commits it by its manifests, and confirms its segments to retention.
//!
//! Exactly once: a file is committed by the manifest of its first segment, and its objects are named by that segment. Until then,
//! nothing is read into another file. A restart begins with the first segment without a manifest, makes the same file again and
//! replaces its objects.

mod resume;

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, UNIX_EPOCH};

use afterbay_events::event::{ArchiveDamage, ArchiveGap};
use afterbay_events::{ArchiveCounters, Events};
use afterbay_journal::reader::{JournalReader, StreamReader};
use afterbay_journal::{HoldBack, SegmentId};
use afterbay_wire::Layouts;

use crate::failure::Failure;
use crate::manifest::{FileEntry, Gap, Manifest, ObjectEntry, SegmentEntry, encode};
use crate::names::{Names, parse, word};
use crate::objects::Objects;
use crate::progress::{Pending, Progress, clean};
use crate::schema::Table;
use crate::tables::{SegmentTables, StreamFacts, TableFiles, empty};

/// Size at which a file is uploaded, as its writer estimates it: the object has 64 to 256 MB.
pub(crate) const FILE_BYTES: u64 = 128 << 20;
/// Most segments of a file.
pub(crate) const FILE_SEGMENTS_MAX: usize = 64;
const HOUR_NS: u64 = 3_600_000_000_000;

/// Everything that the streams of an archive share.
pub(crate) struct Context<'a> {
    pub(crate) url: &'a str,
    pub(crate) journal: &'a JournalReader,
    pub(crate) objects: &'a Objects,
    pub(crate) hold: &'a HoldBack,
    pub(crate) counters: &'a ArchiveCounters,
    pub(crate) events: &'a Events,
    pub(crate) instance: &'a str,
    /// `None`: the stream is about to start.
    pub(crate) layouts: &'a (dyn Fn(&str) -> Option<Layouts> + Send + Sync),
    /// Whether another process may own the journal.
    pub(crate) is_handed_over: &'a dyn Fn() -> bool,
    pub(crate) now_unix_ns: u64,
    /// Whether nothing is waited for: the process stops.
    pub(crate) is_last: bool,
    /// The streams that this process writes.
    pub(crate) open_streams: &'a [String],
    /// Idle time after which a stream that nobody writes is over.
    pub(crate) abandon_after: Duration,
}

/// The archive of one stream.
pub(crate) struct StreamArchive {
    name: String,
    /// The directory of its local files.
    dir: PathBuf,
    progress: Progress,
    /// The last segment that is in the archive.
    archived: Option<SegmentId>,
    /// `None` before the manifests are read, and after an error of the journal or the local disk.
    reading: Option<Reading>,
    /// The segment before which a gap was reported last.
    gap: Option<SegmentId>,
    lag: Lag,
}

/// The segments of a stream that have ended and are not in the archive.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Lag {
    pub(crate) segments: u64,
    /// Begin of the oldest of them, unix nanoseconds; 0 if there is none.
    since_unix_ns: u64,
}

struct Reading {
    stream: StreamReader,
    tables: SegmentTables,
    /// The last segment that is in the archive or in the open file.
    through: Option<SegmentId>,
    file: Option<OpenFile>,
    /// The last segment of a file that an earlier attempt began to upload: the next file ends there.
    planned: Option<SegmentId>,
}

/// A file that is not committed.
struct OpenFile {
    first: SegmentId,
    begun_unix_ns: u64,
    last: SegmentId,
    segments: Vec<SegmentEntry>,
    content: FileContent,
}

enum FileContent {
    Open(Box<TableFiles>),
    /// Complete, and not uploaded.
    Closed(FileEntry),
}

impl OpenFile {
    fn hour(&self) -> u64 {
        self.begun_unix_ns / HOUR_NS
    }

    fn is_closed(&self) -> bool {
        matches!(self.content, FileContent::Closed(_))
    }

    /// Whether the file has all that belongs into one file.
    fn is_full(&self) -> bool {
        let is_large = match &self.content {
            FileContent::Open(files) => files.bytes() >= FILE_BYTES,
            FileContent::Closed(_) => true,
        };
        is_large || self.segments.len() >= FILE_SEGMENTS_MAX
    }
}

impl StreamArchive {
    pub(crate) fn new(name: &str, dir: PathBuf) -> StreamArchive {
        StreamArchive {
            name: name.to_owned(),
            dir,
            progress: Progress::default(),
            archived: None,
            reading: None,
            gap: None,
            lag: Lag::default(),
        }
    }

    /// The segments that have ended and are not in the archive.
    pub(crate) fn lag(&self) -> Lag {
        self.lag
    }

    /// Reads the segments that have ended since, and uploads the files that are due.
    ///
    /// # Errors
    /// The archive cannot go on for now. Call it again later.
    pub(crate) async fn advance(&mut self, context: &Context<'_>) -> Result<(), Failure> {
        let names = Names { instance: context.instance.to_owned(), stream: self.name.clone() };
        let mut reading = match self.reading.take() {
            Some(reading) => reading,
            None => match (context.layouts)(&self.name) {
                Some(layouts) => self.resume(context, &names, &layouts).await?,
                None => return Ok(()),
            },
        };
        let read = self.read(context, &names, &mut reading).await;
        self.lag = self.measure(&reading.stream)?;
        // After an error of the journal or the local disk, the local file may lack rows.
        if read.as_ref().err().is_none_or(Failure::is_of_store) {
            self.reading = Some(reading);
        }
        read
    }

    async fn read(
        &mut self,
        context: &Context<'_>,
        names: &Names,
        reading: &mut Reading,
    ) -> Result<(), Failure> {
        let is_over = self.is_over(context, &reading.stream)?;
        // Nobody seals the last segment of a stream that was killed and is written no longer.
        let ended = if is_over { reading.stream.segments()? } else { reading.stream.ended_segments()? };
        for segment in ended {
            if Some(segment) <= reading.through {
                continue;
            }
            let begun_unix_ns = reading.stream.begun_unix_ns(segment)?.unwrap_or_default();
            if let Some(file) = &reading.file {
                // A start may begin a segment before any frame: it has no time.
                let is_of_hour = begun_unix_ns == 0 || begun_unix_ns / HOUR_NS == file.hour();
                if file.is_closed() || reading.planned.is_none() && (file.is_full() || !is_of_hour) {
                    self.commit(context, names, reading).await?;
                }
            }
            self.report_gap(context, names, reading.through, segment).await?;
            self.read_segment(context, reading, segment, begun_unix_ns)?;
            if reading.planned.is_some_and(|planned| segment >= planned) {
                self.commit(context, names, reading).await?;
            }
        }
        let is_due = |file: &OpenFile| {
            file.is_full()
                || context.is_last
                || context.hold.is_pressed()
                || context.now_unix_ns / HOUR_NS > file.hour()
        };
        if reading.file.as_ref().is_some_and(is_due) {
            self.commit(context, names, reading).await?;
        }
        if is_over && reading.file.is_none() {
            // Requests that are live at its end never end: nothing is held for them.
            self.confirm(context, None);
        }
        Ok(())
    }

    /// Whether nobody writes the stream any more, and its live requests count as abandoned.
    fn is_over(&self, context: &Context<'_>, stream: &StreamReader) -> Result<bool, Failure> {
        if context.open_streams.contains(&self.name) {
            return Ok(false);
        }
        let Some(last) = stream.segments()?.pop() else { return Ok(false) };
        let written_unix_ns = self.last_written(context, last);
        let idle = Duration::from_nanos(context.now_unix_ns.saturating_sub(written_unix_ns));
        Ok(idle > context.abandon_after)
    }

    /// Adds the rows of a segment to the open file, or to a new one. Nothing if retention removed the segment, or its header cannot be
    /// read: the next segment reports the gap.
    fn read_segment(
        &mut self,
        context: &Context<'_>,
        reading: &mut Reading,
        segment: SegmentId,
        begun_unix_ns: u64,
    ) -> Result<(), Failure> {
        let mut open = match reading.file.take() {
            Some(open) => open,
            None => {
                clean(&self.dir)?;
                let facts = StreamFacts { instance: context.instance.to_owned(), stream: self.name.clone() };
                OpenFile {
                    first: segment,
                    begun_unix_ns: self.begin_of(context, segment, begun_unix_ns),
                    last: segment,
                    segments: Vec::new(),
                    content: FileContent::Open(Box::new(TableFiles::create(&self.dir, &facts)?)),
                }
            }
        };
        let FileContent::Open(files) = &mut open.content else {
            // It is committed before a further segment is read.
            reading.file = Some(open);
            return Ok(());
        };
        let counts = reading.tables.read(segment, Some(&mut **files))?;
        if let Some(counts) = counts {
            if counts.corrupt_bytes > 0 {
                let (stream, name) = (self.name.as_str().into(), segment.to_string());
                let corrupt_bytes = counts.corrupt_bytes;
                context.events.publish(ArchiveDamage { stream, segment: name, corrupt_bytes });
            }
            open.segments.push(SegmentEntry {
                segment: word(segment),
                begun_unix_ns,
                requests: counts.requests,
                tokens: counts.tokens,
                batches: counts.batches,
                corrupt_bytes: counts.corrupt_bytes,
            });
            (open.last, reading.through) = (segment, Some(segment));
        }
        // A file without a segment has no name.
        reading.file = Some(open).filter(|open| !open.segments.is_empty());
        Ok(())
    }

    /// The time in the name of an object that begins with this segment: it never changes. The header has none if a start began the
    /// segment before any frame.
    fn begin_of(&self, context: &Context<'_>, segment: SegmentId, begun_unix_ns: u64) -> u64 {
        if begun_unix_ns > 0 { begun_unix_ns } else { self.last_written(context, segment) }
    }

    /// Time of the last write to a segment, unix nanoseconds; 0 if it is unknown.
    fn last_written(&self, context: &Context<'_>, segment: SegmentId) -> u64 {
        let file = context.journal.dir().join(&self.name).join(segment.to_string());
        let modified = fs::metadata(file).and_then(|file| file.modified()).ok();
        let since = modified.and_then(|modified| modified.duration_since(UNIX_EPOCH).ok());
        since.map_or(0, |since| since.as_nanos() as u64)
    }

    /// Names the segments that are missing between two segments, in an object and an event.
    async fn report_gap(
        &mut self,
        context: &Context<'_>,
        names: &Names,
        through: Option<SegmentId>,
        next: SegmentId,
    ) -> Result<(), Failure> {
        let Some(after) = through else { return Ok(()) };
        if next.sequence <= after.sequence.saturating_add(1) || self.gap == Some(next) {
            return Ok(());
        }
        let gap = Gap::new(&names.instance, &names.stream, after, next);
        context.objects.put(&names.gap(next), encode(&gap)).await?;
        self.gap = Some(next);
        context.counters.gaps.add(1);
        let (stream, after, before) = (self.name.as_str().into(), after.to_string(), next.to_string());
        context.events.publish(ArchiveGap { stream, after, before });
        Ok(())
    }

    /// Closes the open file, uploads its objects, commits it by its manifests, and confirms its segments.
    async fn commit(
        &mut self,
        context: &Context<'_>,
        names: &Names,
        reading: &mut Reading,
    ) -> Result<(), Failure> {
        let Some(mut file) = reading.file.take() else { return Ok(()) };
        let entry = match file.content {
            FileContent::Closed(entry) => entry,
            FileContent::Open(files) => {
                let needs = reading.tables.needs().map(word);
                let objects = files.close()?.into_iter().map(|closed| ObjectEntry {
                    table: closed.table.name().to_owned(),
                    path: names.object(closed.table, file.first, file.begun_unix_ns),
                    rows: closed.rows,
                    bytes: closed.bytes,
                });
                FileEntry { objects: objects.collect(), segments: file.segments.clone(), needs }
            }
        };
        file.content = FileContent::Closed(entry.clone());
        let last = file.last;
        reading.file = Some(file);

        self.begin_upload(context, &entry).await?;
        for object in &entry.objects {
            self.check_owner(context)?;
            let local = self.dir.join(format!("{}.parquet", object.table));
            context.objects.upload(&object.path, &local).await?;
            context.counters.bytes_uploaded.add(object.bytes);
        }
        self.put_manifests(context, names, &entry, None).await?;
        (reading.file, reading.planned) = (None, None);
        context.counters.segments_confirmed.add(entry.segments.len() as u64);
        context.counters.requests_confirmed.add(entry.segments.iter().map(|segment| segment.requests).sum());
        self.archived = Some(last);
        self.confirm(context, entry.needs.as_deref().and_then(parse));
        self.progress.archived = Some(word(last));
        (self.progress.needs, self.progress.pending) = (entry.needs, None);
        self.progress.write(&self.dir)?;
        clean(&self.dir)
    }

    /// Notes which objects are about to appear. Empties objects that an earlier attempt put and this one does not.
    async fn begin_upload(&mut self, context: &Context<'_>, entry: &FileEntry) -> Result<(), Failure> {
        let objects: Vec<String> = entry.objects.iter().map(|object| object.path.clone()).collect();
        let segments = entry.segments.iter().map(|segment| segment.segment.clone()).collect();
        let pending = Some(Pending { segments, objects });
        if self.progress.pending == pending {
            return Ok(());
        }
        let before = std::mem::replace(&mut self.progress.pending, pending);
        let stays = |path: &String| entry.objects.iter().any(|object| object.path == *path);
        let stale = before.into_iter().flat_map(|before| before.objects).filter(|path| !stays(path));
        self.empty_objects(context, stale).await?;
        self.progress.write(&self.dir)
    }

    /// Replaces objects that no manifest names by ones without rows: what they hold is in no file, or in a later one.
    async fn empty_objects(
        &self,
        context: &Context<'_>,
        paths: impl Iterator<Item = String>,
    ) -> Result<(), Failure> {
        for path in paths {
            self.check_owner(context)?;
            let of_path =
                Table::ALL.into_iter().find(|table| path.starts_with(&format!("{}/", table.name())));
            if let Some(table) = of_path {
                context.objects.put(&path, empty(table)?).await?;
            }
        }
        Ok(())
    }

    /// Writes the manifests of a file, the committing one first; only those of segments after `after`.
    async fn put_manifests(
        &self,
        context: &Context<'_>,
        names: &Names,
        file: &FileEntry,
        after: Option<SegmentId>,
    ) -> Result<(), Failure> {
        for segment in &file.segments {
            let Some(id) = parse(&segment.segment).filter(|id| Some(*id) > after) else { continue };
            self.check_owner(context)?;
            let manifest = Manifest::new(&names.instance, &names.stream, segment, file);
            context.objects.put(&names.manifest(id), encode(&manifest)).await?;
        }
        Ok(())
    }

    fn check_owner(&self, context: &Context<'_>) -> Result<(), Failure> {
        if (context.is_handed_over)() { Err(Failure::HandedOver) } else { Ok(()) }
    }

    /// Lets retention remove the segments that are in the archive and have nothing of a live request.
    fn confirm(&self, context: &Context<'_>, needs: Option<SegmentId>) {
        let after =
            |archived: SegmentId| SegmentId { sequence: archived.sequence.saturating_add(1), ..archived };
        if let Some(oldest) = needs.or(self.archived.map(after)) {
            context.hold.confirm(&self.name, oldest);
        }
    }

    fn measure(&self, stream: &StreamReader) -> Result<Lag, Failure> {
        let ended = stream.ended_segments()?;
        let waiting: Vec<_> = ended.into_iter().filter(|id| Some(*id) > self.archived).collect();
        let since = match waiting.first() {
            Some(first) => stream.begun_unix_ns(*first)?.unwrap_or_default(),
            None => 0,
        };
        Ok(Lag { segments: waiting.len() as u64, since_unix_ns: since })
    }
}

/// The time for which the oldest of these segments has waited.
pub(crate) fn lag_time(lags: impl Iterator<Item = Lag>, now_unix_ns: u64) -> Duration {
    let since = lags.filter(|lag| lag.since_unix_ns > 0).map(|lag| lag.since_unix_ns).min();
    since.map_or(Duration::ZERO, |since| Duration::from_nanos(now_unix_ns.saturating_sub(since)))
}
