//! The config as written: every value of the file, with its location. A value is compared with its bounds, and nothing else. A table that needs no
//! further check has its defaults already.
//! `keys` describes each of these keys.

use std::time::Duration;

use serde_json::{Map, Value as Json};

use afterbay_types::RecordDetail;

use crate::location::{Located, Location, value};
use crate::reader::Reader;
use crate::{
    Breaker, Engine, Grant, Join, JoinWhen, Leases, LogFormat, Memory, OnError, OnFault, Quarantine, Queue,
    Reads, Requests, Route, Sync, Takes, ToolCalls, bounds,
};

/// The value of a key. `None` if it is absent or could not be read.
type Value<T> = Option<Located<T>>;

/// A table of the file. The default is an absent table.
pub(crate) trait Table: Default {
    fn read(table: &Reader<'_, '_>) -> Self;

    fn optional(parent: &Reader<'_, '_>, key: &str) -> Option<Self> {
        parent.table(key).as_ref().map(Self::read)
    }

    fn one(parent: &Reader<'_, '_>, key: &str) -> Self {
        Self::optional(parent, key).unwrap_or_default()
    }

    fn each(parent: &Reader<'_, '_>, key: &str) -> Vec<Self> {
        parent.tables(key).iter().map(Self::read).collect()
    }
}

/// Declares tables. Each field has its type and the way in which it is read.
macro_rules! tables {
    ($($table:ident { $($field:ident: $type:ty = $read:expr,)* })*) => {$(
        #[derive(Default)]
        pub(crate) struct $table {
            $(pub $field: $type,)*
        }

        impl Table for $table {
            fn read(table: &Reader<'_, '_>) -> $table {
                $table { $($field: ($read as fn(&Reader<'_, '_>) -> $type)(table),)* }
            }
        }
    )*};
}

