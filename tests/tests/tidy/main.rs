//! The rules of the code base as tests: uses of crates, import rings, lengths and openings, and that nothing is unused.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod contract;
mod directions;
mod engines;
mod invariants;
mod printing;
mod rings;
mod stages;
mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The most lines of a file that is not in [`LONG_FILES`].
const LINES_MAX: usize = 600;

/// Files past [`LINES_MAX`], each with the reason why it is not split.
const LONG_FILES: &[(&str, &str)] = &[
    ("host/operation/events/src/event.rs", "one declaration per event"),
    ("plugins/sdk/src/abi/bindings.rs", "generated from wit/"),
];

/// External crates that only the listed crates may use.
const ONLY_IN: [(&str, &[&str]); 21] = [
    ("wasmtime", &["afterbay-runtime"]),
    ("notify", &["afterbay-runtime"]),
    // The tests of sockets and of aborts use it as a peer. The tap is outside the pipeline.
    ("zeromq", &["afterbay-follow", "afterbay-sim", "afterbay-sockets", "afterbay-scheduler"]),
    (
        "mio",
        &["afterbay-stream", "afterbay-sockets", "afterbay-journal-tools", "afterbay-bench", "afterbay-cost"],
    ),
    ("nix", &["afterbay-events", "afterbay-follow", "afterbay-supervision", "afterbay-sockets"]),
    // Encodes texts into ids. Vocabularies are read without it.
    ("tokenizers", &["afterbay-text"]),
    ("axum", &["afterbay-follow", "afterbay-server"]),
    ("hyper", &["afterbay-http"]),
    ("oci-client", &["afterbay-plugin-loader"]),
    ("reqwest", &["afterbay-plugin-services", "afterbay-plugin-loader", "afterbay-follow"]),
    ("rustls", &["afterbay-plugin-services", "afterbay-plugin-loader", "afterbay-follow"]),
    ("object_store", &["afterbay-follow"]),
    ("parquet", &["afterbay-follow", "afterbay-tests"]),
    ("async-nats", &["afterbay-follow"]),
    ("opentelemetry", &["afterbay-follow"]),
    ("opentelemetry_sdk", &["afterbay-follow"]),
    ("opentelemetry-otlp", &["afterbay-follow"]),
    ("docker_credential", &["afterbay-plugin-loader"]),
    (
        "clap",
        &[
            "afterbay",
            "afterbay-follow",
            "afterbay-journal-tools",
            "afterbay-plugin-tools",
            "afterbay-sim",
            "afterbay-bench",
            "afterbay-cost",
        ],
    ),
    // The server and the tools return errors to the binary, which prints them.
    (
        "anyhow",
        &[
            "afterbay",
            "afterbay-bundled",
            "afterbay-server",
            "afterbay-journal-tools",
            "afterbay-plugin-tools",
            "afterbay-sim",
            "afterbay-bench",
            "afterbay-cost",
        ],
    ),
    ("ratatui", &["afterbay-terminal"]),
];

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

