//! `afterbay journal show RID`: prints a request, row by row.

use crate::LoadConfig;
use crate::legs::{self, Known, Leg, Request};
use crate::ls;
use crate::place::{Place, json_time, local_time};
use afterbay_journal::reader::{JournalRow, RequestFilter, RequestHistory, RequestInfo, StreamReader};
use afterbay_journal::{Passage, PluginAction};
use afterbay_journal::{StoredReplacement, Verdict, stored_rid};
use afterbay_terminal::{self as screen, Table};
use afterbay_wire::{DecodedFrame, Layouts};
use anyhow::{anyhow, ensure};
use std::process::ExitCode;

/// Most ids of a row in a table; JSON has all.
const IDS_SHOWN: usize = 8;
/// Most characters of a row's text in a table; JSON has all.
const CHARS_SHOWN: usize = 32;
/// The index of the text's column.
const TEXT_AT: usize = 5;

/// Show each row of a request: its time, its ids, and what was done with it
///
/// If several requests used the rid, each is shown. The beginning of a rid is enough if no other rid begins with it. If the
/// request is on two streams (the scheduler's output and the detokenizer's), both are shown, with times since the first row of
/// the first stream; --stream selects one.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  afterbay journal show 5b0c1f0a --config afterbay.toml\n  afterbay journal show 5b0c1f0a --json | jq .rows_seen[].ids"
)]
pub(crate) struct Args {
    /// The rid of the request, or the beginning of it
    rid: String,
    #[command(flatten)]
    place: Place,
    /// The msgpack layout of the frames: `auto`, a version, or a file
    #[arg(long, value_name = "LAYOUT", default_value = "auto")]
    layout: String,
    /// Print one JSON object for each request: the fields of `ls --json`, and each row in `rows_seen`, first stream first
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args, load: LoadConfig) -> anyhow::Result<ExitCode> {
    let layouts = Layouts::load(&args.layout)?;
    let streams = args.place.streams(load)?;
    let mut known: Known<RequestHistory> = Vec::new();
    for stream in &streams {
        let Some(rid) = whole_rid(stream, &args.rid)? else { continue };
        known.push((stream.name().to_owned(), legs::after(stream, &streams)?, stream.lives(&rid)?));
    }
    let requests = legs::join(known);
    if requests.is_empty() {
        return Err(unknown(&streams, &args.rid));
    }
    let seen = |name: &str, life: &RequestHistory| {
        let stream = streams.iter().find(|stream| stream.name() == name);
        stream.map_or_else(Vec::new, |stream| seen(stream, life, &layouts))
    };
    for request in &requests {
        if args.json {
            let rows =
                request.0.iter().flat_map(|leg| rows(&leg.stream, &leg.of, &seen(&leg.stream, &leg.of)));
            let mut whole = ls::whole(request);
            whole["rows_seen"] = rows.collect();
            println!("{whole}");
            continue;
        }
        // Times of all legs are since the first row of the first leg.
        let begun = request.first().of.rows.first().map_or(0, |row| row.received_unix_ns);
        headline(request);
        for Leg { stream, of } in &request.0 {
            print(stream, of, &seen(stream, of), begun)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints the state of a request with two legs as a whole.
fn headline(request: &Request<RequestHistory>) {
    let (first, Some(next)) = (&request.first().of.request, request.next()) else { return };
    let later = |of: fn(&RequestInfo) -> u64| of(&next.of.request).saturating_sub(of(first)) as f64 / 1e9;
    let told = format!(
        "{}  {}, 2 legs: on {} its first row came {:.3} s after that on {}, its last {:.3} s after",
        first.rid,
        screen::state(ls::state(request.state())),
        next.stream,
        later(|info| info.first_unix_ns),
        request.first().stream,
        later(|info| info.last_unix_ns),
    );
    println!("{}", screen::wrapped(&told, 2));
}

/// The whole rid of the request that `rid` is the beginning of; `None` if the stream has none.
///
/// # Errors
/// The journal cannot be read, or several requests begin with `rid`.
pub fn whole_rid(stream: &StreamReader, rid: &str) -> anyhow::Result<Option<String>> {
    let rid = &*stored_rid(rid.as_bytes());
    let filter = RequestFilter { rid_prefix: Some(rid.to_owned()), ..Default::default() };
    let mut found: Vec<String> = Vec::new();
    for request in stream.requests(filter)? {
        let request = request?;
        if request.rid == rid {
            return Ok(Some(request.rid));
        }
        if !found.contains(&request.rid) {
            found.push(request.rid);
        }
    }
    ensure!(
        found.len() < 2,
        "rid {rid:?}: {} requests begin with it, among them {:?} and {:?}",
        found.len(),
        found[0],
        found[1]
    );
    Ok(found.pop())
}

/// The error for a rid that no request has or begins with.
pub(crate) fn unknown(streams: &[StreamReader], rid: &str) -> anyhow::Error {
    // Streams that cannot be read are left out.
    let found = streams.iter().filter_map(|stream| stream.requests(RequestFilter::default()).ok());
    let known: Vec<String> = found.flatten().flatten().map(|request| request.rid).collect();
    let nearest = afterbay_config::nearest_of(rid, known.iter().map(String::as_str));
    let nearest = nearest.map_or_else(String::new, |nearest| format!(", did you mean {nearest:?}?"));
    anyhow!("rid {rid:?}: not in the journal{nearest}")
}

/// The content of a row, from its frame.
struct Seen {
    ids: Vec<i64>,
    /// Only rows behind a detokenizer have a text.
    text: Option<String>,
}

/// The received content of each row; `None` if the frame was removed or cannot be read.
fn seen(stream: &StreamReader, life: &RequestHistory, layouts: &Layouts) -> Vec<Option<Seen>> {
    let read = |row: &JournalRow| {
        let frame = stream.frame(row.position.as_ref()?).ok()?;
        if frame.is_release_marker() {
            // The marker itself has no content; the held rows that it releases have.
            return Some(Seen { ids: Vec::new(), text: None });
        }
        let DecodedFrame::Batch(batch) = afterbay_wire::decode(frame.bytes.into(), layouts) else {
            return None;
        };
        let mut ids = Vec::new();
        batch.row_ids(row.row, &mut ids);
        let text = batch.text(row.row).map(str::to_owned);
        Some(Seen { ids, text })
    };
    life.rows.iter().map(read).collect()
}

fn print(stream: &str, life: &RequestHistory, seen: &[Option<Seen>], begun: u64) -> std::io::Result<()> {
    let request = &life.request;
    let told = format!(
        "{}  request {} of stream {stream}, {}{}",
        request.rid,
        request.number.0,
        screen::state(ls::state(request.state)),
        if request.finish.is_empty() { String::new() } else { format!(" ({})", request.finish) },
    );
    println!("{}", screen::wrapped(&told, 2));
    let counted = match request.completion_tokens {
        Some(counted) if counted == request.received => {
            screen::good(format!(", the scheduler counted {counted}"))
        }
        Some(counted) => screen::bad(format!(", the scheduler counted {counted}")),
        None => String::new(),
    };
    let told = format!(
        "{} rows, {} tokens received{counted}, {} sent, {} replaced, {} dropped",
        request.rows, request.received, request.forwarded, request.replaced, request.dropped
    );
    println!("{}", screen::wrapped(&told, 2));
    let has_text = seen.iter().flatten().any(|seen| seen.text.is_some());
    let mut heads = vec!["WHEN", "FRAME", "ROW", "TOKENS", "IDS", "WHAT WAS DONE", "TAKEN BY"];
    if has_text {
        heads.insert(TEXT_AT, "TEXT");
    }
    let mut table = Table::new(&heads);
    for (row, seen) in life.rows.iter().zip(seen) {
        if let Some(gap) = &row.gap {
            let text = format!("gap: the scheduler counts {}, with this row came {}", gap.got, gap.expected);
            let mut line = vec![String::new(); heads.len() - 2];
            line.push(screen::bad(text));
            table.row(line);
        }
        let mut line = vec![
            when(row.received_unix_ns, begun),
            row.frame.to_string(),
            row.row.to_string(),
            row.tokens.to_string(),
            seen.as_ref().map_or_else(|| screen::faint("not kept".to_owned()), |seen| short(&seen.ids)),
            done(row),
            row.taken_by.join(", "),
        ];
        if has_text {
            let text = seen.as_ref().and_then(|seen| seen.text.as_deref());
            line.insert(TEXT_AT, text.map_or_else(String::new, short_text));
        }
        table.row(line);
    }
    table.print()?;
    println!();
    Ok(())
}

/// The time of the first row, and for later rows the seconds since.
fn when(unix_ns: u64, begun: u64) -> String {
    match unix_ns.checked_sub(begun) {
        Some(0) | None => local_time(unix_ns),
        Some(after) => format!("+{:.3} s", after as f64 / 1e9),
    }
}

/// A text in quotes, which show white space, cut to [`CHARS_SHOWN`].
fn short_text(text: &str) -> String {
    let mut shown = format!("{:?}", text.chars().take(CHARS_SHOWN).collect::<String>());
    if text.chars().nth(CHARS_SHOWN).is_some() {
        shown.push_str(" …");
    }
    shown
}

pub(crate) fn short(ids: &[i64]) -> String {
    let shown: Vec<String> = ids.iter().take(IDS_SHOWN).map(i64::to_string).collect();
    let more = ids.len().saturating_sub(IDS_SHOWN);
    let more = if more == 0 { String::new() } else { format!(" … {more} more") };
    format!("{}{more}", shown.join(" "))
}

fn done(row: &JournalRow) -> String {
    let mut done: Vec<String> = row.actions.iter().map(action).collect();
    if done.is_empty() {
        done.push(match &row.passage {
            Passage::Unchanged => "sent as it came".to_owned(),
            Passage::Changed => "sent".to_owned(),
            Passage::Dropped => "dropped".to_owned(),
            Passage::Barrier(kind) | Passage::NotUnderstood(kind) => format!("passed on: {kind}"),
        });
    }
    if let Some(finish) = &row.finish {
        done.push(format!("finish: {}", finish.reason));
    }
    done.join("; ")
}

fn action(action: &PluginAction<'_>) -> String {
    let PluginAction { plugin, text, .. } = action;
    match action.verdict {
        Verdict::Hold => format!("{plugin}: waits, {text}"),
        Verdict::Release => {
            let rows = action.released().unwrap_or(0);
            let why = if text.is_empty() { String::new() } else { format!(" as they came, {text}") };
            format!("{plugin}: released with {rows} rows that waited{why}")
        }
        Verdict::Replace => match action.replaced() {
            Some(StoredReplacement::Row { ids, text }) => {
                let ids = if ids.is_empty() { "no ids".to_owned() } else { short(ids) };
                let text = text.as_ref().map(|text| format!(", {text:?}")).unwrap_or_default();
                format!("{plugin}: replaced by {ids}{text}")
            }
            Some(StoredReplacement::Cumulative) | None => format!("{plugin}: replaced, {text}"),
        },
        Verdict::Drop => format!("{plugin}: dropped, {text:?}"),
        Verdict::Finish => format!("{plugin}: finished, {text:?}"),
        other => format!("{plugin}: {} {text:?}", verdict(other)),
    }
}

fn verdict(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Replace => "replace",
        Verdict::Drop => "drop",
        Verdict::Finish => "finish",
        Verdict::Hold => "hold",
        Verdict::Release => "release",
        Verdict::Route => "route",
        Verdict::SkipDetokenizing => "skip-detokenizing",
        Verdict::Abort => "abort",
        Verdict::Annotate => "annotate",
        Verdict::Fault => "fault",
        Verdict::Other(_) => "other",
    }
}

/// The rows of a leg, as JSON.
fn rows(stream: &str, life: &RequestHistory, seen: &[Option<Seen>]) -> Vec<serde_json::Value> {
    let rows = life.rows.iter().zip(seen).map(|(row, seen)| {
        let actions = row.actions.iter().map(|action| {
            serde_json::json!({
                "plugin": action.plugin,
                "verdict": verdict(action.verdict),
                "text": action.text,
                "ids": if action.verdict == Verdict::Release { &[][..] } else { &action.ids },
                "rows_released": action.released(),
                "tokens_forwarded": action.forwarded,
            })
        });
        serde_json::json!({
            "stream": stream,
            "time": json_time(row.received_unix_ns),
            "frame": row.frame.0,
            "row": row.row,
            "tokens": row.tokens,
            "tokens_forwarded": row.forwarded,
            "ids": seen.as_ref().map(|seen| &seen.ids),
            "text": seen.as_ref().and_then(|seen| seen.text.as_ref()),
            "passage": passage(&row.passage),
            "actions": actions.collect::<Vec<_>>(),
            "finish_reason": row.finish.as_ref().map(|finish| &finish.reason),
            "gap": row.gap.as_ref().map(|gap| serde_json::json!({"expected": gap.expected, "got": gap.got})),
            "taken_by": row.taken_by,
        })
    });
    rows.collect()
}

pub(crate) fn passage(passage: &Passage) -> &'static str {
    match passage {
        Passage::Unchanged => "as it came",
        Passage::Changed => "changed",
        Passage::Dropped => "dropped",
        Passage::Barrier(_) => "barrier",
        Passage::NotUnderstood(_) => "not understood",
    }
}
