//! The requests of a stream that have ended, for commands that look at all of them.

use crate::place::Selected;
use afterbay_journal::SegmentId;
use afterbay_journal::reader::StreamReader;
use afterbay_journal_view::ended::{EndedReader, EndedRequest, FrameUse};
use afterbay_journal_view::steps::begin;
use afterbay_journal_view::{legs, parse_time};
use afterbay_wire::Layouts;

/// The options that select requests by their arrival.
#[derive(clap::Args)]
pub(crate) struct ArrivedArgs {
    /// Only requests that arrived at or after this time (RFC 3339, "2026-11-20 14:00:00", or an age such as 10m)
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub(crate) since: Option<u64>,
    /// Only requests that arrived before this time
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub(crate) until: Option<u64>,
}

/// Records that are read at once.
const RECORDS_AT_ONCE: usize = 2000;

/// Gives each request of these segments that has ended, with its [`Training`](afterbay_journal_view::ended::Training) if its contents
/// are wanted. Returns the number of requests that have not ended.
pub(crate) fn each_ended(
    stream: StreamReader,
    segments: &[SegmentId],
    frames: FrameUse,
    each: &mut dyn FnMut(EndedRequest) -> anyhow::Result<()>,
) -> anyhow::Result<usize> {
    let layouts = Layouts::of_text(&stream.layout()?);
    let mut reader = EndedReader::new(stream, frames, &layouts).with_training();
    for id in segments {
        // Removed by retention meanwhile, or damaged.
        if !reader.open(*id)? {
            continue;
        }
        while reader.read(RECORDS_AT_ONCE)? {
            reader.requests().try_for_each(&mut *each)?;
        }
        reader.finish_segment();
        reader.requests().try_for_each(&mut *each)?;
    }
    Ok(reader.live_requests())
}

/// Gives each request that has ended of the streams on which requests begin, or of the stream that --stream names, and that arrived in
/// this time. Returns the number of requests that have not ended.
pub(crate) fn each_arrived(
    selected: &Selected,
    (since, until): (Option<u64>, Option<u64>),
    frames: FrameUse,
    each: &mut dyn FnMut(EndedRequest) -> anyhow::Result<()>,
) -> anyhow::Result<usize> {
    let wanted = since.unwrap_or(0)..until.unwrap_or(u64::MAX);
    let mut live = 0;
    for stream in &selected.streams {
        // The second leg has the same requests.
        if selected.streams.len() > 1 && !legs::after(stream, &selected.streams)?.is_empty() {
            continue;
        }
        let stream = selected.journal.stream(stream.name())?;
        let segments = stream.segments()?;
        let begin = begin(&stream, &segments, since.unwrap_or(0))?;
        live += each_ended(stream, &segments[begin..], frames, &mut |ended| match wanted
            .contains(&arrived(&ended))
        {
            true => each(ended),
            false => Ok(()),
        })?;
    }
    Ok(live)
}

/// The arrival of a request at its scheduler, or else the receipt of its first row, in Unix nanoseconds.
pub(crate) fn arrived(ended: &EndedRequest) -> u64 {
    let said = ended.record.as_ref().and_then(|record| record.arrived_unix_ns);
    said.unwrap_or(ended.info.first_unix_ns)
}
