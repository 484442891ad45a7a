//! The options of `afterbay sim`, and how their values are written.

use std::path::PathBuf;
use std::time::Duration;

use afterbay_config::Engine;
use afterbay_sim::check::Expect;
use afterbay_sim::frames::Encoding;
use afterbay_sim::load::{Arrivals, Endings, Lengths, Load};
use afterbay_sim::reader::{self, ReaderReport, Until};
use afterbay_sim::scheduler;
use afterbay_sockets::{Endpoint, EndpointError};
use afterbay_wire::BatchKind;
use afterbay_wire::synth::SynthWire;
use clap::ValueEnum;
use clap::builder::{PossibleValuesParser, TypedValueParser};

/// The time that the reader continues after the last expected request, to find frames that should not follow.
const LINGER: Duration = Duration::from_millis(300);

/// Send what a scheduler would send
///
/// Simulates requests that arrive, run in batches with one row for each, and end.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  afterbay sim scheduler --connect ipc:///run/afterbay/decode-0 --wire msgpack --rate 50
  afterbay sim scheduler --connect ipc:///tmp/a --requests 2048 --tokens 64-512
  afterbay sim scheduler --connect ipc:///run/afterbay/engine-0 --engine vllm --requests 512
  afterbay sim scheduler --connect tcp://127.0.0.1:5555 --endings length=6,stop-token=3,abort=1")]
pub(super) struct SchedulerArgs {
    /// The endpoint to connect to: ipc://PATH or tcp://HOST:PORT
    #[arg(long, value_name = "ENDPOINT", value_parser = endpoint)]
    connect: String,
    /// Take aborts from the socket that Afterbay binds there (stream.abort.push), as the engine's scheduler does
    #[arg(long, value_name = "ENDPOINT", value_parser = endpoint)]
    aborts: Option<String>,
    /// How many requests
    #[arg(long, value_name = "N", default_value_t = 200)]
    pub(super) requests: u64,
    /// Tokens of a request: a number, or LOW-HIGH
    #[arg(long, value_name = "TOKENS", default_value = "128", value_parser = lengths)]
    tokens: Lengths,
    /// Requests that arrive in a second, at random times [default: all arrive at once]
    #[arg(long, value_name = "PER_SECOND")]
    rate: Option<f64>,
    /// Most requests that run at once, which is the most rows of a batch
    #[arg(long, value_name = "ROWS", default_value_t = 4096)]
    max_running: u32,
    /// Steps, each with one batch, in a second; 0: as fast as the peer takes them
    #[arg(long, value_name = "STEPS", default_value_t = 50.0)]
    steps_per_second: f64,
    /// The engine whose frames are sent. vLLM has no health checks here, its batches without rows are statistics, and its
    /// control messages are answers to utility calls
    #[arg(long, value_parser = engines(), default_value = Engine::default().word())]
    engine: Engine,
    /// SGLang's encoding [default: pickle]
    #[arg(long, value_enum)]
    wire: Option<WireName>,
    /// How requests end, by weight: length, stop-token, stop-text, abort
    #[arg(long, value_name = "NAME=WEIGHT,…", default_value = "length=1", value_parser = endings)]
    endings: Endings,
    /// Send the row of a health check every STEPS steps
    #[arg(long, value_name = "STEPS")]
    health_every: Option<u64>,
    /// Send a batch without rows every STEPS steps
    #[arg(long, value_name = "STEPS")]
    idle_every: Option<u64>,
    /// Send a control message every STEPS steps
    #[arg(long, value_name = "STEPS")]
    control_every: Option<u64>,
    /// The same seed gives the same requests. With several schedulers at once each needs its own
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print the result as JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// Read as the engine's reader would, at its pace, and check every request
///
/// Binds, so it may start before or after its peer. Without --requests or --idle it reads until Ctrl-C.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  afterbay sim reader --bind ipc:///run/sglang/detokenizer --cost-per-chunk 20us --requests 200
  afterbay sim reader --bind ipc:///tmp/r --credit /dev/shm/r --idle 5s --json")]
pub(super) struct ReaderArgs {
    /// The endpoint to listen on: ipc://PATH or tcp://HOST:PORT
    #[arg(long, value_name = "ENDPOINT", value_parser = endpoint)]
    bind: String,
    /// The time that each row costs
    #[arg(long, value_name = "TIME", default_value = "0us", value_parser = duration)]
    cost_per_chunk: Duration,
    /// How ids are checked: against a simulated scheduler, or only by the scheduler's counts
    #[arg(long, value_enum, default_value_t = ExpectName::Simulated)]
    expect: ExpectName,
    /// Count the frames that are finished on this page
    #[arg(long, value_name = "FILE")]
    credit: Option<PathBuf>,
    /// End when N requests have ended
    #[arg(long, value_name = "N")]
    pub(super) requests: Option<u64>,
    /// End when no frame has been received for TIME after the last one
    #[arg(long, value_name = "TIME", value_parser = duration)]
    idle: Option<Duration>,
    /// Print the result as JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// The values of an option that names an engine.
pub(in crate::commands) fn engines() -> impl TypedValueParser<Value = Engine> {
    let words = Engine::WORDS.map(|(word, _)| word);
    PossibleValuesParser::new(words).map(|word| Engine::of_word(&word).unwrap_or_default())
}

/// The encoding of the engine. `wire` is of engines with several.
pub(in crate::commands) fn encoding(
    engine: Engine,
    wire: Option<WireName>,
    default: SynthWire,
) -> anyhow::Result<Encoding> {
    let Some((kind, only)) = SynthWire::only(engine) else {
        return Ok(Encoding { kind: BatchKind::TokenId, wire: wire.map_or(default, SynthWire::from) });
    };
    anyhow::ensure!(wire.is_none(), "--wire is not for {}: it has one encoding", engine.name());
    Ok(Encoding { kind, wire: only })
}

/// SGLang's two encodings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(in crate::commands) enum WireName {
    Msgpack,
    Pickle,
}

#[derive(Clone, Copy, ValueEnum)]
enum ExpectName {
    Simulated,
    Counts,
}

impl SchedulerArgs {
    /// The options of the simulated scheduler.
    pub(super) fn options(&self) -> anyhow::Result<scheduler::Options> {
        let encoding = encoding(self.engine, self.wire, SynthWire::Pickle)?;
        let mut options = scheduler::Options::new(&self.connect, self.load(), encoding);
        options.steps_per_second = self.steps_per_second;
        options.aborts.clone_from(&self.aborts);
        Ok(options)
    }

