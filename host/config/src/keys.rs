//! Every key of the file, declared once: what the reader accepts, what an unknown key is compared with, and the
//! reference config all come from these tables.

mod plugins;

pub(crate) use plugins::{ATTRIBUTE, LIMITS, PLUGIN, QUARANTINE};
use std::fmt::Write;
use std::path::Path;

/// Stands for the directory of sockets in the examples below.
const RUNTIME: &str = "/run/afterbay";
/// Stands for the directory of what outlives a restart.
const STATE: &str = "/var/lib/afterbay";

/// Whether a key must be given.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// An error without it.
    Required,
    /// An error without it, but for [`Names::FromRendezvous`](crate::Names::FromRendezvous), and of what listens instead.
    Name,
    /// `example` is what it is without it.
    Default,
    /// Nothing without it; `example` is one.
    Optional,
    /// The same, in place of another key or with one that is: the reference only mentions it.
    Instead,
}

/// One key of a table.
pub(crate) struct Key {
    pub name: &'static str,
    pub need: Need,
    /// As it stands in TOML.
    pub example: &'static str,
    pub doc: &'static str,
    /// The keys of an inline table.
    pub inner: Option<&'static Table>,
}

/// The keys of one table, in the order of the reference.
pub(crate) struct Table {
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

use Need::{Default, Instead, Name, Optional, Required};

/// The tables of the file itself.
pub(crate) static ROOT: Table = Table {
    keys: &[
        key(
            "stream",
            Required,
            "",
            "One scheduler output (one DP rank) and what is done with it. At least one.",
        ),
        key("journal", Required, "", "Where frames are kept before they are forwarded."),
        key("memory", Optional, "", "What may wait in memory, of all streams together."),
        key(
            "admin",
            Optional,
            "",
            "/metrics, /healthz, /readyz, /v1/signals, /v1/plugins and POST /v1/requests/RID/abort.",
        ),
        key("log", Optional, "", "Afterbay's own log, on standard error."),
    ],
};

pub(crate) static STREAM: Table = Table {
    keys: &[
        key(
            "name",
            Required,
            "\"decode-0\"",
            "Names the stream in logs, metrics and the journal's directory: 1 to 64 of a-z 0-9 - _ .",
        ),
        key("engine", Default, "\"sglang\"", "Whose wire it is. Pickle or msgpack is recognised per frame."),
        key(
            "layout",
            Default,
            "\"auto\"",
            "For msgpack, where the columns stand: \"auto\" (by the array's length), a version like \"0.5.23\", or a layout file.",
        ),
        key(
            "listen",
            Required,
            "\"ipc:///run/afterbay/decode-0\"",
            "Afterbay binds PULL here, the scheduler connects: ipc:///PATH, whose directory is made where it is missing, or tcp://HOST:PORT.",
        ),
        key("listen_mode", Default, "\"0600\"", "Permissions of an ipc:// listen name."),
        key(
            "after",
            Default,
            "[]",
            "The streams whose reader sends here: their detokenizer's output, on its way to the tokenizer (AFTERBAY_TEXT_INGRESS). A\n\
             name, or several where DP ranks with a stream each have one detokenizer. With --rendezvous this stream has its own file,\n\
             that of the first one named and \".text\" behind it.",
        ),
        key("max_message", Default, "\"256MiB\"", "A longer message closes its sender. 64KiB to 1GiB."),
        key("max_peers", Default, "64", "More senders at once are refused. 1 to 4096."),
        key(
            "route",
            Optional,
            "\"crc32\"",
            "With several sinks: each request goes to one of them, by crc32 of its http_worker_ipc or rid, as SGLang's\n\
             MultiDetokenizerRouter does; messages without rows go to all.",
        ),
        key("sink", Required, "", "Where the batches go. Several readers need a route. Up to 64."),
        key("coalesce", Optional, "", "How rows that wait for a sink are joined, losslessly."),
        key(
            "abort",
            Optional,
            "",
            "How the scheduler is told to end a request: by afterbay abort, and where a plugin has finished one. The connector sets it up\nby itself (AFTERBAY_ABORT).",
        ),
        key("signals", Optional, "", "Where the scheduler's own load is read, for /metrics and /v1/signals."),
        key(
            "attribute",
            Optional,
            "",
            "What plugins are told of requests beside their output, by rid. Later rules override earlier ones, member by member, and\n\
             PUT /v1/requests/RID/attributes overrides them all. Up to 64.",
        ),
        key(
            "plugin",
            Optional,
            "",
            "A WebAssembly component that sees every batch and may change it. Up to 16, called in this order.",
        ),
    ],
};

pub(crate) static COALESCE: Table = Table {
    keys: &[
        key(
            "when",
            Default,
            "\"backpressure\"",
            "\"backpressure\": only what the sink has not taken while it is behind; \"window\": each request at most once in the window, for readers that cannot show backpressure; \"never\".",
        ),
        key(
            "window",
            Default,
            "\"20ms\"",
            "For when = \"window\". A request's first and last row do not wait. 1ms to 10s.",
        ),
        key(
            "max_rows",
            Default,
            "512",
            "Requests in a joined frame, so that none keeps the reader for long. 16 to 65536.",
        ),
    ],
};

pub(crate) static ABORT: Table = Table {
    keys: &[
        key(
            "push",
            Optional,
            "\"ipc:///run/afterbay/decode-0.abort\"",
            "Afterbay binds PUSH here, and the connector lets the scheduler's PULL connect to it (AFTERBAY_ABORT). One scheduler to an\n\
             endpoint.",
        ),
        key(
            "http",
            Instead,
            "\"http://127.0.0.1:30000\"",
            "SGLang's HTTP server, in place of push: POST /abort_request. SGLang passes over a request whose reader has its last row\n\
             already, so for plugins that finish requests push is surer.",
        ),
        key(
            "api_key_env",
            Instead,
            "\"SGLANG_API_KEY\"",
            "With http: the environment variable that has SGLang's API key, sent as a bearer token.",
        ),
        key("api_key_file", Instead, "\"/run/secrets/sglang\"", "With http: the file that has it."),
    ],
};

pub(crate) static SIGNALS: Table = Table {
    keys: &[
        key(
            "load_snapshot",
            Default,
            "\"auto\"",
            "SGLang's load file in shared memory (0.5.13 and later): \"auto\" (of the instance that the rendezvous file names; none\n\
             without --rendezvous), a path (with a /), an instance id, or \"none\".",
        ),
        key(
            "load_stat",
            Optional,
            "\"tcp://127.0.0.1:5557\"",
            "SGLang's LoadStat publisher of this rank (0.5.19 and later, --load-publish-endpoint).",
        ),
        key(
            "metrics",
            Optional,
            "\"http://127.0.0.1:30000/metrics\"",
            "SGLang's Prometheus metrics (--enable-metrics), asked for every second. Its HTTP server is slow to answer just when it is\n\
             overloaded, so prefer the other two.",
        ),
        key(
            "dp_rank",
            Optional,
            "0",
            "The scheduler's data parallel rank, 0 to 65534. Left out, it is that of the rendezvous file, or 0 without one.",
        ),
        key(
            "stale_after",
            Default,
            "\"5s\"",
            "A load that was measured longer ago is said to be stale, and is left out of /metrics. 100ms to 1h.",
        ),
    ],
};

pub(crate) static SINK: Table = Table {
    keys: &[
        key("name", Required, "\"detokenizer\"", "Names the sink in logs, metrics and the journal."),
        key(
            "kind",
            Default,
            "\"reader\"",
            "\"reader\": takes the part of the scheduler's reader. \"tap\": gets copies, and never holds the stream back: what it\n\
             does not take in time is dropped, counted and told. Up to 16 taps. \"routed\": gets the rows that a plugin routes to it by its\n\
             name, and no others. \"skipped\": gets the requests that a plugin lets skip the detokenizer, as rows without text for the\n\
             tokenizer: connect to the listen of the stream after this one, or where there is none to the tokenizer. \"worker\": is one of\n\
             several tokenizers, and gets the rows whose http_worker_ipc is its connect; what names none of them goes to the reader. With\n\
             --rendezvous they come with the reader.",
        ),
        key(
            "of",
            Default,
            "\"received\"",
            "For a tap: copies of what was \"received\", or of what is \"sent\".",
        ),
        key(
            "connect",
            Name,
            "\"ipc:///run/afterbay/detokenizer\"",
            "Afterbay connects PUSH here, the scheduler's reader listens. Not needed with --rendezvous.",
        ),
        key(
            "socket",
            Default,
            "\"push\"",
            "For a tap: \"push\" connects to one that listens; \"pub\" listens, for any number that subscribe (ZeroMQ's SUB): each to what\n\
             begins as it says, mostly to all. One gets what comes after it has subscribed.",
        ),
        key(
            "listen",
            Instead,
            "\"tcp://127.0.0.1:5558\"",
            "For a tap with socket = \"pub\", in place of connect: Afterbay binds PUB here. It has no password: on tcp, all who reach it\n\
             can read.",
        ),
        key(
            "listen_mode",
            Instead,
            "\"0600\"",
            "The permissions of an ipc:// name that it listens on; as here, if left out:",
        ),
        key(
            "max_subscribers",
            Instead,
            "64",
            "More subscribers at once are refused. 1 to 1024; as here, if left out:",
        ),
        key(
            "credit",
            Optional,
            "\"/dev/shm/afterbay/detokenizer\"",
            "The reader's count of finished frames, written by the connector (AFTERBAY_CREDIT=DIR). One sink to a page.",
        ),
        key(
            "reader",
            Default,
            "\"auto\"",
            "Who reads: \"detokenizer\", before which a joined row must end where the text is whole, or \"tokenizer\". \"auto\": as the connector says, in the rendezvous file or on the credit page. While neither says who reads, rows are not joined.",
        ),
        key(
            "tokenizer",
            Optional,
            "\"/models/qwen3/tokenizer.json\"",
            "Before a detokenizer: the model's tokenizer.json, or the directory it is in. Without this key it is taken from the connector, where the connector names one that can be read; else rows are not joined there.",
        ),
        inline(
            "queue",
            "{ frames = 16384, bytes = \"128MiB\" }",
            "What may wait in memory, whichever is reached first: further frames wait in the journal. A tap: 1024 frames, 64MiB; further\n\
             copies are dropped. With socket = \"pub\" each subscriber has a queue of its own, of that size, and frames that wait for\n\
             several are in memory once.",
            &QUEUE,
        ),
    ],
};

pub(crate) static QUEUE: Table = Table {
    keys: &[
        key("frames", Default, "16384", "1 to 1000000."),
        key("bytes", Default, "\"128MiB\"", "64KiB to 64GiB. One frame always fits."),
    ],
};

pub(crate) static MEMORY: Table = Table {
    keys: &[key(
        "waiting",
        Default,
        "\"2GiB\"",
        "Bytes of frames that may wait for all sinks of all streams together; further ones wait in the journal. 1MiB to 1TiB.",
    )],
};

pub(crate) static JOURNAL: Table = Table {
    keys: &[
        key(
            "dir",
            Required,
            "\"/var/lib/afterbay/journal\"",
            "Of one process at a time. Made at start where it is missing.",
        ),
        key(
            "sync",
            Default,
            "\"interval\"",
            "What survives a power cut: \"none\" (what the kernel had written), \"interval\" (all but the last sync_interval),\n\
             \"always\" (all that was forwarded). A crash of Afterbay alone loses nothing that was written, with any of them.",
        ),
        key("sync_interval", Default, "\"50ms\"", "For sync = \"interval\". 1ms to 1m."),
        inline(
            "retain",
            "{ bytes = \"20GiB\", age = \"24h\" }",
            "What is kept, of all streams together, by whole segments; never less than the live requests need.",
            &RETAIN,
        ),
        key(
            "segment",
            Default,
            "\"256MiB\"",
            "Size at which a file is closed and the next begun. 1MiB to 2GiB.",
        ),
        key(
            "on_error",
            Default,
            "\"stop\"",
            "While a frame cannot be written: \"stop\" receiving, so that the scheduler's own queue holds,\n\
             or \"forward\" without keeping.",
        ),
        key(
            "abandon_after",
            Default,
            "\"1h\"",
            "A live request without a row for so long no longer holds back retention. 1s to 30d.",
        ),
    ],
};

pub(crate) static RETAIN: Table = Table {
    keys: &[
        key("bytes", Default, "\"20GiB\"", "At least two segments for each stream, or \"unlimited\"."),
        key("age", Default, "\"24h\"", "1m to 3650d, or \"unlimited\"."),
    ],
};

pub(crate) static ADMIN: Table = Table {
    keys: &[
        key(
            "listen",
            Default,
            "\"127.0.0.1:9464\"",
            "An address or several: ADDRESS:PORT, or unix:/PATH for a socket that only this user can open. Where no unix: is given, the\n\
             socket is ADMIN.sock in the journal's directory; the afterbay commands use it. \"none\" listens nowhere.",
        ),
        key(
            "token_file",
            Optional,
            "\"/run/secrets/afterbay\"",
            "A file with a bearer token, which every call needs that changes something (Authorization: Bearer TOKEN). Without it such calls\n\
             are accepted on the Unix socket only.",
        ),
        key(
            "allow_remote",
            Default,
            "false",
            "Whoever reaches an ADDRESS:PORT can read there: listening on more than this host must be allowed here.",
        ),
    ],
};

pub(crate) static LOG: Table = Table {
    keys: &[
        key(
            "filter",
            Default,
            "\"info\"",
            "A level (error, warn, info, debug, trace), or several by target: \"info,wasmtime=warn\". AFTERBAY_LOG comes before it.",
        ),
        key(
            "format",
            Default,
            "\"auto\"",
            "\"auto\" (coloured on a terminal, plain on a pipe) or \"json\". --log-format comes before it.",
        ),
    ],
};

/// A config with every key, its meaning, and its default where it has one.
///
/// It is valid as it stands; what may be left out is commented as `#key = value`, so that a line begins with `#` and a
/// space only where it is prose. With every such line enabled it is valid too. Its sockets are in `runtime`, its journal is in
/// `state`.
pub fn reference(runtime: &Path, state: &Path) -> String {
    let mut out = String::from(
        "# Afterbay's configuration: every key. A line that begins with # and no space may be left out: it shows the default,\n\
         # or an example where it is marked so.\n\
         # Sizes are bytes or have a unit (\"64MiB\", \"20GB\"), durations have one (\"50ms\", \"1h30m\").\n\
         # ${NAME} in a string is the environment variable NAME, an error where it is unset; $${ is a plain ${.\n\
         # Relative paths are relative to this file.\n",
    );
    section(&mut out, &ROOT, "stream", "[[stream]]", &STREAM);
    section(&mut out, &STREAM, "sink", "[[stream.sink]]", &SINK);
    section(&mut out, &STREAM, "coalesce", "[stream.coalesce]", &COALESCE);
    section(&mut out, &STREAM, "abort", "[stream.abort]", &ABORT);
    section(&mut out, &STREAM, "signals", "[stream.signals]", &SIGNALS);
    section(&mut out, &STREAM, "attribute", "[[stream.attribute]]", &ATTRIBUTE);
    section(&mut out, &STREAM, "plugin", "[[stream.plugin]]", &PLUGIN);
    section(&mut out, &ROOT, "memory", "[memory]", &MEMORY);
    section(&mut out, &ROOT, "journal", "[journal]", &JOURNAL);
    section(&mut out, &ROOT, "admin", "[admin]", &ADMIN);
    section(&mut out, &ROOT, "log", "[log]", &LOG);
    out.replace(RUNTIME, &in_a_string(runtime)).replace(STATE, &in_a_string(state))
}

/// A path as it stands in a string of the file.
fn in_a_string(path: &Path) -> String {
    path.to_string_lossy().replace('\\', "\\\\").replace('"', "\\\"").replace("${", "$${")
}

fn section(out: &mut String, parent: &Table, name: &str, header: &str, table: &Table) {
    let Some(parent) = parent.key(name) else { return };
    let off = if parent.need == Required { "" } else { "#" };
    out.push('\n');
    comment(out, "", parent.doc);
    // Writing to a String cannot fail.
    let _ = writeln!(out, "{off}{header}");
    for key in table.keys.iter().filter(|key| !key.example.is_empty()) {
        comment(out, "", key.doc);
        if key.need == Instead {
            comment(out, "", &format!("{} = {}", key.name, key.example));
            continue;
        }
        if key.need == Optional {
            comment(out, "", "Without a default; an example:");
        }
        for inner in key.inner.iter().flat_map(|inner| inner.keys) {
            comment(out, &format!("  {}: ", inner.name), inner.doc);
        }
        let off = if matches!(key.need, Required | Name) { off } else { "#" };
        let _ = writeln!(out, "{off}{} = {}", key.name, key.example);
    }
}

fn comment(out: &mut String, label: &str, text: &str) {
    for line in text.lines() {
        let _ = writeln!(out, "# {label}{line}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounds;
    use crate::units::{Size, Time};

    #[test]
    fn the_documented_bounds_are_those_that_are_checked() {
        let sizes = [
            (&STREAM, "max_message", bounds::MAX_MESSAGE_BYTES),
            (&QUEUE, "bytes", bounds::QUEUE_BYTES),
            (&LIMITS, "memory", bounds::PLUGIN_MEMORY_BYTES),
            (&JOURNAL, "segment", bounds::SEGMENT_BYTES),
        ];
        let sizes = sizes
            .map(|(table, key, (least, most))| (table, key, format!("{} to {}", Size(least), Size(most))));
        let times = [
            (&COALESCE, "window", bounds::COALESCE_WINDOW),
            (&SIGNALS, "stale_after", bounds::STALE_AFTER),
            (&LIMITS, "deadline", bounds::PLUGIN_DEADLINE),
            (&QUARANTINE, "within", bounds::QUARANTINE_WITHIN),
            (&LIMITS, "hold", bounds::PLUGIN_HOLD),
            (&JOURNAL, "sync_interval", bounds::SYNC_INTERVAL),
            (&JOURNAL, "abandon_after", bounds::ABANDON_AFTER),
            (&RETAIN, "age", bounds::RETAIN_AGE),
        ];
        let times = times
            .map(|(table, key, (least, most))| (table, key, format!("{} to {}", Time(least), Time(most))));
        let counts = [
            (&STREAM, "max_peers", bounds::MAX_PEERS),
            (&SINK, "max_subscribers", bounds::MAX_SUBSCRIBERS),
            (&COALESCE, "max_rows", bounds::COALESCE_ROWS),
            (&SIGNALS, "dp_rank", bounds::DP_RANK),
            (&QUEUE, "frames", bounds::QUEUE_FRAMES),
            (&QUARANTINE, "faults", bounds::QUARANTINE_FAULTS),
        ];
        let counts = counts.map(|(table, key, (least, most))| (table, key, format!("{least} to {most}")));
        for (table, key, range) in sizes.into_iter().chain(times).chain(counts) {
            let doc = table.key(key).unwrap().doc;
            assert!(doc.contains(&range), "{key}: {range:?} is not in {doc:?}");
        }
    }
}
