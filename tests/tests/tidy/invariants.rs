//! Checks that each invariant and each threat names tests, and that the code map of ARCHITECTURE.md is that of the crates.

use super::{DIRECTIONS, files, none, read, repository};
use std::collections::{BTreeMap, BTreeSet};

/// Words in the last column of the code map that mean a crate.
const MEANS: [(&str, &str); 8] = [
    ("sockets", "sockets"),
    ("the journal", "journal"),
    ("the wire", "wire"),
    ("what a message says", "wire"),
    ("plugins", "chain"),
    ("streams", "stream"),
    ("the pipeline", "stream"),
    ("the server", "server"),
];

#[test]
fn every_invariant_and_every_threat_names_a_test_that_exists() {
    let tests: BTreeSet<String> = ["rs", "py"]
        .into_iter()
        .flat_map(files)
        .flat_map(|(_, path)| {
            let text = read(&path);
            let names = text.lines().filter_map(|line| {
                let line = line.trim_start();
                let name = line.strip_prefix("fn ").or_else(|| line.strip_prefix("def "))?;
                Some(name.split(['(', '<']).next()?.to_owned())
            });
            names.collect::<Vec<_>>()
        })
        .collect();
    let invariants = read(&repository().join("docs/src/invariants.md"));
    let security = read(&repository().join("docs/src/security.md"));
    let (invariants, threats) = (invariants.split("\n- ").skip(1), security.split("\n- Cannot ").skip(1));
    let (mut wrong, mut checked) = (Vec::new(), 0);
    for rule in invariants.chain(threats) {
        checked += 1;
        let first: String = rule.chars().take(80).collect();
        let named = rule.split_once("(test: ").and_then(|(_, rest)| rest.split_once(')'));
        let Some((named, _)) = named else {
            wrong.push(format!("{first:?} names no test"));
            continue;
        };
        for name in named.split([',', ' ', '\n', '`']).filter(|name| !name.is_empty()) {
            if !tests.contains(name) {
                wrong.push(format!("{first:?}: there is no test {name}"));
            }
        }
    }
    let elsewhere = read(&repository().join("ARCHITECTURE.md")).contains("Invariant:");
    assert!(!elsewhere, "an invariant is a line of docs/src/invariants.md, not of ARCHITECTURE.md");
    assert!(checked >= 100, "{checked} invariants and threats were found");
    none("invariants", wrong);
}

/// The crates that this crate uses, and those that they use.
fn reach<'a>(name: &str, uses: &BTreeMap<&str, &'a [&'a str]>, reached: &mut BTreeSet<&'a str>) {
    for used in uses.get(name).copied().unwrap_or_default().iter().copied() {
        if reached.insert(used) {
            reach(used, uses, reached);
        }
    }
}

#[test]
fn no_crate_uses_what_the_code_map_says_that_it_must_not_know() {
    let uses: BTreeMap<&str, &[&str]> =
        DIRECTIONS.iter().map(|(name, used)| (name.trim_start_matches("afterbay-"), *used)).collect();
    let map = read(&repository().join("ARCHITECTURE.md"));
    let (mut wrong, mut checked) = (Vec::new(), 0);
    for row in map.lines().filter(|line| line.starts_with("| `host/")) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        for name in cells[1].split('`').filter_map(|path| path.strip_prefix("host/")?.rsplit('/').next()) {
            let mut reached = BTreeSet::new();
            reach(name, &uses, &mut reached);
            for word in cells[3].split(", ") {
                let meant = MEANS.iter().filter(|(means, _)| *means == word);
                for (_, crate_name) in meant {
                    checked += 1;
                    if reached.contains(crate_name) {
                        wrong.push(format!("{name} must not know {word}, and uses afterbay-{crate_name}"));
                    }
                }
            }
        }
    }
    assert!(checked >= 20, "only {checked} cells were checked");
    none("the code map of ARCHITECTURE.md", wrong);
}
