//! Every key of the file, declared once. The reader accepts these keys, an unknown key is compared with them, and the
//! reference config and the documentation are made from them. The file is one table in the order of the reference, and long
//! for that reason alone.

mod calls;
mod plugins;

pub(crate) use calls::{BREAKER, CALL};
pub(crate) use plugins::{ATTRIBUTE, LIMITS, PLUGIN, PLUGIN_DEFAULTS, PLUGINS, QUARANTINE};

/// Whether a key must be present.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// Its absence is an error.
    Required,
    /// Its absence is an error, except under [`Names::FromRendezvous`](crate::Names::FromRendezvous) and for a sink that
    /// listens.
    Name,
    /// `example` is its default.
    Default,
    /// It has no default. `example` is a possible value.
    Optional,
    /// It has no default and belongs to another key. The reference config mentions it in a comment only.
    Mentioned,
}

/// One key of a table.
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// Whether it must be present.
    pub need: Need,
    /// A value in TOML.
    pub example: &'static str,
    /// Its meaning, unit and bound, for the operator.
    pub doc: &'static str,
    /// The keys of an inline table.
    pub inner: Option<&'static Table>,
}

/// The keys of one table, in the order of the reference.
pub struct Table {
    /// The keys.
    pub keys: &'static [Key],
}

impl Table {
    pub(crate) fn key(&self, name: &str) -> Option<&'static Key> {
        self.keys.iter().find(|key| key.name == name)
    }
}

const fn key(name: &'static str, need: Need, example: &'static str, doc: &'static str) -> Key {
    Key { name, need, example, doc, inner: None }
}

const fn inline(name: &'static str, example: &'static str, doc: &'static str, inner: &'static Table) -> Key {
    Key { name, need: Need::Default, example, doc, inner: Some(inner) }
}

use Need::{Default, Mentioned, Name, Optional, Required};

/// The top level of the file.
pub(crate) static ROOT: Table = Table {
    keys: &[
        key(
            "stream",
            Required,
            "",
            "One scheduler output (one DP rank) and what Afterbay does with it. At least one.",
        ),
        key("call", Optional, "", "An HTTP service that plugins with the grant \"call\" may ask. Up to 64."),
        key("journal", Required, "", "The journal: every frame is written to it before it is forwarded."),
        key("memory", Optional, "", "The memory bound of all streams together."),
        key("plugins", Optional, "", "The components that may run. Without this table, any component may."),
        key(
            "admin",
            Optional,
            "",
            "The admin addresses: /metrics, /healthz, /readyz, /v1/signals, /v1/plugins and POST /v1/requests/RID/abort.",
        ),
        key(
            "log",
            Optional,
            "",
            "Afterbay's own log, on standard error. A pipe that nobody reads stops nothing: past 1 MiB of waiting lines, lines are dropped, counted, and named by LogLinesDropped.",
        ),
        key("traces", Optional, "", "OpenTelemetry traces of requests. Without this table, there are none."),
        key(
            "replicate",
            Optional,
            "",
            "A live copy of the journal in NATS JetStream. Without this table, there is none.",
        ),
        key(
            "archive",
            Optional,
            "",
            "The archive: every request that has ended, as Parquet in an object store. Without this table, there is none.",
        ),
        key(
            "usage",
            Optional,
            "",
            "A record of tokens for each request that has ended, for bills. Without this table, records stay for three days (UTC).",
        ),
    ],
};