tables! {
    Config {
        streams: Vec<Stream> = |root| Stream::each(root, "stream"),
        calls: Vec<Call> = |root| Call::each(root, "call"),
        memory: Memory = |root| Memory::one(root, "memory"),
        leases: Leases = |root| Leases::one(root, "leases"),
        plugins: Option<Plugins> = |root| Plugins::optional(root, "plugins"),
        journal: Journal = |root| Journal::one(root, "journal"),
        admin: Admin = |root| Admin::one(root, "admin"),
        log: Log = |root| Log::one(root, "log"),
        traces: Option<Traces> = |root| Traces::optional(root, "traces"),
        replicate: Option<Replicate> = |root| Replicate::optional(root, "replicate"),
        archive: Option<Archive> = |root| Archive::optional(root, "archive"),
        usage: Option<Usage> = |root| Usage::optional(root, "usage"),
        clients: Option<Clients> = |root| Clients::optional(root, "clients"),
        tap: Option<Tap> = |root| Tap::optional(root, "tap"),
    }

    Stream {
        location: Location = |stream| stream.location.clone(),
        name: Value<String> = |stream| stream.text("name"),
        engine: Value<Engine> = |stream| stream.word("engine", &Engine::WORDS),
        listen: Value<String> = |stream| stream.text("listen"),
        listen_mode: Value<String> = |stream| stream.text("listen_mode"),
        after: Vec<Located<String>> = |stream| stream.texts("after"),
        max_message: Value<u64> = |stream| stream.size("max_message", bounds::MAX_MESSAGE_BYTES),
        max_peers: Value<usize> = |stream| stream.integer("max_peers", bounds::MAX_PEERS),
        route: Value<Route> = |stream| stream.word("route", &[("crc32", Route::Crc32)]),
        sinks: Vec<Sink> = |stream| Sink::each(stream, "sink"),
        join: Join = |stream| Join::one(stream, "join"),
        requests: Requests = |stream| Requests::one(stream, "requests"),
        signals: Signals = |stream| Signals::one(stream, "signals"),
        abort: Option<Abort> = |stream| Abort::optional(stream, "abort"),
        migration: Option<Migration> = |stream| Migration::optional(stream, "migration"),
        attributes: Vec<AttributeRule> = |stream| AttributeRule::each(stream, "attribute"),
        plugins: Vec<Plugin> = |stream| Plugin::each(stream, "plugin"),
    }


    Sink {
        location: Location = |sink| sink.location.clone(),
        name: Value<String> = |sink| sink.text("name"),
        kind: Value<Takes> = |sink| sink.word("kind", &[
            ("reader", Takes::Share),
            ("routed", Takes::Routed),
            ("skipped", Takes::Skipped),
            ("front-end", Takes::FrontEnd),
        ]),
        connect: Value<String> = |sink| sink.text("connect"),
        credit: Value<String> = |sink| sink.text("credit"),
        reader: Value<Reads> = |sink| sink.word("reader", &[
            ("auto", Reads::Auto),
            ("detokenizer", Reads::Detokenizer),
            ("tokenizer", Reads::Tokenizer),
        ]),
        tokenizer: Value<String> = |sink| sink.text("tokenizer"),
        tool_calls: Value<ToolCalls> = |sink| sink.word("tool_calls", &[
            ("auto", ToolCalls::Auto),
            ("joined", ToolCalls::Joined),
            ("single", ToolCalls::Single),
        ]),
        queue: Queue = |sink| Queue::one(sink, "queue"),
    }


    Abort {
        push: Value<String> = |abort| abort.text("push"),
    }

    Migration {
        location: Location = |migration| migration.location.clone(),
        front_end: Value<String> = |migration| migration.text("front_end"),
        api_key_file: Value<String> = |migration| migration.text("api_key_file"),
        resample: Value<bool> = |migration| migration.boolean("resample"),
    }

    Signals {
        load_snapshot: Value<String> = |signals| signals.text("load_snapshot"),
        dp_rank: Value<usize> = |signals| signals.integer("dp_rank", bounds::DP_RANK),
        stale_after: Value<Duration> = |signals| signals.time("stale_after", bounds::STALE_AFTER),
    }

    AttributeRule {
        location: Location = |rule| rule.location.clone(),
        prefix: Value<String> = |rule| rule.text("prefix"),
        pattern: Value<String> = |rule| rule.text("pattern"),
        set: Value<Map<String, Json>> = |rule| rule.json("set"),
        has_set: bool = |rule| rule.has("set"),
    }

    Plugins {
        allow: Vec<Located<String>> = |plugins| plugins.texts("allow"),
    }

    Plugin {
        location: Location = |plugin| plugin.location.clone(),
        name: Value<String> = |plugin| plugin.text("name"),
        component: Value<String> = |plugin| plugin.text("component"),
        sha256: Value<String> = |plugin| plugin.text("sha256"),
        is_shadow: Value<bool> = |plugin| plugin.word("mode", &[("live", false), ("shadow", true)]),
        shadow_of: Value<String> = |plugin| plugin.text("shadow_of"),
        limits: Limits = |plugin| Limits::one(plugin, "limits"),
        on_fault: Value<OnFault> = |plugin| plugin.word("on_fault", &[
            ("bypass", OnFault::Bypass),
            ("terminate", OnFault::Terminate),
        ]),
        quarantine: Quarantine = |plugin| Quarantine::one(plugin, "quarantine"),
        grant: Option<Vec<Located<Grant>>> = |plugin| plugin.words("grant", &Grant::WORDS),
        settings: Value<Map<String, Json>> = |plugin| plugin.json("settings"),
    }

    PluginDefaults {
        engines: Option<Vec<Located<Engine>>> = |plugin| plugin.words("engines", &Engine::WORDS),
        grant: Option<Vec<Located<Grant>>> = |plugin| plugin.words("grant", &Grant::WORDS),
        limits: Limits = |plugin| Limits::one(plugin, "limits"),
    }

    Limits {
        memory: Value<u64> = |limits| limits.size("memory", bounds::PLUGIN_MEMORY_BYTES),
        deadline: Value<Duration> = |limits| limits.time("deadline", bounds::PLUGIN_DEADLINE),
        hold: Value<Duration> = |limits| limits.time("hold", bounds::PLUGIN_HOLD),
    }


    Call {
        location: Location = |call| call.location.clone(),
        name: Value<String> = |call| call.text("name"),
        url: Value<String> = |call| call.text("url"),
        headers: Value<Map<String, Json>> = |call| call.json("headers"),
        timeout: Value<Duration> = |call| call.time("timeout", bounds::CALL_TIMEOUT),
        max_in_flight: Value<usize> = |call| call.integer("max_in_flight", bounds::CALLS_IN_FLIGHT),
        max_body: Value<u64> = |call| call.size("max_body", bounds::CALL_BODY_BYTES),
        breaker: Breaker = |call| Breaker::one(call, "breaker"),
    }



    Journal {
        dir: Value<String> = |journal| journal.text("dir"),
        sync: Value<Sync> = |journal| journal.word("sync", &[
            ("none", Sync::None),
            ("interval", Sync::Interval),
            ("always", Sync::Always),
        ]),
        sync_interval: Value<Duration> = |journal| journal.time("sync_interval", bounds::SYNC_INTERVAL),
        retain: Retain = |journal| Retain::one(journal, "retain"),
        segment: Value<u64> = |journal| journal.size("segment", bounds::SEGMENT_BYTES),
        on_error: Value<OnError> = |journal| journal.word("on_error", &[
            ("stop", OnError::Stop),
            ("forward", OnError::Forward),
        ]),
        abandon_after: Value<Duration> = |journal| journal.time("abandon_after", bounds::ABANDON_AFTER),
        erase: Vec<EraseRule> = |journal| EraseRule::each(journal, "erase"),
    }

    EraseRule {
        location: Location = |rule| rule.location.clone(),
        attribute: Value<String> = |rule| rule.text("attribute"),
        value: Value<String> = |rule| rule.text("value"),
        after: Value<Duration> = |rule| rule.time("after", bounds::ERASE_AFTER),
    }

    Retain {
        bytes: Value<Option<u64>> = |retain| retain.size_or_unlimited("bytes"),
        age: Value<Option<Duration>> = |retain| retain.time_or_unlimited("age"),
    }

    Admin {
        listen: Vec<Located<String>> = |admin| admin.texts("listen"),
        allow_remote: Value<bool> = |admin| admin.boolean("allow_remote"),
        token_file: Value<String> = |admin| admin.text("token_file"),
    }

    Traces {
        endpoint: Value<String> = |traces| traces.text("endpoint"),
        sample: Value<f64> = |traces| traces.number("sample"),
    }

    Replicate {
        nats: Value<String> = |replicate| replicate.text("nats"),
        credentials: Value<String> = |replicate| replicate.text("credentials"),
    }

    Archive {
        url: Value<String> = |archive| archive.text("url"),
    }

    Usage {
        dir: Value<String> = |usage| usage.text("dir"),
    }

    Clients {
        listen: Value<String> = |clients| clients.text("listen"),
        key_file: Value<String> = |clients| clients.text("key_file"),
        keep: Value<Duration> = |clients| clients.time("keep", bounds::CLIENTS_KEEP),
        connections: Value<usize> = |clients| clients.integer("connections", bounds::CLIENTS_CONNECTIONS),
    }

    Tap {
        listen: Value<String> = |tap| tap.text("listen"),
        listen_mode: Value<String> = |tap| tap.text("listen_mode"),
    }

    Log {
        filter: Value<String> = |log| log.text("filter"),
        format: Value<LogFormat> = |log| log.word("format", &[("auto", LogFormat::Auto), ("json", LogFormat::Json)]),
    }
}

