//! The keys of a plugin, and of what plugins are told of requests.

use super::Need::{Default, Instead, Optional, Required};
use super::{Table, inline, key};

pub(crate) static PLUGIN: Table = Table {
    keys: &[
        key("name", Required, "\"cumulative\"", "Names the plugin in logs and metrics."),
        key(
            "component",
            Required,
            "\"builtin:delta-to-cumulative\"",
            "builtin:NAME; the path of a component file, which is taken anew when it changes, or of the project that it is built in;\n\
             or oci://HOST/REPOSITORY@sha256:DIGEST, out of a registry: it is kept in the cache and fetched once.",
        ),
        key(
            "mode",
            Default,
            "\"live\"",
            "\"shadow\": it sees every batch and what it says is not done, but counted; `afterbay plugins promote` makes it live.",
        ),
        key(
            "shadow_of",
            Instead,
            "\"NAME\"",
            "For a shadow: the live plugin whose place it looks from, and with whose verdicts its own are compared, row by row.",
        ),
        key(
            "state",
            Default,
            "\"migrate\"",
            "How what it knows of live requests comes to the instance after it at a reload. \"migrate\": it hands it over, if both versions can.\n\
             \"replay\": the new one is shown their rows again out of the journal, and takes over when it has seen them. \"drain\": the old one\n\
             goes on with them until they end.",
        ),
        key(
            "sha256",
            Optional,
            "\"9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\"",
            "The digest that the component must have; with another, at the start or at a reload, it is refused.",
        ),
        inline(
            "limits",
            "{ memory = \"64MiB\", deadline = \"2ms\", hold = \"1s\" }",
            "What one instance may use; past it is a fault, like a trap and an answer that is not allowed. And how long a row\n\
             waits that it holds.",
            &LIMITS,
        ),
        key(
            "on_fault",
            Default,
            "\"bypass\"",
            "What becomes of a batch that it was shown and did not judge, since it faulted or there is no instance of it:\n\
             \"bypass\", it goes on as it came; \"hold\", it is tried once more on a fresh instance, then it goes on as it came;\n\
             \"terminate\", its requests are aborted and this row's tokens go no further: nothing passes unjudged.",
        ),
        inline(
            "quarantine",
            "{ faults = 5, within = \"1m\" }",
            "After so many faults in that time it is taken out of the chain, until it is changed, or released by\n\
             `afterbay plugins release`. Meanwhile batches go on as they came; with on_fault = \"terminate\" requests are aborted.\n\
             A deadline that passes before an instance has judged a batch does not count, once: it warms up. The next one counts.",
            &QUARANTINE,
        ),
        key(
            "grant",
            Default,
            "[\"log\", \"metrics\"]",
            "What it may call of the host: \"log\", \"metrics\", \"signals\" (queues, readers, the scheduler's load), \"request\" (attributes),\n\
             \"tokenizer\" (that of the stream's first sink which names one).\n\
             A component that wants more is refused at the start, by name. (One made with the Rust SDK logs its panics: it wants \"log\".)",
        ),
        key(
            "settings",
            Optional,
            "{}",
            "Given to the plugin as JSON: any table. In place of { file = \"schema.json\" } it gets that file's text, of 1MiB at most; when the\n\
             file changes, the plugin is configured anew.",
        ),
    ],
};

pub(crate) static ATTRIBUTE: Table = Table {
    keys: &[
        key(
            "prefix",
            Optional,
            "\"batch-\"",
            "Requests whose rid begins so. Without this and pattern, every request.",
        ),
        key("pattern", Instead, "\"-eu-[0-9]+$\"", "Requests in whose rid this regular expression is found."),
        key(
            "set",
            Required,
            "{ tenant = \"batch\" }",
            "Their attributes: any table, at most 16 KiB as JSON.",
        ),
    ],
};

pub(crate) static LIMITS: Table = Table {
    keys: &[
        key("memory", Default, "\"64MiB\"", "1MiB to 4GiB."),
        key("deadline", Default, "\"2ms\"", "Of one call. 100us to 10s."),
        key(
            "hold",
            Default,
            "\"1s\"",
            "How long a row waits that it holds; then it goes on as it came. 10ms to 1m.",
        ),
    ],
};

pub(crate) static QUARANTINE: Table = Table {
    keys: &[
        key("faults", Default, "5", "0 to 1000. 0: it stays in the chain."),
        key("within", Default, "\"1m\"", "100ms to 1d."),
    ],
};