pub(crate) static STREAM: Table = Table {
    keys: &[
        key(
            "name",
            Required,
            "\"decode-0\"",
            "The stream's name in logs, metrics and the journal's directory: 1 to 64 of a-z 0-9 - _ ., beginning with a letter or a\n\
             digit.",
        ),
        key(
            "engine",
            Default,
            "\"sglang\"",
            "The engine whose scheduler sends: \"sglang\" or \"vllm\". The sink of a vLLM stream is the front end (API server).",
        ),
        key(
            "layout",
            Default,
            "\"auto\"",
            "For SGLang: the position of the columns in a msgpack frame: \"auto\" (by the length of the array), a version like \"0.5.23\", or the\n\
             path of a layout file. Pickle frames need none.",
        ),
        key(
            "listen",
            Required,
            "\"ipc:///run/afterbay/decode-0\"",
            "Afterbay binds a PULL socket here, and the scheduler connects: ipc:///PATH or tcp://HOST:PORT. A missing directory of\n\
             PATH is created.",
        ),
        key(
            "listen_mode",
            Default,
            "\"0600\"",
            "Octal permissions of the socket file, for ipc://. 0600 to 0777.",
        ),
        key(
            "after",
            Default,
            "[]",
            "The streams whose reader sends its output here: this stream lies between their detokenizer and the tokenizer\n\
             (AFTERBAY_TEXT_INGRESS). One name, or several where DP ranks with a stream each share one detokenizer. With\n\
             --rendezvous this stream has a rendezvous file of its own: the file of the first stream named here, with \".text\"\n\
             appended.",
        ),
        key(
            "max_message",
            Default,
            "\"256MiB\"",
            "The longest message. Afterbay disconnects a sender that sends a longer one. 64KiB to 1GiB.",
        ),
        key(
            "max_peers",
            Default,
            "64",
            "The most senders connected at once. Further ones are refused. 1 to 4096.",
        ),
        key(
            "route",
            Optional,
            "\"crc32\"",
            "Needed with several readers: each request goes to one of them, by crc32 of its http_worker_ipc or rid, as in SGLang's\n\
             MultiDetokenizerRouter. Messages without rows go to all.",
        ),
        key(
            "sink",
            Required,
            "",
            "A reader that gets the stream, or a tap that gets copies. Several readers need a route. Up to 64 readers and 16 taps.",
        ),
        key(
            "join",
            Optional,
            "",
            "The rule for joining rows that wait for a sink. A joined row has the ids, text and logprobs of the rows that it replaces.",
        ),
        key(
            "abort",
            Optional,
            "",
            "The way to ask the scheduler to end a request: for afterbay abort, and for a request that a plugin has finished. With\n\
             the SGLang connector this is set up automatically (AFTERBAY_ABORT).",
        ),
        key(
            "signals",
            Optional,
            "",
            "The sources of the scheduler's own load, for /metrics, /v1/signals and plugins.",
        ),
        key(
            "attribute",
            Optional,
            "",
            "Attributes of requests, for plugins. A rule selects requests by rid. A later rule overrides an earlier one, member by\n\
             member, and PUT /v1/requests/RID/attributes overrides every rule. Up to 64.",
        ),
        key(
            "plugin",
            Optional,
            "",
            "A WebAssembly component that sees every batch and may change it. Plugins are called in the order of the file. Up to\n\
             16.",
        ),
    ],
};

pub(crate) static JOIN: Table = Table {
    keys: &[
        key(
            "when",
            Default,
            "\"backpressure\"",
            "\"backpressure\": rows are joined only while the sink is behind. \"never\": frames are sent unchanged.",
        ),
        key(
            "max_rows",
            Default,
            "512",
            "The most requests in a joined frame. It bounds the time for which one frame occupies the reader. 16 to 65536.",
        ),
    ],
};

pub(crate) static ABORT: Table = Table {
    keys: &[
        key(
            "push",
            Optional,
            "\"ipc:///run/afterbay/decode-0.abort\"",
            "Afterbay binds a PUSH socket here, or for vLLM a ROUTER. The connector makes the scheduler's input socket connect to it\n\
             (AFTERBAY_ABORT). One scheduler per endpoint.",
        ),
        key(
            "http",
            Mentioned,
            "\"http://127.0.0.1:30000\"",
            "The URL of SGLang's HTTP server, in place of push: Afterbay calls POST /abort_request. SGLang aborts every\n\
             request whose rid begins with the rid, so only rids that are UUIDs are aborted, and it ignores an abort for a request\n\
             whose reader already has its last row. Prefer push.",
        ),
        key(
            "api_key_env",
            Mentioned,
            "\"SGLANG_API_KEY\"",
            "With http: the environment variable that holds SGLang's API key, which Afterbay sends as a bearer token.",
        ),
        key(
            "api_key_file",
            Mentioned,
            "\"/run/secrets/sglang\"",
            "With http: the file that holds SGLang's API key.",
        ),
    ],
};

