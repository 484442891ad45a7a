//! The options of `afterbay sim`, and how their values are written.

use std::path::PathBuf;
use std::time::Duration;

use afterbay_sim::check::{Expect, Reading};
use afterbay_sim::frames::Encoding;
use afterbay_sim::inbox::Inbox;
use afterbay_sim::load::{Arrivals, Burst, Endings, Lengths, Load};
use afterbay_sim::reader::{self, ReaderReport, Restarts, Stall, Until};
use afterbay_sim::replay;
use afterbay_sim::scheduler::{self, Source};
use afterbay_sim::work::{Cost, Spent};
use afterbay_sockets::{Endpoint, EndpointError};
use afterbay_wire::BatchKind;
use afterbay_wire::synth::SynthWire;
use clap::ValueEnum;

/// Send what a scheduler would send
///
/// Simulates requests that arrive, run in batches with one row for each, and end. Or sends the files of a directory as frames.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  afterbay sim scheduler --connect ipc:///run/afterbay/decode-0 --wire msgpack --rate 50
  afterbay sim scheduler --connect ipc:///tmp/a --requests 2048 --tokens 64-512 --stagger 0.5
  afterbay sim scheduler --connect ipc:///tmp/a --rate 50 --burst 500@2s --burst 500@4s
  afterbay sim scheduler --connect ipc:///run/afterbay/engine-0 --engine vllm --requests 512
  afterbay sim scheduler --connect tcp://127.0.0.1:5555 --endings length=6,stop-token=3,abort=1
  afterbay sim scheduler --connect ipc:///tmp/a --frames tests/fixtures/frames --suffix pickle")]
pub(super) struct SchedulerArgs {
    /// The endpoint to connect to: ipc://PATH or tcp://HOST:PORT
    #[arg(long, value_name = "ENDPOINT", value_parser = endpoint)]
    connect: String,
    /// Take aborts from the socket that Afterbay binds there (stream.abort.push), as the engine's scheduler does
    #[arg(long, value_name = "ENDPOINT", conflicts_with = "frames", value_parser = endpoint)]
    aborts: Option<String>,
    /// How many requests
    #[arg(long, value_name = "N", default_value_t = 200)]
    requests: u64,
    /// Tokens of a request: a number, or LOW-HIGH
    #[arg(long, value_name = "TOKENS", default_value = "128", value_parser = lengths)]
    tokens: Lengths,
    /// Requests that arrive in a second, at random times [default: all arrive at once]
    #[arg(long, value_name = "PER_SECOND", conflicts_with = "stagger")]
    rate: Option<f64>,
    /// This fraction of the requests arrives evenly during the steps of the first ones; the others arrive at once
    #[arg(long, value_name = "FRACTION")]
    stagger: Option<f64>,
    /// N more requests, all at TIME after the start; may be repeated
    #[arg(long, value_name = "N@TIME", value_parser = burst)]
    burst: Vec<Burst>,
    /// Most requests that run at once, which is the most rows of a batch
    #[arg(long, value_name = "ROWS", default_value_t = 4096)]
    max_running: u32,
    /// New tokens in a row
    #[arg(long, value_name = "TOKENS", default_value_t = 1)]
    tokens_per_step: u32,
    /// Steps, each with one batch, in a second; 0: as fast as the peer takes them
    #[arg(long, value_name = "STEPS", default_value_t = 50.0)]
    steps_per_second: f64,
    /// The engine whose frames are sent. vLLM has no health checks here, its batches without rows are statistics, and its
    /// control messages are answers to utility calls
    #[arg(long, value_enum, default_value_t = EngineName::Sglang)]
    engine: EngineName,
    /// SGLang's encoding [default: pickle]
    #[arg(long, value_enum)]
    wire: Option<WireName>,
    /// SGLang's rows: token ids as the scheduler sends them, or text as the detokenizer does [default: token-id]
    #[arg(long, value_enum)]
    kind: Option<KindName>,
    /// How requests end, by weight: length, stop-token, stop-text, abort
    #[arg(long, value_name = "NAME=WEIGHT,…", default_value = "length=1", value_parser = endings)]
    endings: Endings,
    /// Tokens of the prompt's end in a request's first row, at most 5
    #[arg(long, value_name = "TOKENS", default_value_t = 5)]
    prompt_tail: u32,
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
    /// Send the files of this directory instead, by name, one a step
    #[arg(long, value_name = "DIR", conflicts_with_all = ["requests", "tokens", "rate", "stagger", "burst", "kind", "wire", "engine"])]
    frames: Option<PathBuf>,
    /// Suffix of the files that --frames reads
    #[arg(long, value_name = "SUFFIX", default_value = "msgpack", requires = "frames")]
    suffix: String,
    /// How long to wait for a listener
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration)]
    connect_timeout: Duration,
    /// Print the result as JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// Read as the engine's reader would, at its pace, and check every request
