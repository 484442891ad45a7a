//! `/v1/requests`, `/v1/requests/{rid}` and `/v1/steps` over the real admin address.

use afterbay_tests::commands::journal;
use afterbay_tests::frames::{SynthRequest, batch};
use afterbay_tests::{Afterbay, Reader, Sandbox, Sender, wait_for};
use afterbay_wire::synth::SynthWire::Msgpack;
use serde_json::{Value, json};

/// The JSON of an answer of 200.
#[track_caller]
fn ask(afterbay: &Afterbay, path: &str) -> Value {
    let answer = afterbay.get(path);
    assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    serde_json::from_str(&answer.body).unwrap()
}

/// The rids of a page.
#[track_caller]
fn rids(afterbay: &Afterbay, query: &str) -> Vec<String> {
    let page = ask(afterbay, &format!("/v1/requests?{query}"));
    let rid = |request: &Value| request["rid"].as_str().unwrap().to_owned();
    page["requests"].as_array().unwrap().iter().map(rid).collect()
}

/// The path of a request, every byte of the rid encoded.
fn path(rid: &[u8]) -> String {
    let encoded: String = rid.iter().map(|byte| format!("%{byte:02X}")).collect();
    format!("/v1/requests/{encoded}")
}

#[test]
fn requests_are_listed_searched_and_shown_as_the_journal_commands_show_them() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let afterbay = Afterbay::run(&sandbox, &sandbox.config());
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let (mut live, mut done) = (SynthRequest::new("chat-live"), SynthRequest::new("chat-done"));
    for frame in [
        batch(Msgpack, vec![live.row(&[1, 2]), done.row(&[10])]),
        batch(Msgpack, vec![live.row(&[3]), done.last(&[11]), SynthRequest::new("other").last(&[20])]),
    ] {
        sender.send(&frame);
        reader.frame();
    }
    wait_for("the index has the requests", || {
        (rids(&afterbay, "rid=&state=finished").len() == 2 && rids(&afterbay, "").len() == 3).then_some(())
    });
    assert_eq!(rids(&afterbay, "state=live"), ["chat-live"]);
    assert_eq!(rids(&afterbay, "rid=chat-&state=finished&finish=length&stream=test"), ["chat-done"]);
    assert_eq!(rids(&afterbay, "plugin=nobody"), [""; 0]);
    assert_eq!(rids(&afterbay, "since=1h&rid=chat-&state=live"), ["chat-live"]);
    assert_eq!(rids(&afterbay, "until=1h"), [""; 0]);
    let first = ask(&afterbay, "/v1/requests?limit=2");
    assert_eq!((&first["kept"], &first["known"], &first["complete"]), (&3.into(), &3.into(), &true.into()));
    let next = first["next"].as_str().unwrap();
    let second = ask(&afterbay, &format!("/v1/requests?limit=2&after={next}"));
    assert_eq!((second["requests"].as_array().unwrap().len(), &second["next"]), (1, &Value::Null));
    for (query, word) in [
        ("limit=0", "1 to 1000"),
        ("limit=1001", "1 to 1000"),
        ("limit=x", "limit"),
        ("state=dead", "live, finished or abandoned"),
        ("after=yesterday", "next"),
        ("since=monday", "is no time"),
    ] {
        let refused = afterbay.get(&format!("/v1/requests?{query}"));
        assert!(
            refused.status == 400 && refused.body.contains(word),
            "{query}: {} {}",
            refused.status,
            refused.body
        );
    }

    // The steps are those of the command; those of a list have no requests.
    let steps = ask(&afterbay, "/v1/steps?since=1h");
    let frames = |steps: &[Value]| steps.iter().map(|step| step["frame"].clone()).collect::<Vec<_>>();
    let listed = steps["steps"].as_array().unwrap();
    assert_eq!(frames(listed), frames(&journal(&sandbox, &["steps", "--json"]).json_lines()));
    assert_eq!((&steps["known"], &steps["complete_since"]), (&2.into(), &Value::Null));
    assert!(listed.iter().all(|step| step["requests"].is_null() && step["gpu_ns"].is_u64()), "{steps}");
    let of_other = ask(&afterbay, "/v1/steps?rid=other&stream=test");
    assert_eq!(
        (frames(of_other["steps"].as_array().unwrap()), &of_other["known"]),
        (vec![json!(2)], &1.into())
    );
    let one = ask(&afterbay, "/v1/steps?frame=2");
    let rids_of_step = one["steps"][0]["requests"].as_array().unwrap().iter().map(|it| it["rid"].clone());
    assert_eq!(rids_of_step.collect::<Vec<_>>(), ["chat-live", "chat-done", "other"]);
    assert_eq!(afterbay.get("/v1/steps?stream=nobody").status, 404);

    // Between two readings a sink may take a row.
    let life = wait_for("both show the same rows", || {
        let life = ask(&afterbay, "/v1/requests/chat-done");
        let shown = journal(&sandbox, &["show", "chat-done", "--json"]).json_lines().remove(0);
        let leg = &life["legs"][0];
        (leg["rows_seen"] == shown["rows_seen"] && life["ended"] == shown["ended"]).then_some(life)
    });
    assert_eq!((&life["tokens_received"], &life["truncated"]), (&2.into(), &false.into()));
    assert_eq!(
        life["neighbours"]
            .as_array()
            .unwrap()
            .iter()
            .map(|it| json!([it["rid"], it["batches"]]))
            .collect::<Vec<_>>(),
        [json!(["chat-live", 2]), json!(["other", 1]),]
    );
    let stages: Vec<&str> =
        life["timeline"].as_array().unwrap().iter().map(|it| it["stage"].as_str().unwrap()).collect();
    assert!(stages.starts_with(&["received", "journaled"]), "{stages:?}");
    let unknown = afterbay.get("/v1/requests/chat-");
    assert!(unknown.status == 404 && unknown.body.contains("chat-"), "{}", unknown.body);

    // The same rid again: the newest request, and the earlier one beside it.
    sender.send(&batch(Msgpack, vec![SynthRequest::new("chat-done").last(&[7, 8, 9])]));
    let again = wait_for("the second request is in the journal", || {
        Some(ask(&afterbay, "/v1/requests/chat-done")).filter(|life| life["tokens_received"] == 3)
    });
    assert_eq!(again["earlier"][0]["tokens_received"], 2);
    assert_eq!(afterbay.stop(), 0);
}