pub(crate) static SIGNALS: Table = Table {
    keys: &[
        key(
            "load_snapshot",
            Default,
            "\"auto\"",
            "SGLang's load file in shared memory (0.5.13 and later): \"auto\" (the file of the instance that the rendezvous file\n\
             names, none without --rendezvous), a path with a /, an instance id, or \"none\".",
        ),
        key(
            "load_stat",
            Optional,
            "\"tcp://127.0.0.1:5557\"",
            "The endpoint of SGLang's LoadStat publisher for this rank (0.5.19 and later, --load-publish-endpoint).",
        ),
        key(
            "metrics",
            Optional,
            "\"http://127.0.0.1:30000/metrics\"",
            "The URL of SGLang's Prometheus metrics (--enable-metrics). Afterbay reads it every second. An overloaded SGLang\n\
             answers HTTP slowly, so prefer load_snapshot or load_stat.",
        ),
        key(
            "dp_rank",
            Optional,
            "0",
            "The scheduler's data parallel rank, 0 to 65534. If absent: the rank in the rendezvous file, or 0 without one.",
        ),
        key(
            "stale_after",
            Default,
            "\"5s\"",
            "The age past which a load is stale. A stale load is left out of /metrics. 100ms to 1h.",
        ),
    ],
};

pub(crate) static SINK: Table = Table {
    keys: &[
        key(
            "name",
            Required,
            "\"detokenizer\"",
            "The sink's name in logs, metrics and the journal: 1 to 64 of a-z 0-9 - _ ., beginning with a letter or a digit.",
        ),
        key(
            "kind",
            Default,
            "\"reader\"",
            "\"reader\": replaces the scheduler's own reader.\n\
             \"tap\": gets copies, and never delays the stream. When its queue is full, Afterbay drops the copy, counts it and\n\
             publishes an event.\n\
             \"routed\": gets only the rows that a plugin routes to it by its name.\n\
             \"skipped\": gets the requests that a plugin lets skip the detokenizer, as rows without text for the tokenizer. Its\n\
             connect is the listen of the stream after this one, or without such a stream the tokenizer.\n\
             \"worker\": is one of several tokenizers, and gets the rows whose http_worker_ipc is its connect. Rows that match no\n\
             worker go to the reader. With --rendezvous the workers are found automatically.",
        ),
        key(
            "of",
            Default,
            "\"received\"",
            "For a tap: the frames that are copied, as \"received\" from the scheduler or as \"sent\" to the readers.",
        ),
        key(
            "connect",
            Name,
            "\"ipc:///run/afterbay/detokenizer\"",
            "Afterbay connects a PUSH socket here, and the scheduler's reader listens. Not needed with --rendezvous.",
        ),
        key(
            "socket",
            Default,
            "\"push\"",
            "For a tap: \"push\" connects to one listener. \"pub\" listens for any number of subscribers (ZeroMQ SUB). A subscriber\n\
             gets the frames that arrive after it has subscribed.",
        ),
        key(
            "listen",
            Mentioned,
            "\"tcp://127.0.0.1:5558\"",
            "For a tap with socket = \"pub\", in place of connect: Afterbay binds a PUB socket here. It has no password: everyone who\n\
             reaches a tcp:// address can read the stream.",
        ),
        key(
            "listen_mode",
            Mentioned,
            "\"0600\"",
            "For a tap with socket = \"pub\": octal permissions of the socket file, for ipc://. 0600 to 0777. Default:",
        ),
        key(
            "max_subscribers",
            Mentioned,
            "64",
            "For a tap with socket = \"pub\": the most subscribers connected at once. Further ones are refused. 1 to 1024. Default:",
        ),
        key(
            "credit",
            Optional,
            "\"/dev/shm/afterbay/detokenizer\"",
            "The reader's credit page, on which the connector counts the frames that the reader has finished (AFTERBAY_CREDIT=DIR).\n\
             One sink per page.",
        ),
        key(
            "reader",
            Default,
            "\"auto\"",
            "The process that reads: \"detokenizer\" (a joined row must end where the text is whole) or \"tokenizer\". \"auto\": as the\n\
             connector says in the rendezvous file or on the credit page. While neither says so, rows are not joined.",
        ),
        key(
            "tokenizer",
            Optional,
            "\"/models/qwen3/tokenizer.json\"",
            "The model's tokenizer.json, or its directory, for a detokenizer and for tool_calls = \"single\". If absent, the one that\n\
             the connector names. Without a readable tokenizer, rows are not joined there.",
        ),
        key(
            "tool_calls",
            Default,
            "\"auto\"",
            "Whether rows of tool calls are joined: \"joined\" for a reader that reads a call right from any rows, or \"single\": a\n\
             request's rows are not joined from its first tool call on. \"auto\": \"joined\" if the reader has the connector and the\n\
             connector does not say otherwise, else \"single\".",
        ),
        inline(
            "queue",
            "{ frames = 16384, bytes = \"128MiB\" }",
            "The bound on frames that wait in memory for this sink. The queue is full when either number is reached: further frames\n\
             wait in the journal. A tap has 1024 frames and 64MiB by default, and Afterbay drops further copies. With socket =\n\
             \"pub\" each subscriber has a queue of this size, and a frame that waits for several is in memory once.",
            &QUEUE,
        ),
    ],
};

