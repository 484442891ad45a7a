//! The keys of the services that plugins ask.

use super::Need::{Default, Mentioned, Required};
use super::{Table, inline, key};

pub(crate) static CALL: Table = Table {
    keys: &[
        key(
            "name",
            Required,
            "\"moderation\"",
            "The name by which plugins call the endpoint: 1 to 64 of a-z 0-9 - _ ., beginning with a letter or a digit.",
        ),
        key(
            "url",
            Required,
            "\"http://127.0.0.1:8080/moderate\"",
            "The URL of the service, http:// or https://. Afterbay sends POST requests to this URL and to no other: it follows no\n\
             redirect. The request's body comes from the plugin.",
        ),
        key(
            "headers",
            Mentioned,
            "{ authorization = { file = \"/run/secrets/moderation\", prefix = \"Bearer \" } }",
            "Headers of each request, up to 16. A value is a text, or the text of a file of at most 8KiB without the white space\n\
             around it, after an optional prefix. When the file changes, further calls have the new text. Afterbay shows no value.",
        ),
        key(
            "timeout",
            Default,
            "\"2s\"",
            "The longest time of a call, from the connection to the last byte of the answer. 10ms to 1m. Let limits.hold of the\n\
             plugin be longer.",
        ),
        key(
            "max_in_flight",
            Default,
            "64",
            "The most calls at once, over all streams. A further call fails at once. 1 to 4096.",
        ),
        key(
            "max_body",
            Default,
            "\"1MiB\"",
            "The longest body of an answer. A call with a longer answer fails. 1KiB to 16MiB.",
        ),
        inline(
            "breaker",
            "{ failures = 5, within = \"10s\", open = \"5s\" }",
            "The circuit breaker: after this many failed calls in a row within this time, calls fail at once until the endpoint\n\
             answers one call, which Afterbay tries each time that open has passed.",
            &BREAKER,
        ),
    ],
};

pub(crate) static BREAKER: Table = Table {
    keys: &[
        key("failures", Default, "5", "Failures in a row. 0 to 1000. 0: the breaker never opens."),
        key("within", Default, "\"10s\"", "Time from the first failure to the last. 100ms to 1h."),
        key("open", Default, "\"5s\"", "Time until one call is tried. 100ms to 1h."),
    ],
};
