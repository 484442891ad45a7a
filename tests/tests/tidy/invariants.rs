//! Checks that each invariant and each threat names tests.

use super::{files, none, read, repository};
use std::collections::BTreeSet;

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
