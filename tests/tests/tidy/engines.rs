//! An engine's name stands in the engine's own modules and in a short list of other files. Everything else asks for what the engine
//! does (`Engine::traits`, the trait of a batch), so that the compiler names each place that another engine needs.

use super::{files, none, read};

/// The names, in lower case.
const NAMES: [&str; 3] = ["sglang", "vllm", "smg"];

/// The names of the files and directories that belong to an engine, or to the table of all engines.
const MODULES: [&str; 8] = ["sglang", "vllm", "smg", "engine", "sglang.rs", "vllm.rs", "smg.rs", "engine.rs"];

/// Other files that may name an engine, each with the reason.
const LISTED: &[(&str, &str)] = &[
    ("host/operation/scheduler/src/signals/load_snapshot.rs", "the name of the one load file that is read"),
    ("host/path/wire/src/abort.rs", "which engine's abort has which form"),
    ("host/path/wire/src/decode.rs", "which engine's frame it is"),
    ("host/path/wire/src/layouts.rs", "which engine introduces which layouts"),
    ("host/path/wire/src/lib.rs", "declares the modules"),
    ("host/path/wire/src/migration.rs", "which engine's call has which form"),
    ("host/tools/afterbay/src/commands.rs", "declares the launchers"),
    ("host/tools/afterbay/src/commands/connector.rs", "an example of a command"),
    (
        "host/tools/afterbay/src/commands/demo.rs",
        "an example of a command, and the issue that the demo shows",
    ),
    ("host/tools/afterbay/src/commands/launcher/connectors.rs", "the files of the connectors"),
    ("host/tools/afterbay/src/commands/sim/args.rs", "examples of commands"),
    ("host/tools/afterbay/src/main.rs", "the commands of the launchers"),
    ("host/tools/journal-tools/src/timed_trace.rs", "the benchmarks that read a trace"),
    ("host/tools/sim/src/frames.rs", "which engine's steps are simulated"),
];

/// Names of engines, and of their classes, fields and options, that the contract with plugins has general names for. In lower case.
const NOT_IN_THE_CONTRACT: [&str; 12] = [
    "sglang",
    "vllm",
    "dynamo",
    "http_worker",
    "http-worker",
    "tokenizer worker",
    "detokenization",
    "batchstr",
    "batchtoken",
    "enginecore",
    "num_running",
    "token_usage",
];

/// The contract, what hands it to plugins, and what a new plugin begins with. Comments count: they are the plugin author's
/// documentation.
const CONTRACT: [&str; 5] =
    ["wit/", "plugins/sdk/src/", "plugins/kit/templates/", "host/plugins/runtime/src/", "tests/guests/"];

/// The code of a file: without comments and without its tests.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.collect::<Vec<_>>().join("\n").to_lowercase()
}

#[test]
fn an_engine_is_named_only_in_its_modules_and_in_listed_files() {
    let mut wrong = Vec::new();
    let mut used = Vec::new();
    for (name, path) in files("rs") {
        let mut places = name.split('/');
        let is_code = name.starts_with("host/") && name.contains("/src/");
        let is_test = name.contains("/tests/") || name.ends_with("/tests.rs");
        if !is_code || is_test || places.any(|place| MODULES.contains(&place)) {
            continue;
        }
        let code = code(&read(&path));
        let Some(engine) = NAMES.into_iter().find(|engine| code.contains(engine)) else { continue };
        match LISTED.iter().find(|(listed, _)| *listed == name) {
            Some((listed, _)) => used.push(*listed),
            None => wrong.push(format!("{name} names {engine}")),
        }
    }
    let unused = LISTED.iter().filter(|(listed, _)| !used.contains(listed));
    wrong.extend(unused.map(|(listed, _)| format!("{listed} is listed and names no engine")));
    none("engines named outside of their modules", wrong);
}

#[test]
fn the_contract_and_the_sdk_name_no_engine() {
    let mut wrong = Vec::new();
    let mut seen = [0; CONTRACT.len()];
    for (name, path) in ["wit", "rs", "js", "py", "c", "h", "toml", "md"].into_iter().flat_map(files) {
        let Some(place) = CONTRACT.iter().position(|place| name.starts_with(place)) else { continue };
        seen[place] += 1;
        for (number, line) in (1..).zip(read(&path).to_lowercase().lines()) {
            let found = NOT_IN_THE_CONTRACT.iter().find(|word| line.contains(**word));
            wrong.extend(found.map(|word| format!("{name}:{number} has {word:?}")));
        }
    }
    assert!(!seen.contains(&0), "{seen:?} files of {CONTRACT:?}");
    none("names of one engine in the contract", wrong);
}

/// The names of the engine that was added last, and the page that says which files an engine costs.
const THIRD: [&str; 2] = ["smg", "slim"];
const PAGE: &str = "docs/src/engines/add-an-engine.md";
/// The files outside of its own modules that name it: the cost of an engine besides what is its own.
const THIRD_FILES: usize = 13;

#[test]
fn an_engine_costs_its_own_files_and_those_that_the_page_names() {
    let page = read(&super::repository().join(PAGE));
    let own = ["smg", "smg.rs", "smg.py"];
    let all = files("rs").into_iter().chain(files("py"));
    let is_code =
        |name: &str| name.starts_with("host/") && !name.contains("/tests/") && !name.ends_with("/tests.rs");
    let names = all.filter(|(name, path)| {
        is_code(name)
            && !name.split('/').any(|place| own.contains(&place))
            && THIRD.iter().any(|name| code(&read(path)).contains(name))
    });
    let names: Vec<String> = names.map(|(name, _)| name).collect();
    let is_own = |name: &str| is_code(name) && name.split('/').any(|place| own.contains(&place));
    let own_files = files("rs").iter().chain(&files("py")).filter(|(name, _)| is_own(name)).count();
    let absent = names.iter().filter(|name| !page.contains(&format!("`{name}`")));
    let mut absent: Vec<String> = absent.cloned().collect();
    // An engine answers for itself by its traits and by its batches.
    let of = |file: &str, from: &str, before: &str, after: char| -> Vec<String> {
        let text = read(&super::repository().join(file));
        let body = text.split(from).nth(1).and_then(|body| body.split("\n}").next()).unwrap().to_owned();
        let names = body.split(before).skip(1).filter_map(|it| it.split(after).next().map(str::to_owned));
        names.collect()
    };
    let mut said = of("host/operation/types/src/engine.rs", "pub struct Traits {", "    pub ", ':');
    said.extend(of("host/path/wire/src/batch.rs", "trait EngineBatch", "    fn ", '('));
    assert!(said.len() > 30, "{said:?}");
    absent.extend(said.into_iter().filter(|name| !page.contains(&format!("`{name}`"))));
    none("what the third engine has and the page does not name", absent);
    assert_eq!(names.len(), THIRD_FILES, "{names:?}");
    let says = format!("with {own_files} files of its own and {THIRD_FILES} others");
    assert!(page.contains(&says), "{PAGE} does not say {says:?}");
}