pub(crate) static QUEUE: Table = Table {
    keys: &[
        key("frames", Default, "16384", "Frames. 1 to 1000000."),
        key("bytes", Default, "\"128MiB\"", "Bytes of frames. 64KiB to 64GiB. One frame always fits."),
    ],
};

pub(crate) static MEMORY: Table = Table {
    keys: &[key(
        "waiting",
        Default,
        "\"2GiB\"",
        "Memory of the frames that wait for all sinks of all streams together, with their decoded rows. Further frames wait in the journal.\n\
         1MiB to 1TiB.",
    )],
};

pub(crate) static JOURNAL: Table = Table {
    keys: &[
        key(
            "dir",
            Required,
            "\"/var/lib/afterbay/journal\"",
            "The journal's directory. It is created at the start if it is missing. One process uses it at a time.",
        ),
        key(
            "sync",
            Default,
            "\"interval\"",
            "The frames that survive a power cut: \"none\" (those that the kernel had written), \"interval\" (all but those of the last\n\
             sync_interval) or \"always\" (all that were forwarded). A crash of Afterbay alone loses no written frame with any of the\n\
             three.",
        ),
        key(
            "sync_interval",
            Default,
            "\"50ms\"",
            "For sync = \"interval\": the time between two syncs. 1ms to 1m.",
        ),
        inline(
            "retain",
            "{ bytes = \"20GiB\", age = \"24h\" }",
            "The history that is retained, over all streams. Whole segments are removed, oldest first. A segment that a live\n\
             request needs stays.",
            &RETAIN,
        ),
        key(
            "segment",
            Default,
            "\"256MiB\"",
            "The size at which a segment file is closed and the next one begins. 1MiB to 2GiB.",
        ),
        key(
            "on_error",
            Default,
            "\"stop\"",
            "The reaction when a frame cannot be written: \"stop\" receiving (the scheduler's own queue holds the frames) or\n\
             \"forward\" without writing.",
        ),
        key(
            "abandon_after",
            Default,
            "\"1h\"",
            "The time without a row after which a live request no longer prevents the removal of segments. 1s to 30d.",
        ),
        key(
            "erase",
            Optional,
            "",
            "The time after which tokens and texts of requests are erased. The first rule that selects a request when it begins, or\n\
             when its attributes change, holds. Without a rule, retain alone removes the request. Up to 64.",
        ),
    ],
};

pub(crate) static ERASE: Table = Table {
    keys: &[
        key(
            "attribute",
            Optional,
            "\"tenant\"",
            "Selects the requests with this attribute. Without it, a rule selects every request.",
        ),
        key("value", Optional, "\"acme\"", "The value of the attribute, a text."),
        key(
            "after",
            Required,
            "\"12h\"",
            "Time since the segment with the request's end was closed: 1m to 3650d, and less than retain.age.",
        ),
    ],
};

pub(crate) static RETAIN: Table = Table {
    keys: &[
        key(
            "bytes",
            Default,
            "\"20GiB\"",
            "Bytes of all segments: room for at least two segments per stream, or \"unlimited\".",
        ),
        key("age", Default, "\"24h\"", "Time since a segment was closed: 1m to 3650d, or \"unlimited\"."),
    ],
};

