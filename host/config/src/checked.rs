//! The checked configuration: what the rest of Afterbay is built from. No text, no units, no unset variables are left.
//! It can be made in code, too: [`Stream::new`] and [`Config::new`] give the defaults that the file's keys have.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::{Admin, AttributeRule, Endpoint, Env, Name, Plugin, Problems};

/// Everything one process runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// At least one, each name and each listen endpoint once.
    pub streams: Vec<Stream>,
    /// What may wait in memory, of all streams.
    pub memory: Memory,
    /// Where frames are kept, of all streams.
    pub journal: Journal,
    /// The admin addresses.
    pub admin: Admin,
    /// Afterbay's own log.
    pub log: Log,
}

impl Config {
    /// One stream and a journal in `dir`, all else at its default.
    pub fn new(stream: Stream, dir: impl Into<PathBuf>) -> Config {
        let journal = Journal::new(dir);
        Config {
            streams: vec![stream],
            memory: Memory::default(),
            admin: Admin::in_dir(&journal.dir),
            journal,
            log: Log::default(),
        }
    }

    /// Reads and checks `path`. Nothing is made on disk and nothing is bound.
    pub fn load(path: &Path, env: &Env<'_>) -> Result<Config, Problems> {
        crate::check::load(path, env)
    }

    /// Reads the admin addresses of `path`, for a command that asks a running Afterbay. Only what is wrong with them is an
    /// error: the rest may be about to be reloaded, and may name what only the service has.
    pub fn load_admin(path: &Path, env: &Env<'_>) -> Result<Admin, Problems> {
        crate::check::load_admin(path, env)
    }

    /// Checks `text` as if it stood in `path`; relative paths in it are relative to the directory of `path`.
    pub fn parse(text: &str, path: &Path, env: &Env<'_>) -> Result<Config, Problems> {
        crate::check::parse(text, path, env)
    }
}

/// One scheduler output and what is done with it.
#[derive(Clone, Debug, PartialEq)]
pub struct Stream {
    /// Names the stream in logs, metrics and the journal's directory.
    pub name: Name,
    /// Whose wire it is.
    pub engine: Engine,
    /// Where the columns of a msgpack frame stand.
    pub layout: Layout,
    /// Afterbay binds PULL here.
    pub listen: Endpoint,
    /// Permission bits of an `ipc://` listen name.
    pub listen_mode: u32,
    /// The streams whose reader sends here: it is the next leg of their requests. Names of other streams that have none
    /// themselves, each at most once in a configuration.
    pub after: Vec<Name>,
    /// A longer message closes its sender.
    pub max_message_bytes: u64,
    /// More senders at once are refused.
    pub max_peers: usize,
    /// Which of several sinks gets what.
    pub route: Option<Route>,
    /// At least one; of several, none without [`Sink::connect`].
    pub sinks: Vec<Sink>,
    /// Who gets copies.
    pub taps: Vec<Tap>,
    /// How rows that wait are joined.
    pub coalesce: Coalesce,
    /// Where the scheduler's own load is read.
    pub signals: Signals,
    /// How the scheduler is told to end a request. `None`: as the rendezvous file says, else not at all.
    pub abort: Option<Abort>,
    /// What is known of requests by their rid, for plugins: later rules override earlier ones, member by member.
    pub attributes: Vec<AttributeRule>,
    /// Called in this order.
    pub plugins: Vec<Plugin>,
}

impl Stream {
    /// A stream to one sink, `reader`, all else at its default.
    pub fn new(name: Name, listen: Endpoint, connect: Endpoint) -> Stream {
        Stream {
            name,
            engine: Engine::Sglang,
            layout: Layout::Auto,
            listen,
            listen_mode: 0o600,
            after: Vec::new(),
            max_message_bytes: 256 << 20,
            max_peers: 64,
            route: None,
            sinks: vec![Sink::new(Name::reader(), connect)],
            taps: Vec::new(),
            coalesce: Coalesce::default(),
            signals: Signals::default(),
            abort: None,
            attributes: Vec::new(),
            plugins: Vec::new(),
        }
    }
}

/// Which engine's wire a stream carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// SGLang, 0.5.6 to 0.5.23.
    Sglang,
}

/// Which layout the msgpack frames of a stream have. Pickle frames name their fields and need none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Layout {
    /// By the array's length.
    Auto,
    /// Of this version of the engine.
    Version(String),
    /// Of a JSON file, as the connector writes it.
    File(PathBuf),
}

/// What may wait in memory, of all streams together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Bytes of frames that wait for a sink; further ones wait in the journal.
    pub waiting: u64,
}

