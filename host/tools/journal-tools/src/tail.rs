//! `afterbay journal tail`: prints the last rows, and follows new ones.

use crate::LoadConfig;
use crate::place::Place;
use afterbay_journal::reader::{JournalRecord, ReadFrom, StreamReader, Tail};
use afterbay_journal::{Outcome, Passage, PluginAction};
use afterbay_journal_view::wording::{counted, passage, verdict};
use afterbay_journal_view::{json_time, local_time};
use afterbay_terminal::{self as screen, Output};
use anyhow::ensure;
use std::process::ExitCode;
use std::time::Duration;

/// The interval of looking for new records with `-f`.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Print the last rows, a line each, and follow new ones
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  afterbay journal tail -f --config afterbay.toml\n  afterbay journal tail -n 100 --rid chatcmpl-7 --json"
)]
pub(crate) struct Args {
    #[command(flatten)]
    place: Place,
    /// Wait for new rows and print them
    #[arg(short, long)]
    follow: bool,
    /// Begin with the rows of the last FRAMES frames
    #[arg(short = 'n', long, value_name = "FRAMES", default_value_t = 10)]
    frames: u64,
    /// Only requests whose rid begins with PREFIX
    #[arg(long, value_name = "PREFIX")]
    rid: Option<String>,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
}

/// A stream that is followed.
struct Followed {
    name: String,
    tail: Tail,
}

pub(crate) fn run(args: Args, load: LoadConfig) -> anyhow::Result<ExitCode> {
    let mut selected = args.place.select(load)?;
    ensure!(
        !args.follow || selected.source.grows(),
        "{}: --follow needs the directory of a journal, a pack does not grow",
        selected.source.name()
    );
    let streams = selected.streams.iter().map(|stream| follow(stream, args.frames));
    let mut followed: Vec<Followed> = streams.collect::<Result<_, _>>()?;
    let mut out = Output::new();
    loop {
        let mut any = false;
        for stream in &mut followed {
            while let Some(record) = stream.tail.next()? {
                any = true;
                take(&mut out, stream, record, &args)?;
            }
        }
        out.flush()?;
        if !args.follow {
            return Ok(ExitCode::SUCCESS);
        }
        if !any {
            selected.source.wait(LOOK_EVERY)?;
        }
    }
}

fn follow(stream: &StreamReader, frames: u64) -> anyhow::Result<Followed> {
    let last = stream.last_frame()?;
    let from = ReadFrom::Frame(afterbay_journal::FrameNo((last.0 + 1).saturating_sub(frames)));
    Ok(Followed { name: stream.name().to_owned(), tail: stream.tail(from)? })
}

fn take(out: &mut Output, stream: &mut Followed, record: JournalRecord, args: &Args) -> anyhow::Result<()> {
    match record {
        JournalRecord::Outcome(outcome) => print(out, stream, &outcome, args)?,
        JournalRecord::Skipped(from, count) => {
            note(out, stream, args, &format!("not stored: {} from frame {from} on", counted(count, "frame")))?
        }
        JournalRecord::Lost(count) => {
            note(out, stream, args, &format!("lost while the disk failed: {}", counted(count, "outcome")))?
        }
        JournalRecord::Corrupt(segment, offset, bytes) => {
            note(out, stream, args, &format!("{segment}: {bytes} bytes from byte {offset} on are corrupt"))?;
        }
        JournalRecord::Frame(_) => {}
    }
    Ok(())
}

fn note(out: &mut Output, stream: &Followed, args: &Args, text: &str) -> std::io::Result<()> {
    match args.json {
        true => out.json(&serde_json::json!({"stream": stream.name, "note": text})),
        false => out.line(&format!("{} {}", stream.name, screen::bad(text.to_owned()))),
    }
}

fn print(out: &mut Output, stream: &Followed, outcome: &Outcome<'_>, args: &Args) -> std::io::Result<()> {
    let at = outcome.received_unix_ns;
    if outcome.requests.is_empty() && args.rid.is_none() {
        let (Passage::Barrier(kind) | Passage::NotUnderstood(kind)) = &outcome.passage else { return Ok(()) };
        return match args.json {
            true => out.json(&serde_json::json!({"stream": stream.name, "time": json_time(at),
                "frame": outcome.frame.0, "passage": passage(&outcome.passage), "what": kind})),
            false => out.line(&format!(
                "{} {} frame {} {}",
                local_time(at),
                stream.name,
                outcome.frame,
                screen::faint(kind.to_string())
            )),
        };
    }
    for (row, (request, tokens)) in outcome.requests.iter().zip(outcome.tokens.iter()).enumerate() {
        let rid = stream.tail.rid(*request).unwrap_or("?");
        if args.rid.as_ref().is_some_and(|prefix| !rid.starts_with(prefix)) {
            continue;
        }
        let finish = outcome.finished.iter().find(|finish| finish.row as usize == row);
        let gap = outcome.gaps.iter().find(|gap| gap.row as usize == row);
        let actions: Vec<&PluginAction<'_>> =
            outcome.actions.iter().filter(|action| action.row as usize == row).collect();
        if args.json {
            let line = serde_json::json!({
                "stream": stream.name, "time": json_time(at), "frame": outcome.frame.0, "row": row, "rid": rid,
                "tokens": tokens, "passage": passage(&outcome.passage),
                "plugins": actions.iter().map(|action| &action.plugin).collect::<Vec<_>>(),
                "finish_reason": finish.map(|finish| &finish.reason),
                "gap": gap.map(|gap| serde_json::json!({"expected": gap.expected, "got": gap.got})),
            });
            out.json(&line)?;
            continue;
        }
        let mut parts: Vec<String> = Vec::new();
        parts.extend(outcome.is_record().then(|| screen::faint("request".to_owned())));
        for by_plugin in actions.chunk_by(|one, next| one.plugin == next.plugin) {
            let verdicts: Vec<&str> = by_plugin.iter().map(|action| verdict(action.verdict)).collect();
            let part = format!("{}: {}", by_plugin[0].plugin, verdicts.join(", "));
            parts.push(screen::warn_if(part, true));
        }
        if let Some(gap) = gap {
            let part = format!("gap: the scheduler counted {}, {} were received", gap.got, gap.expected);
            parts.push(screen::bad(part));
        }
        parts.extend(finish.map(|finish| format!("finish: {}", finish.reason)));
        let (time, name, frame) = (local_time(at), &stream.name, outcome.frame);
        let line = format!("{time} {name} frame {frame} {rid} +{tokens} {}", parts.join("; "));
        out.line(line.trim_end())?;
    }
    Ok(())
}