pub(crate) static ADMIN: Table = Table {
    keys: &[
        key(
            "listen",
            Default,
            "\"127.0.0.1:9464\"",
            "One address or several: ADDRESS:PORT, or unix:/PATH for a socket that only this user can open. If no unix: address is\n\
             given, the socket is ADMIN.sock in the journal's directory. The afterbay commands use this socket. \"none\" listens\n\
             nowhere. Up to 8.",
        ),
        key(
            "token_file",
            Optional,
            "\"/run/secrets/afterbay\"",
            "A file with a bearer token. Every call that changes something then needs it (Authorization: Bearer TOKEN). Without a\n\
             token file, such calls are accepted on the Unix socket only.",
        ),
        key(
            "allow_remote",
            Default,
            "false",
            "Must be true to listen on an address that other hosts can reach. Everyone who reaches an ADDRESS:PORT can read there.",
        ),
    ],
};

pub(crate) static LOG: Table = Table {
    keys: &[
        key(
            "filter",
            Default,
            "\"info\"",
            "A level (off, error, warn, info, debug, trace), or levels by target: \"info,wasmtime=warn\". The environment variable\n\
             AFTERBAY_LOG overrides it.",
        ),
        key(
            "format",
            Default,
            "\"auto\"",
            "\"auto\" (coloured on a terminal, plain on a pipe) or \"json\". --log-format overrides it.",
        ),
    ],
};

pub(crate) static TRACES: Table = Table {
    keys: &[
        key(
            "endpoint",
            Required,
            "\"http://127.0.0.1:4318\"",
            "The URL of a collector that takes OTLP as protobuf over HTTP or HTTPS. Afterbay adds /v1/traces to its path. The\n\
             environment variable OTEL_EXPORTER_OTLP_HEADERS has the headers for authentication, like \"api-key=secret\".",
        ),
        key(
            "sample",
            Default,
            "1.0",
            "The share of requests that are traced, chosen by a hash of the rid: 0 to 1. A request with the attribute\n\
             traceparent follows the decision in its flags.",
        ),
    ],
};

pub(crate) static REPLICATE: Table = Table {
    keys: &[
        key(
            "nats",
            Required,
            "\"nats://127.0.0.1:4222\"",
            "The NATS server, or several of one cluster, separated by commas: nats://HOST[:PORT], or tls://HOST[:PORT] for TLS. Without\n\
             a password: see credentials. The JetStream stream \"afterbay\" takes the subjects afterbay.>; Afterbay makes it if it is\n\
             missing.",
        ),
        key(
            "credentials",
            Optional,
            "\"/etc/afterbay/nats.creds\"",
            "A credentials file (.creds) of NATS. Without this key, the environment variables of the nats command count: NATS_CREDS, or\n\
             NATS_USER and NATS_PASSWORD, or NATS_TOKEN.",
        ),
    ],
};

pub(crate) static ARCHIVE: Table = Table {
    keys: &[key(
        "url",
        Required,
        "\"s3://bucket/prefix\"",
        "The place for the objects: s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX or file:///PATH. Credentials,\n\
         region and endpoint are those of the environment: AWS_*, GOOGLE_* or AZURE_*. The journal removes no segment that is\n\
         not in the archive, until retain.bytes is reached: then journal.on_error decides.",
    )],
};

pub(crate) static USAGE: Table = Table {
    keys: &[key(
        "dir",
        Optional,
        "\"/var/lib/afterbay/usage\"",
        "The directory of the records, JSON lines in files that Afterbay never deletes. If absent, .usage in the journal's directory.",
    )],
};

/// One table of the config file.
pub struct Section {
    /// Its header in TOML, like `[[stream.sink]]`.
    pub header: &'static str,
    /// Its keys.
    pub table: &'static Table,
    /// The key of this table in the table above it.
    parent: &'static Table,
    name: &'static str,
}

const fn section(
    parent: &'static Table,
    name: &'static str,
    header: &'static str,
    table: &'static Table,
) -> Section {
    Section { header, table, parent, name }
}