impl Default for Memory {
    fn default() -> Memory {
        Memory { waiting: 2 << 30 }
    }
}

/// Which of a stream's sinks gets what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// A request goes to the sink at `crc32(http_worker_ipc, or rid) % sinks`, in the order of the file.
    Crc32,
}

/// Where a stream's batches go.
#[derive(Clone, Debug, PartialEq)]
pub struct Sink {
    /// Names the sink in logs, metrics and the journal.
    pub name: Name,
    /// Afterbay connects PUSH here. `None` only under [`Names::FromRendezvous`](crate::Names).
    pub connect: Option<Endpoint>,
    /// The page where the reader counts the frames it has finished.
    pub credit: Option<PathBuf>,
    /// Which rows it gets.
    pub takes: Takes,
    /// Who reads.
    pub reader: Reads,
    /// Before a detokenizer: the model's `tokenizer.json`, or the directory it is in.
    pub tokenizer: Option<PathBuf>,
    /// What may wait for the kernel before the stream stops receiving.
    pub queue: Queue,
}

/// What a sink is there for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SinkKind {
    /// It takes the part of the scheduler's reader.
    #[default]
    Reader,
    /// It gets copies.
    Tap,
    /// It gets rows that a plugin routes to it, in place of a reader.
    Routed,
    /// It gets the requests that a plugin lets skip the detokenizer.
    Skipped,
    /// It is one of several tokenizers, and gets the requests that came by it.
    Worker,
}

/// Which rows a sink that is no tap gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Takes {
    /// All, or its share of them ([`Stream::route`]).
    #[default]
    Share,
    /// Those that a plugin routes to it by its name.
    Routed,
    /// Those of requests that a plugin lets skip the detokenizer, as a BatchStrOutput without text. At most one of a stream.
    Skipped,
    /// Those whose `http_worker_ipc` is [`Sink::connect`], which it has. What names no such sink goes to the readers.
    Worker,
}

/// A sink that gets copies, and never holds the stream back.
#[derive(Clone, Debug, PartialEq)]
pub struct Tap {
    /// Names it in logs and metrics.
    pub name: Name,
    /// By which socket.
    pub socket: TapSocket,
    /// Of what.
    pub of: TapOf,
    /// Copies that may wait for it, of a PUB for each subscriber; more are dropped.
    pub queue: Queue,
}

/// How copies leave for a tap.
#[derive(Clone, Debug, PartialEq)]
pub enum TapSocket {
    /// Afterbay connects PUSH here.
    Push(Endpoint),
    /// Afterbay binds PUB, and subscribers connect.
    Pub {
        /// Where.
        listen: Endpoint,
        /// Permission bits of an `ipc://` name.
        listen_mode: u32,
        /// More subscribers at once are refused.
        max_subscribers: usize,
    },
}

impl Tap {
    /// What may wait for a tap where the file does not say.
    pub const QUEUE: Queue = Queue { frames: 1024, bytes: 64 << 20 };
}

impl TapSocket {
    /// Of a PUB where the file does not say.
    pub const LISTEN_MODE: u32 = 0o600;
    /// Likewise.
    pub const MAX_SUBSCRIBERS: usize = 64;
}

/// The type of a tap's socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TapSocketType {
    /// To one that listens.
    #[default]
    Push,
    /// To all that subscribe.
    Pub,
}

/// What a tap gets copies of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TapOf {
    /// Frames as they came.
    #[default]
    Received,
    /// Frames as they leave for the sinks.
    Sent,
}

/// Which of SGLang's processes reads a sink.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reads {
    /// As the connector says; where it does not, as before a detokenizer.
    #[default]
    Auto,
    /// DetokenizerManager: a joined row must end where the text is whole.
    Detokenizer,
    /// TokenizerManager.
    Tokenizer,
}

/// How rows that wait for a sink are joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coalesce {
    /// When.
    pub when: CoalesceWhen,
    /// For [`CoalesceWhen::Window`]: how long a request waits.
    pub window: Duration,
    /// Requests in a joined frame.
    pub max_rows: usize,
}

impl Default for Coalesce {
    fn default() -> Coalesce {
        Coalesce { when: CoalesceWhen::Backpressure, window: Duration::from_millis(20), max_rows: 512 }
    }
}

/// When rows that wait for a sink are joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoalesceWhen {
    /// Frames leave as they came.
    Never,
    /// What the sink has not taken while it is behind.
    Backpressure,
    /// Each request at most once in the window.
    Window,
}

