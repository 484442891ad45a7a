//! `afterbay demo`: a simulated scheduler and a slow reader, with a real `afterbay run` between them for some seconds, and
//! what was kept of it afterwards. It shows; what it uses is in the library and in the other commands.

mod live;
mod stage;

use std::path::PathBuf;
use std::process::ExitCode;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use afterbay_journal::Report;
use afterbay_journal::reader::{Filter, Journal, RequestInfo};
use afterbay_sim::Stop;
use afterbay_sim::check::Reading;
use afterbay_sim::compare::Comparison;
use afterbay_sim::frames::Encoding;
use afterbay_sim::load::{Arrivals, Endings, Lengths, Load};
use afterbay_sim::reader::{self, Received};
use afterbay_sim::record::Record;
use afterbay_sim::scheduler::{self, Sent, Source};
use afterbay_sim::work::{Cost, Spent};
use afterbay_wire::Kind;
use anyhow::bail;

use self::live::{Live, Shown};
use self::stage::{Afterbay, Stage, afterbay};
use super::sim::tell::{bytes, count, fault_lines, line, seconds, table, verdict};
use super::sim::{WireName, stop_on_signal};
use crate::screen;

/// A scheduler's steps in a second, as of a real one under load.
const STEPS_PER_SECOND: f64 = 50.0;
/// The part of the time in which requests come, and how long they last at least and at the most, as parts of it too.
const ARRIVING: f64 = 0.5;
const SHORTEST: f64 = 0.16;
const LONGEST: f64 = 0.46;
/// How much of the time the reader is to be busy, on average: it falls behind at the peak and catches up after it.
const READER_BUSY: f64 = 0.6;
/// How long after the planned end everything is given up.
const GRACE: Duration = Duration::from_secs(5);
/// How long the reader reads on after everything has come, for what should not come.
const LINGER: Duration = Duration::from_millis(200);
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Rows of the request whose life is shown, about and at the most.
const LIFE_ABOUT: u64 = 8;
const LIFE_AT_MOST: u64 = 40;

/// See Afterbay at work: a simulated scheduler, a slow reader, and Afterbay between them
///
/// Starts `afterbay run` with a configuration of its own in a temporary directory, streams some hundred requests through
/// it, checks that the reader got every token, looks into the journal, and removes everything again.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  afterbay demo
  afterbay demo --seconds 20 --requests 2000 --wire pickle
  afterbay demo --cumulative                 # with the bundled plugin delta-to-cumulative
  afterbay demo --keep /tmp/afterbay-demo    # keeps the configuration, the journal and the log

Exit 1: a token was lost, repeated or changed, or the journal is not clean.")]
pub(crate) struct Args {
    /// How long the stream lasts
    #[arg(long, value_name = "SECONDS", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: u32,
    /// How many requests [default: 50 for each second]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    requests: Option<u64>,
    /// SGLang's encoding on the wire
    #[arg(long, value_enum, default_value_t = WireName::Msgpack)]
    wire: WireName,
    /// Put the bundled plugin delta-to-cumulative between, and a reader that looks at each request's last row only
    #[arg(long)]
    cumulative: bool,
    /// Keep the configuration, the journal and Afterbay's log in this directory
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Everything there is to say at the end.
struct Outcome {
    sent: Sent,
    received: Received,
    comparison: Comparison,
    kept: Report,
    drained: bool,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let stop = stop_on_signal()?;
    let stage = Stage::set(args.keep.as_deref())?;
    let load = load(&args);
    let say = |text: &str| {
        if !args.json {
            println!("{text}");
        }
    };
    let config = stage.write_config(args.cumulative)?;
    say(&format!("The configuration:\n\n{}", indent(&config)));

    let mut afterbay = Afterbay::start(&stage)?;
    afterbay.wait_until_ready(&stage, &stop)?;
    let cost = cost(&args, &load);
    say(&format!(
        "Afterbay runs (process {}). {} requests of {} to {} tokens come in the first {} s; each row costs the reader {}.\n",
        afterbay.pid(),
        count(load.requests),
        load.lengths.low,
        load.lengths.high,
        f64::from(args.seconds) * ARRIVING,
        seconds(cost.per_row),
    ));

    let began = Instant::now();
    let (sent, received, drained) = stream(&args, &stage, load, cost, &stop, afterbay)?;
    say(&format!("The stream took {}.\n", seconds(began.elapsed())));

