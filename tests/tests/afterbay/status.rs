//! `/v1/status` and its server-sent events over the real admin addresses.

use afterbay_tests::admin::Address;
use afterbay_tests::frames::{SynthRequest, batch};
use afterbay_tests::sandbox::{SINK, STREAM};
use afterbay_tests::{Afterbay, PATIENCE, Reader, Sandbox, Sender, wait_for};
use afterbay_wire::synth::SynthWire::Msgpack;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;

/// The answer of `/v1/status`.
#[track_caller]
fn status(afterbay: &Afterbay) -> Value {
    let answer = afterbay.get("/v1/status");
    assert_eq!(answer.status, 200, "{}", answer.body);
    serde_json::from_str(&answer.body).unwrap()
}

/// A connection to `/v1/status/stream`.
struct Events(BufReader<UnixStream>);

impl Events {
    /// Connects, and returns the status line of the answer.
    fn connect(afterbay: &Afterbay) -> (Events, String) {
        let Address::Unix(path) = afterbay.admin() else { panic!("{} is no Unix socket", afterbay.admin()) };
        let mut socket = UnixStream::connect(path).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.write_all(b"GET /v1/status/stream HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let mut events = Events(BufReader::new(socket));
        let line = events.line().unwrap();
        (events, line)
    }

    /// The next line; `None` at the end of the connection.
    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        (self.0.read_line(&mut line).unwrap() > 0).then(|| line.trim_end().to_owned())
    }

    /// The next status.
    fn next(&mut self) -> Value {
        loop {
            let line = self.line().expect("the events go on");
            if let Some(data) = line.strip_prefix("data: ") {
                return serde_json::from_str(data).unwrap();
            }
        }
    }

    /// The last lines before the end of the connection.
    fn rest(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.line()).filter(|line| !line.starts_with("data: ")).collect()
    }
}

#[test]
fn the_status_says_what_each_stream_does() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let config = sandbox.config().journal("retain = { bytes = \"1GiB\" }");
    let afterbay = Afterbay::run(&sandbox, &config);
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let mut live = SynthRequest::new("live");
    for frame in [
        batch(Msgpack, vec![live.row(&[1, 2]), SynthRequest::new("done").last(&[3])]),
        batch(Msgpack, vec![live.row(&[4])]),
    ] {
        sender.send(&frame);
        reader.frame();
    }
    let status = wait_for("the status has both frames", || {
        let all = |status: &Value| {
            let stream = &status["streams"][0];
            stream["frame_seconds"].is_object() && stream["sinks"][0]["state"] == "keeping_up"
        };
        Some(status(&afterbay)).filter(all)
    });
    assert_eq!((&status["pid"], &status["ready"]), (&afterbay.pid().into(), &true.into()), "{status}");
    let version = afterbay_tests::commands::run_afterbay(&["--version"]).success();
    assert!(version.contains(status["version"].as_str().unwrap()), "{version} {status}");
    let stream = &status["streams"][0];
    assert_eq!(
        (&stream["senders"], &stream["requests_live"], &stream["requests_ended"]),
        (&1.into(), &1.into(), &json!({"limit": 1})),
        "{stream}"
    );
    assert!(stream["first_token_seconds"]["p99"].is_f64(), "{stream}");
    let ledger = json!({
        "tokens_received": 4, "tokens_forwarded": 4, "tokens_dropped": 0, "tokens_swallowed": 0, "tokens_held": 0,
        "rows_replaced": 0, "gaps": 0, "imbalances": 0,
    });
    assert_eq!(stream["ledger"], ledger);
    let sink = &stream["sinks"][0];
    assert_eq!((&sink["connected"], &sink["state"]), (&true.into(), &"keeping_up".into()), "{sink}");
    let journal = &stream["journal"];
    assert_eq!((&journal["frame"], &journal["bytes_max"]), (&2.into(), &(1_u64 << 30).into()), "{journal}");
    assert_eq!((&stream["scheduler"], &status["plugins"]), (&Value::Null, &json!([])));
    drop(reader);
    let away = wait_for("the absent reader is a condition", || {
        let now = self::status(&afterbay);
        let is_it = |condition: &&Value| condition["condition"] == "sink";
        now["conditions"].as_array().unwrap().iter().find(is_it).cloned()
    });
    assert_eq!(
        (&away["key"], &away["severity"]),
        (&format!("sink:{STREAM}/{SINK}").into(), &"degraded".into())
    );
    assert_eq!(afterbay.stop(), 0);
}

