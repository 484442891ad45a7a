//! The archive of one stream: reads ended segments into local files, uploads a file when it is large enough or its hour is over,
//! commits it by its manifests, and confirms its segments to retention.
//!
//! Exactly once: a file is committed by the manifest of its first segment, and its objects are named by that segment. Until then,
//! nothing is read into another file. A restart begins with the first segment without a manifest, makes the same file again and
//! replaces its objects.

mod resume;

use std::path::PathBuf;
use std::time::Duration;

use afterbay_events::ArchiveCounters;
use afterbay_events::event::ArchiveDamage;
use afterbay_journal::SegmentId;

use crate::archive::NAME;
use crate::archive::manifest::{FileEntry, Gap, Manifest, ObjectEntry, SegmentEntry, encode};
use crate::archive::names::{Names, parse, word};
use crate::archive::objects::Objects;
use crate::archive::progress::{Pending, Progress, clean};
use crate::archive::schema::Table;
use crate::archive::tables::{SegmentTables, StreamFacts, TableFiles, empty};
use crate::consumer::Failure;
use crate::following::Telemetry;

/// Size at which a file is uploaded, as its writer estimates it: the object has 64 to 256 MB.
pub(crate) const FILE_BYTES: u64 = 128 << 20;
/// Most segments of a file.
pub(crate) const FILE_SEGMENTS_MAX: usize = 64;
const HOUR_NS: u64 = 3_600_000_000_000;

/// Everything that the streams of an archive share.
pub(crate) struct Context<'a> {
    pub(crate) url: &'a str,
    pub(crate) objects: &'a Objects,
    pub(crate) counters: &'a ArchiveCounters,
    pub(crate) telemetry: &'a Telemetry,
    pub(crate) instance: &'a str,
    pub(crate) now_unix_ns: u64,
    /// Whether files do not wait for more: the process stops, or the journal is nearly full.
    pub(crate) is_due: bool,
    /// The streams of the configuration.
    pub(crate) configured: &'a [String],
    /// Idle time after which a stream that nobody writes is over.
    pub(crate) abandon_after: Duration,
}

/// The archive of one stream.
pub struct StreamArchive {
    names: Names,
    /// The directory of its local files.
    dir: PathBuf,
    progress: Progress,
    /// The last segment that is in the archive.
    archived: Option<SegmentId>,
    /// The oldest segment that a start needs.
    needed: Option<SegmentId>,
    reading: Reading,
    /// The segment before which a gap was reported last.
    gap: Option<SegmentId>,
    /// Begin of the oldest segment that has ended and is not in the archive, unix nanoseconds; 0 if there is none.
    waiting_since_unix_ns: u64,
}

struct Reading {
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
    /// The oldest segment that a start needs.
    pub(crate) fn needed(&self) -> Option<SegmentId> {
        self.needed
    }

    /// The time for which the oldest segment waits.
    pub(crate) fn lag(&self, now_unix_ns: u64) -> Duration {
        match self.waiting_since_unix_ns {
            0 => Duration::ZERO,
            since => Duration::from_nanos(now_unix_ns.saturating_sub(since)),
        }
    }

    /// The bytes of the segments that a start needs.
    pub(crate) fn unconfirmed_bytes(&self) -> Result<u64, Failure> {
        let segments = self.reading.tables.stream().segment_files()?.into_iter();
        Ok(segments.filter(|(id, ..)| Some(*id) >= self.needed).map(|(_, bytes, _)| bytes).sum())
    }

    /// Reads a segment that has ended since, and uploads the file that is due. Returns whether there are more segments.
    ///
    /// # Errors
    /// The archive cannot go on for now. Call it again later.
    pub(crate) async fn advance(&mut self, context: &Context<'_>) -> Result<bool, Failure> {
        let is_over = self.is_over(context)?;
        // Nobody ends the last segment of a stream that was killed and is written no longer.
        let stream = self.reading.tables.stream();
        let ended = if is_over { stream.segments()? } else { stream.ended_segments()? };
        let waiting = ended.iter().find(|id| Some(**id) > self.archived);
        let since = waiting.map(|first| stream.begun_unix_ns(*first)).transpose()?;
        self.waiting_since_unix_ns = since.flatten().unwrap_or_default();
        let through = self.reading.through;
        let mut unread = ended.into_iter().filter(|id| Some(*id) > through);
        if let Some(segment) = unread.next() {
            self.read(context, segment).await?;
            if unread.next().is_some() {
                return Ok(true);
            }
        }
        let is_due =
            |file: &OpenFile| file.is_full() || context.is_due || context.now_unix_ns / HOUR_NS > file.hour();
        if self.reading.file.as_ref().is_some_and(is_due) {
            self.commit(context).await?;
        }
        if is_over && self.reading.file.is_none() {
            // Requests that are live at its end never end: nothing is needed for them.
            self.needs(None);
        }
        Ok(false)
    }

    async fn read(&mut self, context: &Context<'_>, segment: SegmentId) -> Result<(), Failure> {
        let reading = &self.reading;
        let begun_unix_ns = reading.tables.stream().begun_unix_ns(segment)?.unwrap_or_default();
        if let Some(file) = &reading.file {
            // A start may begin a segment before any frame: it has no time.
            let is_of_hour = begun_unix_ns == 0 || begun_unix_ns / HOUR_NS == file.hour();
            if file.is_closed() || reading.planned.is_none() && (file.is_full() || !is_of_hour) {
                self.commit(context).await?;
            }
        }
        self.report_gap(context, segment).await?;
        self.read_segment(context, segment, begun_unix_ns)?;
        if self.reading.planned.is_some_and(|planned| segment >= planned) {
            self.commit(context).await?;
        }
        Ok(())
    }