    let journal = Journal::open(&stage.journal())?.stream(stage::STREAM)?;
    let outcome = Outcome {
        comparison: Comparison::of(&sent.record, &received.record),
        kept: journal.verify()?,
        sent,
        received,
        drained,
    };
    let good = outcome.is_good();
    if args.json {
        println!("{}", serde_json::to_string_pretty(&outcome.json())?);
    } else {
        outcome.print(good)?;
        show_life(&stage, journal.requests(Filter::default())?.filter_map(Result::ok))?;
        print_next(&args);
    }
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Requests come in the first part of the time, and the last of them ends with it.
fn load(args: &Args) -> Load {
    let seconds = f64::from(args.seconds);
    let steps = seconds * STEPS_PER_SECOND;
    let requests = args.requests.unwrap_or(50 * u64::from(args.seconds));
    Load {
        arrivals: Arrivals::Rate(requests as f64 / (seconds * ARRIVING)),
        lengths: Lengths { low: (steps * SHORTEST).max(1.0) as u32, high: (steps * LONGEST).max(1.0) as u32 },
        endings: Endings::MIXED,
        health_every: Some(40),
        idle_every: Some(60),
        control_every: Some(90),
        ..Load::new(requests, 1)
    }
}

fn cost(args: &Args, load: &Load) -> Cost {
    let rows = load.requests as f64 * f64::from(load.lengths.low + load.lengths.high) / 2.0;
    let per_row = Duration::from_secs_f64(f64::from(args.seconds) * READER_BUSY / rows);
    Cost { per_row, per_token: Duration::ZERO, spent: Spent::Asleep }
}

/// Runs both ends, shows how it goes, ends Afterbay, and gives what each end saw and whether Afterbay ended well.
fn stream(
    args: &Args,
    stage: &Stage,
    load: Load,
    cost: Cost,
    stop: &Stop,
    mut afterbay: Afterbay,
) -> anyhow::Result<(Sent, Received, bool)> {
    let requests = load.requests;
    let encoding = Encoding { kind: Kind::TokenId, wire: args.wire.into() };
    let mut scheduler = scheduler::Options::new(stage.ipc("scheduler"), Source::Load(load, encoding));
    scheduler.steps_per_second = STEPS_PER_SECOND;
    scheduler.drain_timeout = Duration::from_secs(1);
    let mut reader = reader::Options::new(stage.ipc("reader"));
    reader.reading = if args.cumulative { Reading::LastOnly } else { Reading::Deltas };
    reader.cost = cost;
    reader.credit = Some(stage.credit());

    let (in_now, out_now, enough) = (Shown::default(), Shown::default(), Stop::new());
    let (told, tell) = (enough.clone(), out_now.clone());
    let read = spawn("reader", move || reader::run(reader, &told, &mut |progress| tell.set(progress)))?;
    let (told, tell) = (stop.clone(), in_now.clone());
    let send =
        spawn("scheduler", move || scheduler::run(scheduler, &told, &mut |progress| tell.set(progress)))?;

    let deadline = Instant::now() + Duration::from_secs(args.seconds.into()) + GRACE;
    let mut live = Live::new(requests, args.json);
    let mut failed = None;
    loop {
        thread::sleep(LOOK_EVERY);
        let (sent, received) = (in_now.get(), out_now.get());
        live.show(&sent, &received);
        if let Some(status) = afterbay.ended()? {
            failed = Some(format!("afterbay run ended in the middle of the stream: {status}"));
        }
        let all_read = send.is_finished() && received.ended >= sent.ended;
        if all_read || failed.is_some() || read.is_finished() || Instant::now() >= deadline {
            break;
        }
    }
    live.end();
    stop.stop();
    // The reader reads on while Afterbay sends what it still has, and a little for what should not come.
    thread::sleep(LINGER);
    let drained = failed.is_none() && afterbay.end()?;
    enough.stop();
    let (sent, received) = (join(send)?, join(read)?);
    match failed {
        Some(failed) => bail!("{failed}{}", afterbay.last_words()),
        None => Ok((sent?, received?, drained)),
    }
}

impl Outcome {
    fn is_good(&self) -> bool {
        let delivered = self.received.is_whole() && self.comparison.is_exact();
        delivered && self.kept.problems.is_empty() && self.drained
    }

