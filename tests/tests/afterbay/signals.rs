//! The scheduler's load: read, published with its age, stale, absent and back; and Afterbay's own figures beside it.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use afterbay_tests::commands::{run_afterbay, verify};
use afterbay_tests::components::guest;
use afterbay_tests::frames::{SynthRequest, batch};
use afterbay_tests::{Afterbay, Config, Reader, Sandbox, Sender, repository, wait_for};
use afterbay_wire::synth::SynthWire::Msgpack;
use serde_json::{Value, json};

fn fixture(name: &str) -> Vec<u8> {
    std::fs::read(repository().join("host/operation/scheduler/tests/fixtures").join(name)).unwrap()
}

fn unix_now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
}

/// The load file of two ranks that SGLang's own classes wrote, with the present time.
pub(crate) fn write_load(path: &Path) {
    let mut file = fixture("load-snapshot-two-ranks.shm");
    let (then, now) = (1_700_000_000.25_f64.to_be_bytes(), unix_now().to_be_bytes());
    let at: Vec<usize> = (0..file.len() - 8).filter(|at| file[*at..at + 8] == then).collect();
    assert_eq!(at.len(), 2, "a timestamp for each rank");
    at.into_iter().for_each(|at| file[at..at + 8].copy_from_slice(&now));
    // Written in place like SGLang does, because a reader may have the file mapped or open.
    let mut open = std::fs::OpenOptions::new().write(true).create(true).truncate(false).open(path).unwrap();
    open.write_all(&file).unwrap();
}

fn signals(config: Config, lines: &str) -> Config {
    config.stream(&format!("signals = {{ {lines} }}"))
}

/// The only stream of `/v1/status`.
#[track_caller]
fn stream_signals(afterbay: &Afterbay) -> Value {
    let answer = afterbay.get("/v1/status");
    assert_eq!(answer.status, 200, "{}", answer.body);
    let mut signals: Value = serde_json::from_str(&answer.body).unwrap();
    let streams = signals["streams"].as_array_mut().unwrap();
    assert_eq!(streams.len(), 1, "{streams:?}");
    streams.remove(0)
}

#[track_caller]
fn until_stream(afterbay: &Afterbay, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    wait_for(what, || Some(stream_signals(afterbay)).filter(&is_so))
}

/// Writes the load repeatedly, like a scheduler, until Afterbay shows it as fresh.
#[track_caller]
fn until_fresh(afterbay: &Afterbay, path: &Path) -> Value {
    until_stream(afterbay, "the load is fresh", |stream| {
        write_load(path);
        stream["load"]["freshness"] == "fresh"
    })
}

#[test]
fn the_schedulers_load_is_on_metrics_and_v1_status_and_is_marked_when_stale() {
    let sandbox = Sandbox::new();
    let path = sandbox.path("loads.shm");
    write_load(&path);
    let lines = format!("load_snapshot = {path:?}, stale_after = \"3s\"");
    let afterbay = Afterbay::run(&sandbox, &signals(sandbox.config(), &lines));
    let fresh = until_fresh(&afterbay, &path);
    let load = &fresh["load"];
    assert_eq!((&load["running"], &load["waiting"]), (&100.into(), &7.into()), "{fresh}");
    assert_eq!(load["kv_cache_usage"], 0.4, "{fresh}");
    assert!(load["age_ns"].as_u64().unwrap() <= 3_000_000_000, "{fresh}");
    let source = &fresh["load_source"];
    assert_eq!((&source["name"], &source["state"]), (&path.to_str().unwrap().into(), &"fresh".into()));
    assert_eq!(source["source"], "load_snapshot", "{fresh}");

    let metrics = afterbay.until_metrics("the load is fresh", |metrics| {
        write_load(&path);
        metrics.stream("scheduler_load_fresh") == 1
    });
    assert_eq!(metrics.stream("scheduler_running_requests"), 100);
    assert_eq!(afterbay.event("SignalFound")["place"], path.to_str().unwrap());

    // The scheduler stops measuring.
    let stale = until_stream(&afterbay, "the load is stale", |stream| stream["load"]["freshness"] == "stale");
    assert!(stale["load"]["age_ns"].as_u64().unwrap() > 3_000_000_000, "{stale}");
    assert_eq!(stale["load"]["running"], 100, "the last known, and said to be stale");
    let event = afterbay.event("SignalStale");
    assert_eq!((&event["source"], &event["level"]), (&"load_snapshot".into(), &"WARN".into()), "{event}");
    let text = afterbay.get("/metrics").body;
    assert!(text.contains("afterbay_scheduler_load_fresh{stream=\"test\"} 0"), "{text}");
    assert!(!text.contains("afterbay_scheduler_running_requests"), "{text}");
    assert!(afterbay.metrics().stream("scheduler_load_age_seconds") >= 3);
    let is_stale = "afterbay_signal_state{stream=\"test\",source=\"load_snapshot\",state=\"stale\"} 1";
    afterbay.until_metrics("the source is stale", |_| afterbay.get("/metrics").body.contains(is_stale));

    until_fresh(&afterbay, &path);
    afterbay.event("SignalFresh");
    assert_eq!(afterbay.stop(), 0);
}

