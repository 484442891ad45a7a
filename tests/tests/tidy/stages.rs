//! The stages of a batch take no lock, and get the time from the stream's clock.

use super::{files, none, read};

/// The crates of the stages, and those that they are made of.
const STAGES: [&str; 5] = ["sockets", "wire", "batch", "chain", "stream"];

/// The files of the stages that read the machine's clock, each with the reason.
const CLOCKS: &[(&str, &str)] = &[
    ("chain/src/slot.rs", "measures a plugin's call"),
    ("chain/src/replay.rs", "bounds a replay"),
    ("sockets/src/pull.rs", "has a time until the first turn"),
    ("sockets/src/credit/writer.rs", "runs in the reader's process"),
    ("stream/src/clock.rs", "is the stream's clock"),
    ("stream/src/trial.rs", "begins the clock of a trial"),
];

/// The files of the stages with their code, without comments and unit tests.
fn stages() -> Vec<(String, String)> {
    let is_stage = |name: &str| STAGES.iter().any(|stage| name.contains(&format!("host/path/{stage}/src/")));
    let files = files("rs").into_iter().filter(|(name, _)| is_stage(name) && !name.contains("tests"));
    let code = |text: &str| {
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        code.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
    };
    files.map(|(name, path)| (name, code(&read(&path)))).collect()
}

#[test]
fn no_stage_of_a_batch_has_a_lock() {
    let has_lock = |code: &str| ["Mutex", "RwLock", "Condvar"].iter().any(|lock| code.contains(lock));
    let stages = stages();
    assert!(stages.len() > 100, "{} files of the stages were found", stages.len());
    none("locks", stages.into_iter().filter(|(_, code)| has_lock(code)).map(|(name, _)| name).collect());
}

#[test]
fn only_named_files_of_the_stages_read_the_clock() {
    let reads = |code: &str| {
        ["Instant::now(", "SystemTime::now(", "Timestamp::now("].iter().any(|it| code.contains(it))
    };
    let mut wrong = Vec::new();
    for (name, code) in stages() {
        let is_named = CLOCKS.iter().any(|(file, _)| name.ends_with(&format!("/{file}")));
        if reads(&code) != is_named {
            wrong.push(format!("{name}: reads the machine's clock: {}, is in CLOCKS: {is_named}", !is_named));
        }
    }
    none("clocks", wrong);
}
