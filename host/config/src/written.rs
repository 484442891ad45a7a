//! The config as written: every key that could be read, with its place. Nothing is compared or defaulted yet.

use std::time::Duration;

use serde_json::{Map, Value as Json};

use crate::keys;
use crate::place::{Place, Placed};
use crate::reader::Reader;
use crate::{
    CoalesceWhen, Engine, Grant, LogFormat, OnError, OnFault, Reads, Route, SinkKind, State, Sync, TapOf,
    TapSocketType,
};

type Written<T> = Option<Placed<T>>;

pub(crate) struct Config {
    pub streams: Vec<Stream>,
    pub memory: Option<Memory>,
    pub journal: Option<Journal>,
    pub admin: Option<Admin>,
    pub log: Option<Log>,
}

pub(crate) struct Stream {
    pub place: Place,
    pub name: Written<String>,
    pub engine: Written<Engine>,
    pub layout: Written<String>,
    pub listen: Written<String>,
    pub listen_mode: Written<String>,
    pub after: Vec<Placed<String>>,
    pub max_message: Written<u64>,
    pub max_peers: Written<u64>,
    pub route: Written<Route>,
    pub sinks: Vec<Sink>,
    pub coalesce: Option<Coalesce>,
    pub signals: Option<Signals>,
    pub abort: Option<Abort>,
    pub attributes: Vec<AttributeRule>,
    pub plugins: Vec<Plugin>,
}

pub(crate) struct Abort {
    pub place: Place,
    pub push: Written<String>,
    pub http: Written<String>,
    pub api_key_env: Written<String>,
    pub api_key_file: Written<String>,
}

pub(crate) struct Signals {
    pub load_snapshot: Written<String>,
    pub load_stat: Written<String>,
    pub metrics: Written<String>,
    pub dp_rank: Written<u64>,
    pub stale_after: Written<Duration>,
}

pub(crate) struct Coalesce {
    pub when: Written<CoalesceWhen>,
    pub window: Written<Duration>,
    pub max_rows: Written<u64>,
}

pub(crate) struct Sink {
    pub place: Place,
    pub name: Written<String>,
    pub kind: Written<SinkKind>,
    pub of: Written<TapOf>,
    pub socket: Written<TapSocketType>,
    pub connect: Written<String>,
    pub listen: Written<String>,
    pub listen_mode: Written<String>,
    pub max_subscribers: Written<u64>,
    pub credit: Written<String>,
    pub reader: Written<Reads>,
    pub tokenizer: Written<String>,
    pub queue_frames: Written<u64>,
    pub queue_bytes: Written<u64>,
}

pub(crate) struct AttributeRule {
    pub place: Place,
    pub prefix: Written<String>,
    pub pattern: Written<String>,
    pub set: Written<Map<String, Json>>,
}

pub(crate) struct Plugin {
    pub place: Place,
    pub name: Written<String>,
    pub component: Written<String>,
    pub sha256: Written<String>,
    /// Whether it is a shadow.
    pub mode: Written<bool>,
    pub shadow_of: Written<String>,
    pub state: Written<State>,
    pub memory: Written<u64>,
    pub deadline: Written<Duration>,
    pub on_fault: Written<OnFault>,
    pub quarantine_faults: Written<u64>,
    pub quarantine_within: Written<Duration>,
    pub hold: Written<Duration>,
    pub grant: Option<Vec<Placed<Grant>>>,
    pub settings: Written<Map<String, Json>>,
}

pub(crate) struct Memory {
    pub waiting: Written<u64>,
}

pub(crate) struct Journal {
    pub dir: Written<String>,
    pub sync: Written<Sync>,
    pub sync_interval: Written<Duration>,
    pub retain_bytes: Written<Option<u64>>,
    pub retain_age: Written<Option<Duration>>,
    pub segment: Written<u64>,
    pub on_error: Written<OnError>,
    pub abandon_after: Written<Duration>,
}

