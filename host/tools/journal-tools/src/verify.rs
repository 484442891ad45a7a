//! `afterbay journal verify`: checks that the journal is complete and consistent.

mod rows;

use crate::LoadConfig;
use crate::place::{Place, Selected};
use crate::seal::{self, PublicKey};
use afterbay_journal::reader::{RequestFilter, RequestInfo, RequestState, StreamReader};
use afterbay_journal::{SealReport, VerifyNote, VerifyReport};
use afterbay_journal_view::legs::{self, Request};
use afterbay_journal_view::local_time;
use afterbay_terminal as screen;
use rows::Recount;
use std::path::PathBuf;
use std::process::ExitCode;

/// Check every checksum, and every request's tokens against the scheduler's count
///
/// vLLM sends no count: there, counts the ids of every stored row again, from a request's first row to its last. If requests are
/// on two streams (the scheduler's output and the detokenizer's), compares the tokens of both, too. Exits 1 if there is a problem. Notes are no problem: frames that were forwarded without being stored because `on_error` says so, a
/// segment that is being written, a directory that is no stream.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  afterbay journal verify --config afterbay.toml\n  afterbay journal verify --from /var/lib/afterbay --json"
)]
pub(crate) struct Args {
    #[command(flatten)]
    place: Place,
    /// Check the seals of `journal seal` too, with this public key (PEM)
    #[arg(long, value_name = "FILE")]
    seal: Option<PathBuf>,
    /// The head that `journal seal` printed once: its seal must still be there
    #[arg(long, value_name = "HEX", requires_all = ["seal", "stream"])]
    head: Option<String>,
    /// Print one JSON object a stream, with every problem
    #[arg(long)]
    json: bool,
    /// Print a line for each problem instead of one for each kind of problem
    #[arg(long)]
    verbose: bool,
}

