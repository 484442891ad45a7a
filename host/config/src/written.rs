//! The config as written: every value of the file, with its location. Nothing is compared and no default is filled in yet.
//! `keys` describes each of these keys.

use std::time::Duration;

use serde_json::{Map, Value as Json};

use crate::keys;
use crate::location::{Located, Location};
use crate::reader::Reader;
use crate::{
    CoalesceWhen, Grant, LogFormat, OnError, OnFault, Reads, Route, SinkKind, Sync, TapOf, TapSocketType,
};

pub(crate) struct Config {
    pub streams: Vec<Stream>,
    pub memory: Option<Memory>,
    pub journal: Option<Journal>,
    pub admin: Option<Admin>,
    pub log: Option<Log>,
}

pub(crate) struct Stream {
    pub location: Location,
    pub name: Option<Located<String>>,
    pub layout: Option<Located<String>>,
    pub listen: Option<Located<String>>,
    pub listen_mode: Option<Located<String>>,
    pub after: Vec<Located<String>>,
    pub max_message: Option<Located<u64>>,
    pub max_peers: Option<Located<u64>>,
    pub route: Option<Located<Route>>,
    pub sinks: Vec<Sink>,
    pub coalesce: Option<Coalesce>,
    pub signals: Option<Signals>,
    pub abort: Option<Abort>,
    pub attributes: Vec<AttributeRule>,
    pub plugins: Vec<Plugin>,
}

pub(crate) struct Abort {
    pub location: Location,
    pub push: Option<Located<String>>,
    pub http: Option<Located<String>>,
    pub api_key_env: Option<Located<String>>,
    pub api_key_file: Option<Located<String>>,
}

pub(crate) struct Signals {
    pub load_snapshot: Option<Located<String>>,
    pub load_stat: Option<Located<String>>,
    pub metrics: Option<Located<String>>,
    pub dp_rank: Option<Located<u64>>,
    pub stale_after: Option<Located<Duration>>,
}

pub(crate) struct Coalesce {
    pub when: Option<Located<CoalesceWhen>>,
    pub window: Option<Located<Duration>>,
    pub max_rows: Option<Located<u64>>,
}

pub(crate) struct Sink {
    pub location: Location,
    pub name: Option<Located<String>>,
    pub kind: Option<Located<SinkKind>>,
    pub of: Option<Located<TapOf>>,
    pub socket: Option<Located<TapSocketType>>,
    pub connect: Option<Located<String>>,
    pub listen: Option<Located<String>>,
    pub listen_mode: Option<Located<String>>,
    pub max_subscribers: Option<Located<u64>>,
    pub credit: Option<Located<String>>,
    pub reader: Option<Located<Reads>>,
    pub tokenizer: Option<Located<String>>,
    pub queue_frames: Option<Located<u64>>,
    pub queue_bytes: Option<Located<u64>>,
}

pub(crate) struct AttributeRule {
    pub location: Location,
    pub prefix: Option<Located<String>>,
    pub pattern: Option<Located<String>>,
    pub set: Option<Located<Map<String, Json>>>,
}

pub(crate) struct Plugin {
    pub location: Location,
    pub name: Option<Located<String>>,
    pub component: Option<Located<String>>,
    pub sha256: Option<Located<String>>,
    /// True for `"shadow"`.
    pub mode: Option<Located<bool>>,
    pub shadow_of: Option<Located<String>>,
    pub memory: Option<Located<u64>>,
    pub deadline: Option<Located<Duration>>,
    pub on_fault: Option<Located<OnFault>>,
    pub quarantine_faults: Option<Located<u64>>,
    pub quarantine_within: Option<Located<Duration>>,
    pub hold: Option<Located<Duration>>,
    pub grant: Option<Vec<Located<Grant>>>,
    pub settings: Option<Located<Map<String, Json>>>,
}

pub(crate) struct Memory {
    pub waiting: Option<Located<u64>>,
}

pub(crate) struct Journal {
    pub dir: Option<Located<String>>,
    pub sync: Option<Located<Sync>>,
    pub sync_interval: Option<Located<Duration>>,
    pub retain_bytes: Option<Located<Option<u64>>>,
    pub retain_age: Option<Located<Option<Duration>>>,
    pub segment: Option<Located<u64>>,
    pub on_error: Option<Located<OnError>>,
    pub abandon_after: Option<Located<Duration>>,
}

pub(crate) struct Admin {
    pub listen: Vec<Located<String>>,
    pub allow_remote: Option<Located<bool>>,
    pub token_file: Option<Located<String>>,
}

pub(crate) struct Log {
    pub filter: Option<Located<String>>,
    pub format: Option<Located<LogFormat>>,
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
            location: table.location.clone(),
            name: table.text("name"),
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
            location: table.location.clone(),
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
            location: table.location.clone(),
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
            location: table.location.clone(),
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
            location: table.location.clone(),
            name: table.text("name"),
            component: table.text("component"),
            sha256: table.text("sha256"),
            mode: table.word("mode", &[("live", false), ("shadow", true)]),
            shadow_of: table.text("shadow_of"),
            memory: limits.as_ref().and_then(|limits| limits.size("memory")),
            deadline: limits.as_ref().and_then(|limits| limits.time("deadline")),
            on_fault: table.word(
                "on_fault",
                &[("bypass", OnFault::Bypass), ("retry", OnFault::Retry), ("terminate", OnFault::Terminate)],
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