    fn print(&self, good: bool) -> anyhow::Result<()> {
        let (sent, received, kept) = (&self.sent.record, &self.received.record, &self.kept);
        // To the journal a health check is a request of one row and one token, like any other.
        let with_health =
            |figure: fn(&Record) -> u64| [sent, received].map(|it| figure(it) + it.health_checks);
        let row = |name: &str, [went_in, out]: [u64; 2], kept: u64, figure: fn(u64) -> String| {
            [name.to_owned(), figure(went_in), figure(kept), figure(out)]
        };
        let rows = [
            row("frames", [sent.frames, received.frames], kept.frames, count),
            row("rows", with_health(|it| it.rows), kept.rows, count),
            row("tokens", with_health(|it| it.tokens), kept.tokens, count),
            row("requests", with_health(|it| it.requests), kept.requests, count),
            row("bytes", [sent.bytes, received.bytes], kept.bytes, bytes),
        ];
        let mut figures = screen::Table::new(&["", "in", "kept", "out"]);
        rows.into_iter().for_each(|row| figures.row(row.into()));
        figures.print()?;
        let mut lines = fault_lines(&self.received.faults);
        let whole = format!("{} of {}", count(self.comparison.whole), count(self.comparison.requests));
        lines.push(line("requests whole", whole));
        if let Some(first) = self.comparison.first_token {
            let [p50, p99, max] =
                [first.p50_ns, first.p99_ns, first.max_ns].map(Duration::from_nanos).map(seconds);
            lines.push(line("sent to read, first tokens", format!("p50 {p50}, p99 {p99}, max {max}")));
        }
        let same = if self.comparison.same_frames { "yes" } else { "no" };
        lines.push(line("frames out as they came in", same));
        let journal = match self.kept.problems.as_slice() {
            [] => format!("clean: {} frames, checksums and token counts right", count(self.kept.frames)),
            problems => format!("{} problems, the first: {}", problems.len(), problems[0].what),
        };
        lines.push(line("journal verify", journal));
        if !self.drained {
            lines.push(line("afterbay run", "did not end well after SIGTERM"));
        }
        lines.extend(self.comparison.samples.iter().map(|sample| line("", sample)));
        lines.push(line("result", verdict(good)));
        println!("\n{}", table(&lines));
        Ok(())
    }

    fn json(&self) -> serde_json::Value {
        let kept = &self.kept;
        let problems: Vec<String> = kept.problems.iter().map(|problem| problem.what.to_string()).collect();
        serde_json::json!({
            "in": self.sent,
            "out": self.received,
            "kept": {
                "frames": kept.frames, "rows": kept.rows, "tokens": kept.tokens, "bytes": kept.bytes,
                "requests": kept.requests, "problems": problems,
            },
            "comparison": self.comparison,
            "drained": self.drained,
            "good": self.is_good(),
        })
    }
}

/// A request's life out of the journal, by the command that shows it. A short one.
fn show_life(stage: &Stage, requests: impl Iterator<Item = RequestInfo>) -> anyhow::Result<()> {
    let ended = requests.filter(|it| !it.finish.is_empty() && it.rows <= LIFE_AT_MOST);
    let Some(request) = ended.min_by_key(|it| it.rows.abs_diff(LIFE_ABOUT)) else { return Ok(()) };
    let dir = stage.journal();
    println!(
        "One request out of the journal (afterbay journal show {} --dir {}):\n",
        request.rid,
        dir.display()
    );
    let status = afterbay().args(["journal", "show", &request.rid, "--dir"]).arg(&dir).status()?;
    if !status.success() {
        bail!("afterbay journal show: {status}");
    }
    Ok(())
}

fn print_next(args: &Args) {
    if let Some(keep) = &args.keep {
        println!("Kept in {}: afterbay.toml, journal, afterbay.log.", keep.display());
        println!("  afterbay journal ls --dir {}", keep.join("journal").display());
    }
    println!("Next: put it before a real SGLang with `afterbay sglang -- <the usual command>`,");
    println!("and write a plugin of your own: examples/stop-on-loop is one, in a single file.");
}

fn indent(text: &str) -> String {
    text.lines().map(|line| if line.is_empty() { "\n".to_owned() } else { format!("    {line}\n") }).collect()
}

fn spawn<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> anyhow::Result<JoinHandle<T>> {
    Ok(thread::Builder::new().name(name.to_owned()).spawn(run)?)
}

fn join<T>(handle: JoinHandle<T>) -> anyhow::Result<T> {
    handle.join().map_err(|_| anyhow::anyhow!("a simulated end panicked"))
}
