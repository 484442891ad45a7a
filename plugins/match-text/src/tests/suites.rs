//! Public labelled texts, where they are at hand: `shared/suites` beside the project.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::process::Command;

use serde::Deserialize;

use super::masks::Masker;
use crate::Preset;

const SUITE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/suites/personal-data.jsonl.gz");

/// A text of a suite.
#[derive(Deserialize)]
struct Sample {
    source: String,
    /// A preset's name, also with a country behind it, or another kind of text.
    entity: String,
    text: String,
    /// The number of values in the text. `None` if the source does not say.
    count: Option<u32>,
    /// Their places, in characters.
    #[serde(default)]
    spans: Option<Vec<(usize, usize)>>,
}

impl Sample {
    fn preset(&self) -> Option<Preset> {
        let name = |preset: &Preset| preset.name();
        Preset::ALL
            .into_iter()
            .find(|preset| self.entity == name(preset))
            .or_else(|| self.entity.starts_with("phone-").then_some(Preset::Phone))
    }

    /// The line of the table: a phone number stands in the line of its form.
    fn line(&self) -> String {
        let Self { source, entity, .. } = self;
        match (&source[..], &entity[..]) {
            ("phonenumbers" | "validator.js", "phone") => format!("{source} | {entity}, {}", self.form()),
            _ => format!("{source} | {entity}"),
        }
    }

    fn form(&self) -> &'static str {
        let (from, to) =
            self.spans.as_ref().and_then(|spans| spans.first().copied()).unwrap_or((0, usize::MAX));
        let number: String = self.text.chars().skip(from).take(to - from).collect();
        let number = number.trim_start_matches('(');
        let digits = number.bytes().filter(u8::is_ascii_digit).count();
        match number {
            _ if number.starts_with("tel:") => "`tel:`",
            _ if number.starts_with('+') => "`+`",
            _ if number.starts_with("00") => "`00`",
            _ if number.starts_with('0') => "leading 0",
            _ if digits == 10 && number.as_bytes().get(3..5) == Some(&b") "[..]) => "North America",
            _ => "other",
        }
    }

    /// The letters and digits to hide, as bytes of the text. All of the text if the source says no places.
    fn secret(&self) -> Vec<usize> {
        let is_in = |at: usize| {
            self.spans.as_ref().is_none_or(|spans| spans.iter().any(|(from, to)| (*from..*to).contains(&at)))
        };
        let is_phone = self.preset() == Some(Preset::Phone);
        let characters = self.text.char_indices().enumerate();
        characters
            .filter(|(at, (_, character))| {
                is_in(*at) && if is_phone { character.is_numeric() } else { character.is_alphanumeric() }
            })
            .map(|(_, (byte, _))| byte)
            .collect()
    }
}

/// The samples; `None` without the suites.
fn samples() -> Option<Vec<Sample>> {
    std::path::Path::new(SUITE).exists().then_some(())?;
    let output = Command::new("gzip").args(["-dc", SUITE]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    Some(text.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
}

#[derive(Default)]
struct Counts {
    wanted: u32,
    whole: u32,
    part: u32,
    negatives: u32,
    wrong: u32,
}

/// Prints the lines of each source and kind, and returns them.
fn table(samples: &[Sample]) -> String {
    let mut masker = Masker::new(&Preset::ALL);
    let mut lines = BTreeMap::<String, Counts>::new();
    let mut others = BTreeMap::<(&str, String), u32>::new();
    let mut of_other = BTreeMap::<&str, u32>::new();
    let notes = std::env::var("MATCH_TEXT_NOTES").unwrap_or_default();
    for sample in samples {
        let masks = masker.masks(&sample.text);
        let Some(preset) = sample.preset() else {
            *of_other.entry(&sample.source).or_default() += 1;
            let mut presets: Vec<&String> = masks.iter().map(|(_, name)| name).collect();
            presets.sort_unstable();
            presets.dedup();
            for name in presets {
                *others.entry((&sample.source[..], name.clone())).or_default() += 1;
                if notes.contains("other") {
                    println!("other {} {name}: {:?}", sample.entity, sample.text);
                }
            }
            continue;
        };
        let line = sample.line();
        let counts = lines.entry(line.clone()).or_default();
        let own: Vec<_> = masks.iter().filter(|(_, name)| name == preset.name()).collect();
        if sample.count.is_none() {
            continue;
        }
        if sample.count == Some(0) {
            counts.negatives += 1;
            counts.wrong += u32::from(!own.is_empty());
            if !own.is_empty() && notes.contains("wrong") {
                println!("wrong {line}: {:?}", sample.text);
            }
            continue;
        }
        counts.wanted += 1;
        let secret = sample.secret();
        let hidden = secret.iter().filter(|&at| own.iter().any(|(range, _)| range.contains(at))).count();
        match hidden {
            _ if hidden == secret.len() => counts.whole += 1,
            0 => {}
            _ => counts.part += 1,
        }
        if hidden < secret.len() && notes.contains("missed") {
            println!("missed {line}, {hidden} of {}: {:?}", secret.len(), sample.text);
        }
    }
    let mut table = String::new();
    for (line, Counts { wanted, whole, part, negatives, wrong }) in lines {
        let missed = wanted - whole - part;
        writeln!(table, "| {line} | {wanted} | {whole} | {part} | {missed} | {negatives} | {wrong} |")
            .unwrap();
    }
    for (source, all) in of_other {
        let of = |preset: &Preset| {
            let count = others.get(&(source, preset.name().to_owned())).copied().unwrap_or(0);
            format!("{} {count}", preset.name())
        };
        let of: Vec<String> = Preset::ALL.iter().map(of).collect();
        writeln!(table, "| {source} | other kinds | | | | | {all} | {} |", of.join(", ")).unwrap();
    }
    print!("{table}");
    table
}

#[test]
#[ignore = "takes 5 s, and reads texts beside the project"]
fn the_suites_give_the_figures_of_the_readme() {
    let Some(samples) = samples() else { return };
    let table = table(&samples);
    assert!(include_str!("../../README.md").contains(&table), "the README's table must be:\n{table}");
}