/// Declares how checked tables are read that need nothing but their own keys.
macro_rules! checked {
    ($($table:ident { $($field:ident = $read:expr,)* })*) => {$(
        impl Table for $table {
            fn read(table: &Reader<'_, '_>) -> $table {
                let default = $table::default();
                $table { $($field: value(&$read(table)).unwrap_or(default.$field),)* }
            }
        }
    )*};
}

checked! {
    Requests {
        record = |requests: &Reader<'_, '_>| requests.word("record", &RecordDetail::WORDS),
    }

    Join {
        when = |join: &Reader<'_, '_>| join.word("when", &[
            ("never", JoinWhen::Never),
            ("backpressure", JoinWhen::Backpressure),
        ]),
        max_rows = |join: &Reader<'_, '_>| join.integer("max_rows", bounds::JOIN_ROWS),
    }
    Queue {
        frames = |queue: &Reader<'_, '_>| queue.integer("frames", bounds::QUEUE_FRAMES),
        bytes = |queue: &Reader<'_, '_>| queue.size("bytes", bounds::QUEUE_BYTES),
    }
    Quarantine {
        faults = |quarantine: &Reader<'_, '_>| quarantine.integer("faults", bounds::QUARANTINE_FAULTS),
        within = |quarantine: &Reader<'_, '_>| quarantine.time("within", bounds::QUARANTINE_WITHIN),
    }
    Breaker {
        failures = |breaker: &Reader<'_, '_>| breaker.integer("failures", bounds::BREAKER_FAILURES),
        within = |breaker: &Reader<'_, '_>| breaker.time("within", bounds::BREAKER_WITHIN),
        open = |breaker: &Reader<'_, '_>| breaker.time("open", bounds::BREAKER_OPEN),
    }
    Leases {
        max_time = |leases: &Reader<'_, '_>| leases.time("max_time", bounds::LEASE_TIME),
        max_count = |leases: &Reader<'_, '_>| leases.integer("max_count", bounds::LEASES),
    }
    Memory {
        waiting = |memory: &Reader<'_, '_>| memory.size("waiting", bounds::MEMORY_WAITING),
    }
}
