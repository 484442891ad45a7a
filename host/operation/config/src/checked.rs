//! The checked configuration, from which the rest of Afterbay is built. It holds no unparsed text, no units and no unset
//! variables.
//! Code can make one too: [`Stream::new`] and [`Config::new`] give the defaults of the file's keys.

mod admin;
mod attributes;
mod call;
mod plugin;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::{Endpoint, Engine, Name};
use afterbay_types::RecordDetail;

pub use admin::{Admin, AdminAddress};
pub use attributes::{AttributeRule, Pattern, Rids};
pub use call::{Breaker, Call, CallHeader, Secret};
pub use plugin::{Component, Grant, Limits, Mode, OnFault, Place, Plugin, PluginDefaults, Quarantine};

/// Everything that one process runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The streams: at least one. No two share a name or a listen endpoint.
    pub streams: Vec<Stream>,
    /// The services that plugins may ask. No two share a name.
    pub calls: Vec<Call>,
    /// The bound on frames in memory, over all streams.
    pub memory: Memory,
    /// The bounds on leases.
    pub leases: Leases,
    /// The journal of all streams.
    pub journal: Journal,
    /// The admin addresses.
    pub admin: Admin,
    /// Afterbay's own log.
    pub log: Log,
    /// The traces of requests; `None`: there are none.
    pub traces: Option<Traces>,
    /// The live copy of the journal; `None`: there is none.
    pub replicate: Option<Replicate>,
    /// The archive of requests; `None`: there is none.
    pub archive: Option<Archive>,
    /// The records of usage.
    pub usage: Usage,
    /// The address for clients that read their requests again; `None`: there is none.
    pub clients: Option<Clients>,
    /// The socket that publishes received frames; `None`: there is none.
    pub tap: Option<Tap>,
}

/// The parts of a configuration for a follower of the journal.
#[derive(Clone, Debug, PartialEq)]
pub struct FollowerConfig {
    /// The streams.
    pub streams: Vec<Stream>,
    /// The journal of all streams.
    pub journal: Journal,
    /// The log.
    pub log: Log,
    /// The traces of requests; `None`: there are none.
    pub traces: Option<Traces>,
    /// The live copy of the journal; `None`: there is none.
    pub replicate: Option<Replicate>,
    /// The archive of requests; `None`: there is none.
    pub archive: Option<Archive>,
    /// The records of usage.
    pub usage: Usage,
    /// The address for clients that read their requests again; `None`: there is none.
    pub clients: Option<Clients>,
    /// The socket that publishes received frames; `None`: there is none.
    pub tap: Option<Tap>,
}

impl Config {
    /// A configuration of one stream with its journal in `dir` and defaults for everything else.
    pub fn new(stream: Stream, dir: impl Into<PathBuf>) -> Config {
        let journal = Journal::new(dir);
        Config {
            streams: vec![stream],
            calls: Vec::new(),
            memory: Memory::default(),
            leases: Leases::default(),
            admin: Admin::in_dir(&journal.dir),
            usage: Usage::of_journal(&journal.dir),
            journal,
            log: Log::default(),
            traces: None,
            replicate: None,
            archive: None,
            clients: None,
            tap: None,
        }
    }
}

/// One scheduler output and everything that Afterbay does with its frames.
#[derive(Clone, Debug, PartialEq)]
pub struct Stream {
    /// The stream's name in logs, metrics and the journal's directory.
    pub name: Name,
    /// The engine that sends.
    pub engine: Engine,
    /// The endpoint on which Afterbay binds its PULL socket.
    pub listen: Endpoint,
    /// Permission bits of the socket file, for an `ipc://` endpoint.
    pub listen_mode: u32,
    /// The streams before this one on the same requests: their reader sends its output here. Each is another stream without
    /// an `after` of its own, and appears once in the configuration.
    pub after: Vec<Name>,
    /// The longest message, in bytes. Afterbay disconnects a sender that sends a longer one.
    pub max_message_bytes: u64,
    /// The most senders connected at once. Afterbay refuses further ones.
    pub max_peers: usize,
    /// The rule that distributes requests over several sinks.
    pub route: Option<Route>,
    /// The sinks: at least one. With several sinks, each has [`Sink::connect`].
    pub sinks: Vec<Sink>,
    /// The rule for joining rows that wait for a sink.
    pub join: Join,
    /// The part of a request that is kept before its first row.
    pub requests: Requests,
    /// The sources of the scheduler's load.
    pub signals: Signals,
    /// Afterbay binds a socket here through which it asks the scheduler to end a request. `None`: as the rendezvous file says,
    /// otherwise none.
    pub abort: Option<Endpoint>,
    /// The engine that goes on with requests whose engine has died. `None`: they end with their engine.
    pub migration: Option<Migration>,
    /// Attributes of requests by rid, for plugins. A later rule overrides an earlier one, member by member.
    pub attributes: Vec<AttributeRule>,
    /// The plugin chain, in call order.
    pub plugins: Vec<Plugin>,
}

