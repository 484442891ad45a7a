//! Sentences of documents that repeat the code: bounds, the places of a change, and commands.

use super::{commands, documents, none, root, simple_commands, sources, targets};

/// A bound in a document, and its declaration: the document, its words, the end of the file's path, the code there.
const BOUNDS: &[(&str, &str, &str, &str)] = &[
    ("ARCHITECTURE.md", "2 to 64 frames ahead", "/stream/src/delivery/sender.rs", "WINDOW_MIN: usize = 2;"),
    ("ARCHITECTURE.md", "2 to 64 frames ahead", "/stream/src/delivery/sender.rs", "WINDOW_MAX: usize = 64;"),
    (
        "concepts/backpressure.md",
        "2 to 64 frames ahead",
        "/stream/src/delivery/sender.rs",
        "WINDOW_MIN: usize = 2;",
    ),
    (
        "concepts/backpressure.md",
        "2 to 64 frames ahead",
        "/stream/src/delivery/sender.rs",
        "WINDOW_MAX: usize = 64;",
    ),
    ("concepts/promises.md", "| 262,144 |", "/journal/src/bounds.rs", "LIVE_REQUESTS_MAX: usize = 1 << 18;"),
    ("concepts/promises.md", "4,096 rows for each request", "/batch/src/hold.rs", "ROWS_MAX: usize = 4096;"),
    ("concepts/promises.md", "64 MiB for each stream", "/batch/src/hold.rs", "BYTES_MAX: usize = 64 << 20;"),
    (
        "operate/sizing.md",
        "| streams of a process | 256 |",
        "/config/src/bounds.rs",
        "STREAMS_MAX: usize = 256;",
    ),
    ("operate/sizing.md", "| readers of a stream | 64 |", "/config/src/bounds.rs", "SINKS_MAX: usize = 64;"),
    (
        "operate/sizing.md",
        "| plugins of a stream | 16 |",
        "/config/src/bounds.rs",
        "PLUGINS_MAX: usize = 16;",
    ),
    (
        "operate/sizing.md",
        "| plugins of a process | 256 |",
        "/config/src/bounds.rs",
        "PLUGINS_OF_ALL_MAX: usize = 256;",
    ),
    ("operate/admin.md", "64 connections at once", "/server/src/descriptors.rs", "ADMIN_MAX: u64 = 64;"),
    ("operate/admin.md", "at most 16 clients at once", "/server/src/status.rs", "WATCHERS_MAX: usize = 16;"),
    (
        "operate/admin.md",
        "the newest 100,000 requests",
        "/journal-view/src/index.rs",
        "REQUESTS_MAX: usize = 100_000;",
    ),
    (
        "operate/archive.md",
        "after 64 segments",
        "/follow/src/archive/stream.rs",
        "FILE_SEGMENTS_MAX: usize = 64;",
    ),
    ("operate/archive.md", "10 minutes", "/journal/src/confirmed.rs", "Duration::from_secs(600);"),
    (
        "operate/replicate.md",
        "| 512 KiB,",
        "/follow/src/replicate.rs",
        "MESSAGE_BYTES_MAX: usize = 512 << 10;",
    ),
    ("operate/traces.md", "on one stream | 96 |", "/follow/src/traces/spans.rs", "SPANS_MAX: usize = 96;"),
    ("plugins/calls.md", "in a stream | 4096 |", "/chain/src/slot/calls.rs", "OPEN_MAX: usize = 4096;"),
    (
        "plugins/contract.md",
        "10,000 keys, 4 MiB",
        "/plugin-services/src/store/bounds.rs",
        "KEYS_MAX: usize = 10_000;",
    ),
    ("plugins/contract.md", "up to 64 metrics", "/events/src/own.rs", "OWN_NAMES_MAX: usize = 64;"),
    ("plugins/state.md", "up to 1,000 series", "/events/src/own.rs", "OWN_SERIES_MAX: usize = 1000;"),
    ("security.md", "At most 128 handshakes", "/sockets/src/bounds.rs", "HANDSHAKES_MAX: usize = 128;"),
];

