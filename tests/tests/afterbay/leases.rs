//! Requests that the engine goes on with after their client has left.

use std::time::Duration;

use afterbay_tests::admin::JSON;
use afterbay_tests::commands::{journal, verify};
use afterbay_tests::frames::{SynthRequest, batch, row, rows};
use afterbay_tests::{Afterbay, Input, Reader, Sandbox, Sender};
use afterbay_wire::RequestRecord;
use afterbay_wire::synth::SynthFinish;
use afterbay_wire::synth::SynthRow;
use afterbay_wire::synth::SynthWire::Msgpack;
use serde_json::Value;

/// The connector's record of a request.
fn record(rid: &str, lease: Duration) -> Vec<u8> {
    let lease_ms = Some(lease.as_millis() as u64);
    RequestRecord { rid: rid.into(), lease_ms, ..RequestRecord::default() }.to_frame().to_vec()
}

/// The connector's message that the client of a request has left.
fn left(rid: &str) -> Vec<u8> {
    format!("{{\"afterbay\":\"left\",\"rid\":\"{rid}\"}}").into_bytes()
}

fn renew(afterbay: &Afterbay, rid: &str) -> (u16, Value) {
    let answer = afterbay.ask(&format!("PUT /v1/requests/{rid}/lease"), &[JSON], "");
    (answer.status, serde_json::from_str(&answer.body).unwrap())
}

fn aborted(request: &mut SynthRequest) -> SynthRow {
    SynthRow { finish: Some(SynthFinish::Abort("Aborted".to_owned())), ..request.row(&[]) }
}

const SHORT: Duration = Duration::from_millis(1500);
const LONG: Duration = Duration::from_secs(600);

#[test]
fn after_its_client_has_left_a_request_goes_on_until_its_lease_ends_also_over_kill_9() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let config = sandbox.config().abort_by_push(&sandbox).leases("1h", 2);
    let afterbay = Afterbay::run(&sandbox, &config);
    let mut sender = Sender::connect_to_mortal(&sandbox.scheduler_side());
    let mut input = Input::connect(&sandbox.abort_side());
    let [mut a, mut b, mut c] = ["short", "long", "third"].map(SynthRequest::new);
    for message in [record("short", SHORT), record("long", LONG), record("third", LONG)] {
        sender.send(&message);
    }
    sender.send(&batch(Msgpack, vec![a.row(&[1]), b.row(&[1]), c.row(&[1])]));
    assert_eq!(rows(&reader.frame()).len(), 3);
    assert_eq!(renew(&afterbay, "long").0, 404, "its client is there");
    // Past two leases, the third request is aborted at once.
    for rid in ["long", "short", "third"] {
        sender.send(&left(rid));
    }
    assert_eq!(input.abort(), "third");
    assert_eq!(afterbay.event("LeaseRefused")["rid"], "third");
    sender.send(&batch(Msgpack, vec![a.row(&[2]), b.row(&[2]), aborted(&mut c)]));
    assert_eq!(rows(&reader.frame())[..2], [row("short", &[2], 2, None), row("long", &[2], 2, None)]);
    assert_eq!(input.abort(), "short", "its lease is over");
    let (status, answer) = renew(&afterbay, "long");
    assert_eq!((status, &answer["renewed"][0]["ends_in_s"]), (200, &600.0.into()), "{answer}");
    let status: Value = serde_json::from_str(&afterbay.get("/v1/status").body).unwrap();
    let leases = &status["streams"][0]["leases"];
    assert_eq!((&leases["begun"], &leases["renewed"], &leases["refused"]), (&3.into(), &1.into(), &1.into()));
    let metrics = afterbay.until_metrics("one lease runs", |metrics| metrics.stream("leases_live") == 1);
    assert_eq!(metrics.stream_by("aborts_sent_total", "by", "lease"), 2);
    drop(sender);
    drop(input);
    afterbay.kill();

    let afterbay = Afterbay::run(&sandbox, &config);
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let mut input = Input::connect(&sandbox.abort_side());
    sender.send(&batch(Msgpack, vec![b.row(&[3])]));
    assert_eq!(rows(&reader.frame()), [row("long", &[3], 3, None)]);
    // The scheduler has not ended it, so it is asked again.
    assert_eq!(input.abort(), "short");
    assert_eq!(renew(&afterbay, "long").0, 200);
    assert_eq!(renew(&afterbay, "third").0, 404);
    sender.send(&batch(Msgpack, vec![aborted(&mut a), b.row(&[4])]));
    let out = rows(&reader.frame());
    assert_eq!(out, [row("short", &[], 2, Some("abort")), row("long", &[4], 4, None)]);
    // An operator's abort does not wait for the lease.
    afterbay.abort_connected("long", &[]);
    assert_eq!(input.abort(), "long");
    sender.send(&batch(Msgpack, vec![aborted(&mut b)]));
    let stopped = Some("stop:afterbay: aborted by operator");
    assert_eq!(rows(&reader.frame()), [row("long", &[], 4, stopped)]);
    afterbay.until_metrics("no lease runs", |metrics| metrics.stream("leases_live") == 0);
    assert_eq!(renew(&afterbay, "long").0, 404);
    assert_eq!(afterbay.stop(), 0);
    assert_eq!(verify(&sandbox).0, 0);
    let shown = journal(&sandbox, &["show", "short"]).success();
    assert!(
        shown.contains("Its client left at ") && shown.contains(", and the lease of 1500ms ended."),
        "{shown}"
    );
    let shown = journal(&sandbox, &["show", "long"]).success();
    assert!(
        shown.contains("Its client had left at ") && shown.contains(", with a lease of 600s."),
        "{shown}"
    );
}