impl Stream {
    /// A stream with one sink, `reader`, and defaults for everything else.
    pub fn new(name: Name, listen: Endpoint, connect: Endpoint) -> Stream {
        Stream {
            name,
            engine: Engine::default(),
            listen,
            listen_mode: 0o600,
            after: Vec::new(),
            max_message_bytes: 256 << 20,
            max_peers: 64,
            route: None,
            sinks: vec![Sink::new(Name::from("reader"), connect)],
            join: Join::default(),
            requests: Requests::default(),
            signals: Signals::default(),
            abort: None,
            migration: None,
            attributes: Vec::new(),
            plugins: Vec::new(),
        }
    }
}

/// The bound on frames in memory, over all streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Bytes of frames that may wait for sinks. Further frames wait in the journal.
    pub waiting: u64,
}

impl Default for Memory {
    fn default() -> Memory {
        Memory { waiting: 2 << 30 }
    }
}

/// The bounds on leases: requests that the engine goes on with after their client has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leases {
    /// The longest time of a lease. Zero: there are no leases.
    pub max_time: Duration,
    /// Leases that run at once, over all streams.
    pub max_count: usize,
}

impl Default for Leases {
    fn default() -> Leases {
        Leases { max_time: Duration::ZERO, max_count: 1024 }
    }
}

/// The rule that distributes requests over a stream's sinks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// A request goes to sink number `crc32(front end, or rid) % sinks`, counted in the order of the file.
    Crc32,
}

/// A reader that a stream sends to.
#[derive(Clone, Debug, PartialEq)]
pub struct Sink {
    /// The sink's name in logs, metrics and the journal.
    pub name: Name,
    /// The endpoint to which Afterbay connects its PUSH socket. `None` only under
    /// [`Names::FromRendezvous`](crate::Names).
    pub connect: Option<Endpoint>,
    /// The credit page, on which the reader counts the frames it has finished.
    pub credit: Option<PathBuf>,
    /// The rows that the sink gets.
    pub takes: Takes,
    /// The process that reads.
    pub reader: Reads,
    /// The model's `tokenizer.json` or its directory. Needed to join rows before a detokenizer, and where rows of tool calls stay
    /// single.
    pub tokenizer: Option<PathBuf>,
    /// Whether rows of tool calls are joined.
    pub tool_calls: ToolCalls,
    /// The bound on frames that wait in memory for this sink. Further frames wait in the journal.
    pub queue: Queue,
}

/// The rows that a sink gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Takes {
    /// All rows, or a share of the requests ([`Stream::route`]).
    #[default]
    Share,
    /// Rows that a plugin routes to this sink by its name.
    Routed,
    /// Rows of requests that a plugin lets skip the detokenizer, as rows without text. At most one sink of a
    /// stream.
    Skipped,
    /// Rows whose front end is [`Sink::connect`], which is set. A row whose front end has no such sink
    /// goes to the readers.
    FrontEnd,
}

/// Whether rows of tool calls are joined for the reader of a sink.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ToolCalls {
    /// Joined if the reader has the connector and the connector does not say otherwise; else single.
    #[default]
    Auto,
    /// They are joined: the reader parses none, or reads them right from any rows.
    Joined,
    /// A request's rows stay single from its first tool call on.
    Single,
}

