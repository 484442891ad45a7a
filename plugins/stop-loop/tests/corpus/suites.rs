//! The tables of the README: outputs of data, files of this machine, loops of public threads, and the reports' case. The
//! ignored tests take minutes without optimisation: `make bench-guards` runs them.

use std::path::{Path, PathBuf};

use crate::data::DATA;
use crate::loops::{Looped, SORTS};
use crate::quoted::{Parts, QUOTED};
use crate::random::Random;
use crate::tekken::Tekken;
use crate::texts::prose;
use crate::tokens::{Digits, tokens};
use crate::{false_stops, first};

/// A tokenizer, with its name.
type Encode = (&'static str, Box<dyn Fn(&str) -> Vec<u32>>);

/// The tokenizers: Tekken where `AFTERBAY_TEKKEN` names its file, and those of [`tokens`].
fn encoders() -> Vec<Encode> {
    let mut encoders: Vec<Encode> = Vec::new();
    match std::env::var_os("AFTERBAY_TEKKEN").map(PathBuf::from).filter(|path| path.is_file()) {
        Some(path) => {
            let tekken = Tekken::load(&path);
            encoders.push(("Tekken", Box::new(move |text: &str| tekken.encode(text))));
        }
        None => println!("missing: AFTERBAY_TEKKEN names no file tekken_240911.json of mistral_common"),
    }
    encoders.push(("one id a digit", Box::new(|text: &str| tokens(text, Digits::Single))));
    encoders.push(("one id up to 3 digits", Box::new(|text: &str| tokens(text, Digits::Groups))));
    encoders
}

/// The counts of one row of a table of honest texts.
#[derive(Default)]
struct Honest {
    texts: usize,
    ids: usize,
    /// Texts of 4,000 ids or more, and of 20,000 or more.
    long: [usize; 2],
    stops: Vec<String>,
}

impl Honest {
    fn add(&mut self, name: &str, ids: &[u32]) {
        self.texts += 1;
        self.ids += ids.len();
        self.long[0] += usize::from(ids.len() >= 4_000);
        self.long[1] += usize::from(ids.len() >= 20_000);
        if let Some((count, found)) = first(ids) {
            self.stops.push(format!("{name}, id {count} of {}: {found:?}", ids.len()));
        }
    }

    fn print(&self, what: &str, tokenizer: &str) {
        let Honest { texts, ids, long: [long, longer], stops } = self;
        println!("| {what} | {tokenizer} | {texts} | {ids} | {long} | {longer} | {} |", stops.len());
        stops.iter().for_each(|stop| println!("    {stop}"));
    }
}

fn print_head() {
    println!("| honest texts | tokenizer | texts | ids | of 4,000 ids or more | of 20,000 or more | stops |");
    println!("|---|---|---|---|---|---|---|");
}

#[test]
fn the_long_data_of_the_reports_is_not_stopped() {
    let case = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/reports/08-long-data/in.toml");
    let Ok(case) = std::fs::read_to_string(&case) else {
        println!("missing: {}", case.display());
        return;
    };
    print_head();
    for rid in ["csv", "sql", "terraform"] {
        let begin = format!("rid = \"{rid}\", ids = [");
        let rows = case.split(&begin).skip(1).map(|row| row.split(']').next().unwrap());
        let ids: Vec<u32> = rows.flat_map(|row| row.split(", ")).map(|id| id.parse().unwrap()).collect();
        let mut honest = Honest::default();
        honest.add(rid, &ids);
        honest.print(&format!("reports/08-long-data, {rid}"), "Tekken");
        assert!(honest.stops.is_empty());
    }
}

#[test]
#[ignore = "a measurement: run it in release"]
fn data_is_not_stopped() {
    print_head();
    for (tokenizer, encode) in encoders() {
        for (what, bytes) in
            [("12 to 60 kB of data", 12_000..60_000), ("60 to 90 kB of data", 60_000..90_000)]
        {
            let mut honest = Honest::default();
            for seed in 0..380 {
                let mut random = Random::new(seed);
                let (family, write) = DATA[seed as usize % DATA.len()];
                let text = write(&mut random, random_in(seed, &bytes));
                honest.add(family, &encode(&text));
            }
            honest.print(what, tokenizer);
        }
    }
    let (stops, ids) = false_stops(0..100_000);
    println!("| 16 families of short outputs | both | 100000 | {ids} | | | {} |", stops.len());
    stops.iter().take(20).for_each(|stop| println!("    {stop}"));
}

fn random_in(seed: u64, range: &std::ops::Range<usize>) -> usize {
    Random::new(!seed).from(range.start, range.end)
}

#[test]
#[ignore = "a measurement: run it in release"]
fn files_of_this_machine() {
    /// The most files of a directory: of 60 kB or more, and shorter ones.
    const FILES_MAX: [usize; 2] = [500, 3_000];
    let Some(roots) = std::env::var_os("AFTERBAY_TEXTS") else {
        println!("missing: AFTERBAY_TEXTS names no directories");
        return;
    };
    print_head();
    let encoders = encoders();
    for root in std::env::split_paths(&roots) {
        let mut files = Vec::new();
        list(&root, &mut files);
        files.sort_by_key(|(path, _)| hash(path));
        let (long, short): (Vec<_>, Vec<_>) = files.into_iter().partition(|(_, bytes)| *bytes >= 60_000);
        let files = || long.iter().take(FILES_MAX[0]).chain(short.iter().take(FILES_MAX[1]));
        for (tokenizer, encode) in &encoders {
            let mut honest = Honest::default();
            for (path, _) in files() {
                let Ok(text) = std::fs::read_to_string(path) else { continue };
                honest.add(&path.display().to_string(), &encode(&text));
            }
            honest.print(&root.display().to_string(), tokenizer);
        }
    }
}

/// The files of 1 kB to 1 MB below a directory.
fn list(directory: &Path, files: &mut Vec<(PathBuf, u64)>) {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let Ok(metadata) = entry.metadata() else { continue };
        if metadata.is_dir() {
            list(&entry.path(), files);
        } else if metadata.is_file() && (1_000..1_000_000).contains(&metadata.len()) {
            files.push((entry.path(), metadata.len()));
        }
    }
}

