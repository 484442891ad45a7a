//! `afterbay usage`: sums of tokens from the journal, compared with the scheduler's own counts.

use crate::LoadConfig;
use crate::place::{Place, parse_time};
use afterbay_journal::SegmentId;
use afterbay_journal::reader::{RequestRecord, StreamReader};
use afterbay_journal_view::ended::{EndedReader, FrameUse};
use afterbay_journal_view::json_time;
use afterbay_journal_view::wording::counted;
use afterbay_terminal::{self as screen, Table};
use afterbay_usage::{Bucket, FIRST_TOKENS_MAX, Group, Sums, UsageRecord};
use afterbay_wire::Layouts;
use serde_json::{Value, json};
use std::process::ExitCode;

/// Records that are read at once.
const RECORDS_AT_ONCE: usize = 2000;
/// Most differences that a person gets; JSON has more.
const DIFFERENCES_SHOWN: usize = 20;

/// Sum the tokens of the requests that have ended, and compare them with the scheduler's own counts
///
/// Reads the journal, also while `afterbay run` writes it: the requests whose last row is in the given time and that have ended. A
/// request on two streams counts on the first, with the scheduler's own tokens. The sums are those of the records that [usage]
/// writes. FIRST TOKEN is the time from the scheduler's queue to the first token, as the scheduler says it: the quantiles 0.5 and
/// 0.95 of the requests. Of each request, the tokens received are compared with the count in the scheduler's last row; a difference is
/// named, and the exit code is 1. Requests without such a count are counted by reason.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  afterbay usage --by tenant --since 1d\n  afterbay usage --by tenant --by hour --json | jq .groups"
)]
pub struct UsageArgs {
    #[command(flatten)]
    place: Place,
    /// The value to sum by: `stream`, `reason` (the scheduler's finish reason), `hour`, `day` (UTC, of the last row), or the name
    /// of an attribute, as `tenant` and `model`. Several: `--by tenant --by hour`
    #[arg(long, value_name = "VALUE", default_value = "tenant")]
    by: Vec<Bucket>,
    /// Only requests whose last row is at or after this time (RFC 3339, "2026-11-20 14:00:00", or an age such as 1d)
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    since: Option<u64>,
    /// Only requests whose last row is before this time
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    until: Option<u64>,
    /// The msgpack layout of the frames: `auto`, a version, or a file
    #[arg(long, value_name = "LAYOUT", default_value = "auto")]
    layout: String,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Carries out `afterbay usage`; `load` reads the configuration that --config names.
///
/// # Errors
/// The journal or the configuration cannot be read, or has no such stream.
pub fn usage(args: UsageArgs, load: LoadConfig) -> anyhow::Result<ExitCode> {
    let layouts = Layouts::load(&args.layout)?;
    let selected = args.place.select(load)?;
    let instance = selected.journal.instance()?.unwrap_or_default();
    let mut sums = Sums::new(args.by);
    let (since, until) = (args.since.unwrap_or(0), args.until.unwrap_or(u64::MAX));
    for stream in selected.streams {
        let is_asked = args.place.stream() == Some(stream.name());
        if is_asked || stream.after()?.is_empty() {
            each_ended(stream, &layouts, since, &mut |ended| {
                if (since..until).contains(&ended.info.last_unix_ns) {
                    sums.add(&UsageRecord::new(&instance, ended));
                }
            })?;
        }
    }
    match args.json {
        true => screen::say_json(&whole(&mut sums, args.since, args.until)),
        false => print(&mut sums)?,
    }
    Ok(if sums.reconciliation.different == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Gives each request of a stream that has ended, with a last row since this time; others may be among them.
fn each_ended(
    stream: StreamReader,
    layouts: &Layouts,
    since: u64,
    each: &mut dyn FnMut(&afterbay_journal_view::ended::EndedRequest),
) -> anyhow::Result<()> {
    let segments = stream.segments()?;
    let begin = begin(&stream, &segments, since)?;
    let mut reader = EndedReader::new(stream, FrameUse::Facts, layouts);
    for id in &segments[begin..] {
        // Removed by retention meanwhile, or damaged.
        if !reader.open(*id)? {
            continue;
        }
        loop {
            let has_more = reader.read(RECORDS_AT_ONCE)?;
            reader.requests().for_each(|ended| each(&ended));
            if !has_more {
                break;
            }
        }
        if Some(id) != segments.last() {
            reader.finish_segment();
            reader.requests().for_each(|ended| each(&ended));
        }
    }
    Ok(())
}

/// The index of the segment to begin with: the one with the first rows of the requests that were live at this time.
fn begin(stream: &StreamReader, segments: &[SegmentId], since: u64) -> anyhow::Result<usize> {
    let mut at = None;
    for id in segments.iter().rev() {
        // 0 is unknown.
        if stream.begun_unix_ns(*id)?.is_some_and(|begun| begun > 0 && begun < since) {
            at = Some(*id);
            break;
        }
    }
    let Some(at) = at else { return Ok(0) };
    let Some(mut segment) = stream.segment_requests(at)? else { return Ok(0) };
    let mut first = at.first;
    let mut is_list = true;
    while is_list
        && segment.read_records(1, &mut |record| match record {
            RequestRecord::Carried(requests) => {
                let frames = requests.iter().map(|(request, _)| request).filter(|request| request.rows > 0);
                let frames = frames.map(|request| request.first_frame);
                first = frames.chain([first]).min().unwrap_or_default();
            }
            RequestRecord::Frame(..) | RequestRecord::Outcome(_) => is_list = false,
            _ => {}
        })?
    {}
    Ok(segments.partition_point(|id| id.first <= first && *id <= at).saturating_sub(1))
}

fn whole(sums: &mut Sums, since: Option<u64>, until: Option<u64>) -> Value {
    let by: Vec<String> = sums.by().iter().map(|by| by.word().to_owned()).collect();
    let mut total = sums.total();
    let groups = sums.groups.iter_mut().map(|(values, group)| {
        let mut figures = figures(group);
        figures["by"] = by.iter().cloned().zip(values.iter().map(|value| json!(value))).collect();
        figures
    });
    json!({
        "by": by,
        "since": since.and_then(json_time),
        "until": until.and_then(json_time),
        "groups": groups.collect::<Vec<_>>(),
        "total": figures(&mut total),
        "reconciliation": sums.reconciliation,
    })
}

fn figures(group: &mut Group) -> Value {
    let [p50, p95] = group.first_token_ms().map_or([None; 2], |quantiles| quantiles.map(Some));
    // Numbers with text keys always serialize.
    let mut figures = serde_json::to_value(&*group).unwrap_or_default();
    figures["first_token_ms_p50"] = json!(p50);
    figures["first_token_ms_p95"] = json!(p95);
    figures
}

fn print(sums: &mut Sums) -> std::io::Result<()> {
    let by: Vec<String> = sums.by().iter().map(|by| by.word().to_uppercase()).collect();
    let names = [
        "REQUESTS",
        "PROMPT",
        "CACHED",
        "RECEIVED",
        "FORWARDED",
        "DROPPED",
        "REPLACED",
        "SWALLOWED",
        "FIRST TOKEN P50",
        "P95",
    ];
    let mut table = Table::new(&by.iter().map(String::as_str).chain(names).collect::<Vec<_>>());
    let mut row = |values: Vec<String>, group: &mut Group| {
        let figures = [
            group.requests,
            group.prompt_tokens,
            group.cached_tokens,
            group.tokens_received,
            group.tokens_forwarded,
            group.tokens_dropped,
            group.tokens_replaced,
            group.tokens_swallowed,
        ];
        let quantiles = match group.first_token_ms() {
            Some(quantiles) => quantiles.map(|ms| format!("{ms:.1} ms")),
            None => [(); 2].map(|()| "-".to_owned()),
        };
        table.row(
            values.into_iter().chain(figures.map(|figure| figure.to_string())).chain(quantiles).collect(),
        );
    };
    sums.groups.iter_mut().for_each(|(values, group)| row(values.clone(), group));
    let mut total = sums.total();
    let names = std::iter::once("total").chain(std::iter::repeat(""));
    row(names.take(by.len()).map(str::to_owned).collect(), &mut total);
    table.print()?;
    // A pipe gets the table alone.
    for line in compared(sums, &total) {
        screen::complain(screen::wrapped(&line, 2));
    }
    Ok(())
}

/// The comparison in sentences.
fn compared(sums: &Sums, total: &Group) -> Vec<String> {
    if total.requests == 0 {
        return vec!["no request that has ended was found".to_owned()];
    }
    let (of, without_prompt) = (&sums.reconciliation, total.without_prompt_tokens);
    let mut lines = Vec::new();
    if of.equal > 0 {
        let line = format!(
            "{}: the scheduler counted as many tokens as were received",
            counted(of.equal, "request")
        );
        lines.push(if of.different == 0 { screen::good(line) } else { line });
    }
    for (why, requests) in &of.uncounted {
        lines.push(format!("{}: not compared, {}", counted(*requests, "request"), why.words()));
    }
    if without_prompt > 0 {
        let requests = counted(without_prompt, "request");
        lines.push(format!(
            "{requests}: not in PROMPT and CACHED, the scheduler's rows have no count of the prompt"
        ));
    }
    if sums.is_past_quantiles() {
        lines.push(format!(
            "FIRST TOKEN is left out: over {} requests have a time (--since, --until)",
            screen::count(FIRST_TOKENS_MAX as u64)
        ));
    }
    for it in of.differences.iter().take(DIFFERENCES_SHOWN) {
        lines.push(screen::bad(format!(
            "{} request {} {:?}: received {}, the scheduler counted {}",
            it.stream,
            it.request,
            it.rid,
            counted(it.tokens_received, "token"),
            it.completion_tokens
        )));
    }
    let more = of.different.saturating_sub(DIFFERENCES_SHOWN as u64);
    if more > 0 {
        lines.push(screen::bad(format!("{} more like it (--json names 1,000)", counted(more, "request"))));
    }
    lines
}
