//! The list of mutants that no test catches (`tests/mutants.toml`): each entry names code that exists. `make mutants` runs
//! cargo-mutants and compares its result with the list.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The crates whose mutants are tested.
const CRATES: [&str; 4] = ["batch", "chain", "stream", "journal"];
/// Packages whose tests run the crate, beside its own. The crate joins what others decide, so that its promises are a stream's.
const WITHIN_STREAMS: [(&str, &[&str]); 2] =
    [("chain", &["afterbay-stream", "afterbay-simulation"]), ("stream", &["afterbay-simulation"])];
/// The least number of characters of a reason.
const REASON_MIN: usize = 20;

/// A mutant: a file, the line that is changed, and the change as cargo-mutants describes it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Mutant {
    file: String,
    code: String,
    change: String,
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

/// The entries of the list, each with its reason.
fn listed() -> Vec<(Mutant, String)> {
    let path = repository().join("tests/mutants.toml");
    let table: toml::Table = std::fs::read_to_string(path).unwrap().parse().unwrap();
    let text = |entry: &toml::Value, key: &str| {
        entry
            .get(key)
            .and_then(toml::Value::as_str)
            .unwrap_or_else(|| panic!("{entry} has no {key}"))
            .to_owned()
    };
    let mut mutants = Vec::new();
    for entry in table["mutant"].as_array().unwrap() {
        let changes =
            entry["changes"].as_array().unwrap().iter().map(|change| change.as_str().unwrap().to_owned());
        for change in changes {
            let mutant = Mutant { file: text(entry, "file"), code: text(entry, "code"), change };
            mutants.push((mutant, text(entry, "why")));
        }
    }
    mutants
}

/// The function that a mutant changes, without its type: `replace + with - in Lane::rows` and
/// `replace Lane::rows -> usize with 0` change `rows`.
fn function(change: &str) -> &str {
    let path = match change.rsplit_once(" in ") {
        Some((_, path)) => path,
        None => {
            let rest = change.strip_prefix("replace ").unwrap_or(change);
            rest.split(" -> ").next().unwrap_or(rest).split(" with ").next().unwrap_or(rest)
        }
    };
    path.rsplit("::").next().unwrap_or(path)
}

/// The code that a mutant removes; `None` if it replaces a whole function.
fn removed(change: &str) -> Option<&str> {
    let (change, _) = change.rsplit_once(" in ")?;
    match change.strip_prefix("replace match guard ") {
        Some(guard) => Some(guard.rsplit_once(" with ")?.0),
        None => match change.strip_prefix("replace ") {
            Some(operator) => Some(operator.split_once(" with ")?.0),
            None => match change.strip_prefix("delete match arm ") {
                // cargo-mutants writes a pattern in its own way.
                Some(arm) => arm.split(['{', '(']).next(),
                None => change.strip_prefix("delete ").and_then(|rest| rest.split(' ').next_back()),
            },
        },
    }
}

#[test]
fn every_mutant_of_the_list_names_code_that_exists_and_has_a_reason() {
    let mut faults = Vec::new();
    let mut known = BTreeSet::new();
    for (mutant, why) in listed() {
        let Mutant { file, code, change } = &mutant;
        let mut fault = |what: &str| faults.push(format!("{file}: {change}: {what}"));
        if !CRATES.iter().any(|name| file.starts_with(&format!("host/path/{name}/src/"))) {
            fault("it is in none of the tested crates");
        }
        let text = std::fs::read_to_string(repository().join(file)).unwrap_or_default();
        if !text.lines().any(|line| line.trim() == code) {
            fault(&format!("no line is {code:?}"));
        }
        if !text.contains(&format!("fn {}", function(change))) {
            fault(&format!("there is no function {:?}", function(change)));
        }
        if removed(change).is_some_and(|removed| !code.contains(removed)) {
            fault(&format!("{code:?} has no {:?}", removed(change)));
        }
        if why.chars().count() < REASON_MIN {
            fault("it has no reason");
        }
        if !known.insert(mutant.clone()) {
            fault("it is in the list twice");
        }
    }
    assert!(faults.is_empty(), "tests/mutants.toml:\n{}", faults.join("\n"));
}

#[test]
fn a_mutants_function_and_the_code_that_it_removes_are_read_from_its_description() {
    let read = |change| (function(change), removed(change));
    assert_eq!(read("replace += with -= in Lane::rows"), ("rows", Some("+=")));
    assert_eq!(read("replace Lane::rows -> usize with 0"), ("rows", None));
    assert_eq!(read("replace report with ()"), ("report", None));
    assert_eq!(read("delete ! in Lane::next"), ("next", Some("!")));
    assert_eq!(read("replace <impl CopySocket for Pub>::flush with ()"), ("flush", None));
    let arm = "delete match arm SlotState::Down{retry_at, ..} in PluginSlot::retry_at";
    assert_eq!(read(arm), ("retry_at", Some("SlotState::Down")));
    assert_eq!(
        read("replace match guard alone && x with true in Backlog::push"),
        ("push", Some("alone && x"))
    );
    assert_eq!(read("delete field joins from struct Options expression in Outbox::reset").0, "reset");
}

/// The mutants in a result file of cargo-mutants: `host/path/batch/src/outbox/lane.rs:112:9: replace Lane::rows -> usize with 0`.
fn result(path: &Path) -> BTreeSet<Mutant> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let mutants = text.lines().map(|line| {
        let (place, change) = line.split_once(": ").unwrap();
        let (place, _column) = place.rsplit_once(':').unwrap();
        let (file, number) = place.rsplit_once(':').unwrap();
        let source = std::fs::read_to_string(repository().join(file)).unwrap();
        let code = source.lines().nth(number.parse::<usize>().unwrap() - 1).unwrap().trim().to_owned();
        Mutant { file: file.to_owned(), code, change: change.to_owned() }
    });
    mutants.collect()
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// The crates that `CRATE` selects, all without it.
fn crates(only: Option<&str>) -> Result<Vec<&'static str>, String> {
    let Some(only) = only else { return Ok(CRATES.into()) };
    let found = CRATES.into_iter().find(|name| *name == only);
    found.map(|name| vec![name]).ok_or_else(|| format!("CRATE={only}: must be one of {}", CRATES.join(", ")))
}