pub(crate) struct Admin {
    pub listen: Vec<Placed<String>>,
    pub allow_remote: Written<bool>,
    pub token_file: Written<String>,
}

pub(crate) struct Log {
    pub filter: Written<String>,
    pub format: Written<LogFormat>,
}

impl Config {
    pub(crate) fn read(root: &Reader<'_, '_>) -> Config {
        Config {
            streams: root.tables("stream", &keys::STREAM).iter().map(Stream::read).collect(),
            memory: root.table("memory", &keys::MEMORY).as_ref().map(Memory::read),
            journal: root.table("journal", &keys::JOURNAL).as_ref().map(Journal::read),
            admin: root.table("admin", &keys::ADMIN).as_ref().map(Admin::read),
            log: root.table("log", &keys::LOG).as_ref().map(Log::read),
        }
    }
}

impl Stream {
    fn read(table: &Reader<'_, '_>) -> Stream {
        Stream {
            place: table.place.clone(),
            name: table.text("name"),
            engine: table.word("engine", &[("sglang", Engine::Sglang)]),
            layout: table.text("layout"),
            listen: table.text("listen"),
            listen_mode: table.text("listen_mode"),
            after: table.texts("after"),
            max_message: table.size("max_message"),
            max_peers: table.integer("max_peers"),
            route: table.word("route", &[("crc32", Route::Crc32)]),
            sinks: table.tables("sink", &keys::SINK).iter().map(Sink::read).collect(),
            coalesce: table.table("coalesce", &keys::COALESCE).as_ref().map(Coalesce::read),
            signals: table.table("signals", &keys::SIGNALS).as_ref().map(Signals::read),
            abort: table.table("abort", &keys::ABORT).as_ref().map(Abort::read),
            attributes: table.tables("attribute", &keys::ATTRIBUTE).iter().map(AttributeRule::read).collect(),
            plugins: table.tables("plugin", &keys::PLUGIN).iter().map(Plugin::read).collect(),
        }
    }
}

impl Coalesce {
    fn read(table: &Reader<'_, '_>) -> Coalesce {
        let whens = [
            ("never", CoalesceWhen::Never),
            ("backpressure", CoalesceWhen::Backpressure),
            ("window", CoalesceWhen::Window),
        ];
        Coalesce {
            when: table.word("when", &whens),
            window: table.time("window"),
            max_rows: table.integer("max_rows"),
        }
    }
}

impl Sink {
    fn read(table: &Reader<'_, '_>) -> Sink {
        let queue = table.table("queue", &keys::QUEUE);
        Sink {
            place: table.place.clone(),
            name: table.text("name"),
            kind: table.word(
                "kind",
                &[
                    ("reader", SinkKind::Reader),
                    ("tap", SinkKind::Tap),
                    ("routed", SinkKind::Routed),
                    ("skipped", SinkKind::Skipped),
                    ("worker", SinkKind::Worker),
                ],
            ),
            of: table.word("of", &[("received", TapOf::Received), ("sent", TapOf::Sent)]),
            socket: table.word("socket", &[("push", TapSocketType::Push), ("pub", TapSocketType::Pub)]),
            connect: table.text("connect"),
            listen: table.text("listen"),
            listen_mode: table.text("listen_mode"),
            max_subscribers: table.integer("max_subscribers"),
            credit: table.text("credit"),
            reader: table.word(
                "reader",
                &[
                    ("auto", Reads::Auto),
                    ("detokenizer", Reads::Detokenizer),
                    ("tokenizer", Reads::Tokenizer),
                ],
            ),
            tokenizer: table.text("tokenizer"),
            queue_frames: queue.as_ref().and_then(|queue| queue.integer("frames")),
            queue_bytes: queue.as_ref().and_then(|queue| queue.size("bytes")),
        }
    }
}

