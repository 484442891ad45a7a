//! `afterbay demo`: sends the same overload directly and through a real `afterbay run`, side by side, and then shows the journal.

mod act;
mod live;
mod outcome;
mod setup;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use afterbay_journal::reader::{JournalReader, RequestFilter, RequestInfo};
use afterbay_sim::Stop;
use afterbay_sim::check::Reading;
use afterbay_sim::frames::Encoding;
use afterbay_sim::load::{Arrivals, Burst, Endings, Lengths, Load};
use afterbay_wire::synth::SynthWire;
use anyhow::bail;

use self::act::{Act, Both, STEPS_PER_SECOND};
use self::outcome::Outcome;
use self::setup::{Afterbay, DemoDirs, EVERY_CHUNK, LAST_CHUNK, Stopped, afterbay, unless_stopped};
use super::sim::{WireName, encoding, engines, stop_on_signal};
use afterbay_config::Engine;
use afterbay_terminal as screen;
use afterbay_terminal::{count, seconds};

/// The exit code of a command that SIGINT ended.
const EXIT_STOPPED: u8 = 130;
/// The time that a chunk costs the reader. SGLang's TokenizerManager takes 26 to 37 us.
const COST_PER_CHUNK: Duration = Duration::from_micros(30);
/// The reader's work takes this many times as long as the scheduler runs.
const OVERLOAD: f64 = 2.2;
/// The part of the time in which requests arrive, and the shortest and longest duration of a request as parts of the time.
const ARRIVING: f64 = 0.7;
const SHORTEST: f64 = 0.1;
const LONGEST: f64 = 0.3;
/// One request in this many arrives in a burst, at this part of the time.
const IN_BURST: u64 = 8;
const BURST_AT: f64 = 0.3;
/// The second act has one request for this many of the first, all at once, half as long.
const LAST_CHUNK_PART: u64 = 4;
/// The preferred and the largest number of rows of the request that is shown at the end.
const LIFE_ABOUT: u64 = 8;
const LIFE_AT_MOST: u64 = 40;

/// Show what Afterbay does: the same overload directly and through Afterbay, side by side
///
/// A simulated scheduler makes tokens faster than a simulated reader handles chunks, once directly and once through an
/// `afterbay run` in a temporary directory. Then the same with a reader that handles only the last chunk that it finds for each
/// request. The demo checks every token, reads the journal, and removes everything.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  afterbay demo
  afterbay demo --seconds 20 --wire pickle
  afterbay demo --engine vllm
  afterbay demo --keep /tmp/afterbay-demo    # keeps the configuration, the journal and the log

Exit 1: through Afterbay a token was lost, repeated or changed, or the journal is not clean. Ctrl-C ends it at once,
without a result: exit 130.")]
pub(crate) struct Args {
    /// How long the scheduler makes tokens; the direct reader needs about twice as long
    #[arg(long, value_name = "SECONDS", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: u32,
    /// How many requests; the cost of a chunk is set for the same overload [default: as many as 30 us a chunk need]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    requests: Option<u64>,
    /// The engine whose frames are sent. With vLLM, the second act is left out: its reader adds up the rows
    #[arg(long, value_parser = engines(), default_value = Engine::default().word())]
    engine: Engine,
    /// SGLang's encoding on the wire [default: msgpack]
    #[arg(long, value_enum)]
    wire: Option<WireName>,
    /// Keep the configuration, the journal and Afterbay's log in this directory
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let stop = stop_on_signal()?;
    match play(args, &stop) {
        Err(error) if error.is::<Stopped>() => {
            eprintln!("afterbay: {error}");
            Ok(ExitCode::from(EXIT_STOPPED))
        }
        played => played,
    }
}

