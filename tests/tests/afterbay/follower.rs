//! The process that follows the journal: its death, and a second one.

use std::path::Path;
use std::process::Command;

use afterbay_tests::commands::run_afterbay;
use afterbay_tests::frames::{SynthRequest, batch};
use afterbay_tests::{Afterbay, Reader, Sandbox, Sender, until};
use afterbay_wire::synth::SynthWire::Msgpack;
use serde_json::Value;

/// The process that follows, as its status file says.
fn follower(sandbox: &Sandbox) -> u64 {
    let status = std::fs::read(sandbox.journal().join(".followers/STATUS")).unwrap_or_default();
    let status: Value = serde_json::from_slice(&status).unwrap_or_default();
    status["pid"].as_u64().unwrap_or(0)
}

fn kill(pid: u64) {
    assert!(Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap().success());
}

/// The keys of all records of usage.
fn keys(dir: &Path) -> Vec<String> {
    let files = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let files = files.filter(|path| path.extension().is_some_and(|it| it == "jsonl"));
    let text: String = files.map(|path| std::fs::read_to_string(path).unwrap()).collect();
    let key = |line: &str| serde_json::from_str::<Value>(line).unwrap()["key"].as_str().unwrap().to_owned();
    text.lines().map(key).collect()
}

#[test]
fn a_killed_follower_is_a_degraded_state_is_started_again_and_repeats_or_loses_no_record() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let afterbay = Afterbay::run(&sandbox, &sandbox.config());
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let usage = sandbox.journal().join(".usage");
    until("the follower runs", || follower(&sandbox) > 0);
    for round in 0..3 {
        let first = follower(&sandbox);
        for number in 0..40 {
            let rid = format!("{round}-{number}");
            sender.send(&batch(Msgpack, vec![SynthRequest::new(&rid).last(&[1])]));
            reader.frame();
            if number == 20 {
                kill(first);
            }
        }
        let condition = afterbay.until_degraded("follower");
        assert!(condition.contains("the process that follows the journal has ended"), "{condition}");
        until("another one runs", || follower(&sandbox) != first);
        afterbay.until_healthy();
    }
    assert!(afterbay.metrics().events("FollowerEnded") >= 3);
    assert_eq!(afterbay.stop(), 0);
    let mut keys = keys(&usage);
    let records = keys.len();
    keys.sort();
    keys.dedup();
    assert_eq!((records, keys.len()), (120, 120), "each request has one record");
}

#[test]
fn a_second_follower_of_one_journal_is_refused() {
    let sandbox = Sandbox::new();
    let afterbay = Afterbay::run(&sandbox, &sandbox.config());
    until("the follower runs", || follower(&sandbox) > 0);
    let config = sandbox.write(&sandbox.config());
    let refused = run_afterbay(&["follow", "--config", &config]);
    assert_eq!(refused.code, 75);
    assert!(refused.stderr.contains("is followed by process"), "{}", refused.stderr);
    assert_eq!(afterbay.stop(), 0);
}
