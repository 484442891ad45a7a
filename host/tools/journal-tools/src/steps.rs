//! `afterbay journal steps`: the steps of the engine with their time, and the requests of a step.

use crate::LoadConfig;
use crate::place::Place;
use afterbay_journal_view::ended::{EngineStep, StepRow};
use afterbay_journal_view::steps::{self, SlowestSteps, StepSearch};
use afterbay_journal_view::wording::counted;
use afterbay_journal_view::{local_time, parse_time};
use afterbay_terminal::{self as screen, Busy, Table};
use std::cmp::Reverse;
use std::process::ExitCode;

/// Most steps without a number.
const STEPS: usize = 20;
/// Most steps that are kept.
const STEPS_MAX: usize = 10_000;

/// List the steps of the engine, slowest first, with the requests that shared them
///
/// A frame of the scheduler with a token or an end is a step. Its time begins at the step before or, after a pause, at the arrival of the
/// next request: idle time is no step's. REQUESTS are those that the engine worked on, NEW those of them whose prompt it computed, and
/// PROMPT the tokens of these prompts. --frame prints the requests of one step, each with its part of the time; --rid only the steps
/// of one request.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  afterbay journal steps --since 10m\n  afterbay journal steps --frame 48211\n  afterbay journal steps --rid chatcmpl-7 --json | jq .gpu_ns\n\n\
JSON: an object for each step has stream, frame, time, gpu_ns, rows, new_requests, tokens, prompt_tokens and requests (rid, request, \
tokens, prompt_tokens, gpu_ns)."
)]
pub(crate) struct Args {
    #[command(flatten)]
    place: Place,
    /// Only steps that ended at or after this time (RFC 3339, "2026-11-20 14:00:00", or an age such as 10m)
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    since: Option<u64>,
    /// Only steps that ended before this time
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    until: Option<u64>,
    /// Only steps that the engine worked on this request in
    #[arg(long, value_name = "RID")]
    rid: Option<String>,
    /// Only the step that ended with this frame, with its requests
    #[arg(long, value_name = "NUMBER")]
    frame: Option<u64>,
    /// The number of slowest steps [default: 20, at most 10000]
    #[arg(long, value_name = "N")]
    slowest: Option<usize>,
    /// Print one JSON object a step
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args, load: LoadConfig) -> anyhow::Result<ExitCode> {
    let selected = args.place.select_since(load, args.since)?;
    let search = StepSearch {
        since_unix_ns: args.since.unwrap_or(0),
        until_unix_ns: args.until.unwrap_or(u64::MAX),
        rid: args.rid.clone(),
        frame: args.frame,
        slowest: args.slowest.unwrap_or(STEPS).clamp(1, STEPS_MAX),
        ..StepSearch::default()
    };
    let busy = Busy::new("reading the steps".to_owned());
    let SlowestSteps { steps: slowest, known: count, gpu_ns, .. } =
        SlowestSteps::read(&selected.journal, &selected.streams, &search)?;
    drop(busy);
    if args.json {
        let mut out = screen::Output::new();
        for (stream, step) in &slowest {
            out.json(&steps::json(stream, step))?;
        }
        out.flush()?;
        return Ok(ExitCode::SUCCESS);
    }
    let several = slowest.windows(2).any(|pair| pair[0].0 != pair[1].0);
    match (args.frame, &slowest[..]) {
        (Some(_), [(_, step)]) => print_step(step)?,
        _ => print(&slowest, several)?,
    }
    let sums = format!("{} of {}", counted(count, "step"), seconds(gpu_ns));
    screen::complain(match count > slowest.len() as u64 {
        true => format!("{sums}; the slowest {} are shown (--slowest N)", slowest.len()),
        false => sums,
    });
    Ok(ExitCode::SUCCESS)
}

fn print(steps: &[(String, EngineStep)], several: bool) -> std::io::Result<()> {
    let mut heads = vec!["FRAME", "TIME", "STEP", "REQUESTS", "TOKENS", "NEW", "PROMPT"];
    if several {
        heads.insert(0, "STREAM");
    }
    let mut table = Table::new(&heads);
    for (stream, step) in steps {
        let mut row = vec![
            step.frame.to_string(),
            local_time(step.received_unix_ns),
            milliseconds(step.gpu_ns),
            step.rows.len().to_string(),
            step.tokens().to_string(),
            step.new_requests().to_string(),
            step.prompt_tokens().to_string(),
        ];
        if several {
            row.insert(0, stream.clone());
        }
        table.row(row);
    }
    table.print()
}

/// The requests of one step, the largest part first.
fn print_step(step: &EngineStep) -> std::io::Result<()> {
    let mut rows: Vec<&StepRow> = step.rows.iter().collect();
    rows.sort_by_key(|row| Reverse(row.gpu_ns));
    let mut table = Table::new(&["RID", "PART", "SHARE", "TOKENS", "PROMPT"]);
    for row in rows {
        table.row(vec![
            row.rid.to_string(),
            milliseconds(row.gpu_ns),
            format!("{:.0}%", row.gpu_ns as f64 * 100.0 / step.gpu_ns.max(1) as f64),
            row.tokens.to_string(),
            row.prompt_tokens.to_string(),
        ]);
    }
    table.print()
}

fn milliseconds(ns: u64) -> String {
    format!("{:.1} ms", ns as f64 / 1e6)
}

/// A time in seconds.
pub(crate) fn seconds(ns: u64) -> String {
    format!("{:.3} s", ns as f64 / 1e9)
}
