//! Requests of an engine that died go on in the engine that takes its place, and their clients see one stream.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};

use afterbay_tests::clients;
use afterbay_tests::commands::{journal, run_afterbay, verify};
use afterbay_tests::frames::{SynthRequest, batch};
use afterbay_tests::{Afterbay, Config, PATIENCE, Reader, Sandbox, Sender, wait_for};
use afterbay_wire::synth::SynthWire::Pickle;
use afterbay_wire::{RequestRecord, Sampling};
use serde_json::{Value, json};

const INTRODUCTION: &[u8] =
    br#"{"afterbay":"introduction","format":1,"engine":"sglang","version":"0.5.23","classes":{}}"#;
/// As long as the rows of the tests say.
const PROMPT: [u32; 7] = [1, 2, 3, 4, 5, 6, 7];
const RID: &str = "~lease-60s~r/1";

/// An HTTP request that an engine's server got, and the way to answer it.
struct Call {
    head: String,
    body: Value,
    socket: TcpStream,
}

/// The HTTP server of an engine, and a configuration whose requests go on there.
fn with_migration(sandbox: &Sandbox) -> (TcpListener, Config) {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let front_end = format!("http://{}", server.local_addr().unwrap());
    let config = clients::served(sandbox, sandbox.config()).leases("1m", 8);
    (server, config.stream(&format!("migration = {{ front_end = \"{front_end}\" }}")))
}

/// Waits for the next call.
fn accept(server: &TcpListener) -> Call {
    let (socket, _) = server.accept().unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut reader = BufReader::new(socket.try_clone().unwrap());
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert!(reader.read_line(&mut head).unwrap() > 0, "{head}");
    }
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
    let mut body = vec![0; length.parse().unwrap()];
    reader.read_exact(&mut body).unwrap();
    Call { head, body: serde_json::from_slice(&body).unwrap(), socket }
}

/// Connects an engine, which introduces itself.
fn engine(sandbox: &Sandbox) -> Sender {
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    sender.send(INTRODUCTION);
    sender
}

fn record(rid: &str, prompt: &[u32], lease_ms: Option<u64>) -> Vec<u8> {
    let sampling = Sampling { temperature: Some(0.0), max_tokens: Some(9), ..Sampling::default() };
    let record =
        RequestRecord { rid: rid.to_owned(), sampling: Some(sampling), lease_ms, ..RequestRecord::default() };
    record.with_prompt(prompt).to_frame().to_vec()
}

fn read(sandbox: &Sandbox, afterbay: &Afterbay, id: &str) -> Value {
    clients::read(sandbox, &clients::address(afterbay, 0), id, "")
}

