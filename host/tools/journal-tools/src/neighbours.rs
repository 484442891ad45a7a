//! `afterbay journal neighbours RID`: lists the requests whose rows travelled in the same frames as the rows of one request.

use crate::LoadConfig;
use crate::place::Place;
use crate::show::erased_line;
use crate::steps::seconds;
use afterbay_journal::reader::{RequestFilter, RequestInfo, StreamReader};
use afterbay_journal_view::erase::erasure;
use afterbay_journal_view::json::state;
use afterbay_journal_view::json_time;
use afterbay_journal_view::legs::{self, Known, Leg};
use afterbay_journal_view::neighbours::{EngineTimes, NEIGHBOURS_MAX, SharedFrames, Sums};
use afterbay_journal_view::wording::counted;
use afterbay_terminal::{self as screen, Busy, Table};
use std::collections::{BTreeMap, HashSet};
use std::io::IsTerminal;
use std::process::ExitCode;

/// Most requests of the summary on a terminal. A pipe and JSON have all.
const SUMMARY_SHOWN: usize = 20;
/// List the requests whose rows shared a frame with a request's rows
///
/// A frame of the scheduler is one batch. Prints the batch sizes, and the other requests with the number of shared frames and the
/// engine's time for them while this request was open: BESIDE in steps that it worked on both, AHEAD while this one waited. Most time
/// first. --json has each frame, too. If several requests used the rid, each is listed. If the request is on two streams (the scheduler's output and the
/// detokenizer's), the scheduler's stream is shown; --stream selects the other. The scheduler leaves requests out of a frame that have
/// nothing to send, for example with --stream-interval above 1.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  afterbay journal neighbours 5b0c1f0a --config afterbay.toml\n  afterbay journal neighbours 5b0c1f0a --json | jq .summary\n\n\
JSON: an object for each frame has stream, rid, request, time, frame, rows (the rows of this request), batch (rows in the frame) \
and others (rid, request, row). The last object of a request has stream, rid, request and summary: rows, rows_missing, frames, \
batch (least, median, most), gpu_ns (the engine's time for the request), neighbours (rid, request, frames, beside_ns, ahead_ns; \
most time first) and not_counted (rows of requests past 65536)."
)]
pub(crate) struct Args {
    /// The rid of the request, or the beginning of it
    rid: String,
    #[command(flatten)]
    place: Place,
    /// Print one JSON object for each frame, and one with the summary of the request
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args, load: LoadConfig) -> anyhow::Result<ExitCode> {
    let selected = args.place.select(load)?;
    let busy = Busy::new(format!("looking for {:?}", args.rid));
    let mut known: Known<RequestInfo> = Vec::new();
    for (stream, rid) in selected.with_rid(&args.rid)? {
        let after = legs::after(stream, &selected.streams)?;
        let filter = RequestFilter { rids: Some(HashSet::from([rid])), ..RequestFilter::default() };
        let lives = stream.requests(filter)?.collect::<Result<_, _>>()?;
        known.push((stream.name().to_owned(), after, lives));
    }
    let requests = legs::join(known);
    drop(busy);
    for request in &requests {
        let Leg { stream: name, of: info, .. } = request.first();
        let Some(stream) = selected.streams.iter().find(|stream| stream.name() == name) else { continue };
        let times = EngineTimes::read(selected.journal.stream(name)?, info)?;
        match args.json {
            true => print_json(stream, info, &times)?,
            false => print(stream, info, &times)?,
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn print_json(stream: &StreamReader, info: &RequestInfo, times: &EngineTimes) -> anyhow::Result<()> {
    let mut out = screen::Output::new();
    let mut frames = SharedFrames::of(stream, info)?;
    let mut sums = Sums::default();
    while let Some(shared) = frames.next()? {
        sums.add(&shared, |request| frames.rid(request));
        let others = shared.others.iter().map(|(request, row)| {
            serde_json::json!({"rid": frames.rid(*request), "request": request.0, "row": row})
        });
        let line = serde_json::json!({
            "stream": stream.name(),
            "rid": info.rid,
            "request": info.number.0,
            "time": json_time(shared.received_unix_ns),
            "frame": shared.frame,
            "rows": shared.rows,
            "batch": shared.batch,
            "others": others.collect::<Vec<_>>(),
        });
        out.json(&line)?;
    }
    let neighbours = neighbours(&sums, times).into_iter().map(|it| {
        serde_json::json!({
            "rid": it.rid,
            "request": it.request,
            "frames": it.frames,
            "beside_ns": it.beside_ns,
            "ahead_ns": it.ahead_ns,
        })
    });
    let batch = sums
        .batches()
        .map(|(least, median, most)| serde_json::json!({"least": least, "median": median, "most": most}));
    let summary = serde_json::json!({
        "stream": stream.name(),
        "rid": info.rid,
        "request": info.number.0,
        "summary": {
            "rows": info.rows,
            "erased": info.erased.as_ref().map(erasure),
            "rows_missing": frames.rows_left(),
            "frames": sums.frames,
            "batch": batch,
            "gpu_ns": times.own_ns,
            "neighbours": neighbours.collect::<Vec<_>>(),
            "not_counted": sums.not_counted,
        },
    });
    out.json(&summary)?;
    Ok(out.flush()?)
}

fn print(stream: &StreamReader, info: &RequestInfo, times: &EngineTimes) -> anyhow::Result<()> {
    let line = format!(
        "{}  request {} of stream {}, {}, {}",
        info.rid,
        info.number.0,
        stream.name(),
        screen::state(state(info.state)),
        counted(info.rows, "row"),
    );
    screen::say_wrapped(&line, 2);
    if let Some(erased) = &info.erased {
        screen::say(screen::marked(erased_line(erased)));
    }
    let mut frames = SharedFrames::of(stream, info)?;
    let mut sums = Sums::default();
    let busy = Busy::new(format!("reading the frames of {:?}", info.rid));
    while let Some(shared) = frames.next()? {
        sums.add(&shared, |request| frames.rid(request));
    }
    drop(busy);
    print_sums(&sums, times, frames.rows_left(), info)?;
    screen::say("");
    Ok(())
}

fn print_sums(sums: &Sums, times: &EngineTimes, rows_left: u64, info: &RequestInfo) -> std::io::Result<()> {
    if let Some((least, median, most)) = sums.batches() {
        let line = format!(
            "{} in {}. Batch sizes: least {least}, median {median}, most {most}.",
            counted(sums.rows, "row"),
            counted(sums.frames, "frame")
        );
        screen::say_wrapped(&line, 2);
    }
    if rows_left > 0 {
        let line = format!(
            "{rows_left} of {} are not shown: retention removed them, or the journal is damaged (`afterbay journal verify` \
             says which).",
            counted(info.rows, "row")
        );
        screen::say_wrapped(screen::warn_if(line, true), 2);
    }
    if times.own_ns > 0 {
        let ahead: u64 = times.others.values().map(|other| other.ahead_ns).sum();
        let line = format!(
            "The engine worked {} for it, {} for others beside it, and {} for others while it waited.",
            seconds(times.own_ns),
            seconds(times.others_ns.saturating_sub(ahead)),
            seconds(ahead),
        );
        screen::say_wrapped(&line, 2);
    }
    let neighbours = neighbours(sums, times);
    if neighbours.is_empty() {
        screen::say("No other request shared a frame.");
        return Ok(());
    }
    screen::say(format!("{}:", counted(neighbours.len() as u64, "other request")));
    let shown = if std::io::stdout().is_terminal() { SUMMARY_SHOWN } else { usize::MAX };
    let mut table = Table::new(&["SHARED FRAMES", "SHARE", "BESIDE", "AHEAD", "RID"]);
    for it in neighbours.iter().take(shown) {
        let share = format!("{:.0}%", it.frames as f64 * 100.0 / sums.frames.max(1) as f64);
        let (beside, ahead) = (seconds(it.beside_ns), seconds(it.ahead_ns));
        table.row(vec![it.frames.to_string(), share, beside, ahead, it.rid.to_owned()]);
    }
    table.print()?;
    let more = neighbours.len().saturating_sub(shown);
    if more > 0 {
        screen::say(format!("and {more} more (a pipe and --json have all)"));
    }
    if sums.not_counted > 0 {
        screen::say(format!(
            "{} of requests past {NEIGHBOURS_MAX} are not counted",
            counted(sums.not_counted, "row")
        ));
    }
    Ok(())
}

/// Another request: its shared frames, and the engine's time for it.
struct Neighbour<'a> {
    request: u64,
    rid: &'a str,
    frames: u64,
    beside_ns: u64,
    ahead_ns: u64,
}

/// The other requests, most time first.
fn neighbours<'a>(sums: &'a Sums, times: &'a EngineTimes) -> Vec<Neighbour<'a>> {
    let mut all: BTreeMap<u64, Neighbour<'a>> = BTreeMap::new();
    for (request, rid, frames) in sums.neighbours() {
        all.insert(request, Neighbour { request, rid, frames, beside_ns: 0, ahead_ns: 0 });
    }
    for (request, time) in &times.others {
        let new = Neighbour { request: *request, rid: &time.rid, frames: 0, beside_ns: 0, ahead_ns: 0 };
        let it = all.entry(*request).or_insert(new);
        (it.beside_ns, it.ahead_ns) = (time.beside_ns, time.ahead_ns);
    }
    let mut sorted: Vec<Neighbour<'a>> = all.into_values().collect();
    sorted.sort_by_key(|it| std::cmp::Reverse((it.beside_ns + it.ahead_ns, it.frames)));
    sorted
}
