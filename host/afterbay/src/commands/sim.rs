//! `afterbay sim`: one end of a simulated stream, a scheduler or a reader. Also what the demo shares with it: stopping by
//! a signal, progress on a terminal or a pipe, figures as people read them.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use afterbay_sim::check::{Expect, Faults, Reading};
use afterbay_sim::frames::Encoding;
use afterbay_sim::load::{Arrivals, Endings, Lengths, Load};
use afterbay_sim::reader::{self, Received, Restarts, Until};
use afterbay_sim::record::Record;
use afterbay_sim::scheduler::{self, Sent, Source};
use afterbay_sim::work::{Cost, Spent};
use afterbay_sim::{Progress, Stop, replay};
use afterbay_wire::Kind;
use afterbay_wire::synth::SynthWire;
use anyhow::Context;
use clap::{Subcommand, ValueEnum};
use comfy_table::{ContentArrangement, Table, presets};
use indicatif::{ProgressBar, ProgressStyle};

/// How often progress is told where it does not go to a terminal.
const LINE_EVERY: Duration = Duration::from_secs(1);

/// Simulate one end of a stream: a scheduler, or a reader that may be slow
///
/// Both ends speak SGLang's own bytes over a ZeroMQ implementation that is not Afterbay's. The token ids of a simulated
/// request follow from its name, so the reader finds lost, repeated, late and changed tokens by itself.
#[derive(clap::Args)]
#[command(
    after_help = "Example, with `afterbay run` between the two (or with nothing: give both the same endpoint):
  afterbay sim reader --bind ipc:///tmp/reader --cost-per-chunk 20us --requests 200
  afterbay sim scheduler --connect ipc:///tmp/afterbay --requests 200 --tokens 128 --rate 50 --wire msgpack

The result goes to standard output, progress to standard error. Exit 1: something was lost, repeated or changed.
Ctrl-C ends cleanly, with the result so far."
)]
pub(crate) struct Args {
    #[command(subcommand)]
    end: EndArgs,
}

#[derive(Subcommand)]
enum EndArgs {
    Scheduler(SchedulerArgs),
    Reader(ReaderArgs),
}

/// Send what a scheduler would send
///
/// Requests come, run in batches of one row each, and end; or the files of a directory are sent as frames.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  afterbay sim scheduler --connect ipc:///run/afterbay/decode-0 --requests 200 --tokens 128 --rate 50 --wire msgpack
  afterbay sim scheduler --connect tcp://127.0.0.1:5555 --requests 2048 --tokens 64-512 --stagger 0.5 --steps-per-second 0
  afterbay sim scheduler --connect ipc:///tmp/afterbay --endings length=6,stop-token=3,abort=1 --health-every 50
  afterbay sim scheduler --connect ipc:///tmp/afterbay --frames tests/fixtures/frames --suffix pickle")]
struct SchedulerArgs {
    /// Where to connect: ipc://PATH or tcp://HOST:PORT
    #[arg(long, value_name = "ENDPOINT")]
    connect: String,
    /// How many requests
    #[arg(long, value_name = "N", default_value_t = 200)]
    requests: u64,
    /// Tokens of a request: a number, or LOW-HIGH
    #[arg(long, value_name = "TOKENS", default_value = "128", value_parser = lengths)]
    tokens: Lengths,
    /// Requests that come in a second, at random times [default: all come at once]
    #[arg(long, value_name = "PER_SECOND", conflicts_with = "stagger")]
    rate: Option<f64>,
    /// This fraction of the requests joins evenly over the first ones' steps, the others come at once
    #[arg(long, value_name = "FRACTION")]
    stagger: Option<f64>,
    /// Requests that run at once: the rows of a batch, at the most
    #[arg(long, value_name = "ROWS", default_value_t = 4096)]
    max_running: u32,
    /// New tokens in a row
    #[arg(long, value_name = "TOKENS", default_value_t = 1)]
    tokens_per_step: u32,
    /// Steps, and so batches, in a second; 0: as fast as they are taken
    #[arg(long, value_name = "STEPS", default_value_t = 50.0)]
    steps_per_second: f64,
    /// SGLang's encoding
    #[arg(long, value_enum, default_value_t = WireName::Pickle)]
    wire: WireName,
    /// The rows: token ids as the scheduler sends them, or text as the detokenizer does
    #[arg(long, value_enum, default_value_t = KindName::TokenId)]
    kind: KindName,
    /// How requests end, by weight: length, stop-token, stop-text, abort
    #[arg(long, value_name = "NAME=WEIGHT,…", default_value = "length=1", value_parser = endings)]
    endings: Endings,
    /// Tokens of the prompt's end in a request's first row, at most 5
    #[arg(long, value_name = "TOKENS", default_value_t = 5)]
    prompt_tail: u32,
    /// A health check's row every so many steps
    #[arg(long, value_name = "STEPS")]
    health_every: Option<u64>,
    /// A batch without rows every so many steps
    #[arg(long, value_name = "STEPS")]
    idle_every: Option<u64>,
    /// A control message every so many steps
    #[arg(long, value_name = "STEPS")]
    control_every: Option<u64>,
    /// The same seed gives the same requests. With several schedulers at once each needs its own
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Send the files of this directory instead, by name, one a step
    #[arg(long, value_name = "DIR", conflicts_with_all = ["requests", "tokens", "rate", "stagger", "kind", "wire"])]
    frames: Option<PathBuf>,
    /// With --frames: the ending of the files' names
    #[arg(long, value_name = "SUFFIX", default_value = "msgpack", requires = "frames")]
    suffix: String,
    /// How long to wait for somebody to listen
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration)]
    connect_timeout: Duration,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Read as SGLang's reader would, at its pace, and check every request