#[test]
fn a_request_goes_on_in_the_next_engine_and_one_without_a_lease_ends() {
    let sandbox = Sandbox::new();
    let (server, config) = with_migration(&sandbox);
    let mut reader = Reader::bind(&sandbox.reader_side());
    let afterbay = Afterbay::run(&sandbox, &config);

    let mut first = engine(&sandbox);
    let (mut leased, mut plain, mut guided) =
        (SynthRequest::new(RID), SynthRequest::new("plain"), SynthRequest::new("~lease-60s~unknown"));
    first.send(&record(RID, &PROMPT, Some(60_000)));
    first.send(&record("plain", &PROMPT, None));
    first.send(br#"{"afterbay":"request","rid":"~lease-60s~unknown","prompt_tokens":7,"lease_ms":60000}"#);
    first.send(&batch(Pickle, vec![leased.row(&[10, 11]), plain.row(&[10]), guided.row(&[10])]));
    first.send(&batch(Pickle, vec![leased.row(&[12]), plain.row(&[11])]));
    (0..2).for_each(|_| _ = reader.frame());
    drop(first);
    afterbay.until_metrics("the engine has died", |metrics| metrics.stream("senders") == 0);

    let mut second = engine(&sandbox);
    let mut call = accept(&server);
    assert!(call.head.starts_with("POST /generate "), "{}", call.head);
    assert!(call.head.contains("x-request-id: ~lease-60s~r%2F1\r\n"), "{}", call.head);
    assert_eq!(call.body["input_ids"], json!([1, 2, 3, 4, 5, 6, 7, 10, 11, 12]));
    assert_eq!(call.body["sampling_params"]["max_new_tokens"], 6);
    assert_eq!(afterbay.event("EngineRestarted")["waiting"], 2);
    // A request of which the journal does not know enough ends with the reason.
    assert_eq!(
        afterbay.event("RequestNotMigrated")["why"],
        "the journal does not have its sampling parameters"
    );

    second.send(&record(RID, &[1, 2, 3, 4, 5, 6, 7, 10, 11, 12], Some(60_000)));
    let mut again = SynthRequest::new(RID);
    second.send(&batch(Pickle, vec![again.row(&[13])]));
    reader.frame();
    write!(call.socket, "HTTP/1.1 200 OK\r\nX-Afterbay-Migration: yes\r\nContent-Length: 4\r\n\r\ndata")
        .unwrap();
    second.send(&batch(Pickle, vec![again.last(&[14])]));
    reader.frame();
    let shown = wait_for("the request has ended", || {
        let shown = read(&sandbox, &afterbay, RID);
        (!shown["ended"].is_null()).then_some(shown)
    });
    assert_eq!(shown["ids"], json!([10, 11, 12, 13, 14]));
    assert_eq!(shown["ended"], json!({"finish_reason": "length", "text": null, "tokens": 5}));
    let lost = read(&sandbox, &afterbay, "plain");
    assert_eq!(lost["ids"], json!([10, 11]));
    let why = "503 afterbay: the engine died";
    assert_eq!(lost["ended"], json!({"finish_reason": "error", "text": why, "tokens": 2}));
    let unknown = read(&sandbox, &afterbay, "~lease-60s~unknown");
    let why = format!("{why}: the journal does not have its sampling parameters");
    assert_eq!(unknown["ended"]["text"], why);
    assert_eq!(afterbay.metrics().stream("requests_migrated_total"), 1);
    assert_eq!(afterbay.stop(), 0);
    let shown = journal(&sandbox, &["show", RID]).success().to_owned();
    assert!(shown.contains("another one went on with it behind 3 tokens"), "{shown}");
    // The prompt is that of the first record.
    run_afterbay(&["usage", "--config", &sandbox.text("afterbay.toml")]).success();
    let (code, report) = verify(&sandbox);
    assert_eq!(code, 0, "{report}");
}

#[test]
fn an_engine_that_is_not_there_yet_is_asked_again_and_one_that_refuses_ends_the_request() {
    let sandbox = Sandbox::new();
    let (server, config) = with_migration(&sandbox);
    let _reader = Reader::bind(&sandbox.reader_side());
    let afterbay = Afterbay::run(&sandbox, &config);
    let mut first = engine(&sandbox);
    first.send(&record(RID, &[1, 2], Some(60_000)));
    afterbay.until_metrics("the request is live", |metrics| metrics.stream("requests_live") == 1);
    drop(first);
    afterbay.until_metrics("the engine has died", |metrics| metrics.stream("senders") == 0);
    let _second = engine(&sandbox);
    drop(accept(&server).socket);
    let mut loading = accept(&server).socket;
    write!(loading, "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 6\r\n\r\nno key").unwrap();
    afterbay.event_where("MigrationWaiting", |waiting| waiting["why"] == "the engine answered 503: no key");
    let mut refusing = accept(&server).socket;
    write!(refusing, "HTTP/1.1 403 Forbidden\r\nContent-Length: 8\r\n\r\nno token").unwrap();
    assert_eq!(afterbay.event("RequestNotMigrated")["why"], "the engine answered 403: no token");
    let ended = wait_for("the request has ended", || {
        Some(read(&sandbox, &afterbay, RID)["ended"].clone()).filter(|ended| !ended.is_null())
    });
    assert_eq!(ended["text"], "503 afterbay: the engine died: the engine answered 403: no token");
    assert_eq!(afterbay.stop(), 0);
}

#[test]
fn a_request_does_not_go_on_behind_a_frame_that_may_have_its_tokens() {
    let sandbox = Sandbox::new();
    let (_server, config) = with_migration(&sandbox);
    let mut reader = Reader::bind(&sandbox.reader_side());
    let afterbay = Afterbay::run(&sandbox, &config);
    let mut first = engine(&sandbox);
    first.send(&record(RID, &PROMPT, Some(60_000)));
    first.send(&batch(Pickle, vec![SynthRequest::new(RID).row(&[10])]));
    first.send(b"a frame of another format");
    (0..2).for_each(|_| _ = reader.frame());
    drop(first);
    afterbay.until_metrics("the engine has died", |metrics| metrics.stream("senders") == 0);
    let _second = engine(&sandbox);
    let why = afterbay.event("RequestNotMigrated")["why"].clone();
    assert_eq!(why, "frame 4 was not understood, and may have its tokens");
    assert_eq!(afterbay.stop(), 0);
}