#[test]
fn each_watcher_gets_the_status_every_second_and_further_watchers_than_allowed_are_refused() {
    let sandbox = Sandbox::new();
    let mut afterbay = Afterbay::run(&sandbox, &sandbox.config());
    let mut watchers: Vec<Events> = Vec::new();
    let refused = wait_for("a watcher is refused", || {
        let (mut events, line) = Events::connect(&afterbay);
        match line.contains(" 200 ") {
            true => {
                let first = events.next();
                assert_eq!(first["pid"], afterbay.pid());
                watchers.push(events);
                None
            }
            false => Some((line, events.rest().join("\n"))),
        }
    });
    assert!(refused.0.contains(" 503 ") && refused.1.contains("at most"), "{refused:?}");
    assert!((1..=16).contains(&watchers.len()), "{}", watchers.len());
    let uptime = |status: Value| status["uptime_seconds"].as_f64().unwrap();
    for events in &mut watchers {
        let (one, other) = (uptime(events.next()), uptime(events.next()));
        assert!(other > one, "{one} {other}");
    }
    // A watcher that leaves makes room, and the other requests are answered meanwhile.
    watchers.pop();
    assert_eq!(afterbay.get("/healthz").status, 200);
    let (mut late, _) = wait_for("there is room again", || {
        Some(Events::connect(&afterbay)).filter(|(_, line)| line.contains(" 200 "))
    });
    assert_eq!(late.next()["pid"], afterbay.pid());

    // A hand-over and a stop end the events in order: the last chunk is empty.
    assert_eq!(afterbay.upgrade(&[]).code, 0);
    assert_eq!(late.rest().iter().rev().find(|line| !line.is_empty()).map(String::as_str), Some("0"));
    let (mut next, line) = Events::connect(&afterbay);
    assert!(line.contains(" 200 "), "{line}");
    assert_eq!(next.next()["pid"], afterbay.pid());
    assert_eq!(afterbay.stop(), 0);
    assert_eq!(next.rest().iter().rev().find(|line| !line.is_empty()).map(String::as_str), Some("0"));
}

/// The seconds at which the history knows the live requests, Unix time.
fn live_requests(afterbay: &Afterbay) -> BTreeMap<u64, f64> {
    let answer = afterbay.get("/v1/status/history?by=second&last=600&figure=requests_live");
    let history: Value = serde_json::from_str(&answer.body).unwrap();
    let points = history["streams"][STREAM]["requests_live"].as_array().cloned().unwrap_or_default();
    let first = history["end"].as_u64().unwrap() + 1 - points.len() as u64;
    (first..).zip(points).filter_map(|(second, live)| Some((second, live.as_f64()?))).collect()
}

#[test]
fn the_history_of_the_figures_outlives_a_hand_over() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let mut afterbay = Afterbay::run(&sandbox, &sandbox.config());
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    sender.send(&batch(Msgpack, vec![SynthRequest::new("live").row(&[1])]));
    reader.frame();
    let before = wait_for("the history has the live request", || {
        Some(live_requests(&afterbay)).filter(|known| known.values().filter(|live| **live == 1.0).count() > 2)
    });
    assert_eq!(afterbay.upgrade(&[]).code, 0);
    let after = live_requests(&afterbay);
    let has = |second, live| after.get(second) == Some(live);
    assert!(before.iter().all(|(second, live)| has(second, live)), "{before:?} {after:?}");
    let last = after.keys().next_back().copied();
    wait_for("the new process goes on", || {
        let now = live_requests(&afterbay);
        (now.keys().next_back().copied() > last && now.values().next_back() == Some(&1.0)).then_some(())
    });
    for (query, words) in
        [("by=hour", "by"), ("by=second&last=0", "1 to 3600"), ("by=minute&last=1441", "1 to 1440")]
    {
        let refused = afterbay.get(&format!("/v1/status/history?{query}"));
        assert!(refused.status == 400 && refused.body.contains(words), "{query}: {}", refused.body);
    }
    assert_eq!(afterbay.stop(), 0);
}