impl Sink {
    /// A sink without credit, all else at its default.
    pub fn new(name: Name, connect: Endpoint) -> Sink {
        Sink {
            name,
            connect: Some(connect),
            credit: None,
            takes: Takes::Share,
            reader: Reads::Auto,
            tokenizer: None,
            queue: Queue::default(),
        }
    }
}

/// The bound of a sink's queue: whichever is reached first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queue {
    /// Frames.
    pub frames: usize,
    /// Bytes of frames.
    pub bytes: u64,
}

impl Default for Queue {
    fn default() -> Queue {
        Queue { frames: 16_384, bytes: 128 << 20 }
    }
}

/// How a stream's scheduler is told to end a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Abort {
    /// Afterbay binds PUSH here, and the scheduler's PULL connects.
    Push(Endpoint),
    /// SGLang's HTTP server is asked.
    Http {
        /// Without `/abort_request`.
        url: String,
        /// What it wants to know.
        api_key: Option<ApiKeyFrom>,
    },
}

/// Where SGLang's API key is. It is not in the configuration, which is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApiKeyFrom {
    /// In this environment variable.
    Env(String),
    /// In this file.
    File(PathBuf),
}

/// Where the scheduler's own load is read, and when it is too old.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signals {
    /// SGLang's load file in shared memory.
    pub load_snapshot: LoadSnapshot,
    /// SGLang's LoadStat publisher.
    pub load_stat: Option<Endpoint>,
    /// The URL of SGLang's Prometheus metrics.
    pub metrics: Option<String>,
    /// The scheduler's data parallel rank. `None`: that of the rendezvous file, else 0.
    pub dp_rank: Option<u32>,
    /// A load that was measured longer ago is stale.
    pub stale_after: Duration,
}

impl Default for Signals {
    fn default() -> Signals {
        Signals {
            load_snapshot: LoadSnapshot::Auto,
            load_stat: None,
            metrics: None,
            dp_rank: None,
            stale_after: Duration::from_secs(5),
        }
    }
}

/// Which load file of SGLang is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadSnapshot {
    /// That of the instance which the rendezvous file names; none without one.
    Auto,
    /// None.
    Off,
    /// This one.
    Path(PathBuf),
    /// That of this instance.
    Instance(String),
}

/// The journal, of all streams.
#[derive(Clone, Debug, PartialEq)]
pub struct Journal {
    /// Its directory, locked by one process.
    pub dir: PathBuf,
    /// What survives a power cut.
    pub sync: Sync,
    /// How often, where `sync` is [`Sync::Interval`].
    pub sync_interval: Duration,
    /// What is kept.
    pub retain: Retain,
    /// Size at which a segment is closed and the next begun.
    pub segment_bytes: u64,
    /// What happens while a frame cannot be written.
    pub on_error: OnError,
    /// A live request without a row for so long no longer holds back retention.
    pub abandon_after: Duration,
}

impl Journal {
    /// A journal in `dir`, all else at its default.
    pub fn new(dir: impl Into<PathBuf>) -> Journal {
        Journal {
            dir: dir.into(),
            sync: Sync::Interval,
            sync_interval: Duration::from_millis(50),
            retain: Retain::default(),
            segment_bytes: 256 << 20,
            on_error: OnError::Stop,
            abandon_after: Duration::from_secs(3600),
        }
    }
}

/// When the journal is made durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sync {
    /// When the kernel likes to: a power cut may lose what the kernel had not written.
    None,
    /// Every `sync_interval`: a power cut loses at most that and one fsync.
    Interval,
    /// Before a frame is forwarded.
    Always,
}

/// What the journal keeps; a segment of a live request is never removed. `None` is without a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retain {
    /// Of all streams together.
    pub bytes: Option<u64>,
    /// Since a segment was closed.
    pub age: Option<Duration>,
}

impl Default for Retain {
    fn default() -> Retain {
        Retain { bytes: Some(20 << 30), age: Some(Duration::from_secs(86_400)) }
    }
}

/// What a stream does while its journal cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnError {
    /// Stops receiving, so that the scheduler's own queue holds.
    Stop,
    /// Forwards without keeping, and says so.
    Forward,
}

/// Afterbay's own log. `--log-format` and `AFTERBAY_LOG` come before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// A filter: a level (`info`), or targets with levels (`info,wasmtime=warn`).
    pub filter: String,
    /// How lines look.
    pub format: LogFormat,
}

impl Default for Log {
    fn default() -> Log {
        Log { filter: "info".to_owned(), format: LogFormat::Auto }
    }
}

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Coloured on a terminal, plain on a pipe.
    Auto,
    /// One JSON object a line.
    Json,
}