#[test]
fn a_rid_of_any_bytes_is_found_by_its_encoded_path() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let afterbay = Afterbay::run(&sandbox, &sandbox.config());
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let rids = [
        "a/b/../c",
        "..",
        ".",
        "%2e%2e",
        "a\0b",
        "\"><script>",
        "a b?c=d&e#f",
        "é\u{202e}\u{feff}",
        "abort",
        "x/abort",
        "\r\nSet-Cookie: a=b",
    ];
    let long = ["r".repeat(4096), "r".repeat(4097)];
    let all: Vec<&str> = rids.into_iter().chain(long.iter().map(String::as_str)).collect();
    for rid in &all {
        sender.send(&batch(Msgpack, vec![SynthRequest::new(rid).last(&[1])]));
        reader.frame();
    }
    wait_for("the index has all", || {
        (ask(&afterbay, "/v1/requests?limit=1000")["kept"] == all.len()).then_some(())
    });
    for rid in &all {
        let life = ask(&afterbay, &path(rid.as_bytes()));
        let stored = afterbay_journal::stored_rid(rid.as_bytes());
        assert_eq!(life["rid"], *stored, "{rid:?}");
        assert_eq!(life["legs"][0]["rows_seen"].as_array().unwrap().len(), 1, "{rid:?}");
        // A rid that was too long to store is found by what stands for it, too.
        assert_eq!(ask(&afterbay, &path(stored.as_bytes()))["rid"], *stored);
    }
    for unknown in [&b"\xff\xfe"[..], b"../../etc/passwd", b"%", &[b'q'; 16_000]] {
        let answer = afterbay.get(&path(unknown));
        assert_eq!(answer.status, 404, "{}", answer.body);
        serde_json::from_str::<Value>(&answer.body).unwrap();
    }
    assert_eq!(afterbay.stop(), 0);
}