/// The SGLang process that reads a sink.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reads {
    /// As the connector says. While the connector says nothing, rows are not joined.
    #[default]
    Auto,
    /// DetokenizerManager: a joined row must end where the text is whole.
    Detokenizer,
    /// TokenizerManager.
    Tokenizer,
}

/// The part of a request that is kept before its first row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    /// The part of the request's record that the journal gets.
    pub record: RecordDetail,
}

/// The rule for joining rows that wait for a sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Join {
    /// The condition.
    pub when: JoinWhen,
    /// The most requests in a joined frame.
    pub max_rows: usize,
}

impl Default for Join {
    fn default() -> Join {
        Join { when: JoinWhen::Backpressure, max_rows: 512 }
    }
}

/// The condition under which rows that wait for a sink are joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JoinWhen {
    /// Never: frames are sent unchanged.
    Never,
    /// While the sink is behind, for rows that it has not taken.
    Backpressure,
}

impl Sink {
    /// A sink without a credit page and with defaults for everything else.
    pub fn new(name: Name, connect: Endpoint) -> Sink {
        Sink {
            name,
            connect: Some(connect),
            credit: None,
            takes: Takes::Share,
            reader: Reads::Auto,
            tokenizer: None,
            tool_calls: ToolCalls::Auto,
            queue: Queue::default(),
        }
    }
}

/// The bound of a queue. The queue is full when either number is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queue {
    /// The most frames.
    pub frames: usize,
    /// The most bytes of frames.
    pub bytes: u64,
}

impl Default for Queue {
    fn default() -> Queue {
        Queue { frames: 16_384, bytes: 128 << 20 }
    }
}

/// The sources of the scheduler's load, and the age at which a load is stale.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signals {
    /// SGLang's load file in shared memory.
    pub load_snapshot: LoadSnapshot,
    /// The scheduler's data parallel rank. `None`: the rank in the rendezvous file, otherwise 0.
    pub dp_rank: Option<u32>,
    /// The age past which a load is stale.
    pub stale_after: Duration,
}

impl Default for Signals {
    fn default() -> Signals {
        Signals { load_snapshot: LoadSnapshot::Auto, dp_rank: None, stale_after: Duration::from_secs(5) }
    }
}

/// The choice of SGLang's load file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadSnapshot {
    /// The file of the instance that the rendezvous file names. No file without a rendezvous.
    Auto,
    /// No file.
    Off,
    /// The file at this path.
    Path(PathBuf),
    /// The file of this instance.
    Instance(String),
}

/// The journal, of all streams.
#[derive(Clone, Debug, PartialEq)]
pub struct Journal {
    /// The journal's directory. One process locks it.
    pub dir: PathBuf,
    /// The moment at which frames are durable.
    pub sync: Sync,
    /// The interval of [`Sync::Interval`].
    pub sync_interval: Duration,
    /// The amount of history that is retained.
    pub retain: Retain,
    /// The size at which a segment is closed and the next one begins.
    pub segment_bytes: u64,
    /// The reaction to a frame that cannot be written.
    pub on_error: OnError,
    /// The time without a row after which a live request no longer prevents the removal of segments.
    pub abandon_after: Duration,
    /// The rules by which requests are erased, in order.
    pub erase: Vec<EraseRule>,
}

/// A rule that erases requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EraseRule {
    /// The attribute and its value that a request must have. `None`: every request.
    pub attribute: Option<(String, String)>,
    /// The time since the segment with the request's end was closed.
    pub after: Duration,
}

impl Journal {
    /// A journal in `dir` with defaults for everything else.
    pub fn new(dir: impl Into<PathBuf>) -> Journal {
        Journal {
            dir: dir.into(),
            sync: Sync::Interval,
            sync_interval: Duration::from_millis(50),
            retain: Retain::default(),
            segment_bytes: 256 << 20,
            on_error: OnError::Stop,
            abandon_after: Duration::from_secs(3600),
            erase: Vec::new(),
        }
    }
}

/// The moment at which the journal makes frames durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sync {
    /// The kernel writes them at a time of its own. A power cut may lose frames that the kernel had not written.
    None,
    /// Every `sync_interval`. A power cut loses at most the frames of one interval and one fsync.
    Interval,
    /// Before a frame is forwarded.
    Always,
}