///
/// Binds, so it may start before or after its peer. Without --requests, --frames or --idle it reads until Ctrl-C.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  afterbay sim reader --bind ipc:///run/sglang/detokenizer --cost-per-chunk 20us --requests 200
  afterbay sim reader --bind ipc:///tmp/r --credit /dev/shm/r --restart-every 500 --idle 5s
  afterbay sim reader --bind ipc:///tmp/r --inbox unbounded --read overwriting --cost-per-chunk 30us
  afterbay sim reader --bind ipc:///tmp/r --inbox 4 --stall-after 2s --stall-for 5s
  afterbay sim reader --bind ipc:///tmp/r --read last-only      # behind delta-to-cumulative
  afterbay sim reader --bind ipc:///tmp/r --read frames --frames 59 --json")]
pub(super) struct ReaderArgs {
    /// The endpoint to listen on: ipc://PATH or tcp://HOST:PORT
    #[arg(long, value_name = "ENDPOINT", value_parser = endpoint)]
    bind: String,
    /// The time that each row costs
    #[arg(long, value_name = "TIME", default_value = "0us", value_parser = duration)]
    cost_per_chunk: Duration,
    /// The time that each token costs in addition
    #[arg(long, value_name = "TIME", default_value = "0us", value_parser = duration)]
    cost_per_token: Duration,
    /// Spend that time computing, not waiting
    #[arg(long)]
    busy: bool,
    /// Which rows of a request count: all; of those that are in the inbox together only the last (the others are overwritten); only
    /// the request's last row; or none, because frames are counted and not decoded
    #[arg(long, value_enum, default_value_t = ReadName::Deltas)]
    read: ReadName,
    /// How ids are checked: against a simulated scheduler, or only by the scheduler's counts
    #[arg(long, value_enum, default_value_t = ExpectName::Simulated)]
    expect: ExpectName,
    /// Frames that are read from the socket before they are handled: a number, or unbounded as in libzmq
    #[arg(long, value_name = "N|unbounded", default_value = "0", value_parser = inbox)]
    inbox: Inbox,
    /// Stop handling frames once, TIME after the first frame
    #[arg(long, value_name = "TIME", value_parser = duration, requires = "stall_for")]
    stall_after: Option<Duration>,
    /// How long that stop lasts
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = duration, requires = "stall_after")]
    stall_for: Duration,
    /// Close the socket and open it again after every FRAMES frames
    #[arg(long, value_name = "FRAMES")]
    restart_every: Option<u64>,
    /// How long the socket stays closed
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = duration, requires = "restart_every")]
    restart_pause: Duration,
    /// Close the socket at most this often
    #[arg(long, value_name = "TIMES", requires = "restart_every")]
    restarts: Option<u32>,
    /// Count the frames that are finished on this page
    #[arg(long, value_name = "FILE")]
    credit: Option<PathBuf>,
    /// End when N requests have ended
    #[arg(long, value_name = "N")]
    pub(super) requests: Option<u64>,
    /// End when N frames have been received
    #[arg(long, value_name = "N")]
    frames: Option<u64>,
    /// End when no frame has been received for TIME after the last one
    #[arg(long, value_name = "TIME", value_parser = duration)]
    idle: Option<Duration>,
    /// Keep reading for TIME after the last expected frame, to find frames that should not follow
    #[arg(long, value_name = "TIME", default_value = "300ms", value_parser = duration)]
    linger: Duration,
    /// Print the result as JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// The engines whose frames are simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(in crate::commands) enum EngineName {
    Sglang,
    Vllm,
}

impl EngineName {
    /// The encoding of the engine. `wire` and `kind` are SGLang's alone.
    pub(in crate::commands) fn encoding(
        self,
        wire: Option<SynthWire>,
        kind: Option<BatchKind>,
        default: SynthWire,
    ) -> anyhow::Result<Encoding> {
        match self {
            EngineName::Vllm if wire.is_some() || kind.is_some() => {
                anyhow::bail!(
                    "--wire and --kind are for --engine sglang: vLLM has one encoding and one kind of row"
                )
            }
            EngineName::Vllm => Ok(Encoding { kind: BatchKind::EngineCore, wire: SynthWire::EngineCore }),
            EngineName::Sglang => {
                let (wire, kind) = (wire.unwrap_or(default), kind.unwrap_or(BatchKind::TokenId));
                Ok(Encoding { kind, wire })
            }
        }
    }
}

/// SGLang's two encodings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(in crate::commands) enum WireName {
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
    Overwriting,
    LastOnly,
    Frames,
}

#[derive(Clone, Copy, ValueEnum)]
enum ExpectName {
    Simulated,
    Counts,
}