    fn load(&self) -> Load {
        Load {
            seed: self.seed,
            arrivals: self.rate.map_or(Arrivals::AtOnce, Arrivals::Rate),
            max_running: self.max_running,
            lengths: self.tokens,
            endings: self.endings,
            health_every: self.health_every,
            idle_every: self.idle_every,
            control_every: self.control_every,
            ..Load::new(self.requests, 1)
        }
    }
}

impl ReaderArgs {
    /// The options of the simulated reader.
    pub(super) fn options(&self) -> reader::Options {
        let mut options = reader::Options::new(&self.bind);
        options.expect = self.expect.into();
        options.cost_per_row = self.cost_per_chunk;
        options.credit.clone_from(&self.credit);
        options.until = Until { requests: self.requests, idle: self.idle, linger: LINGER };
        options
    }

    /// Whether everything expected was received without a fault. If a signal stopped the reader, open and missing requests are no
    /// fault.
    pub(super) fn is_good(&self, received: &ReaderReport) -> bool {
        let is_enough = self.requests.is_none_or(|requests| received.record.requests >= requests);
        received.faults.is_none() && (received.stopped || received.open == 0 && is_enough)
    }
}

impl From<WireName> for SynthWire {
    fn from(wire: WireName) -> SynthWire {
        match wire {
            WireName::Msgpack => SynthWire::Msgpack,
            WireName::Pickle => SynthWire::Pickle,
        }
    }
}

impl From<ExpectName> for Expect {
    fn from(expect: ExpectName) -> Expect {
        match expect {
            ExpectName::Simulated => Expect::Simulated,
            ExpectName::Counts => Expect::Counts,
        }
    }
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

fn endpoint(text: &str) -> Result<String, EndpointError> {
    text.parse().map(|_: Endpoint| text.to_owned())
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

#[cfg(test)]
mod tests {
    use super::*;

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