/// The amount of history that the journal retains. `None` is no limit. A segment with a live request is never removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retain {
    /// The most bytes, over all streams.
    pub bytes: Option<u64>,
    /// The most time since a segment was closed.
    pub age: Option<Duration>,
}

impl Default for Retain {
    fn default() -> Retain {
        Retain { bytes: Some(20 << 30), age: Some(Duration::from_secs(86_400)) }
    }
}

/// The reaction of a stream to a journal that cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnError {
    /// The stream stops receiving, and the scheduler's own queue holds the frames.
    Stop,
    /// The stream forwards frames without persisting them, and publishes an event.
    Forward,
}

/// Afterbay's own log. `--log-format` and `AFTERBAY_LOG` override it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// A filter: a level (`info`), or targets with levels (`info,wasmtime=warn`).
    pub filter: String,
    /// The format of the lines.
    pub format: LogFormat,
}

impl Default for Log {
    fn default() -> Log {
        Log { filter: "info".to_owned(), format: LogFormat::Auto }
    }
}

/// The format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Coloured on a terminal, plain on a pipe.
    Auto,
    /// One JSON object per line.
    Json,
}

/// The traces of requests, as OTLP over HTTP.
#[derive(Clone, Debug, PartialEq)]
pub struct Traces {
    /// The collector's URL. `/v1/traces` is added to its path.
    pub endpoint: String,
    /// The share of requests that are traced, 0 to 1.
    pub sample: f64,
}

/// The live copy of the journal in NATS JetStream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replicate {
    /// URLs of servers of one cluster.
    pub nats: Vec<String>,
    /// A credentials file of NATS. `None`: the environment has the credentials, if any are needed.
    pub credentials: Option<PathBuf>,
}

/// The archive of requests, in an object store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Archive {
    /// `s3://BUCKET[/PREFIX]`, `gs://BUCKET[/PREFIX]`, `az://CONTAINER[/PREFIX]` or `file:///PATH`, without a slash at the end.
    pub url: String,
}

/// The records of usage: one for each request that has ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Usage {
    /// The directory of the records.
    pub dir: PathBuf,
    /// Days (UTC), today included, whose records stay. `None`: all stay, and the journal keeps what is not recorded.
    pub kept_days: Option<u32>,
}

impl Usage {
    /// Without `[usage]`, the days for which "yesterday" can be answered in every time zone.
    const KEPT_DAYS: u32 = 3;

    /// The records of the journal in `dir`, if the configuration has no table `[usage]`.
    #[must_use]
    pub fn of_journal(journal: &Path) -> Usage {
        Usage { dir: Usage::dir_of(journal), kept_days: Some(Usage::KEPT_DAYS) }
    }

    /// The directory of the records of the journal in `dir`, if the configuration names no other.
    #[must_use]
    pub fn dir_of(journal: &Path) -> PathBuf {
        // The journal takes no stream whose name begins with a dot.
        journal.join(".usage")
    }
}

/// The address where clients read the tokens of their requests again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clients {
    /// The address.
    pub listen: SocketAddr,
    /// A file with the secret that signs capabilities.
    pub key_file: PathBuf,
    /// Time after the end of a request in which it can be read.
    pub keep: Duration,
    /// Connections at once.
    pub connections: usize,
}

impl Clients {
    /// The default of [`Clients::keep`].
    pub const KEEP: Duration = Duration::from_secs(3600);
    /// The default of [`Clients::connections`].
    pub const CONNECTIONS: usize = 10_000;
}

/// The engine that goes on with the requests of a stream whose engine has died.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Migration {
    /// `HOST:PORT` of the engine's HTTP server.
    pub front_end: String,
    /// A file with the key that the server asks for.
    pub api_key_file: Option<PathBuf>,
    /// Whether a request may go on with other tokens than its own engine would have made.
    pub resample: bool,
}

/// The socket that publishes each frame that the journal receives, for observers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tap {
    /// The endpoint that subscribers connect to.
    pub listen: Endpoint,
    /// Permission bits of the socket file, for an `ipc://` endpoint.
    pub listen_mode: u32,
}

impl Tap {
    /// The default permission bits of the socket file.
    pub const LISTEN_MODE: u32 = 0o600;
}
