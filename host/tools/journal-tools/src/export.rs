//! `afterbay journal export`: writes frames out of the journal, as they were received and as they were sent, decoded or raw.

use crate::LoadConfig;
use crate::place::Place;
use afterbay_journal::reader::{ReadFrom, StoredFrame, StreamReader};
use afterbay_journal::{Passage, stored_rid};
use afterbay_journal_view::wording::passage;
use afterbay_journal_view::{asked, json_time, parse_time};
use afterbay_terminal as screen;
use afterbay_wire::{BarrierKind, Batch, DecodedFrame, Decoder, Layouts, Wrapped};
use anyhow::Context;
use bytes::Bytes;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;

/// Write frames as JSON lines with every field decoded, or as bytes: what was received, and what was sent in its place
///
/// A line is a frame. `message` is what was received. `passage` says what left: `unchanged` (the message as it was received),
/// `changed` (`sent` in its place), `dropped` (nothing), `barrier` or `not understood` (the bytes as they were received). `null`: not known yet.
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
    /// Write the bytes of each frame to its own file in this directory instead: STREAM-FRAME.bin, and STREAM-FRAME.sent.bin if
    /// something else was sent
    #[arg(long, value_name = "DIR")]
    raw: Option<PathBuf>,
}

/// A frame, and what was sent in its place.
pub(crate) struct Exported {
    pub(crate) frame: StoredFrame,
    /// `None`: not known yet.
    pub(crate) passage: Option<Passage<'static>>,
    /// `None` also if the bytes are damaged.
    pub(crate) changed: Option<Bytes>,
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
    let times = (args.since, args.until);
    for (stream, rid) in streams {
        let mut decoder = Decoder::new(Layouts::of_text(&stream.layout()?));
        each(stream, rid.as_deref(), times, |exported| {
            if let Some(dir) = &args.raw {
                let write = |kind: &str, bytes: &[u8]| {
                    let name = format!("{}-{:020}{kind}.bin", stream.name(), exported.frame.position.frame.0);
                    let file = dir.join(name);
                    std::fs::write(&file, bytes).with_context(|| file.display().to_string())
                };
                written += 1;
                // A release marker is Afterbay's own frame.
                if !exported.frame.is_release_marker() {
                    write("", &exported.frame.bytes)?;
                }
                return exported.changed.iter().try_for_each(|sent| write(".sent", sent));
            }
            match line(stream.name(), &exported, rid.as_deref(), &mut decoder) {
                Some(line) => Ok(out.json(&line)?),
                None => Ok(()),
            }
        })?;
    }
    out.flush()?;
    if args.raw.is_some() {
        screen::complain(format!("{written} frames"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Passes each frame of this time to `take`. With a rid, only its record and the frames with a row of it, which the index names.
pub(crate) fn each(
    stream: &StreamReader,
    rid: Option<&str>,
    (since, until): (Option<u64>, Option<u64>),
    mut take: impl FnMut(Exported) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let wanted = |at: u64| since.is_none_or(|since| at >= since) && until.is_none_or(|until| at < until);
    if let Some(rid) = rid {
        for life in stream.lives(rid)? {
            if let Some(position) = life.record.filter(|_| wanted(life.request.record_unix_ns)) {
                let passage = Some(Passage::Barrier("request".into()));
                take(Exported { frame: stream.frame(&position)?, passage, changed: None })?;
            }
            for row in life.rows.into_iter().filter(|row| wanted(row.received_unix_ns)) {
                let Some(position) = row.position else { continue };
                let changed = row.changed.and_then(|changed| stream.changed(&changed).ok());
                take(Exported {
                    frame: stream.frame(&position)?,
                    passage: Some(row.passage),
                    changed: changed.map(Bytes::from),
                })?;
            }
        }
        return Ok(());
    }
    for frame in stream.frames(since.map_or(ReadFrom::Start, ReadFrom::Time))? {
        let (frame, outcome) = frame?;
        if wanted(frame.received_unix_ns) {
            let (passage, changed) = outcome.map(|outcome| (outcome.passage, outcome.changed)).unzip();
            take(Exported { frame, passage, changed: changed.flatten() })?;
        }
    }
    Ok(())
}

/// The line of a frame, with a rid only its rows. `None` if the frame has none.
pub(crate) fn line(
    stream: &str,
    exported: &Exported,
    rid: Option<&str>,
    decoder: &mut Decoder,
) -> Option<Value> {
    let Exported { frame, passage: passed, changed } = exported;
    let is_own = frame.is_release_marker();
    let mut line = json!({
        "stream": stream,
        "frame": frame.position.frame.0,
        "time": json_time(frame.received_unix_ns),
        "bytes": frame.bytes.len(),
        "passage": passed.as_ref().map(passage),
    });
    let received = match is_own {
        true => None,
        false => Some(decoder.decode(frame.bytes.clone().into())),
    };
    let mut has_any = rid.is_none();
    match &received {
        None => line["barrier"] = "release marker".into(),
        Some(DecodedFrame::Batch(batch)) => {
            let message = message(batch, rid);
            has_any |= message.is_some();
            line["wire"] = batch.wire().to_string().into();
            line["message"] = message.into();
        }
        Some(DecodedFrame::Barrier(barrier)) => {
            line["barrier"] = barrier.kind.to_string().into();
            if let BarrierKind::Request { record: Ok(record) } = &barrier.kind {
                has_any = true;
                line["request"] = asked::json(&Ok((**record).clone()), None, usize::MAX);
            }
        }
    }
    if *passed == Some(Passage::Changed) {
        match changed.clone().map(|bytes| decoder.decode(bytes)) {
            Some(DecodedFrame::Batch(batch)) => {
                let sent = message(&batch, rid);
                has_any |= sent.is_some();
                line["sent"] = sent.into();
            }
            Some(DecodedFrame::Barrier(barrier)) => line["missing"] = barrier.kind.to_string().into(),
            None => line["missing"] = "cannot be read".into(),
        }
    }
    has_any.then_some(line)
}

/// The message as JSON, with a rid only its rows. `None` if it has none.
fn message(batch: &Batch, rid: Option<&str>) -> Option<Value> {
    let Some(rid) = rid else { return Some(Batch::to_json(batch, Wrapped::Open)) };
    let is_of = |row: &u32| batch.rid_of(*row).is_some_and(|it| stored_rid(it) == rid);
    let rows: Vec<u32> = (0..batch.rows()).filter(is_of).collect();
    if rows.is_empty() {
        return None;
    }
    // If the rows cannot be taken out of the frame, the whole frame is shown.
    let taken = batch.take(&rows).ok();
    Some(Batch::to_json(taken.as_ref().unwrap_or(batch), Wrapped::Open))
}
