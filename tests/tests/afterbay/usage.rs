//! Records of usage: one for each request, with the scheduler's own counts, over kill -9 under load.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use afterbay_sim::load::{EndReason, Endings, Lengths, Load};
use afterbay_tests::commands::{afterbay_command, run_afterbay};
use afterbay_tests::frames::frames_of;
use afterbay_tests::{Afterbay, PATIENCE, Reader, Sandbox, Sender, trials, until};
use afterbay_wire::synth::SynthWire::Msgpack;
use serde_json::Value;

use super::keeper::kill_worker;

/// Requests of one seed of the simulator.
const REQUESTS_OF_SEED: u64 = 400;
/// Output tokens after which the plugin ends a request.
const BUDGET: u64 = 25;

/// A request as the simulated scheduler ended it.
struct Sent {
    tokens: u64,
    is_aborted: bool,
}

/// The requests of the load: `AFTERBAY_USAGE_REQUESTS`, which is rounded up to whole seeds.
fn seeds() -> u64 {
    let requests = std::env::var("AFTERBAY_USAGE_REQUESTS").ok();
    let requests =
        requests.map_or(REQUESTS_OF_SEED, |requests| requests.parse().expect("a number of requests"));
    requests.div_ceil(REQUESTS_OF_SEED)
}

/// Waits until `count` is at least `least`. Panics if the count stays the same for a minute.
fn until_at_least(what: &str, least: u64, mut count: impl FnMut() -> u64) {
    let (mut last, mut since) = (0, Instant::now());
    loop {
        let now = count();
        if now >= least {
            return;
        }
        if now > last {
            (last, since) = (now, Instant::now());
        }
        assert!(since.elapsed() < PATIENCE, "{now} of {least}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Bytes of all files, which grow with each record.
fn bytes(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).into_iter().flatten();
    entries.map(|entry| entry.unwrap().metadata().map_or(0, |found| found.len())).sum()
}

/// The lines of all files.
fn lines(dir: &Path) -> Vec<Value> {
    let mut names: Vec<_> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.retain(|path| path.extension().is_some_and(|it| it == "jsonl"));
    names.sort();
    let text = names.iter().map(|path| std::fs::read_to_string(path).unwrap());
    text.flat_map(|text| text.lines().map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<_>>())
        .collect()
}

/// The figures: `AFTERBAY_USAGE_REQUESTS=1000000 AFTERBAY_TEST_TRIALS=20`.
#[test]
fn usage_equals_the_schedulers_own_counts_over_aborts_plugin_finishes_and_kill_9() {
    let (seeds, kills) = (seeds(), trials(2));
    let sandbox = Sandbox::new();
    let config = sandbox.config().credit(&sandbox).sink("reader = \"tokenizer\"\ntool_calls = \"joined\"");
    let rules = "attribute = [{ set = { tenant = \"odd\", model = \"m\" } }, { pattern = \"[02468]$\", set = { tenant = \"even\" } }]";
    let settings = format!("request_tokens = {BUDGET}");
    let config = config
        .stream(rules)
        .usage()
        .journal("retain = { bytes = \"unlimited\", age = \"unlimited\" }\nsegment = \"4MiB\"");
    let config = config.plugin_with("budget", "builtin:budget", &settings, "deadline = \"10s\"");
    let is_over = Arc::new(AtomicBool::new(false));
    let reads = sandbox.count_tokens(&is_over);
    // Also compiles the component, so that the lives below are short.
    let keeper = Afterbay::run_with(&sandbox, &config, &["--keep"]);
    let endpoint = sandbox.scheduler_side();
    let done = Arc::new(AtomicU64::new(0));
    let has_sent = done.clone();
    let sends = std::thread::spawn(move || {
        let mut sender = Sender::connect(&endpoint);
        let mut sent: BTreeMap<String, Sent> = BTreeMap::new();
        for seed in 1..=seeds {
            let lengths = Lengths { low: 1, high: 40 };
            let load = Load {
                seed,
                max_running: 200,
                lengths,
                endings: Endings::MIXED,
                ..Load::new(REQUESTS_OF_SEED, 1)
            };
            for frame in frames_of(&load, Msgpack) {
                sender.send(&frame.bytes);
                for (rid, ended) in frame.ended {
                    let is_aborted = ended.ending == EndReason::Abort;
                    sent.insert(rid.into(), Sent { tokens: ended.tokens, is_aborted });
                }
                has_sent.store(sent.len() as u64, Ordering::SeqCst);
                if seeds == 1 {
                    // So that the kills fall into the load.
                    std::thread::sleep(Duration::from_millis(3));
                }
            }
        }
        sent
    });
    for kill in 1..=kills {
        let at = seeds * REQUESTS_OF_SEED * kill / (kills + 1);
        until_at_least("requests have ended", at, || done.load(Ordering::SeqCst));
        kill_worker(&keeper);
    }
    let sent = sends.join().unwrap();
    until("the reader has every frame", || {
        let metrics = keeper.metrics();
        let waits = metrics.stream("outbox_frames") + metrics.stream("spilled_frames");
        waits + metrics.sink("lag_frames") + metrics.sink("queue_frames") == 0
    });
    // A record is in the file about a second after its request has ended, without a stop.
    let dir = sandbox.journal().join(".usage");
    let (mut seen, mut since) = (0, Instant::now());
    let is_behind = || keeper.metrics().follower("usage", "lag_seconds") > 0;
    while since.elapsed() < Duration::from_secs(2) || is_behind() {
        let now = bytes(&dir);
        if now > seen {
            (seen, since) = (now, Instant::now());
        }
        assert!(since.elapsed() < PATIENCE, "no record is added to {seen} bytes");
        std::thread::sleep(Duration::from_millis(100));
    }
    let recorded = lines(&dir);
    let mut rids = BTreeMap::<&str, Vec<&Value>>::new();
    recorded.iter().for_each(|record| rids.entry(record["rid"].as_str().unwrap()).or_default().push(record));
    rids.retain(|_, records| records.len() > 1);
    assert_eq!(recorded.len(), sent.len(), "every request is recorded, and once: {rids:?}");
    assert_eq!(keeper.stop(), 0);
    is_over.store(true, Ordering::SeqCst);
    let arrived = reads.join().unwrap();

    let records = lines(&dir);
    let keys: BTreeSet<&str> = records.iter().map(|record| record["key"].as_str().unwrap()).collect();
    assert_eq!((keys.len(), records.len()), (sent.len(), sent.len()), "each request once");
    let mut tenants: BTreeMap<&str, u64> = BTreeMap::new();
    for record in &records {
        let rid = record["rid"].as_str().unwrap();
        let Sent { tokens, is_aborted } = sent[rid];
        assert_eq!(
            (&record["tokens_received"], &record["completion_tokens"]),
            (&tokens.into(), &tokens.into()),
            "{record}"
        );
        assert_eq!(record["finish_reason"] == "abort", is_aborted, "{record}");
        let by = match record["finish_reason"].as_str() {
            _ if tokens > BUDGET => "plugin",
            Some("length") => "limit",
            Some("abort") => "client",
            _ => "model",
        };
        // The budget may end a request with the row that the scheduler ends it with.
        assert!(tokens == BUDGET || record["ended_by"] == by, "{record}");
        assert_eq!(
            (&record["tokens_forwarded"], &record["model"]),
            (&tokens.min(BUDGET).into(), &"m".into()),
            "{record}"
        );
        assert!(record["prompt_tokens"].as_u64().is_some_and(|prompt| prompt > 0), "{record}");
        *tenants.entry(record["tenant"].as_str().unwrap()).or_default() += tokens;
    }
    let all: u64 = sent.values().map(|sent| sent.tokens).sum();
    let forwarded: u64 = sent.values().map(|sent| sent.tokens.min(BUDGET)).sum();
    assert_eq!(arrived, forwarded);

    let dir = sandbox.text("journal");
    // A million requests take a debug build longer than `run_afterbay` waits.
    let summed = afterbay_command(&["usage", "--from", &dir, "--by", "tenant", "--json"]).output().unwrap();
    assert!(summed.status.success(), "{summed:?}");
    let summed: Value = serde_json::from_slice(&summed.stdout).unwrap();
    let of = |name: &str| summed["reconciliation"][name].as_u64().unwrap();
    assert_eq!((of("equal"), of("different")), (sent.len() as u64, 0), "{}", summed["reconciliation"]);
    assert_eq!(summed["total"]["tokens_received"], all);
    assert_eq!(summed["total"]["tokens_forwarded"], forwarded);
    let groups = summed["groups"].as_array().unwrap();
    let groups = groups
        .iter()
        .map(|group| (group["by"]["tenant"].as_str().unwrap(), group["tokens_received"].as_u64().unwrap()));
    assert_eq!(groups.collect::<BTreeMap<_, _>>(), tenants);
    eprintln!(
        "{} requests, {} aborts, {} ended by the plugin, {all} tokens, {kills} kills: records, journal and scheduler agree",
        sent.len(),
        sent.values().filter(|sent| sent.is_aborted).count(),
        records.iter().filter(|record| record["ended_by"] == "plugin").count(),
    );
}

#[test]
fn a_loss_is_named_by_afterbay_usage_and_the_exit_code_is_1() {
    use afterbay_tests::frames::{SynthRequest, batch};
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let afterbay = Afterbay::run(&sandbox, &sandbox.config().usage());
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let (mut whole, mut lossy) = (SynthRequest::new("whole"), SynthRequest::new("lossy"));
    sender.send(&batch(Msgpack, vec![whole.row(&[1, 2]), lossy.row(&[3])]));
    lossy.lose(2);
    sender.send(&batch(Msgpack, vec![whole.last(&[4]), lossy.last(&[5])]));
    reader.take(2);
    // Both are in the file while Afterbay runs.
    let usage = sandbox.journal().join(".usage");
    until("both are recorded", || usage.exists() && lines(&usage).len() == 2);
    let dir = sandbox.text("journal");
    let output = run_afterbay(&["usage", "--from", &dir, "--by", "stream"]);
    assert_eq!(output.code, 1);
    let figures: Vec<&str> = output.stdout.lines().nth(1).unwrap().split('\t').collect();
    assert_eq!(figures[..9], ["test", "2", "14", "0", "5", "5", "0", "0", "0"]);
    // The time between the two frames, in seconds.
    assert!(figures[9].parse::<f64>().unwrap() < 60.0 && figures[10..] == ["-", "-"], "{figures:?}");
    assert!(
        output.stderr.contains("\"lossy\": received 2 tokens, the scheduler counted 4"),
        "{}",
        output.stderr
    );
    let before = run_afterbay(&["usage", "--from", &dir, "--until", "2020-01-01T00:00:00Z"]);
    assert_eq!(before.stderr.trim(), "no request that has ended was found");
    assert_eq!(before.success().lines().last().unwrap(), "total\t0\t0\t0\t0\t0\t0\t0\t0\t0.000\t-\t-");
    assert_eq!(afterbay.stop(), 0);
}