#[test]
fn a_missing_load_file_is_reported_and_read_when_it_appears() {
    let sandbox = Sandbox::new();
    let path = sandbox.path("loads.shm");
    // The path is relative to the configuration, and the rank is the second.
    let lines = "load_snapshot = \"./loads.shm\", dp_rank = 1, stale_after = \"1h\"";
    let afterbay = Afterbay::run(&sandbox, &signals(sandbox.config(), lines));
    let lost = afterbay.event("SignalLost");
    assert_eq!((&lost["stream"], &lost["source"]), (&"test".into(), &"load_snapshot".into()), "{lost}");
    assert!(lost["message"].as_str().unwrap().contains("does not exist"), "{lost}");
    let stream =
        until_stream(&afterbay, "the source is lost", |stream| stream["load_source"]["state"] == "lost");
    assert_eq!((&stream["load"]["freshness"], &stream["load"]["age_ns"]), (&"never".into(), &Value::Null));
    assert_eq!(stream["load"]["running"], Value::Null);
    assert_eq!(afterbay.metrics().stream("scheduler_load_fresh"), 0);
    let mut reader = Reader::bind(&sandbox.reader_side());
    Sender::connect(&sandbox.scheduler_side()).send(b"a frame");
    assert_eq!(reader.frame(), b"a frame");
    // An unknown load is no degraded condition.
    afterbay.until_healthy();

    write_load(&path);
    let metrics =
        afterbay.until_metrics("the load is read", |metrics| metrics.stream("scheduler_load_fresh") == 1);
    assert_eq!(metrics.stream("scheduler_running_requests"), 101);
    afterbay.event("SignalFound");
    assert_eq!(afterbay.stop(), 0);
}

#[test]
fn without_a_source_the_status_has_only_afterbays_own_figures() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let afterbay = Afterbay::run(&sandbox, &sandbox.config());
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    for _ in 0..3 {
        sender.send(b"a frame");
        assert_eq!(reader.frame(), b"a frame");
    }
    let stream = until_stream(&afterbay, "every frame is received", |stream| {
        stream["journal"]["frame"] == 3 && stream["senders"] == 1
    });
    assert_eq!((&stream["load"], &stream["load_source"]), (&Value::Null, &Value::Null));
    assert_eq!(stream["name"], "test");
    assert_eq!((&stream["receiving"], &stream["requests_live"]), (&true.into(), &0.into()));
    let sink = &stream["sinks"][0];
    assert_eq!((&sink["name"], &sink["connected"]), (&"reader".into(), &true.into()));
    assert_eq!(sink["queue_frames"], 0);
    assert_eq!(sink["lag_frames"], Value::Null, "a reader that does not count has no known lag");
    let text = afterbay.get("/metrics").body;
    assert!(!text.contains("afterbay_scheduler_") && !text.contains("afterbay_signal_"), "{text}");
    assert_eq!(afterbay.stop(), 0);
}

/// The test's own file in shared memory.
struct Shared(PathBuf);

impl Drop for Shared {
    fn drop(&mut self) {
        let _gone = std::fs::remove_file(&self.0);
    }
}

