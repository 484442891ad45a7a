//! `afterbay journal erase RID`: overwrites the tokens and texts of a request.

use crate::not_found::not_found;
use crate::place::{Place, Selected};
use crate::{CallServer, LoadConfig};
use afterbay_journal::reader::{ErasedBy, RequestFilter};
use afterbay_journal::storage::Disk;
use afterbay_journal::{Background, JournalDirectory, JournalOptions, OpenError};
use afterbay_journal_view::erase::{FrameEraser, report};
use afterbay_journal_view::wording::counted;
use afterbay_terminal as screen;
use afterbay_wire::Layouts;
use anyhow::{bail, ensure};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};
use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Arc;

/// Erase a request: overwrite its tokens, texts and notes in the segments, on disk
///
/// For data-protection requests. Every request that used the rid is erased, on every stream or on the one of --stream. The rid,
/// the times, the counts and the finish reason stay, with a record of the erasure: when, by whom, how many rows and tokens. Other
/// requests keep their rows. A live request and rows that a reader has not taken are refused. Works while `afterbay run` runs,
/// which then erases; otherwise takes the journal's lock. May be repeated. Exits 1 if nothing was erased, or if a frame may still
/// hold content of the request: the report names it. Values that plugins stored, backups and copies are not erased: the report names an archive and a replica.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  afterbay journal erase 5b0c1f0a9e3779b97f4a7c1500000000 --config afterbay.toml\n  afterbay journal erase 5b0c1f0a9e3779b97f4a7c1500000000 --from /var/lib/afterbay --yes --json"
)]
pub(crate) struct Args {
    /// The whole rid of the request
    rid: String,
    #[command(flatten)]
    place: Place,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args, load: LoadConfig, call: CallServer) -> anyhow::Result<ExitCode> {
    let selected = args.place.select(load)?;
    ensure!(
        !selected.source.is_copy(),
        "{}: erase needs the directory of a journal, this is a copy",
        selected.source.name()
    );
    let filter = RequestFilter { rid_prefix: Some(args.rid.clone()), ..RequestFilter::default() };
    let (mut streams, mut rows) = (Vec::new(), 0);
    for stream in &selected.streams {
        let mut is_here = false;
        for request in stream.requests(filter.clone())? {
            let request = request?;
            if request.rid == args.rid {
                (is_here, rows) = (true, rows + request.rows);
            }
        }
        streams.extend(is_here.then(|| stream.name().to_owned()));
    }
    if streams.is_empty() {
        return Err(not_found(&selected, &args.rid));
    }
    if !args.yes && !agrees(&args.rid, rows, &streams)? {
        screen::complain("nothing was erased");
        return Ok(ExitCode::FAILURE);
    }
    let (is_done, said) = erase(&selected, &args.rid, &streams, args.place.stream(), call)?;
    if args.json {
        screen::say_json(&said);
    } else if is_done {
        print(&said);
    } else {
        bail!("{}", said["error"].as_str().unwrap_or("no answer"));
    }
    let is_complete = is_done && said["is_complete"] == true;
    Ok(if is_complete { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Asks on the terminal.
fn agrees(rid: &str, rows: u64, streams: &[String]) -> anyhow::Result<bool> {
    ensure!(std::io::stdin().is_terminal(), "there is no terminal to ask on: add --yes");
    screen::complain(format!(
        "Erase {} of {rid:?} on {}? This cannot be undone. [y/N]",
        counted(rows, "row"),
        streams.join(", ")
    ));
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// Erases with the journal's lock, or through the Afterbay that has the lock. Returns whether it succeeded, and the report.
fn erase(
    selected: &Selected,
    rid: &str,
    streams: &[String],
    stream: Option<&str>,
    call: CallServer,
) -> anyhow::Result<(bool, Value)> {
    let dir = selected.journal.dir();
    let default = JournalOptions::default();
    let abandon_after =
        selected.config.as_ref().map_or(default.abandon_after, |config| config.journal.abandon_after);
    let options = JournalOptions { abandon_after, ..default };
    match JournalDirectory::open_on(Arc::new(Disk), dir, options, Background::Caller) {
        Ok(directory) => {
            let layouts = |stream: &str| {
                directory.layout(stream).map_or_else(|_| Layouts::builtin(), |text| Layouts::of_text(&text))
            };
            let mut frames = FrameEraser::new(layouts);
            let erased = directory.erase(streams, rid, ErasedBy::this_user(), &mut frames)?;
            Ok((true, report(rid, &erased, &selected.journal.followers()?)))
        }
        Err(OpenError::Locked { .. }) => {
            let body = stream.map_or_else(|| json!({}), |stream| json!({"stream": stream}));
            let path = format!("/v1/requests/{}/erase", utf8_percent_encode(rid, NON_ALPHANUMERIC));
            call(dir, selected.config.as_ref(), &path, &body)
        }
        Err(error) => Err(error.into()),
    }
}

fn print(said: &Value) {
    let number = |of: &Value, name: &str| of[name].as_u64().unwrap_or_default();
    for stream in said["streams"].as_array().into_iter().flatten() {
        let name = stream["stream"].as_str().unwrap_or_default();
        let (rows, tokens) = (number(stream, "rows"), number(stream, "tokens"));
        let segments = number(stream, "segments");
        let what = match segments {
            0 => "erased before, nothing was left to erase".to_owned(),
            _ => format!("erased, {} written again", counted(segments, "segment")),
        };
        let line = format!("{name}: {} ({tokens} tokens) {what}", counted(rows, "row"));
        screen::say_wrapped(&line, 2);
        for left in stream["left"].as_array().into_iter().flatten() {
            let why = left["why"].as_str().unwrap_or_default();
            let line = format!("{name}: frame {} may still hold content: {why}", number(left, "frame"));
            screen::say_wrapped(screen::bad(line), 2);
        }
        let more = number(stream, "left_frames")
            .saturating_sub(stream["left"].as_array().map_or(0, Vec::len) as u64);
        if more > 0 {
            screen::say(screen::bad(format!("{name}: {} more", counted(more, "frame"))));
        }
    }
    let copies: Vec<_> = said["copies"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if !copies.is_empty() {
        let line = format!("copies are not erased, and may have rows of the request: {}", copies.join(", "));
        screen::say_wrapped(screen::bad(line), 2);
    }
}
