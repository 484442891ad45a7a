//! Each folder of `tests/golden` is a case: `afterbay.toml` and either `expected.ok` (the checked config) or
//! `expected.err` (the problems). `AFTERBAY_BLESS=1` writes them. A case whose name begins with `rendezvous` is checked as
//! under `--rendezvous`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::path::{Path, PathBuf};

use afterbay_config::{Builtin, Config, Env, Names};

fn var(name: &str) -> Option<String> {
    match name {
        "RANK" => Some("3".to_owned()),
        "SIZE" => Some("1GiB".to_owned()),
        "SCHEMA" => Some("tool-call.json".to_owned()),
        _ => None,
    }
}

fn checked(dir: &Path) -> (&'static str, String) {
    let is_rendezvous = dir.file_name().unwrap().to_str().unwrap().starts_with("rendezvous");
    let names = if is_rendezvous { Names::FromRendezvous } else { Names::FromConfig };
    let env = Env {
        var: &var,
        names,
        builtins: &[
            Builtin {
                name: "delta-to-cumulative",
                defaults: "engines = [\"sglang\"]\ngrant = [\"log\"]\nlimits = { memory = \"128MiB\", deadline = \"200ms\" }",
            },
            Builtin { name: "upper-case", defaults: "" },
        ],
        tokenizer: &|path| match path.ends_with("absent") {
            true => Err("cannot be read: it is absent".to_owned()),
            false => Ok(()),
        },
        reference: &|reference| match reference.contains("@sha256:") {
            true => Ok(()),
            false => Err(format!("{reference:?} is not pinned")),
        },
    };
    let (file, text) = match Config::load(&dir.join("afterbay.toml"), &env) {
        Ok(config) => ("expected.ok", format!("{config:#?}\n")),
        Err(problems) => ("expected.err", format!("{problems}\n")),
    };
    // The result must not depend on the directory of the checkout, with or without a trailing slash.
    let dir = dir.to_str().unwrap();
    (file, text.replace(&format!("{dir}/"), "").replace(dir, "."))
}

fn cases() -> Vec<PathBuf> {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut cases: Vec<PathBuf> = fs::read_dir(golden).unwrap().map(|entry| entry.unwrap().path()).collect();
    cases.sort();
    cases
}

#[test]
fn every_case_has_its_expected_result() {
    let bless = std::env::var("AFTERBAY_BLESS").is_ok_and(|bless| bless == "1");
    let mut wrong = Vec::new();
    for case in cases() {
        let (file, text) = checked(&case);
        let other = if file == "expected.ok" { "expected.err" } else { "expected.ok" };
        if bless {
            fs::write(case.join(file), &text).unwrap();
            let _ = fs::remove_file(case.join(other));
        }
        let expected = fs::read_to_string(case.join(file)).unwrap_or_default();
        if text != expected || case.join(other).exists() {
            wrong.push(format!("{}: {file}\n--- expected\n{expected}--- found\n{text}", case.display()));
        }
    }
    assert!(wrong.is_empty(), "{}\nAFTERBAY_BLESS=1 takes what was found", wrong.join("\n"));
}

#[test]
fn checking_makes_nothing_on_disk() {
    let before = listing();
    for case in cases() {
        checked(&case);
    }
    assert_eq!(listing(), before);
}

fn listing() -> Vec<String> {
    let mut files: Vec<String> = cases()
        .iter()
        .flat_map(|case| fs::read_dir(case).unwrap())
        .map(|entry| entry.unwrap().path().display().to_string())
        .filter(|path| !path.contains("/expected."))
        .collect();
    files.sort();
    files
}