pub(crate) fn run(args: Args, load: LoadConfig) -> anyhow::Result<ExitCode> {
    let mut clean = true;
    let key = args.seal.as_deref().map(PublicKey::read).transpose()?;
    let Selected { source, journal, streams, .. } = args.place.select(load)?;
    for other in journal.others()? {
        screen::complain(format!("{other}: ignored, it is no directory of a stream that can be read"));
    }
    if streams.is_empty() {
        screen::complain(format!("{}: the journal has no stream yet", source.name()));
    }
    for note in source.notes() {
        screen::complain(screen::wrapped(&note, 2));
    }
    for stream in &streams {
        let report = stream.verify()?;
        let (compared, recount) = (compare(stream, &streams)?, rows::recount(stream)?);
        let seals = key.as_ref().map(|key| key.verify(stream, args.head.as_deref())).transpose()?;
        let checks = Checks { holes: source.holes(stream.name()), seals, compared, recount };
        clean &= report.problems.is_empty() && checks.problems().next().is_none();
        match args.json {
            true => screen::say_json(&json(stream.name(), &report, &checks)),
            false => print(stream.name(), &report, &checks, args.verbose),
        }
    }
    Ok(if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The checks of a stream that need more than its own records.
struct Checks {
    /// The bytes that a copy in NATS lacks.
    holes: Vec<String>,
    seals: Option<SealReport>,
    compared: Option<Compared>,
    recount: Option<Recount>,
}

impl Checks {
    fn problems(&self) -> impl Iterator<Item = String> {
        let compared = self.compared.iter().flat_map(|compared| &compared.problems);
        let recounted = self.recount.iter().flat_map(|recount| &recount.problems);
        let seals = self.seals.iter().flat_map(|seals| &seals.problems).map(ToString::to_string);
        seals.chain(self.holes.iter().chain(compared).chain(recounted).cloned())
    }
}

/// The comparison of a stream's requests with those of the streams it is after.
struct Compared {
    after: Vec<String>,
    /// The number of requests that ended on both legs.
    requests: u64,
    problems: Vec<String>,
}

/// Compares a second leg with the first; `None` if the stream is after none of these.
fn compare(stream: &StreamReader, streams: &[StreamReader]) -> anyhow::Result<Option<Compared>> {
    let after = legs::after(stream, streams)?;
    if after.is_empty() {
        return Ok(None);
    }
    let mut known: legs::Known<RequestInfo> = Vec::new();
    for other in streams
        .iter()
        .filter(|other| other.name() == stream.name() || after.contains(&other.name().to_owned()))
    {
        let found = other.requests(RequestFilter::default())?.collect::<Result<_, _>>()?;
        known.push((other.name().to_owned(), legs::after(other, streams)?, found));
    }
    let mut compared = Compared { after, requests: 0, problems: Vec::new() };
    for request in legs::join(known) {
        let Some(next) = request.next() else { continue };
        if [request.first(), next].iter().any(|leg| leg.of.state != RequestState::Finished) {
            continue;
        }
        compared.requests += 1;
        compared.problems.extend(differs(&request));
    }
    Ok(Some(compared))
}

/// The difference between the legs of a request, if there is one: tokens sent on the first leg must have been received on the
/// second, and both must end with the same count unless a plugin changed tokens.
fn differs(request: &Request<RequestInfo>) -> Option<String> {
    let (first, next) = (request.first(), request.next()?);
    let sent = first.of.forwarded;
    let rid = &first.of.rid;
    if next.of.received != sent {
        let (received, before) = (next.of.received, &first.stream);
        return Some(format!("request {rid:?}: received {received} tokens, {sent} left {before}"));
    }
    match (first.of.completion_tokens, next.of.completion_tokens) {
        (Some(counted), Some(found)) if counted != found && sent == first.of.received => {
            Some(format!("request {rid:?}: ended at {found} tokens, on {} at {counted}", first.stream))
        }
        _ => None,
    }
}

fn print(stream: &str, report: &VerifyReport, checks: &Checks, verbose: bool) {
    let VerifyReport { segments, bytes, frames, requests, rows, tokens, problems, notes, .. } = report;
    let more_problems: Vec<String> = checks.problems().collect();
    let kinds: Vec<String> = match verbose {
        true => problems.iter().map(ToString::to_string).collect(),
        false => report.kinds(),
    };
    for kind in &kinds {
        screen::say_wrapped(screen::bad(format!("{stream}: {kind}")), 2);
    }
    let shown = if verbose { more_problems.len() } else { 1 };
    for problem in more_problems.iter().take(shown) {
        let more = more_problems.len() - shown.min(more_problems.len());
        let more = if more == 0 { String::new() } else { format!(", and {more} more like it") };
        screen::say_wrapped(screen::bad(format!("{stream}: {problem}{more}")), 2);
    }
    for note in notes {
        screen::say_wrapped(screen::faint(format!("{stream}: {}", self::note(note))), 2);
    }
    let verdict = match problems.len() + more_problems.len() {
        0 => screen::good("clean".to_owned()),
        1 => screen::bad("1 problem".to_owned()),
        count if verbose || count == kinds.len() + more_problems.len().min(1) => {
            screen::bad(format!("{count} problems"))
        }
        count => screen::bad(format!("{count} problems (--verbose lists each)")),
    };
    let compared = checks.compared.as_ref().map_or_else(String::new, |compared| {
        format!("; {} requests compared with {}", compared.requests, compared.after.join(", "))
    });
    let recount = checks.recount.as_ref().map_or_else(String::new, |recount| {
        let Recount { requests, prompt_tokens, completion_tokens, .. } = recount;
        format!("; {requests} requests recounted: usage {prompt_tokens} prompt, {completion_tokens} completion tokens")
    });
    let line = format!(
        "{stream}: {verdict}: {segments} segments, {bytes} bytes, {frames} frames, {requests} requests, {rows} rows, {tokens} tokens{compared}{recount}",
    );
    screen::say_wrapped(line, 2);
    if let Some(seals) = &checks.seals {
        screen::say_wrapped(format!("{stream}: {}", seal::sentence(seals)), 2);
    }
}

fn note(note: &VerifyNote) -> String {
    match note {
        VerifyNote::Erased { last_unix_ns, .. } => format!("{note}, the last {}", local_time(*last_unix_ns)),
        note => note.to_string(),
    }
}

fn json(stream: &str, report: &VerifyReport, checks: &Checks) -> serde_json::Value {
    let more = checks
        .problems()
        .map(|problem| serde_json::json!({"segment": null, "offset": null, "what": problem}));
    let compared = checks.compared.as_ref();
    let problems = report.problems.iter().map(|problem| {
        serde_json::json!({
            "segment": problem.segment.to_string(),
            "offset": problem.offset,
            "what": problem.what.to_string(),
        })
    });
    let problems: Vec<serde_json::Value> = problems.chain(more).collect();
    serde_json::json!({
        "stream": stream,
        "clean": problems.is_empty(),
        "segments": report.segments,
        "bytes": report.bytes,
        "frames": report.frames,
        "requests": report.requests,
        "rows": report.rows,
        "tokens": report.tokens,
        "after": compared.map(|compared| &compared.after),
        "requests_compared": compared.map(|compared| compared.requests),
        "recounted": checks.recount.as_ref().map(|recount| serde_json::json!({
            "requests": recount.requests,
            "prompt_tokens": recount.prompt_tokens,
            "completion_tokens": recount.completion_tokens,
        })),
        "seals": checks.seals.as_ref().map(seal::json),
        "problems": problems,
        "notes": report.notes.iter().map(note).collect::<Vec<_>>(),
    })
}