/// A document that promises to name every file of a change, words that all of these files have (in lower case, without `_` and
/// `-`), and the directories to look in.
const PLACES: &[(&str, &[&str], &[&str])] = &[
    ("CONTRIBUTING.md", &["maxpeers"], &["/config/src/", "/server/src/changes.rs"]),
    ("CONTRIBUTING.md", &["annotate", "skiptext"], &["host/", "plugins/sdk/", "tests/guests/"]),
    (
        "docs/src/plugins/add-a-column.md",
        &["completiontokens", "finished", "waiting"],
        &["/runtime/", "/chain/src/", "/plugin-tools/src/", "plugins/sdk/", "tests/bench/src/"],
    ),
];

#[test]
fn every_bound_of_a_document_is_that_of_the_code() {
    let (documents, sources) = (documents(), sources(&["rs"]));
    let mut wrong = Vec::new();
    for (document, words, file, code) in BOUNDS {
        let says = documents.iter().any(|it| it.name.ends_with(document) && it.text.contains(words));
        let has = sources.iter().any(|(name, text)| name.ends_with(file) && text.contains(code));
        if !says || !has {
            wrong.push(format!("{document} has {words:?}: {says}. …{file} has {code:?}: {has}"));
        }
    }
    none("bounds", &wrong);
}

#[test]
fn a_document_names_every_file_of_a_key_a_verdict_and_a_column() {
    let sources = sources(&["rs"]);
    let mut wrong = Vec::new();
    for (document, words, dirs) in PLACES {
        let page = std::fs::read_to_string(root().join(document)).unwrap();
        let mut found = 0;
        let sources = sources.iter().filter(|(name, _)| dirs.iter().any(|dir| name.contains(dir)));
        for (name, text) in sources {
            let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
            let plain = code.to_ascii_lowercase().replace(['_', '-'], "");
            if words.iter().all(|word| plain.contains(word)) {
                found += 1;
                if !page.contains(&format!("`{name}`")) {
                    wrong.push(format!("{document} does not name {name}, which has {words:?}"));
                }
            }
        }
        assert!(found > 3, "{words:?} are in {found} files");
    }
    none("places of a change", &wrong);
}

#[test]
fn every_make_command_of_a_comment_is_a_target() {
    let (targets, mut wrong, mut checked) = (targets(), Vec::new(), 0);
    let files = sources(&["rs", "py", "toml", "in", "sh", "yml", "yaml"]).into_iter();
    let files = files.chain(documents().into_iter().map(|document| (document.name, document.text)));
    for (name, text) in files.filter(|(name, _)| name != "CHANGELOG.md") {
        for command in
            text.split(concat!("`ma", "ke ")).skip(1).filter_map(|rest| Some(rest.split_once('`')?.0))
        {
            let target = command.split_whitespace().find(|word| !word.contains('=')).unwrap_or_default();
            checked += 1;
            if !targets.contains(target) {
                wrong.push(format!("{name}: make {command}"));
            }
        }
    }
    assert!(checked > 20, "only {checked} commands were found");
    none("targets that the Makefile has not", &wrong);
}

#[test]
fn only_commands_that_run_or_check_a_configuration_name_its_file() {
    let mut wrong = Vec::new();
    for document in documents() {
        for (line, text) in commands(&document.text) {
            for words in simple_commands(&text) {
                let words: Vec<&str> = words.iter().map(String::as_str).collect();
                let takes_file = matches!(words[..], [_, "run" | "check", ..] | [_, "plugin", "run", ..]);
                if words[0] == "afterbay" && words.contains(&"--config") && !takes_file {
                    wrong.push(format!("{}:{line}: {text}: AFTERBAY_CONFIG names the file", document.name));
                }
            }
        }
    }
    none("commands with --config", &wrong);
}
