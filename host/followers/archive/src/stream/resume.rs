//! The start of a stream's archive: the manifests say where it ends.

use afterbay_journal::SegmentId;
use afterbay_journal_view::ended::{EndedReader, FrameUse};
use afterbay_wire::Layouts;

use super::{Context, Reading, StreamArchive};
use crate::failure::Failure;
use crate::manifest::{FileEntry, decode};
use crate::names::{Names, parse, segment_of, word};
use crate::progress::{Progress, clean};
use crate::tables::SegmentTables;

impl StreamArchive {
    /// Finds out where the archive of the stream ends, completes the manifests of its last file, and prepares to read on.
    pub(super) async fn resume(
        &mut self,
        context: &Context<'_>,
        names: &Names,
        layouts: &Layouts,
    ) -> Result<Reading, Failure> {
        clean(&self.dir)?;
        self.progress = Progress::read(&self.dir, context.url)?;
        self.archived = self.progress.archived.as_deref().and_then(parse);
        let mut needs = self.progress.needs.as_deref().and_then(parse);
        let stream = context.journal.stream(&self.name)?;
        let local = stream.segments()?;
        // Manifests of segments before the oldest one are of no interest.
        let oldest = local.first().copied().or(self.archived).unwrap_or_default();
        let listed = context.objects.list(&names.manifests(), &word(oldest)).await?;
        if let Some(newest) = listed.iter().filter_map(|name| segment_of(name)).max() {
            let file = self.complete(context, names, newest).await?;
            let through = file.segments.last().and_then(|segment| parse(&segment.segment)).max(Some(newest));
            if through > self.archived {
                (self.archived, needs) = (through, file.needs.as_deref().and_then(parse));
            }
        }
        self.confirm(context, needs);
        let planned = self.settle_pending(context, local.first().copied()).await?;
        let reader = EndedReader::new(context.journal.stream(&self.name)?, FrameUse::Contents, layouts);
        let mut tables = SegmentTables::new(reader.with_settled_frames());
        // Requests that are live after the last archived segment have rows in these.
        let needed =
            |id: &&SegmentId| needs.is_some_and(|needs| **id >= needs) && Some(**id) <= self.archived;
        for segment in local.iter().filter(needed) {
            tables.read(*segment, None)?;
        }
        Ok(Reading { stream, tables, through: self.archived, file: None, planned })
    }

    /// Writes the manifests that are missing behind the newest one of a file, and returns the file.
    async fn complete(
        &self,
        context: &Context<'_>,
        names: &Names,
        newest: SegmentId,
    ) -> Result<FileEntry, Failure> {
        let name = names.manifest(newest);
        let wrong = |why: String| Failure::Manifest { name: name.clone(), why };
        let bytes = context.objects.get(&name).await?.ok_or_else(|| wrong("is listed and absent".into()))?;
        let file = decode(&bytes).map_err(wrong)?.file;
        self.put_manifests(context, names, &file, Some(newest)).await?;
        Ok(file)
    }

    /// Decides about the file whose upload an earlier attempt began and that no manifest commits. If its segments are still there, the
    /// next file is the same: its last segment is returned. If they are gone, its objects have rows that a later file may
    /// repeat, so they are emptied.
    async fn settle_pending(
        &mut self,
        context: &Context<'_>,
        oldest: Option<SegmentId>,
    ) -> Result<Option<SegmentId>, Failure> {
        let Some(pending) = &self.progress.pending else { return Ok(None) };
        let first = pending.segments.first().and_then(|first| parse(first));
        if first > self.archived && oldest.is_some() && first >= oldest {
            return Ok(pending.segments.last().and_then(|last| parse(last)));
        }
        if first > self.archived {
            let objects = pending.objects.clone();
            self.empty_objects(context, objects.into_iter()).await?;
        }
        self.progress.pending = None;
        self.progress.write(&self.dir)?;
        Ok(None)
    }
}