fn play(args: Args, stop: &Stop) -> anyhow::Result<ExitCode> {
    let encoding = encoding(args.engine, args.wire, SynthWire::Msgpack)?;
    let dirs = DemoDirs::create(args.keep.as_deref(), args.engine)?;
    let say = |text: &str| {
        if !args.json {
            println!("{text}");
        }
    };
    let config = dirs.write_config()?;
    say(&format!("The configuration:\n\n{}", indent(&config)));
    let mut afterbay = Afterbay::start(&dirs)?;
    afterbay.wait_until_ready(&dirs, stop)?;

    let every = every_chunk(&args, encoding);
    let sentence = |text: String| say(&screen::wrapped(&text, 0));
    sentence(format!(
        "{} requests of {} to {} tokens arrive within {:.1} s. A chunk takes the reader {}, so the reader needs {OVERLOAD} times as long as the scheduler.\n",
        count(every.load.requests),
        every.load.lengths.low,
        every.load.lengths.high,
        f64::from(args.seconds) * ARRIVING,
        seconds(every.cost_per_row),
    ));
    let every_sides = every.play(&dirs, &mut afterbay, stop, args.json)?;
    // Only a reader of rows that may be cumulative can keep the last chunk only.
    let last = args.engine.traits().counts_tokens.then(|| last_chunk(&every));
    let last_sides = last.map(|last| {
        sentence(format!(
            "\nThe same with {} requests at once and readers that keep the last chunk of a request that they find, \
             as SGLang's did (sgl-project/sglang#19976); through Afterbay, with the plugin delta-to-cumulative.\n",
            count(last.load.requests),
        ));
        last.play(&dirs, &mut afterbay, stop, args.json)
    });
    let last_sides = last_sides.transpose()?;
    // The readers go on while Afterbay drains.
    let drained = afterbay.end(stop)?;

    let (dir, streams) = (dirs.journal(), dirs.streams());
    let kept = unless_stopped(stop, move || {
        let journal = JournalReader::open(&dir)?;
        streams.iter().map(|stream| Ok(journal.stream(stream)?.verify()?)).collect()
    })?;
    let (every, last) =
        unless_stopped(stop, move || Ok((every_sides.end()?, last_sides.map(Both::end).transpose()?)))?;
    let outcome = Outcome { every, last, kept, drained };
    if args.json {
        println!("{}", serde_json::to_string_pretty(&outcome.json())?);
    } else {
        outcome.print()?;
        let requests = JournalReader::open(&dirs.journal())?.stream(EVERY_CHUNK)?;
        show_request(&dirs, requests.requests(RequestFilter::default())?.filter_map(Result::ok))?;
        print_next(&args);
    }
    Ok(if outcome.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The first act: more chunks than the reader can handle in time.
fn every_chunk(args: &Args, encoding: Encoding) -> Act {
    let made_in = f64::from(args.seconds);
    let work = made_in * OVERLOAD;
    let load = |requests: u64| {
        let steps = made_in * STEPS_PER_SECOND;
        let burst = requests / IN_BURST;
        Load {
            arrivals: Arrivals::Rate((requests - burst).max(1) as f64 / (made_in * ARRIVING)),
            bursts: vec![Burst { requests: burst, at: Duration::from_secs_f64(made_in * BURST_AT) }],
            lengths: Lengths {
                low: (steps * SHORTEST).max(1.0) as u32,
                high: (steps * LONGEST).max(1.0) as u32,
            },
            endings: Endings::MIXED,
            health_every: Some(40),
            idle_every: Some(60),
            control_every: Some(90),
            ..Load::new(requests, 1)
        }
    };
    let (load, per_row) = match args.requests {
        Some(requests) => {
            let load = load(requests);
            let per_row = Duration::from_secs_f64(work / load.tokens().max(1) as f64);
            (load, per_row)
        }
        None => {
            let some = load(1000);
            let per_request = COST_PER_CHUNK.as_secs_f64() * some.tokens() as f64 / some.requests as f64;
            (load((work / per_request) as u64), COST_PER_CHUNK)
        }
    };
    Act { stream: EVERY_CHUNK, load, encoding, cost_per_row: per_row, reading: Reading::Deltas }
}

/// The second act: fewer and shorter requests, for a reader that overwrites unhandled chunks.
fn last_chunk(every: &Act) -> Act {
    let Lengths { low, high } = every.load.lengths;
    let lengths = Lengths { low: low.div_ceil(2), high: high.div_ceil(2) };
    let load = Load {
        seed: every.load.seed + 1,
        lengths,
        endings: Endings::MIXED,
        ..Load::new(every.load.requests.div_ceil(LAST_CHUNK_PART), 1)
    };
    Act { stream: LAST_CHUNK, load, reading: Reading::Overwriting, ..*every }
}

/// Runs `afterbay journal show` for a short request.
fn show_request(dirs: &DemoDirs, requests: impl Iterator<Item = RequestInfo>) -> anyhow::Result<()> {
    let ended = requests.filter(|it| !it.finish.is_empty() && it.rows <= LIFE_AT_MOST);
    let Some(request) = ended.min_by_key(|it| it.rows.abs_diff(LIFE_ABOUT)) else { return Ok(()) };
    let dir = dirs.journal();
    println!(
        "One request out of the journal:\n  afterbay journal show {} --from {}\n",
        request.rid,
        dir.display()
    );
    let status = afterbay().args(["journal", "show", &request.rid, "--from"]).arg(&dir).status()?;
    if !status.success() {
        bail!("afterbay journal show: {status}");
    }
    Ok(())
}

fn print_next(args: &Args) {
    if let Some(keep) = &args.keep {
        println!("Kept in {}: afterbay.toml, journal, afterbay.log.", keep.display());
        println!("  afterbay journal ls --from {}", keep.join("journal").display());
    }
    let (engine, command) = (args.engine.name(), args.engine.word());
    println!("Next: put it behind a real {engine} with `afterbay {command} -- <the usual command>`,");
    println!("and write a plugin of your own: examples/stop-on-loop is one, in a single file.");
}

fn indent(text: &str) -> String {
    text.lines().map(|line| if line.is_empty() { "\n".to_owned() } else { format!("    {line}\n") }).collect()
}