///
/// Binds, so it may start before or after who connects. Without --requests, --frames or --idle it reads until Ctrl-C.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  afterbay sim reader --bind ipc:///run/sglang/detokenizer --cost-per-chunk 20us --requests 200
  afterbay sim reader --bind ipc:///tmp/reader --credit /dev/shm/afterbay/reader --restart-every 500 --restart-pause 2s --idle 5s
  afterbay sim reader --bind ipc:///tmp/reader --read last-only --idle 5s      # behind builtin:delta-to-cumulative
  afterbay sim reader --bind ipc:///tmp/reader --read frames --frames 57 --json")]
struct ReaderArgs {
    /// Where to listen: ipc://PATH or tcp://HOST:PORT
    #[arg(long, value_name = "ENDPOINT")]
    bind: String,
    /// What each row costs
    #[arg(long, value_name = "TIME", default_value = "0us", value_parser = duration)]
    cost_per_chunk: Duration,
    /// What each token costs on top
    #[arg(long, value_name = "TIME", default_value = "0us", value_parser = duration)]
    cost_per_token: Duration,
    /// Spend the cost computing, not waiting
    #[arg(long)]
    busy: bool,
    /// What counts of a request: all of its rows, or the last one alone; or frames are counted and not looked into
    #[arg(long, value_enum, default_value_t = ReadName::Deltas)]
    read: ReadName,
    /// What is known of the ids: those of a simulated scheduler, or only how many the scheduler counts
    #[arg(long, value_enum, default_value_t = ExpectName::Simulated)]
    expect: ExpectName,
    /// Go away and come back after so many frames, again and again
    #[arg(long, value_name = "FRAMES")]
    restart_every: Option<u64>,
    /// For how long it is away
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = duration, requires = "restart_every")]
    restart_pause: Duration,
    /// How often at the most
    #[arg(long, value_name = "TIMES", requires = "restart_every")]
    restarts: Option<u32>,
    /// Count the frames that are finished on this page
    #[arg(long, value_name = "FILE")]
    credit: Option<PathBuf>,
    /// End when so many requests have ended
    #[arg(long, value_name = "N")]
    requests: Option<u64>,
    /// End when so many frames have come
    #[arg(long, value_name = "N")]
    frames: Option<u64>,
    /// End when nothing has come for so long, after something had
    #[arg(long, value_name = "TIME", value_parser = duration)]
    idle: Option<Duration>,
    /// With --requests and --frames: read on for so long, for what should not come
    #[arg(long, value_name = "TIME", default_value = "300ms", value_parser = duration)]
    linger: Duration,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// SGLang's two encodings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum WireName {
    Msgpack,
    Pickle,
}

#[derive(Clone, Copy, ValueEnum)]
enum KindName {
    TokenId,
    Str,
}

#[derive(Clone, Copy, ValueEnum)]
enum ReadName {
    Deltas,
    LastOnly,
    Frames,
}

