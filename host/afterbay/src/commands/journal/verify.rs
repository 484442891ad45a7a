//! `afterbay journal verify`: is everything there, and does it add up?

use super::place::Place;
use crate::screen;
use afterbay_journal::{Note, Report};
use std::process::ExitCode;

/// Check every checksum, and every request's tokens against the scheduler's count
///
/// Exits 1 where something is wrong. What is only worth knowing (frames that went on unkept as `on_error` said, a
/// segment that is being written) is told and is no error.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  afterbay journal verify --config afterbay.toml\n  afterbay journal verify --dir /var/lib/afterbay --json"
)]
pub(super) struct Args {
    #[command(flatten)]
    place: Place,
    /// One JSON object a stream
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut clean = true;
    for stream in args.place.streams()? {
        let report = stream.verify()?;
        clean &= report.problems.is_empty();
        match args.json {
            true => println!("{}", json(stream.name(), &report)),
            false => print(stream.name(), &report),
        }
    }
    Ok(if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print(stream: &str, report: &Report) {
    let Report { segments, bytes, frames, requests, rows, tokens, problems, notes, .. } = report;
    for problem in problems {
        let place = format!("{stream}: {} byte {}: {}", problem.segment, problem.offset, problem.what);
        println!("{}", screen::bad(place));
    }
    for note in notes {
        println!("{}", screen::faint(format!("{stream}: {}", self::note(note))));
    }
    let verdict = match problems.len() {
        0 => screen::good("clean".to_owned()),
        1 => screen::bad("1 problem".to_owned()),
        count => screen::bad(format!("{count} problems")),
    };
    println!(
        "{stream}: {verdict}: {segments} segments, {bytes} bytes, {frames} frames, {requests} requests, {rows} rows, {tokens} tokens"
    );
}

fn note(note: &Note) -> String {
    match note {
        Note::Skipped { from, count } => format!("{count} frames from {from} on went on unkept, as declared"),
        Note::OutcomesLost { count } => {
            format!("{count} outcomes were lost while the disk failed, as declared")
        }
        Note::TornTail { segment, bytes } => {
            format!("{segment}: the last {bytes} bytes are being written, or torn")
        }
        Note::Unfinished { frames } => format!("{frames} frames at the end are under way"),
    }
}

fn json(stream: &str, report: &Report) -> serde_json::Value {
    let problems = report.problems.iter().map(|problem| {
        serde_json::json!({
            "segment": problem.segment.to_string(),
            "offset": problem.offset,
            "what": problem.what.to_string(),
        })
    });
    serde_json::json!({
        "stream": stream,
        "clean": report.problems.is_empty(),
        "segments": report.segments,
        "bytes": report.bytes,
        "frames": report.frames,
        "requests": report.requests,
        "rows": report.rows,
        "tokens": report.tokens,
        "problems": problems.collect::<Vec<_>>(),
        "notes": report.notes.iter().map(note).collect::<Vec<_>>(),
    })
}
