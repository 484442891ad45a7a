//! The [official suite](https://github.com/json-schema-org/JSON-Schema-Test-Suite), where its files are at hand:
//! `cargo test --manifest-path plugins/Cargo.toml -p grammar-check --lib suite -- --nocapture`.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::super::resources::Draft;
use super::{Mismatch, Schema, SchemaOptions, streams};

const DRAFTS: [(&str, Draft); 5] = [
    ("draft2020-12", Draft::D2020),
    ("draft2019-09", Draft::D2019),
    ("draft7", Draft::D7),
    ("draft6", Draft::D6),
    ("draft4", Draft::D4),
];
const FORMATS: [&str; 8] = ["date-time", "date", "time", "email", "uri", "uuid", "ipv4", "ipv6"];

/// The suite beside the project. `None` if it is not there.
fn suite() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(3)?;
    Some(root.join("shared/suites/json-schema")).filter(|suite| suite.is_dir())
}

/// A row of the table.
#[derive(Default)]
struct Counts {
    schemas: usize,
    refused: Vec<String>,
    tests: usize,
    right: usize,
    wrongly_passed: usize,
    wrongly_stopped: usize,
    wrong: Vec<String>,
}

impl Counts {
    /// Runs the groups of a file.
    fn file(&mut self, path: &Path, options: SchemaOptions) {
        let groups: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        for group in groups.as_array().unwrap() {
            self.schemas += 1;
            let name = format!("{}: {}", path.display(), group["description"]);
            match Schema::compile(&group["schema"], options) {
                Ok(schema) => {
                    group["tests"].as_array().unwrap().iter().for_each(|test| self.test(&name, &schema, test))
                }
                Err(why) => self.refused.push(format!("{name}: {why}")),
            }
        }
    }

    fn test(&mut self, name: &str, schema: &Schema, test: &Value) {
        self.tests += 1;
        let (checked, text) = (schema.check(&test["data"]), test["data"].to_string());
        assert_ne!(checked, Err(Mismatch::TooMuch), "{name}: {text}");
        for length in [1, 7, 1000] {
            assert_eq!(streams(schema, &text, length), checked.is_ok(), "{name}: {text}");
        }
        match (checked.is_ok(), test["valid"].as_bool().unwrap()) {
            (true, true) | (false, false) => self.right += 1,
            (true, false) => self.wrongly_passed += 1,
            (false, true) => self.wrongly_stopped += 1,
        }
        if checked.is_ok() != test["valid"] {
            self.wrong.push(format!("{name}: {}: {text}: {checked:?}", test["description"]));
        }
    }

    fn print(&self, name: &str) {
        let Counts { schemas, refused, tests, right, wrongly_passed, wrongly_stopped, .. } = self;
        let refused = refused.len();
        println!(
            "| {name} | {schemas} | {refused} | {tests} | {right} | {wrongly_passed} | {wrongly_stopped} |"
        );
    }
}

/// The files of a folder, except these, in their order.
fn files(folder: &Path, except: &[&str]) -> Vec<PathBuf> {
    let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let is_used = |path: &PathBuf| {
        path.extension().is_some_and(|extension| extension == "json")
            && !except.iter().any(|name| path.ends_with(name))
    };
    let mut files: Vec<_> = files.filter(is_used).collect();
    files.sort();
    files
}

#[test]
fn the_official_suite_agrees_where_it_is_at_hand() {
    let Some(suite) = suite() else { return };
    println!("| | schemas | refused | tests | right | wrongly passed | wrongly stopped |");
    let mut all = Vec::new();
    for (name, draft) in DRAFTS {
        let options = SchemaOptions { formats: false, draft: Some(draft) };
        let (mut required, mut optional, mut formats) =
            (Counts::default(), Counts::default(), Counts::default());
        files(&suite.join(name), &[]).iter().for_each(|path| required.file(path, options));
        let folder = suite.join(name).join("optional");
        // `format` is on only by a setting.
        files(&folder, &["format-assertion.json"]).iter().for_each(|path| optional.file(path, options));
        for format in FORMATS {
            let path = folder.join("format").join(format!("{format}.json"));
            if path.is_file() {
                formats.file(&path, SchemaOptions { formats: true, ..options });
            }
        }
        required.print(&format!("{name} required"));
        optional.print(&format!("{name} optional"));
        formats.print(&format!("{name}, 8 formats"));
        all.extend([(required, true), (optional, false), (formats, true)]);
    }
    for (counts, is_required) in &all {
        counts.wrong.iter().chain(&counts.refused).for_each(|line| println!("{line}"));
        if *is_required {
            assert_eq!(counts.wrong, [""; 0]);
            assert!(
                counts.refused.iter().all(|why| why.ends_with("is in another document")),
                "{:?}",
                counts.refused
            );
        }
    }
}