#[derive(Clone, Copy, ValueEnum)]
enum ExpectName {
    Simulated,
    Counts,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let stop = stop_on_signal()?;
    match args.end {
        EndArgs::Scheduler(args) => run_scheduler(args, &stop),
        EndArgs::Reader(args) => run_reader(args, &stop),
    }
}

fn run_scheduler(args: SchedulerArgs, stop: &Stop) -> anyhow::Result<ExitCode> {
    let (source, requests) = match &args.frames {
        Some(directory) => {
            let frames = replay::directory(directory, &args.suffix)?;
            (Source::Frames(frames), None)
        }
        None => {
            let kind = match args.kind {
                KindName::TokenId => Kind::TokenId,
                KindName::Str => Kind::Str,
            };
            let encoding = Encoding { kind, wire: args.wire.into() };
            (Source::Load(load(&args), encoding), Some(args.requests))
        }
    };
    let mut options = scheduler::Options::new(args.connect, source);
    options.steps_per_second = args.steps_per_second;
    options.connect_timeout = args.connect_timeout;
    let mut bar = Bar::new("sent", requests);
    let sent = scheduler::run(options, stop, &mut |progress| bar.show(progress));
    bar.end();
    let sent = sent?;
    let good = sent.undelivered == 0 && sent.broken == 0;
    print_result(&sent, args.json, good, || sent_lines(&sent))?;
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn load(args: &SchedulerArgs) -> Load {
    Load {
        seed: args.seed,
        requests: args.requests,
        arrivals: match (args.rate, args.stagger) {
            (Some(rate), _) => Arrivals::Rate(rate),
            (_, Some(fraction)) => Arrivals::Staggered(fraction),
            _ => Arrivals::AtOnce,
        },
        max_running: args.max_running,
        tokens_per_step: args.tokens_per_step,
        lengths: args.tokens,
        prompt_tail: args.prompt_tail,
        endings: args.endings,
        health_every: args.health_every,
        idle_every: args.idle_every,
        control_every: args.control_every,
    }
}

fn run_reader(args: ReaderArgs, stop: &Stop) -> anyhow::Result<ExitCode> {
    let spent = if args.busy { Spent::Busy } else { Spent::Asleep };
    let options = reader::Options {
        bind: args.bind,
        reading: match args.read {
            ReadName::Deltas => Reading::Deltas,
            ReadName::LastOnly => Reading::LastOnly,
            ReadName::Frames => Reading::Frames,
        },
        expect: match args.expect {
            ExpectName::Simulated => Expect::Simulated,
            ExpectName::Counts => Expect::Counts,
        },
        cost: Cost { per_row: args.cost_per_chunk, per_token: args.cost_per_token, spent },
        restarts: args.restart_every.map(|every_frames| Restarts {
            every_frames,
            pause: args.restart_pause,
            times: args.restarts,
        }),
        credit: args.credit,
        until: Until { requests: args.requests, frames: args.frames, idle: args.idle, linger: args.linger },
    };
    let mut bar = Bar::new("received", args.requests);
    let received = reader::run(options, stop, &mut |progress| bar.show(progress));
    bar.end();
    let received = received?;
    // Stopped in the middle, what is still open is no fault; otherwise everything that was asked for must be there.
    let short = args.requests.is_some_and(|requests| received.record.requests < requests)
        || args.frames.is_some_and(|frames| received.record.frames < frames);
    let good = received.faults.is_none() && (received.stopped || received.open == 0 && !short);
    print_result(&received, args.json, good, || received_lines(&received))?;
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl From<WireName> for SynthWire {
    fn from(wire: WireName) -> SynthWire {
        match wire {
            WireName::Msgpack => SynthWire::Msgpack,
            WireName::Pickle => SynthWire::Pickle,
        }
    }
}

fn print_result(
    result: &impl serde::Serialize,
    json: bool,
    good: bool,
    lines: impl FnOnce() -> Vec<(String, String)>,
) -> anyhow::Result<()> {
    if json {
        let mut value = serde_json::to_value(result)?;
        if let Some(object) = value.as_object_mut() {
            object.insert("good".to_owned(), good.into());
        }
        println!("{}", serde_json::to_string_pretty(&value)?);
        return Ok(());
    }
    let mut lines = lines();
    lines.push(("result".to_owned(), if good { "good" } else { "NOT GOOD" }.to_owned()));
    print!("{}", table(&lines));
    Ok(())
}

fn sent_lines(sent: &Sent) -> Vec<(String, String)> {
    let mut lines = record_lines(&sent.record, sent.elapsed);
    lines.push(line("waited for the peer", seconds(sent.blocked)));
    if sent.broken > 0 {
        lines.push(line("broken connections", count(sent.broken.into())));
    }
    if sent.undelivered > 0 {
        lines.push(line("frames not taken", count(sent.undelivered)));
    }
    if sent.stopped {
        lines.push(line("stopped", "before its end; requests that ran were aborted"));
    }
    lines
}

fn received_lines(received: &Received) -> Vec<(String, String)> {
    let mut lines = record_lines(&received.record, received.elapsed);
    lines.push(line("requests open", count(received.open)));
    if received.restarts > 0 {
        lines.push(line("restarts", count(received.restarts.into())));
    }
    if received.broken > 0 {
        lines.push(line("broken connections", count(received.broken.into())));
    }
    lines.extend(fault_lines(&received.faults));
    if received.stopped {
        lines.push(line("stopped", "by a signal"));
    }
    lines
}

fn record_lines(record: &Record, elapsed: Duration) -> Vec<(String, String)> {
    let per_second = |amount: u64| count((amount as f64 / elapsed.as_secs_f64().max(1e-9)) as u64);
    vec![
        line("requests", count(record.requests)),
        line("tokens", format!("{} ({} /s)", count(record.tokens), per_second(record.tokens))),
        line("rows", format!("{} ({} /s)", count(record.rows), per_second(record.rows))),
        line("frames", format!("{} ({} /s)", count(record.frames), per_second(record.frames))),
        line("bytes", bytes(record.bytes)),
        line("health checks", count(record.health_checks)),
        line("idle, control", format!("{}, {}", count(record.idle), count(record.controls))),
        line("time", seconds(elapsed)),
    ]
}

/// Lost and repeated always, the others where there are any, and the first few in words.
pub(super) fn fault_lines(faults: &Faults) -> Vec<(String, String)> {
    let always = [("tokens lost", faults.lost_tokens), ("tokens repeated", faults.repeated_tokens)];
    let sometimes = [
        ("rows late", faults.late_rows),
        ("ids changed", faults.wrong_ids),
        ("texts changed", faults.wrong_texts),
        ("counts wrong", faults.wrong_counts),
        ("rows after the end", faults.rows_after_end),
        ("ended again", faults.ended_again),
        ("frames not understood", faults.not_understood),
    ];
    let shown = always.into_iter().chain(sometimes.into_iter().filter(|(_, amount)| *amount > 0));
    let lines = shown.map(|(name, amount)| line(name, count(amount)));
    lines.chain(faults.samples.iter().map(|sample| line("", sample))).collect()
}

pub(super) fn line(name: &str, value: impl Into<String>) -> (String, String) {
    (name.to_owned(), value.into())
}

/// Names and values: a table on a terminal, `name: value` lines elsewhere.
pub(super) fn table(lines: &[(String, String)]) -> String {
    if std::io::stdout().is_terminal() {
        let mut table = Table::new();
        table.load_style(presets::UTF8_HORIZONTAL_ONLY).set_content_arrangement(ContentArrangement::Dynamic);
        for (name, value) in lines {
            table.add_row([name, value]);
        }
        return format!("{table}\n");
    }
    let lines = lines.iter().map(|(name, value)| match name.as_str() {
        "" => format!("  {value}\n"),
        name => format!("{name}: {value}\n"),
    });
    lines.collect()
}

/// Progress: a bar on a terminal, a line now and then elsewhere. On standard error, so that the result stands alone.
struct Bar {
    bar: Option<ProgressBar>,
    what: &'static str,
    last_line: Instant,
}

impl Bar {
    fn new(what: &'static str, requests: Option<u64>) -> Bar {
        let bar = std::io::stderr().is_terminal().then(|| match requests {
            Some(requests) => {
                ProgressBar::new(requests).with_style(style("{bar:30} {pos}/{len} requests  {msg}"))
            }
            None => ProgressBar::new_spinner().with_style(style("{spinner} {pos} requests  {msg}")),
        });
        Bar { bar, what, last_line: Instant::now() }
    }

    fn show(&mut self, progress: &Progress) {
        let seconds = progress.elapsed.as_secs_f64();
        let message = format!(
            "{} frames, {} tokens {} in {seconds:.1} s, {} /s, {} open",
            count(progress.frames),
            count(progress.tokens),
            self.what,
            count((progress.tokens as f64 / seconds.max(1e-3)) as u64),
            count(progress.open),
        );
        if let Some(bar) = &self.bar {
            bar.set_position(progress.ended);
            bar.set_message(message);
        } else if self.last_line.elapsed() >= LINE_EVERY {
            self.last_line = Instant::now();
            eprintln!("{} requests ended, {message}", count(progress.ended));
        }
    }

    fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

pub(super) fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// A stop for Ctrl-C and SIGTERM. The second signal ends the process at once, as without this.
pub(super) fn stop_on_signal() -> anyhow::Result<Stop> {
    use tokio::signal::unix::{SignalKind, signal};
    let stop = Stop::new();
    let told = stop.clone();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (mut interrupt, mut terminate) = {
        let _entered = runtime.enter();
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)
    };
    let watch = move || {
        runtime.block_on(async {
            for signals in 1.. {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
                told.stop();
                if signals > 1 {
                    std::process::exit(130);
                }
            }
        });
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(watch).context("thread for signals")?;
    Ok(stop)
}

fn duration(text: &str) -> Result<Duration, String> {
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let scale = match &text[number.len()..] {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err("a number with us, ms, s, m or h, like \"20us\"".to_owned()),
    };
    let seconds = number.parse::<f64>().map_err(|error| error.to_string())? * scale;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

fn lengths(text: &str) -> Result<Lengths, String> {
    let (low, high) = text.split_once('-').unwrap_or((text, text));
    match (low.parse(), high.parse()) {
        (Ok(low), Ok(high)) => Ok(Lengths { low, high }),
        _ => Err("a number, or LOW-HIGH, like \"64-512\"".to_owned()),
    }
}

fn endings(text: &str) -> Result<Endings, String> {
    let mut endings = Endings { length: 0, stop_token: 0, stop_text: 0, abort: 0 };
    for part in text.split(',') {
        let weight = part.split_once('=').and_then(|(name, weight)| Some((name, weight.parse().ok()?)));
        match weight {
            Some(("length", weight)) => endings.length = weight,
            Some(("stop-token", weight)) => endings.stop_token = weight,
            Some(("stop-text", weight)) => endings.stop_text = weight,
            Some(("abort", weight)) => endings.abort = weight,
            _ => return Err(format!("{part:?} is none of length=N, stop-token=N, stop-text=N, abort=N")),
        }
    }
    Ok(endings)
}

/// `12,345,678`.
pub(super) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() * 4 / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

pub(super) fn bytes(number: u64) -> String {
    let unit = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = number as f64;
    let mut at = 0;
    while value >= 1024.0 && at + 1 < unit.len() {
        value /= 1024.0;
        at += 1;
    }
    if at == 0 { format!("{number} B") } else { format!("{value:.1} {}", unit[at]) }
}

pub(super) fn seconds(duration: Duration) -> String {
    match duration.as_secs_f64() {
        s if s >= 1.0 => format!("{s:.1} s"),
        s if s >= 1e-3 => format!("{:.1} ms", s * 1e3),
        s => format!("{:.0} us", s * 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_written_as_people_read_them() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([0, 1023, 1536, 5 << 30].map(bytes), ["0 B", "1023 B", "1.5 KiB", "5.0 GiB"]);
        assert_eq!(
            [20, 1_500, 2_500_000].map(Duration::from_micros).map(seconds),
            ["20 us", "1.5 ms", "2.5 s"]
        );
    }

    #[test]
    fn times_lengths_and_endings_are_read_as_help_says() {
        assert_eq!(duration("20us"), Ok(Duration::from_micros(20)));
        assert_eq!(duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert!(duration("20").is_err() && duration("-1s").is_err() && duration("s").is_err());
        assert_eq!(lengths("64-512"), Ok(Lengths { low: 64, high: 512 }));
        assert!(lengths("64-").is_err());
        let mixed = endings("length=6,abort=1").unwrap();
        assert_eq!((mixed.length, mixed.stop_token, mixed.abort), (6, 0, 1));
        assert_eq!(
            endings("lenght=6").unwrap_err(),
            "\"lenght=6\" is none of length=N, stop-token=N, stop-text=N, abort=N"
        );
    }
}
