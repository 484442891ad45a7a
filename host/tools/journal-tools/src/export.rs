//! `afterbay journal export`: writes frames out of the journal, decoded or raw.

use crate::LoadConfig;
use crate::place::{Place, parse_time};
use afterbay_journal::Outcome;
use afterbay_journal::reader::{ReadFrom, StoredFrame, StreamReader};
use afterbay_journal::stored_rid;
use afterbay_journal_view::wording::passage;
use afterbay_journal_view::{asked, json_time};
use afterbay_terminal as screen;
use afterbay_wire::{Barrier, BarrierKind, Batch, DecodedFrame, Decoder, Layouts, Wrapped};
use anyhow::Context;
use std::path::PathBuf;
use std::process::ExitCode;

/// Write frames as JSON lines with every field decoded, or as the received bytes
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  afterbay journal export --rid 5b0c1f0a > request.jsonl\n  afterbay journal export --since 1h --raw frames/"
)]
pub(crate) struct Args {
    #[command(flatten)]
    place: Place,
    /// Only this request's record and rows (with --raw: the whole frames that hold them)
    #[arg(long, value_name = "RID")]
    rid: Option<String>,
    /// From this time on (RFC 3339, "2026-11-20 14:00:00", or an age such as 10m)
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    since: Option<u64>,
    /// Up to this time
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    until: Option<u64>,
    /// Write the bytes of each frame to its own file in this directory instead
    #[arg(long, value_name = "DIR")]
    raw: Option<PathBuf>,
}

pub(crate) fn run(args: Args, load: LoadConfig) -> anyhow::Result<ExitCode> {
    if let Some(dir) = &args.raw {
        std::fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
    }
    let mut out = screen::Output::new();
    let mut written = 0_u64;
    let selected = args.place.select(load)?;
    let streams: Vec<(&StreamReader, Option<String>)> = match &args.rid {
        None => selected.streams.iter().map(|stream| (stream, None)).collect(),
        Some(rid) => selected.with_rid(rid)?.into_iter().map(|(stream, rid)| (stream, Some(rid))).collect(),
    };
    for (stream, rid) in streams {
        let mut decoder = Decoder::new(Layouts::of_text(&stream.layout()?));
        each(stream, rid.as_deref(), &args, |frame, outcome| {
            // A release marker is Afterbay's own frame; the rows that it released are stored beside it.
            let is_own = frame.is_release_marker();
            if is_own && (rid.is_some() || args.raw.is_some()) {
                return Ok(());
            }
            let went_on = outcome.and_then(|outcome| outcome.changed.clone()).filter(|_| is_own);
            let bytes = went_on.unwrap_or_else(|| frame.bytes.clone().into());
            let decoded = decoder.decode(bytes);
            let rows = match (&rid, &decoded) {
                (Some(rid), DecodedFrame::Batch(batch)) => Some(
                    (0..batch.rows())
                        .filter(|row| batch.rid_of(*row).is_some_and(|it| stored_rid(it) == rid.as_str()))
                        .collect::<Vec<u32>>(),
                ),
                (Some(_), DecodedFrame::Barrier(barrier)) if !is_record(barrier) => return Ok(()),
                (Some(_), DecodedFrame::Barrier(_)) | (None, _) => None,
            };
            if rows.as_ref().is_some_and(Vec::is_empty) {
                return Ok(());
            }
            written += 1;
            if let Some(dir) = &args.raw {
                let file = dir.join(format!("{}-{:020}.bin", stream.name(), frame.position.frame.0));
                return std::fs::write(&file, &frame.bytes).with_context(|| file.display().to_string());
            }
            let line = json(stream.name(), frame, outcome, &decoded, rows.as_deref());
            Ok(out.json(&line)?)
        })?;
    }
    out.flush()?;
    if args.raw.is_some() {
        screen::complain(format!("{written} frames"));
    }
    Ok(ExitCode::SUCCESS)
}

fn is_record(barrier: &Barrier) -> bool {
    matches!(barrier.kind, BarrierKind::Request { record: Ok(_) })
}

/// Passes each frame of the selected time to `take`. With a rid, only frames with a row of it, which the index names.
fn each(
    stream: &StreamReader,
    rid: Option<&str>,
    args: &Args,
    mut take: impl FnMut(&StoredFrame, Option<&Outcome<'_>>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let wanted =
        |at: u64| args.since.is_none_or(|since| at >= since) && args.until.is_none_or(|until| at < until);
    if let Some(rid) = rid {
        for life in stream.lives(rid)? {
            let record = life.record.iter().filter(|_| wanted(life.request.record_unix_ns));
            let rows = life.rows.iter().filter(|row| wanted(row.received_unix_ns));
            for position in record.chain(rows.filter_map(|row| row.position.as_ref())) {
                take(&stream.frame(position)?, None)?;
            }
        }
        return Ok(());
    }
    for frame in stream.frames(args.since.map_or(ReadFrom::Start, ReadFrom::Time))? {
        let (frame, outcome) = frame?;
        if wanted(frame.received_unix_ns) {
            take(&frame, outcome.as_ref())?;
        }
    }
    Ok(())
}

fn json(
    stream: &str,
    frame: &StoredFrame,
    outcome: Option<&Outcome<'_>>,
    decoded: &DecodedFrame,
    rows: Option<&[u32]>,
) -> serde_json::Value {
    let mut line = serde_json::json!({
        "stream": stream,
        "frame": frame.position.frame.0,
        "time": json_time(frame.received_unix_ns),
        "bytes": frame.bytes.len(),
        "passage": outcome.map(|outcome| passage(&outcome.passage)),
    });
    match decoded {
        DecodedFrame::Batch(batch) => {
            // If the rows cannot be taken out of the frame, the whole frame is shown.
            let taken = rows.and_then(|rows| batch.take(rows).ok());
            line["wire"] = batch.wire().to_string().into();
            line["message"] = Batch::to_json(taken.as_ref().unwrap_or(batch), Wrapped::Open);
        }
        DecodedFrame::Barrier(barrier) => {
            line["barrier"] = barrier.kind.to_string().into();
            if let BarrierKind::Request { record: Ok(record) } = &barrier.kind {
                line["request"] = asked::json(&Ok((**record).clone()), None, usize::MAX);
            }
        }
    }
    line
}