/// Every table of the config file, in the order of the reference.
pub static SECTIONS: [Section; 18] = [
    section(&ROOT, "stream", "[[stream]]", &STREAM),
    section(&STREAM, "sink", "[[stream.sink]]", &SINK),
    section(&STREAM, "join", "[stream.join]", &JOIN),
    section(&STREAM, "abort", "[stream.abort]", &ABORT),
    section(&STREAM, "signals", "[stream.signals]", &SIGNALS),
    section(&STREAM, "attribute", "[[stream.attribute]]", &ATTRIBUTE),
    section(&STREAM, "plugin", "[[stream.plugin]]", &PLUGIN),
    section(&ROOT, "call", "[[call]]", &CALL),
    section(&ROOT, "plugins", "[plugins]", &PLUGINS),
    section(&ROOT, "memory", "[memory]", &MEMORY),
    section(&ROOT, "journal", "[journal]", &JOURNAL),
    section(&JOURNAL, "erase", "[[journal.erase]]", &ERASE),
    section(&ROOT, "admin", "[admin]", &ADMIN),
    section(&ROOT, "log", "[log]", &LOG),
    section(&ROOT, "traces", "[traces]", &TRACES),
    section(&ROOT, "replicate", "[replicate]", &REPLICATE),
    section(&ROOT, "archive", "[archive]", &ARCHIVE),
    section(&ROOT, "usage", "[usage]", &USAGE),
];

impl Section {
    /// The key of this table in the table above it: its meaning, and whether it must be present.
    pub fn key(&self) -> Option<&'static Key> {
        self.parent.key(self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounds;
    use crate::units::{Size, Time};

    #[test]
    fn every_table_of_the_file_is_in_the_reference() {
        let is_section = |key: &&Key| SECTIONS.iter().any(|section| section.name == key.name);
        let tables =
            ROOT.keys.iter().chain(STREAM.keys).chain(JOURNAL.keys).filter(|key| key.example.is_empty());
        let missing: Vec<&str> = tables.filter(|key| !is_section(key)).map(|key| key.name).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }

    #[test]
    fn the_documented_bounds_are_the_checked_bounds() {
        let sizes = [
            (&STREAM, "max_message", bounds::MAX_MESSAGE_BYTES),
            (&QUEUE, "bytes", bounds::QUEUE_BYTES),
            (&LIMITS, "memory", bounds::PLUGIN_MEMORY_BYTES),
            (&JOURNAL, "segment", bounds::SEGMENT_BYTES),
            (&CALL, "max_body", bounds::CALL_BODY_BYTES),
        ];
        let sizes = sizes
            .map(|(table, key, (least, most))| (table, key, format!("{} to {}", Size(least), Size(most))));
        let times = [
            (&SIGNALS, "stale_after", bounds::STALE_AFTER),
            (&LIMITS, "deadline", bounds::PLUGIN_DEADLINE),
            (&QUARANTINE, "within", bounds::QUARANTINE_WITHIN),
            (&LIMITS, "hold", bounds::PLUGIN_HOLD),
            (&CALL, "timeout", bounds::CALL_TIMEOUT),
            (&BREAKER, "within", bounds::BREAKER_WITHIN),
            (&BREAKER, "open", bounds::BREAKER_OPEN),
            (&JOURNAL, "sync_interval", bounds::SYNC_INTERVAL),
            (&JOURNAL, "abandon_after", bounds::ABANDON_AFTER),
            (&RETAIN, "age", bounds::RETAIN_AGE),
        ];
        let times = times
            .map(|(table, key, (least, most))| (table, key, format!("{} to {}", Time(least), Time(most))));
        let counts = [
            (&STREAM, "max_peers", bounds::MAX_PEERS),
            (&SINK, "max_subscribers", bounds::MAX_SUBSCRIBERS),
            (&JOIN, "max_rows", bounds::JOIN_ROWS),
            (&SIGNALS, "dp_rank", bounds::DP_RANK),
            (&QUEUE, "frames", bounds::QUEUE_FRAMES),
            (&QUARANTINE, "faults", bounds::QUARANTINE_FAULTS),
            (&CALL, "max_in_flight", bounds::CALLS_IN_FLIGHT),
            (&BREAKER, "failures", bounds::BREAKER_FAILURES),
        ];
        let counts = counts.map(|(table, key, (least, most))| (table, key, format!("{least} to {most}")));
        for (table, key, range) in sizes.into_iter().chain(times).chain(counts) {
            let doc = table.key(key).unwrap().doc.replace('\n', " ");
            assert!(doc.contains(&range), "{key}: {range:?} is not in {doc:?}");
        }
    }
}