fn hash(path: &Path) -> u64 {
    let text = path.display().to_string();
    Random::new(text.bytes().fold(7, |hash, byte| hash * 31 % 1_000_000_007 + u64::from(byte))).next()
}

#[test]
#[ignore = "a measurement: run it in release"]
fn loops_of_public_threads() {
    const IDS: usize = 40_000;
    let encoders = encoders();
    let names: Vec<&str> = encoders.iter().map(|(name, _)| *name).collect();
    println!("| thread | shape | {} |\n|---|---|{}", names.join(" | "), "---|".repeat(names.len()));
    for (seed, (thread, shape, turn)) in (1..).zip(QUOTED) {
        let mut cells = Vec::new();
        for (_, encode) in &encoders {
            let mut random = Random::new(seed);
            let (begin, parts) = (prose(&mut random), Parts::new(&mut random));
            let before = encode(&begin).len();
            // A model writes each turn in the same tokens.
            let mut ids = encode(&begin);
            for at in 1.. {
                ids.extend(encode(&turn(&mut random, &parts, at)));
                if ids.len() >= before + IDS {
                    break;
                }
            }
            cells.push(match first(&ids) {
                Some((count, found)) => format!("{} ({})", count - before, found.kind.word()),
                None => format!("not in {}", ids.len() - before),
            });
        }
        println!("| {thread} | {shape} | {} |", cells.join(" | "));
    }
}

#[test]
#[ignore = "a measurement: run it in release"]
fn made_loops() {
    println!(
        "| made loops | requests | found | stopped before the loop | ids after the fourth turn: median | 99 % | most |"
    );
    println!("|---|---|---|---|---|---|---|");
    for (sort, make) in SORTS {
        let (mut delays, mut early) = (Vec::new(), 0);
        for seed in 0..10_000 {
            let looped: Looped = make(&mut Random::new(seed));
            match first(&looped.ids) {
                Some((count, _)) if count < looped.begin => early += 1,
                Some((count, _)) => delays.push(count as i64 - looped.fourth_turn() as i64),
                None => {}
            }
        }
        delays.sort_unstable();
        let at = |share: f64| delays[((delays.len() - 1) as f64 * share) as usize];
        println!(
            "| {sort} | 10000 | {} | {early} | {} | {} | {} |",
            delays.len(),
            at(0.5),
            at(0.99),
            at(1.0)
        );
    }
}