    /// Whether nobody writes the stream any more, and its live requests count as abandoned.
    fn is_over(&self, context: &Context<'_>) -> Result<bool, Failure> {
        if context.configured.contains(&self.names.stream) {
            return Ok(false);
        }
        let last = self.reading.tables.stream().segment_files()?.pop();
        let Some((.., written_unix_ns)) = last else { return Ok(false) };
        let idle = Duration::from_nanos(context.now_unix_ns.saturating_sub(written_unix_ns));
        Ok(idle > context.abandon_after)
    }

    /// Adds the rows of a segment to the open file, or to a new one. Nothing if retention removed the segment, or its header cannot be
    /// read: the next segment reports the gap.
    fn read_segment(
        &mut self,
        context: &Context<'_>,
        segment: SegmentId,
        begun_unix_ns: u64,
    ) -> Result<(), Failure> {
        let begin = self.begin_of(segment, begun_unix_ns)?;
        let reading = &mut self.reading;
        let mut open = match reading.file.take() {
            Some(open) => open,
            None => {
                clean(&self.dir)?;
                let facts =
                    StreamFacts { instance: self.names.instance.clone(), stream: self.names.stream.clone() };
                OpenFile {
                    first: segment,
                    begun_unix_ns: begin,
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
                let (stream, name) = (self.names.stream.as_str().into(), segment.to_string());
                let corrupt_bytes = counts.corrupt_bytes;
                context.telemetry.events.publish(ArchiveDamage { stream, segment: name, corrupt_bytes });
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
    fn begin_of(&self, segment: SegmentId, begun_unix_ns: u64) -> Result<u64, Failure> {
        if begun_unix_ns > 0 {
            return Ok(begun_unix_ns);
        }
        let files = self.reading.tables.stream().segment_files()?;
        Ok(files.iter().find(|(id, ..)| *id == segment).map_or(0, |(.., written)| *written))
    }

    /// Names the segments that are missing between two segments, in an object and an event.
    async fn report_gap(&mut self, context: &Context<'_>, next: SegmentId) -> Result<(), Failure> {
        let Some(after) = self.reading.through else { return Ok(()) };
        if next.sequence <= after.sequence.saturating_add(1) || self.gap == Some(next) {
            return Ok(());
        }
        let gap = Gap::new(&self.names.instance, &self.names.stream, after, next);
        context.objects.put(&self.names.gap(next), encode(&gap)).await?;
        self.gap = Some(next);
        context.telemetry.missed(NAME, &self.names.stream, next.sequence - after.sequence - 1, next);
        Ok(())
    }

    /// Closes the open file, uploads its objects, commits it by its manifests, and confirms its segments.
    async fn commit(&mut self, context: &Context<'_>) -> Result<(), Failure> {
        let reading = &mut self.reading;
        let Some(mut file) = reading.file.take() else { return Ok(()) };
        let entry = match file.content {
            FileContent::Closed(entry) => entry,
            FileContent::Open(files) => {
                let needs = reading.tables.needs().map(word);
                let objects = files.close()?.into_iter().map(|closed| ObjectEntry {
                    table: closed.table.name().to_owned(),
                    path: self.names.object(closed.table, file.first, file.begun_unix_ns),
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
            let local = self.dir.join(format!("{}.parquet", object.table));
            context.objects.upload(&object.path, &local).await?;
            context.counters.bytes_uploaded.add(object.bytes);
        }
        put_manifests(context, &self.names, &entry, None).await?;
        (self.reading.file, self.reading.planned) = (None, None);
        context.counters.segments_confirmed.add(entry.segments.len() as u64);
        context.counters.requests_confirmed.add(entry.segments.iter().map(|segment| segment.requests).sum());
        self.archived = Some(last);
        self.needs(entry.needs.as_deref().and_then(parse));
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
        empty_objects(context, stale).await?;
        self.progress.write(&self.dir)
    }

    /// Notes what is needed: the segments from this one on, by default those that are not in the archive.
    fn needs(&mut self, needs: Option<SegmentId>) {
        let after =
            |archived: SegmentId| SegmentId { sequence: archived.sequence.saturating_add(1), ..archived };
        self.needed = needs.or(self.archived.map(after)).or(self.needed);
    }
}

/// Replaces objects that no manifest names by ones without rows: what they hold is in no file, or in a later one.
async fn empty_objects(context: &Context<'_>, paths: impl Iterator<Item = String>) -> Result<(), Failure> {
    for path in paths {
        let of_path = Table::ALL.into_iter().find(|table| path.starts_with(&format!("{}/", table.name())));
        if let Some(table) = of_path {
            context.objects.put(&path, empty(table)?).await?;
        }
    }
    Ok(())
}

/// Writes the manifests of a file, the committing one first; only those of segments after `after`.
async fn put_manifests(
    context: &Context<'_>,
    names: &Names,
    file: &FileEntry,
    after: Option<SegmentId>,
) -> Result<(), Failure> {
    for segment in &file.segments {
        let Some(id) = parse(&segment.segment).filter(|id| Some(*id) > after) else { continue };
        let manifest = Manifest::new(&names.instance, &names.stream, segment, file);
        context.objects.put(&names.manifest(id), encode(&manifest)).await?;
    }
    Ok(())
}