impl Abort {
    fn read(table: &Reader<'_, '_>) -> Abort {
        Abort {
            place: table.place.clone(),
            push: table.text("push"),
            http: table.text("http"),
            api_key_env: table.text("api_key_env"),
            api_key_file: table.text("api_key_file"),
        }
    }
}

impl Signals {
    fn read(table: &Reader<'_, '_>) -> Signals {
        Signals {
            load_snapshot: table.text("load_snapshot"),
            load_stat: table.text("load_stat"),
            metrics: table.text("metrics"),
            dp_rank: table.integer("dp_rank"),
            stale_after: table.time("stale_after"),
        }
    }
}

impl AttributeRule {
    fn read(table: &Reader<'_, '_>) -> AttributeRule {
        AttributeRule {
            place: table.place.clone(),
            prefix: table.text("prefix"),
            pattern: table.text("pattern"),
            set: table.json("set"),
        }
    }
}

impl Plugin {
    fn read(table: &Reader<'_, '_>) -> Plugin {
        let limits = table.table("limits", &keys::LIMITS);
        let quarantine = table.table("quarantine", &keys::QUARANTINE);
        Plugin {
            place: table.place.clone(),
            name: table.text("name"),
            component: table.text("component"),
            sha256: table.text("sha256"),
            mode: table.word("mode", &[("live", false), ("shadow", true)]),
            shadow_of: table.text("shadow_of"),
            state: table.word(
                "state",
                &[("migrate", State::Migrate), ("replay", State::Replay), ("drain", State::Drain)],
            ),
            memory: limits.as_ref().and_then(|limits| limits.size("memory")),
            deadline: limits.as_ref().and_then(|limits| limits.time("deadline")),
            on_fault: table.word(
                "on_fault",
                &[("bypass", OnFault::Bypass), ("hold", OnFault::Hold), ("terminate", OnFault::Terminate)],
            ),
            quarantine_faults: quarantine.as_ref().and_then(|quarantine| quarantine.integer("faults")),
            quarantine_within: quarantine.as_ref().and_then(|quarantine| quarantine.time("within")),
            hold: limits.as_ref().and_then(|limits| limits.time("hold")),
            grant: table.words(
                "grant",
                &[
                    ("log", Grant::Log),
                    ("metrics", Grant::Metrics),
                    ("tokenizer", Grant::Tokenizer),
                    ("signals", Grant::Signals),
                    ("request", Grant::Request),
                ],
            ),
            settings: table.json("settings"),
        }
    }
}

impl Memory {
    fn read(table: &Reader<'_, '_>) -> Memory {
        Memory { waiting: table.size("waiting") }
    }
}

impl Journal {
    fn read(table: &Reader<'_, '_>) -> Journal {
        let retain = table.table("retain", &keys::RETAIN);
        Journal {
            dir: table.text("dir"),
            sync: table.word(
                "sync",
                &[("none", Sync::None), ("interval", Sync::Interval), ("always", Sync::Always)],
            ),
            sync_interval: table.time("sync_interval"),
            retain_bytes: retain.as_ref().and_then(|retain| retain.size_or_unlimited("bytes")),
            retain_age: retain.as_ref().and_then(|retain| retain.time_or_unlimited("age")),
            segment: table.size("segment"),
            on_error: table.word("on_error", &[("stop", OnError::Stop), ("forward", OnError::Forward)]),
            abandon_after: table.time("abandon_after"),
        }
    }
}

impl Admin {
    fn read(table: &Reader<'_, '_>) -> Admin {
        Admin {
            listen: table.texts("listen"),
            allow_remote: table.boolean("allow_remote"),
            token_file: table.text("token_file"),
        }
    }
}

impl Log {
    fn read(table: &Reader<'_, '_>) -> Log {
        Log {
            filter: table.text("filter"),
            format: table.word("format", &[("auto", LogFormat::Auto), ("json", LogFormat::Json)]),
        }
    }
}
