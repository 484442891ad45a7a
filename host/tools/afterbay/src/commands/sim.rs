//! `afterbay sim`: one end of a simulated stream, a scheduler or a reader. How the two run is in the library; here is what
//! they are asked for and what is said of them.

mod args;
pub(super) mod output;

use std::process::ExitCode;
use std::time::Duration;

use afterbay_sim::Stop;
use afterbay_sim::reader::{self, ReaderReport};
use afterbay_sim::record::Record;
use afterbay_sim::scheduler::{self, SchedulerReport};
use anyhow::Context;
use clap::Subcommand;

use self::args::{ReaderArgs, SchedulerArgs};
use self::output::{Bar, fault_lines, line, table, verdict};
use afterbay_terminal::{bytes, count, seconds};

pub(super) use self::args::{WireName, encoding, engines};

/// Simulate one end of a stream: a scheduler, or a reader that may be slow
///
/// Both ends speak the engine's own bytes, SGLang's or vLLM's, over a ZeroMQ implementation that is not Afterbay's. The token ids of a simulated
/// request follow from its name, so the reader finds lost, repeated, late and changed tokens by itself.
#[derive(clap::Args)]
#[command(
    after_help = "Example, with `afterbay run` between the two, or nothing where both name the same endpoint:
  afterbay sim reader --bind ipc:///tmp/reader --cost-per-chunk 20us --requests 200
  afterbay sim scheduler --connect ipc:///tmp/afterbay --requests 200 --tokens 128 --rate 50

The result goes to standard output, progress to standard error. Exit 1: something was lost, repeated
or changed. Ctrl-C ends cleanly, with the result so far."
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

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let stop = stop_on_signal()?;
    match args.end {
        EndArgs::Scheduler(args) => run_scheduler(&args, &stop),
        EndArgs::Reader(args) => run_reader(&args, &stop),
    }
}

fn run_scheduler(args: &SchedulerArgs, stop: &Stop) -> anyhow::Result<ExitCode> {
    let options = args.options()?;
    let mut bar = Bar::new("sent", Some(args.requests));
    let sent = scheduler::run(options, stop, &mut |progress| bar.show(progress));
    bar.end();
    let sent = sent?;
    let good = sent.undelivered == 0 && sent.broken == 0;
    print_result(&sent, args.json, good, || sent_lines(&sent))
}

fn run_reader(args: &ReaderArgs, stop: &Stop) -> anyhow::Result<ExitCode> {
    let mut bar = Bar::new("received", args.requests);
    let received = reader::run(args.options(), stop, &mut |progress| bar.show(progress));
    bar.end();
    let received = received?;
    print_result(&received, args.json, args.is_good(&received), || received_lines(&received))
}

fn print_result(
    result: &impl serde::Serialize,
    json: bool,
    good: bool,
    lines: impl FnOnce() -> Vec<(String, String)>,
) -> anyhow::Result<ExitCode> {
    let code = if good { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    if json {
        let mut value = serde_json::to_value(result)?;
        if let Some(object) = value.as_object_mut() {
            object.insert("good".to_owned(), good.into());
        }
        println!("{}", serde_json::to_string_pretty(&value)?);
        return Ok(code);
    }
    let mut lines = lines();
    lines.push(line("result", verdict(good)));
    print!("{}", table(&lines));
    Ok(code)
}

fn sent_lines(sent: &SchedulerReport) -> Vec<(String, String)> {
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

fn received_lines(received: &ReaderReport) -> Vec<(String, String)> {
    let mut lines = record_lines(&received.record, received.elapsed);
    lines.push(line("requests open", count(received.open)));
    let backlog = &received.backlog;
    if backlog.frames > 0 {
        let size = bytes(backlog.bytes);
        let most = format!("{} frames, {} rows, {size}", count(backlog.frames), count(backlog.rows));
        lines.push(line("largest backlog", most));
    }
    if received.overwritten_rows > 0 {
        lines.push(line("rows overwritten", count(received.overwritten_rows)));
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

/// A stop for Ctrl-C and SIGTERM. The second signal ends the process at once.
pub(super) fn stop_on_signal() -> anyhow::Result<Stop> {
    use tokio::signal::unix::{SignalKind, signal};
    let stop = Stop::new();
    let on_signal = stop.clone();
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
                on_signal.stop();
                if signals > 1 {
                    std::process::exit(130);
                }
            }
        });
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(watch).context("thread for signals")?;
    Ok(stop)
}