/// `SHARD` as cargo-mutants takes it: the part, counted from 0, and the number of parts.
fn shard(text: &str) -> Result<&str, String> {
    let number = |text: &str| text.parse::<u32>().ok();
    match text.split_once('/').and_then(|(part, parts)| number(part).zip(number(parts))) {
        Some((part, parts)) if part < parts => Ok(text),
        Some((_, 0)) => Err(format!("SHARD={text}: there must be at least 1 part")),
        Some((part, parts)) => {
            Err(format!("SHARD={text}: part {part} of {parts}, the last is {}", parts - 1))
        }
        None => Err(format!("SHARD={text}: must be PART/PARTS, such as 0/16")),
    }
}

#[test]
fn a_crate_or_a_shard_that_does_not_exist_is_refused_with_those_that_do() {
    assert_eq!(crates(None).unwrap(), CRATES);
    assert_eq!(crates(Some("journal")).unwrap(), ["journal"]);
    let why = "CRATE=nonsense: must be one of batch, chain, stream, journal";
    assert_eq!(crates(Some("nonsense")).unwrap_err(), why);
    assert_eq!(shard("15/16"), Ok("15/16"));
    assert_eq!(shard("5/4").unwrap_err(), "SHARD=5/4: part 5 of 4, the last is 3");
    assert_eq!(shard("0/0").unwrap_err(), "SHARD=0/0: there must be at least 1 part");
    for text in ["3", "a/b", "-1/4", "1/4/2"] {
        assert_eq!(shard(text).unwrap_err(), format!("SHARD={text}: must be PART/PARTS, such as 0/16"));
    }
}

/// Runs cargo-mutants on one crate, or on a shard of its mutants. Returns the directory of its results.
fn run(name: &str, shard: Option<&str>, diff: Option<&Path>) -> PathBuf {
    let root = repository();
    let out = root.join("target/mutants-results").join(name);
    std::fs::create_dir_all(&out).unwrap();
    let mut cargo = Command::new("cargo");
    cargo.args(["mutants", "--package", &format!("afterbay-{name}"), "--output"]).arg(&out);
    if let Some((_, others)) = WITHIN_STREAMS.iter().find(|(within, _)| *within == name) {
        cargo.args(["--test-package", &format!("afterbay-{name}")]);
        for other in *others {
            cargo.args(["--test-package", other]);
        }
        // Derived from the crate's own tests, it would be too short for these.
        cargo.args(["--timeout", "300"]);
    }
    // The next crate and the next run use the compiled crates again.
    cargo.env("CARGO_TARGET_DIR", root.join("target/mutants")).current_dir(&root);
    if let Some(shard) = shard {
        cargo.args(["--sharding", "round-robin", "--shard", shard]);
    }
    if let Some(diff) = diff {
        cargo.arg("--in-diff").arg(diff);
    }
    let status = cargo.status().unwrap();
    // 0: all caught. 2: some missed. 3: some took too long.
    assert!(matches!(status.code(), Some(0 | 2 | 3)), "cargo mutants: {status}");
    out.join("mutants.out")
}

/// The changes since a commit, as `--in-diff` takes them.
fn diff_since(commit: &str) -> tempfile::NamedTempFile {
    let diff =
        Command::new("git").args(["diff", commit, "--", "host"]).current_dir(repository()).output().unwrap();
    assert!(diff.status.success(), "git diff {commit}: {}", String::from_utf8_lossy(&diff.stderr));
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), diff.stdout).unwrap();
    file
}

#[test]
#[ignore = "make mutants runs it: a few seconds for each of some thousand mutants"]
fn every_mutant_is_caught_by_a_test_or_is_in_the_list() {
    let crates = crates(variable("AFTERBAY_MUTANTS_CRATE").as_deref()).unwrap_or_else(|why| panic!("{why}"));
    let part = variable("AFTERBAY_MUTANTS_SHARD");
    let part = part.as_deref().map(|part| shard(part).unwrap_or_else(|why| panic!("{why}")));
    let diff = variable("AFTERBAY_MUTANTS_SINCE").map(|commit| diff_since(&commit));
    let listed: BTreeSet<Mutant> = listed().into_iter().map(|(mutant, _)| mutant).collect();
    let mut faults = Vec::new();
    for name in crates {
        let out = run(name, part, diff.as_ref().map(|file| file.path()));
        let caught: BTreeSet<Mutant> =
            ["caught.txt", "timeout.txt"].iter().flat_map(|file| result(&out.join(file))).collect();
        let missed = result(&out.join("missed.txt"));
        println!("{name}: {} caught, {} missed", caught.len(), missed.len());
        let describe = |what: &str, Mutant { file, code, change }: &Mutant| {
            format!("{what}: {file}: {change}\n    {code}")
        };
        faults.extend(missed.difference(&listed).map(|mutant| describe("not caught", mutant)));
        // The same change to a like line may be caught in another function.
        let stale = listed.intersection(&caught).filter(|mutant| !missed.contains(mutant));
        faults.extend(stale.map(|mutant| describe("caught, although it is in the list", mutant)));
    }
    assert!(faults.is_empty(), "tests/mutants.toml:\n{}", faults.join("\n"));
}
