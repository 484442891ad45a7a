//! The start of a stream's archive: the manifests say where it ends.

use std::path::{Path, PathBuf};

use afterbay_journal::SegmentId;
use afterbay_journal::reader::StreamReader;
use afterbay_journal_view::ended::{EndedReader, FrameUse};

use super::{Context, Reading, StreamArchive, empty_objects, put_manifests};
use crate::archive::manifest::{FileEntry, decode};
use crate::archive::names::{Names, parse, segment_of, word};
use crate::archive::progress::{Progress, clean};
use crate::archive::tables::SegmentTables;
use crate::consumer::{Failure, layouts};

impl StreamArchive {
    /// Finds out where the archive of the stream ends, completes the manifests of its last file, and prepares to read on.
    pub(crate) async fn begin(
        context: &Context<'_>,
        stream: StreamReader,
        dir: PathBuf,
    ) -> Result<StreamArchive, Failure> {
        clean(&dir)?;
        let names = Names { instance: context.instance.to_owned(), stream: stream.name().to_owned() };
        let mut progress = Progress::read(&dir, context.url)?;
        let mut archived = progress.archived.as_deref().and_then(parse);
        let mut needs = progress.needs.as_deref().and_then(parse);
        let local = stream.segments()?;
        // Manifests of segments before the oldest one are of no interest.
        let oldest = local.first().copied().or(archived).unwrap_or_default();
        let listed = context.objects.list(&names.manifests(), &word(oldest)).await?;
        if let Some(newest) = listed.iter().filter_map(|name| segment_of(name)).max() {
            let file = complete(context, &names, newest).await?;
            let through = file.segments.last().and_then(|segment| parse(&segment.segment)).max(Some(newest));
            if through > archived {
                (archived, needs) = (through, file.needs.as_deref().and_then(parse));
            }
        }
        let planned = settle_pending(context, &mut progress, &dir, archived, local.first().copied()).await?;
        let layouts = layouts(&stream)?;
        let reader = EndedReader::new(stream, FrameUse::Contents, &layouts);
        let mut tables = SegmentTables::new(reader.with_settled_frames());
        // Requests that are live after the last archived segment have rows in these.
        let needed = |id: &&SegmentId| needs.is_some_and(|needs| **id >= needs) && Some(**id) <= archived;
        for segment in local.iter().filter(needed) {
            tables.read(*segment, None)?;
        }
        let reading = Reading { tables, through: archived, file: None, planned };
        let (gap, waiting_since_unix_ns) = (None, 0);
        let mut begun = StreamArchive {
            names,
            dir,
            progress,
            archived,
            needed: local.first().copied(),
            reading,
            gap,
            waiting_since_unix_ns,
        };
        begun.needs(needs);
        Ok(begun)
    }
}

/// Writes the manifests that are missing behind the newest one of a file, and returns the file.
async fn complete(context: &Context<'_>, names: &Names, newest: SegmentId) -> Result<FileEntry, Failure> {
    let name = names.manifest(newest);
    let wrong = |why: String| Failure::of_stream(format!("manifest {name}: {why}"));
    let bytes = context.objects.get(&name).await?.ok_or_else(|| wrong("is listed and absent".into()))?;
    let file = decode(&bytes).map_err(wrong)?.file;
    put_manifests(context, names, &file, Some(newest)).await?;
    Ok(file)
}

/// Decides about the file whose upload an earlier attempt began and that no manifest commits. If its segments are still there, the
/// next file is the same: its last segment is returned. If they are gone, its objects have rows that a later file may
/// repeat, so they are emptied.
async fn settle_pending(
    context: &Context<'_>,
    progress: &mut Progress,
    dir: &Path,
    archived: Option<SegmentId>,
    oldest: Option<SegmentId>,
) -> Result<Option<SegmentId>, Failure> {
    let Some(pending) = &progress.pending else { return Ok(None) };
    let first = pending.segments.first().and_then(|first| parse(first));
    if first > archived && oldest.is_some() && first >= oldest {
        return Ok(pending.segments.last().and_then(|last| parse(last)));
    }
    if first > archived {
        let objects = pending.objects.clone();
        empty_objects(context, objects.into_iter()).await?;
    }
    progress.pending = None;
    progress.write(dir)?;
    Ok(None)
}