#[test]
fn the_load_file_follows_the_instance_of_the_rendezvous() {
    let sandbox = Sandbox::new();
    let file = sandbox.path("rendezvous.json");
    let meet = |instance: &str, written: u64| {
        let met = json!({
            "format": 1, "engine": "sglang", "leg": "tokens", "pid": std::process::id(), "written_unix_ns": written,
            "sglang": "0.5.23", "mode": "normal", "ipc_format": "msgpack", "ingress": sandbox.scheduler_side(),
            "down": sandbox.reader_side(), "down_kind": "detokenizer", "instance_id": instance, "dp_rank": 1,
        });
        let new = sandbox.path("rendezvous.new");
        std::fs::write(&new, met.to_string()).unwrap();
        std::fs::rename(new, &file).unwrap();
    };
    let ids = ["a", "b"].map(|id| format!("{:08x}{id}", std::process::id()));
    meet(&ids[0], 1);
    let config = signals(sandbox.config(), "stale_after = \"1h\"");
    let afterbay = Afterbay::run_with(&sandbox, &config, &["--rendezvous", file.to_str().unwrap()]);
    for (id, written) in ids.iter().zip(1..) {
        if written > 1 {
            meet(id, written);
        }
        let lost =
            afterbay.event_where("SignalLost", |lost| lost["place"].as_str().unwrap().contains(id.as_str()));
        let place = Shared(lost["place"].as_str().unwrap().into());
        assert!(place.0.starts_with("/dev/shm"), "{lost}");
        write_load(&place.0);
        let stream = until_stream(&afterbay, "the load is read", |stream| {
            stream["load_source"]["name"] == lost["place"] && stream["load"]["freshness"] == "fresh"
        });
        // The rank also comes from the rendezvous.
        assert_eq!(stream["load"]["running"], 101, "{stream}");
    }
    // A scheduler before 0.5.13 has no load file.
    meet("", 3);
    until_stream(&afterbay, "it is let go", |stream| stream["load"] == Value::Null);
    assert_eq!(afterbay.stop(), 0);
}

#[test]
fn an_invalid_source_is_an_error_with_line_and_key() {
    let sandbox = Sandbox::new();
    let lines =
        ["signals.load_snapshot = \"two words\"", "signals.dp_rank = 70000", "signals.stale_after = \"1ms\""];
    let config = lines.iter().fold(sandbox.config(), |config, line| config.stream(line));
    let file = sandbox.write(&config);
    let text = std::fs::read_to_string(&file).unwrap();
    for command in ["check", "run"] {
        let refused = run_afterbay(&[command, "--config", &file]);
        assert_eq!(refused.code, 64, "{refused:?}");
        for line in lines {
            let at = text.lines().position(|found| found == line).unwrap() + 1;
            let key = line.split(' ').next().unwrap();
            let found = refused.stderr.lines().any(|stream| {
                stream.starts_with(&format!("{file}:{at}:"))
                    && stream.contains(&format!(" stream[0].{key}: "))
            });
            assert!(found, "{command}: line {at}, {key} is not in\n{}", refused.stderr);
        }
    }
}

#[test]
fn plugin_run_on_a_journal_gives_the_plugin_the_signals_that_the_streams_plugin_had() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let config =
        sandbox.config().plugin("p", &guest("remembers"), "").granted(r#"["log", "signals", "request"]"#);
    let afterbay = Afterbay::run(&sandbox, &config);
    let signals = afterbay.event("PluginLog")["line"].as_str().unwrap().to_owned();
    assert!(signals.starts_with("live 0, sinks [reader "), "{signals}");
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let mut request = SynthRequest::new("r");
    for _ in 0..2 {
        let frame = batch(Msgpack, vec![request.row(&[1])]);
        sender.send(&frame);
        assert_eq!(reader.frame(), frame, "the reader gets no signals");
    }
    assert_eq!(afterbay.stop(), 0);
    assert_eq!(verify(&sandbox).0, 0);
    let component = guest("remembers").display().to_string();
    let run = ["plugin", "run", &component, "--from", &sandbox.text("journal"), "--all"];
    let replayed = run_afterbay(&run).success();
    let said = replayed.lines().find_map(|line| line.split_once("log: info: live ")).map(|(_, said)| said);
    assert_eq!(said, signals.strip_prefix("live "), "{replayed}");
    let tried =
        ["plugin", "run", "--config", &sandbox.text("afterbay.toml"), "--from", &sandbox.text("journal")];
    let tried = run_afterbay(&tried).success();
    assert!(!tried.contains("signals"), "the trial has them, too: {tried}");
}
