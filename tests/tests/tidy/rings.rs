//! Checks that no modules of a crate import each other in a ring. A module and its submodules count as one.

use super::{crates_with_paths, none, read};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The top-level modules of a crate, each with the modules that it imports.
type Arrows = BTreeMap<String, BTreeSet<String>>;

#[test]
fn no_crate_has_an_import_ring_among_its_modules() {
    let mut wrong = Vec::new();
    for (name, root) in crates_with_paths() {
        let src = root.join("src");
        if src.is_dir() {
            let rings = rings(&arrows(&sources(&src)));
            wrong.extend(rings.into_iter().map(|ring| format!("{name}: {}", ring.join(", "))));
        }
    }
    none("import rings", wrong);
}

/// The modules of the crate `batch` that work on a batch, each with those among them that it may know. All other modules of the
/// crate are data, and know none of them.
const BATCH_STAGES: &[(&str, &[&str])] = &[
    ("records", &[]),
    ("frame_log", &["records"]),
    ("hold", &[]),
    ("ledger", &["hold", "records"]),
    ("outbox", &[]),
];

#[test]
fn the_data_of_a_batch_knows_no_stage_and_a_stage_only_those_below_it() {
    let (_, batch) = crates_with_paths().into_iter().find(|(name, _)| name == "afterbay-batch").unwrap();
    let may_know =
        |module: &str| BATCH_STAGES.iter().find(|(stage, _)| *stage == module).map(|(_, may)| *may);
    let mut wrong = Vec::new();
    for (module, known) in arrows(&sources(&batch.join("src"))) {
        let may = may_know(&module).unwrap_or_default();
        let unknown = known.iter().filter(|it| may_know(it).is_some() && !may.contains(&it.as_str()));
        wrong.extend(unknown.map(|known| format!("{module} knows {known}")));
    }
    none("directions in the crate batch", wrong);
}

#[test]
fn a_ring_is_found_and_a_chain_is_none() {
    let sources = |texts: &[(&str, &str)]| {
        texts.iter().map(|(module, text)| ((*module).to_owned(), (*text).to_owned())).collect::<Vec<_>>()
    };
    let ring = sources(&[
        ("lib", "mod a;\nmod b;\nmod c;\npub use c::C;"),
        ("a", "use crate::b::{self, B};"),
        ("b", "use crate::{C, x};"),
        ("c", "fn c() { crate::a::go() }"),
    ]);
    assert_eq!(rings(&arrows(&ring)), [["a", "b", "c"]]);
    let chain = sources(&[
        ("lib", "mod a;\nmod b;"),
        ("a", "use crate::b::B;\n#[cfg(test)]\nmod tests {\n use crate::a;\n}"),
        ("b", "// use crate::a::A;"),
    ]);
    assert_eq!(rings(&arrows(&chain)), [[""; 0]; 0]);
}

/// The code of each file below `src`, by its top-level module.
fn sources(src: &Path) -> Vec<(String, String)> {
    fn collect(dir: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => collect(&path, found),
                false if path.extension().is_some_and(|it| it == "rs") => found.push(path),
                false => {}
            }
        }
    }
    let mut found = Vec::new();
    collect(src, &mut found);
    let is_code = |path: &PathBuf| !path.ends_with("tests.rs");
    let module = |path: &PathBuf| {
        let first = path.strip_prefix(src).unwrap().iter().next().unwrap().to_string_lossy().into_owned();
        first.trim_end_matches(".rs").to_owned()
    };
    found.iter().filter(|path| is_code(path)).map(|path| (module(path), read(path))).collect()
}

fn arrows(sources: &[(String, String)]) -> Arrows {
    let modules: BTreeSet<&str> = sources.iter().map(|(module, _)| module.as_str()).collect();
    let is_root = |module: &str| matches!(module, "lib" | "main");
    // The module of each item that the root exports.
    let mut exports: BTreeMap<String, String> = BTreeMap::new();
    for (_, text) in sources.iter().filter(|(module, _)| is_root(module)) {
        for statement in code(text).split(';') {
            let Some((_, path)) = statement.rsplit_once("use ") else { continue };
            let Some((module, items)) = path.trim().split_once("::") else { continue };
            for item in words(items) {
                exports.insert(item.to_owned(), module.to_owned());
            }
        }
    }
    let mut arrows = Arrows::new();
    for (module, text) in sources.iter().filter(|(module, _)| !is_root(module)) {
        let to = arrows.entry(module.clone()).or_default();
        let code = code(text);
        for (at, _) in code.match_indices("crate::") {
            for name in first_names(&code[at + "crate::".len()..]) {
                let named = modules.get(name).copied().or_else(|| exports.get(name).map(String::as_str));
                to.extend(named.filter(|named| *named != module.as_str()).map(str::to_owned));
            }
        }
    }
    arrows
}

/// The code without comments and without inline tests, on one line.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let lines = text.lines().map(|line| line.split("//").next().unwrap_or_default());
    lines.collect::<Vec<_>>().join(" ")
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

/// The names that follow `crate::`: one, or the first of each path in braces.
fn first_names(path: &str) -> Vec<&str> {
    let Some(list) = path.strip_prefix('{') else { return words(path).take(1).collect() };
    let (mut depth, mut names, mut start) = (0, Vec::new(), 0);
    for (at, c) in list.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' | '}' if depth == 0 => {
                names.extend(words(&list[start..at]).next());
                start = at + 1;
                if c == '}' {
                    break;
                }
            }
            _ => {}
        }
    }
    names
}

/// The rings: sets of modules that reach each other, each sorted by name.
fn rings(arrows: &Arrows) -> Vec<Vec<String>> {
    let reached = |from: &str| {
        let (mut seen, mut open) = (BTreeSet::new(), vec![from.to_owned()]);
        while let Some(module) = open.pop() {
            for to in arrows.get(&module).into_iter().flatten() {
                if seen.insert(to.clone()) {
                    open.push(to.clone());
                }
            }
        }
        seen
    };
    let reached: BTreeMap<&String, BTreeSet<String>> =
        arrows.keys().map(|module| (module, reached(module))).collect();
    let mut rings: BTreeSet<Vec<String>> = BTreeSet::new();
    for (module, to) in reached.iter().filter(|(module, to)| to.contains(**module)) {
        let ring = to.iter().filter(|other| reached.get(other).is_some_and(|back| back.contains(*module)));
        rings.insert(ring.cloned().collect());
    }
    rings.into_iter().collect()
}