/// The files with this extension in the directories of code, each with its path in the repository.
fn files(extension: &str) -> Vec<(String, PathBuf)> {
    fn collect(dir: &Path, extension: &str, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() && name != "target" && !name.starts_with('.') {
                collect(&path, extension, found);
            } else if path.extension().is_some_and(|it| it == extension) {
                found.push(path);
            }
        }
    }
    let root = repository();
    let mut found = Vec::new();
    for dir in ["host", "plugins", "examples", "tests", "wit"] {
        collect(&root.join(dir), extension, &mut found);
    }
    found.sort();
    let relative = |path: &Path| path.strip_prefix(&root).unwrap().display().to_string();
    found.into_iter().map(|path| (relative(&path), path)).collect()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn parse(path: &Path) -> toml::Table {
    read(path).parse().unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The manifests of the workspace's crates, by name.
fn crates() -> BTreeMap<String, toml::Table> {
    let manifests = crates_with_paths().into_iter();
    manifests.map(|(name, path)| (name, parse(&path.join("Cargo.toml")))).collect()
}

/// The directories of the workspace's crates, by name.
fn crates_with_paths() -> BTreeMap<String, PathBuf> {
    let root = repository();
    let workspace = parse(&root.join("Cargo.toml"));
    let members = workspace["workspace"]["members"].as_array().unwrap().iter();
    let paths = members.map(|member| root.join(member.as_str().unwrap()));
    let name = |path: &Path| parse(&path.join("Cargo.toml"))["package"]["name"].as_str().unwrap().to_owned();
    paths.map(|path| (name(&path), path)).collect()
}

fn dependencies(manifest: &toml::Table, kinds: &[&str]) -> Vec<String> {
    let tables = kinds.iter().filter_map(|kind| manifest.get(*kind)?.as_table());
    tables.flat_map(|table| table.keys().cloned()).collect()
}

const KINDS: [&str; 3] = ["dependencies", "build-dependencies", "dev-dependencies"];

#[track_caller]
fn none(what: &str, wrong: Vec<String>) {
    assert!(wrong.is_empty(), "{what}:\n  {}", wrong.join("\n  "));
}

#[test]
fn a_confined_dependency_is_used_only_by_its_crates() {
    let crates = crates();
    let mut wrong = Vec::new();
    for (dependency, only_in) in ONLY_IN {
        for (name, manifest) in &crates {
            let uses = dependencies(manifest, &KINDS).iter().any(|used| used == dependency);
            if uses && !only_in.contains(&name.as_str()) {
                wrong.push(format!("{name} uses {dependency}"));
            }
        }
        let used = only_in.iter().any(|name| {
            crates
                .get(*name)
                .is_some_and(|manifest| dependencies(manifest, &KINDS).iter().any(|used| used == dependency))
        });
        if !used {
            wrong.push(format!("no crate uses {dependency}"));
        }
    }
    none("dependencies against the table ONLY_IN", wrong);
}

#[test]
fn every_shared_dependency_is_used_and_every_crate_has_the_workspace_lints() {
    let crates = crates();
    let workspace = parse(&repository().join("Cargo.toml"));
    let used: BTreeSet<String> =
        crates.values().flat_map(|manifest| dependencies(manifest, &KINDS)).collect();
    let shared = workspace["workspace"]["dependencies"].as_table().unwrap().keys();
    let mut wrong: Vec<String> =
        shared.filter(|name| !used.contains(*name)).map(|name| format!("no crate uses {name}")).collect();
    for (name, manifest) in &crates {
        let lints = manifest.get("lints").and_then(|lints| lints.get("workspace"));
        if lints.and_then(toml::Value::as_bool) != Some(true) {
            wrong.push(format!("{name} has no [lints] workspace = true"));
        }
    }
    none("workspace", wrong);
}

#[test]
fn notify_wasmtime_and_zeromq_are_named_only_in_their_files() {
    let mut wrong = Vec::new();
    for (name, path) in files("rs") {
        let code: Vec<String> = read(&path)
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"))
            .map(str::to_owned)
            .collect();
        let names = |word: &str| code.iter().any(|line| line.contains(word));
        let notify = concat!("noti", "fy::");
        if code.iter().any(|line| line.replace(&format!("sd_{notify}"), "").contains(notify))
            && name != "host/plugins/runtime/src/watching.rs"
        {
            wrong.push(format!("{name} names notify"));
        }
        if names(concat!("wasm", "time::")) && !name.starts_with("host/plugins/runtime/") {
            wrong.push(format!("{name} names wasmtime"));
        }
        if names(concat!("zero", "mq::"))
            && ![
                "host/followers/follow/src/tap.rs",
                "host/tools/sim/",
                "host/path/sockets/tests/",
                "host/operation/scheduler/tests/",
            ]
            .iter()
            .any(|place| name.starts_with(place))
        {
            wrong.push(format!("{name} names zeromq"));
        }
    }
    none("names outside their files", wrong);
}

#[test]
fn a_file_past_600_lines_has_a_reason() {
    let long = ["rs", "py"].into_iter().flat_map(files);
    let long: Vec<(String, usize)> = long.map(|(name, path)| (name, read(&path).lines().count())).collect();
    let is_long = |name: &str| LONG_FILES.iter().any(|(long, _)| *long == name);
    let mut wrong: Vec<String> = long
        .iter()
        .filter(|(name, lines)| *lines > LINES_MAX && !is_long(name))
        .map(|(name, lines)| format!("{name}: {lines} lines; split it, or give the reason in LONG_FILES"))
        .collect();
    for (name, _) in LONG_FILES {
        if !long.iter().any(|(long, lines)| long == name && *lines > LINES_MAX) {
            wrong.push(format!("{name} is in LONG_FILES but has at most {LINES_MAX} lines"));
        }
    }
    none("long files", wrong);
}

#[test]
fn every_file_opens_with_a_doc_comment() {
    let mut wrong = Vec::new();
    for (name, path) in files("rs") {
        if !read(&path).starts_with("//! ") {
            wrong.push(format!("{name} does not open with //!"));
        }
    }
    for (name, path) in files("py") {
        let text = read(&path);
        let text = text.trim_start_matches('\n').trim_start_matches("#!/usr/bin/env python3\n");
        if !text.is_empty() && !text.starts_with("\"\"\"") {
            wrong.push(format!("{name} does not open with a docstring"));
        }
    }
    none("files", wrong);
}

#[test]
fn no_module_is_named_utils_or_helpers() {
    let names = ["util", "utils", "common", "helper", "helpers", "manager", "misc"];
    let mut wrong = Vec::new();
    for (name, path) in files("rs") {
        let parts = Path::new(&name).components().map(|part| part.as_os_str().to_string_lossy().into_owned());
        let stems: Vec<String> = parts.map(|part| part.trim_end_matches(".rs").to_owned()).collect();
        let file = stems.iter().any(|stem| names.contains(&stem.as_str()));
        let inline = read(&path).lines().any(|line| {
            let line = line.trim_start().trim_start_matches("pub(crate) ").trim_start_matches("pub ");
            line.strip_prefix("mod ")
                .is_some_and(|rest| names.contains(&rest.trim_end_matches([';', '{', ' '])))
        });
        if file || inline {
            wrong.push(name);
        }
    }
    none("modules named utils, common, helpers, manager or misc", wrong);
}

#[test]
fn no_code_is_marked_as_unfinished() {
    let words =
        [concat!("to", "do!("), concat!("unimpl", "emented!("), concat!("FIX", "ME"), concat!("XX", "X")];
    let mut wrong = Vec::new();
    for (name, path) in ["rs", "py", "toml", "wit", "md"].into_iter().flat_map(files) {
        for (line, text) in (1..).zip(read(&path).lines()) {
            if words.iter().any(|word| text.contains(word)) {
                wrong.push(format!("{name}:{line}: {}", text.trim()));
            }
        }
    }
    none("code that is marked as unfinished", wrong);
}

/// The code of all tests.
fn test_code() -> String {
    let is_test =
        |name: &str| name.contains("/tests/") || name.starts_with("tests/") || name.ends_with("tests.rs");
    let files =
        files("rs").into_iter().filter(|(name, _)| is_test(name) && !name.starts_with("tests/guests/"));
    files.map(|(_, path)| read(&path)).collect()
}

#[test]
fn every_fixture_is_read_by_a_test() {
    let root = repository().join("tests/fixtures");
    let samples = read(&repository().join("host/path/wire/tests/it/samples.rs"));
    let mut wrong = Vec::new();
    for set in std::fs::read_dir(&root).unwrap() {
        let set = set.unwrap().file_name().into_string().unwrap();
        // `host/plugins/runtime/tests/components/versions.rs` lists these itself.
        if set == "plugins" {
            continue;
        }
        if !samples.contains(&format!("{set:?}")) {
            wrong.push(format!("{set} is not read by host/path/wire/tests/it/samples.rs"));
        }
    }
    let frames = ["msgpack", "pickle", "bin", "frame"];
    for (name, path) in frames.into_iter().chain(["json"]).flat_map(files) {
        if !name.starts_with("tests/fixtures/") {
            continue;
        }
        let is_json = path.extension().is_some_and(|it| it == "json");
        if is_json && !frames.iter().any(|frame| path.with_extension(frame).exists()) {
            wrong.push(format!("{name} has no frame"));
        }
    }
    let read: usize = frames
        .into_iter()
        .chain(["json"])
        .map(|it| files(it).iter().filter(|(name, _)| name.starts_with("tests/fixtures/")).count())
        .sum();
    let sets = std::fs::read_dir(&root).unwrap().map(|set| set.unwrap().path());
    let all = sets.filter(|set| !set.ends_with("plugins")).map(|set| count(&set)).sum::<usize>();
    if read != all {
        wrong.push(format!("{} files are neither a frame nor its fields", all - read));
    }
    none("fixtures", wrong);
}

fn count(path: &Path) -> usize {
    if !path.is_dir() {
        return 1;
    }
    std::fs::read_dir(path).unwrap().map(|entry| count(&entry.unwrap().path())).sum()
}

#[test]
fn every_guest_and_every_example_is_run_by_a_test() {
    let code = test_code();
    let mut wrong = Vec::new();
    for (name, path) in files("rs") {
        if name.starts_with("tests/guests/examples/") {
            let guest = path.file_stem().unwrap().to_string_lossy().into_owned();
            if !code.contains(&format!("{guest:?}")) {
                wrong.push(format!("{name}: no test names {guest:?}"));
            }
        }
    }
    for entry in std::fs::read_dir(repository().join("examples")).unwrap() {
        let path = entry.unwrap().path();
        let example = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.join("Cargo.toml").exists() && !code.contains(&format!("example({example:?})")) {
            wrong.push(format!("examples/{example}: no test runs example({example:?})"));
        }
    }
    none("guests and examples", wrong);
}