impl SchedulerArgs {
    /// The options of the simulated scheduler.
    pub(super) fn options(&self) -> anyhow::Result<scheduler::Options> {
        let source = match &self.frames {
            Some(directory) => Source::Frames(replay::directory(directory, &self.suffix)?),
            None => {
                let (wire, kind) = (self.wire.map(Into::into), self.kind.map(Into::into));
                Source::Load(self.load(), self.engine.encoding(wire, kind, SynthWire::Pickle)?)
            }
        };
        let mut options = scheduler::Options::new(&self.connect, source);
        options.steps_per_second = self.steps_per_second;
        options.aborts.clone_from(&self.aborts);
        options.connect_timeout = self.connect_timeout;
        Ok(options)
    }

    /// The number of requests, if it is known.
    pub(super) fn requests(&self) -> Option<u64> {
        self.frames.is_none().then(|| self.all_requests())
    }

    fn all_requests(&self) -> u64 {
        self.burst.iter().fold(self.requests, |all, burst| all.saturating_add(burst.requests))
    }

    fn load(&self) -> Load {
        Load {
            seed: self.seed,
            requests: self.all_requests(),
            rids: u64::MAX,
            bursts: self.burst.clone(),
            arrivals: match (self.rate, self.stagger) {
                (Some(rate), _) => Arrivals::Rate(rate),
                (_, Some(fraction)) => Arrivals::Staggered(fraction),
                _ => Arrivals::AtOnce,
            },
            max_running: self.max_running,
            tokens_per_step: self.tokens_per_step,
            lengths: self.tokens,
            prompt_tail: self.prompt_tail,
            endings: self.endings,
            health_every: self.health_every,
            idle_every: self.idle_every,
            control_every: self.control_every,
        }
    }
}

impl ReaderArgs {
    /// The options of the simulated reader.
    pub(super) fn options(&self) -> reader::Options {
        let spent = if self.busy { Spent::Busy } else { Spent::Asleep };
        reader::Options {
            bind: self.bind.clone(),
            reading: self.read.into(),
            expect: self.expect.into(),
            cost: Cost { per_row: self.cost_per_chunk, per_token: self.cost_per_token, spent },
            inbox: self.inbox,
            stall: self.stall_after.map(|after| Stall { after, lasts: self.stall_for }),
            restarts: self.restart_every.map(|every_frames| Restarts {
                every_frames,
                pause: self.restart_pause,
                times: self.restarts,
            }),
            credit: self.credit.clone(),
            until: Until {
                requests: self.requests,
                frames: self.frames,
                idle: self.idle,
                linger: self.linger,
            },
        }
    }

    /// Whether everything expected was received without a fault. If a signal stopped the reader, open and missing requests are no
    /// fault.
    pub(super) fn is_good(&self, received: &ReaderReport) -> bool {
        let record = &received.record;
        let enough = self.requests.is_none_or(|requests| record.requests >= requests)
            && self.frames.is_none_or(|frames| record.frames >= frames);
        received.faults.is_none() && (received.stopped || received.open == 0 && enough)
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

impl From<KindName> for BatchKind {
    fn from(kind: KindName) -> BatchKind {
        match kind {
            KindName::TokenId => BatchKind::TokenId,
            KindName::Str => BatchKind::Str,
        }
    }
}

impl From<ReadName> for Reading {
    fn from(read: ReadName) -> Reading {
        match read {
            ReadName::Deltas => Reading::Deltas,
            ReadName::Overwriting => Reading::Overwriting,
            ReadName::LastOnly => Reading::LastOnly,
            ReadName::Frames => Reading::Frames,
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

fn burst(text: &str) -> Result<Burst, String> {
    let wrong = || "N@TIME, like \"500@2s\"".to_owned();
    let (requests, at) = text.split_once('@').ok_or_else(wrong)?;
    Ok(Burst { requests: requests.parse().map_err(|_| wrong())?, at: duration(at)? })
}

fn inbox(text: &str) -> Result<Inbox, String> {
    match text {
        "unbounded" => Ok(Inbox::Unbounded),
        _ => text.parse().map(Inbox::Frames).map_err(|_| "a number, or \"unbounded\"".to_owned()),
    }
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
        assert_eq!(burst("500@2s"), Ok(Burst { requests: 500, at: Duration::from_secs(2) }));
        assert!(burst("500").is_err() && burst("@2s").is_err() && burst("5@2").is_err());
        assert_eq!((inbox("unbounded"), inbox("4")), (Ok(Inbox::Unbounded), Ok(Inbox::Frames(4))));
        assert!(inbox("-1").is_err());
        let mixed = endings("length=6,abort=1").unwrap();
        assert_eq!((mixed.length, mixed.stop_token, mixed.abort), (6, 0, 1));
        assert_eq!(
            endings("lenght=6").unwrap_err(),
            "\"lenght=6\" is none of length=N, stop-token=N, stop-text=N, abort=N"
        );
    }
}
