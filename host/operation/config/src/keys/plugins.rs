//! The keys of plugins, and of the attributes that plugins get for requests.

use super::Need::{Default, Mentioned, Optional, Required};
use super::{Key, Table, inline, key};

const LIMITS_KEY: Key = inline(
    "limits",
    "{ memory = \"64MiB\", deadline = \"2ms\", hold = \"1s\" }",
    "The limits of one instance. Exceeding memory or deadline is a fault, like a trap or an invalid answer. A plugin in this\n\
     binary may have limits of its own as defaults: `afterbay plugin ls`.",
    &LIMITS,
);

const GRANT_KEY: Key = key(
    "grant",
    Default,
    "[\"log\", \"metrics\"]",
    "The host interfaces that the plugin may call: \"log\", \"metrics\", \"signals\" (queues, readers, the scheduler's load),\n\
     \"request\" (attributes), \"tokenizer\" (the tokenizer of the stream's first sink that names one), \"health\" (the\n\
     readiness of the stream), \"store\" (values that outlive a restart), \"call\" (calls to services). A component that\n\
     imports another one is refused at the start. A component made with the Rust SDK logs its panics, so it needs \"log\". A\n\
     plugin in this binary has the grants that it needs, if this key is absent.",
);

/// The keys of a bundled plugin's own defaults.
pub(crate) static PLUGIN_DEFAULTS: Table = Table {
    keys: &[
        key(
            "engines",
            Default,
            "[\"sglang\", \"vllm\"]",
            "The engines that the plugin serves. A stream of another engine refuses it.",
        ),
        GRANT_KEY,
        LIMITS_KEY,
    ],
};

pub(crate) static PLUGINS: Table = Table {
    keys: &[key(
        "allow",
        Required,
        "[\"sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\"]",
        "The SHA-256 of each component that may run, at most 256, as `afterbay check` and `afterbay plugin check` print it. A\n\
         component with another digest is refused, at the start, at a reload and by `afterbay check`. A plugin in this binary\n\
         needs no entry: the digest of the binary pins it.",
    )],
};

pub(crate) static PLUGIN: Table = Table {
    keys: &[
        key(
            "name",
            Required,
            "\"cumulative\"",
            "The plugin's name in logs and metrics: 1 to 64 of a-z 0-9 - _ ., beginning with a letter or a digit.",
        ),
        key(
            "component",
            Required,
            "\"builtin:delta-to-cumulative\"",
            "builtin:NAME for a plugin in this binary. Or the path of a component file, which is reloaded when it changes, or of a\n\
             plugin project, whose last build is used. Or oci://HOST/REPOSITORY@sha256:DIGEST in a registry, which is fetched once\n\
             and stored in the cache.",
        ),
        key(
            "mode",
            Default,
            "\"live\"",
            "\"live\", or \"shadow\": the plugin sees every batch, and Afterbay counts its verdicts without applying them. `afterbay\n\
             plugins promote` makes a shadow live.",
        ),
        key(
            "shadow_of",
            Mentioned,
            "\"NAME\"",
            "For mode = \"shadow\": the live plugin whose position in the chain the shadow has. Afterbay compares the verdicts of\n\
             both, row by row.",
        ),
        key(
            "sha256",
            Optional,
            "\"9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\"",
            "The digest that the component must have. A component with another digest is refused, at the start and at a reload.",
        ),
        LIMITS_KEY,
        key(
            "on_fault",
            Default,
            "\"bypass\"",
            "The consequence for a batch that the plugin did not judge, because it faulted or has no instance: \"bypass\", the batch\n\
             passes unchanged; \"terminate\", its requests are aborted and its tokens are dropped: nothing passes unjudged.",
        ),
        inline(
            "quarantine",
            "{ faults = 5, within = \"1m\" }",
            "The number of faults, within a time, after which the plugin leaves the chain. It returns when it is changed, or with\n\
             `afterbay plugins reinstate`. Meanwhile batches pass unchanged; with on_fault = \"terminate\" their requests are\n\
             aborted. A new instance may exceed its deadline once before its first judged batch without a fault being counted.",
            &QUARANTINE,
        ),
        GRANT_KEY,
        key(
            "settings",
            Optional,
            "{}",
            "Any table, given to the plugin as JSON of at most 1MiB. { file = \"schema.json\" } is replaced by the text of that file,\n\
             at most 1MiB. When the file changes, the plugin is configured again.",
        ),
    ],
};

pub(crate) static ATTRIBUTE: Table = Table {
    keys: &[
        key(
            "prefix",
            Optional,
            "\"batch-\"",
            "Selects the requests whose id begins with this text. Without prefix and pattern, a rule selects every request. The ids\n\
             of a request are the engine's rid and the client's id in it: chatcmpl-gw-7 and gw-7 of 0_chatcmpl-gw-7-1a2b3c4d.",
        ),
        key(
            "pattern",
            Mentioned,
            "\"-eu-[0-9]+$\"",
            "Selects the requests with an id that this regular expression matches anywhere, the client's id first. A named group is\n\
             an attribute: (?<tenant>[a-z]+).",
        ),
        key(
            "set",
            Optional,
            "{ tenant = \"batch\" }",
            "The attributes: any table of at most 16 KiB as JSON. Required without a named group.",
        ),
    ],
};

pub(crate) static LIMITS: Table = Table {
    keys: &[
        key("memory", Default, "\"64MiB\"", "Linear memory. 1MiB to 4GiB."),
        key("deadline", Default, "\"2ms\"", "CPU time of one call. 100us to 10s."),
        key(
            "hold",
            Default,
            "\"1s\"",
            "The longest time for which the plugin may hold a row. Then the row is sent unchanged. 10ms to 1m.",
        ),
    ],
};

pub(crate) static QUARANTINE: Table = Table {
    keys: &[
        key("faults", Default, "5", "Faults. 0 to 1000. 0: the plugin stays in the chain."),
        key("within", Default, "\"1m\"", "Time from the first fault to the last. 100ms to 1d."),
    ],
};
