//! Calls to services: rows wait for a judgement, failures follow `on_fault`, and kills and reloads lose nothing.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender as Answers, channel};

use afterbay_tests::commands::{journal, verify};
use afterbay_tests::frames::{ReaderRow, SynthRequest, WIRES, batch, ids as ids_of, row, rows};
use afterbay_tests::holds::{HOLD, LONG, holds};
use afterbay_tests::{Afterbay, Config, Input, PATIENCE, Reader, Sandbox, Sender, repository};
use afterbay_wire::synth::SynthWire::Msgpack;
use serde_json::Value;

/// A webhook that the test plays.
struct Service {
    url: String,
    questions: Receiver<Question>,
}

/// A question to the webhook, and the way of the answer to the connection that waits for it.
struct Question {
    rid: String,
    text: String,
    answer: Answers<String>,
}

impl Service {
    fn start() -> Service {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        // The standard library's 128 refuse most of a thousand connections at once, which then try again after seconds.
        rustix::net::listen(&listener, 1024).unwrap();
        let url = format!("http://{}/moderate", listener.local_addr().unwrap());
        let (sender, questions) = channel();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (mut stream, sender) = (stream.unwrap(), sender.clone());
                // A connection that Afterbay closes without a question is dropped.
                std::thread::spawn(move || {
                    while let Some(body) = read_body(&mut stream) {
                        let body: Value = serde_json::from_slice(&body).unwrap();
                        let text = |key: &str| body[key].as_str().unwrap().to_owned();
                        let (answer, answers) = channel();
                        let question = Question { rid: text("rid"), text: text("text"), answer };
                        let Ok(()) = sender.send(question) else { return };
                        let Ok(answer) = answers.recv() else { return };
                        // The connection may be closed: Afterbay was killed, or the request has ended.
                        let _sent = stream.write_all(answer.as_bytes());
                    }
                });
            }
        });
        Service { url, questions }
    }

    #[track_caller]
    fn question(&self) -> Question {
        self.questions.recv_timeout(PATIENCE).expect("no question")
    }
}

impl Question {
    fn answer(self, status: &str, body: &str) {
        let length = body.len();
        self.answer.send(format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n\r\n{body}")).unwrap();
    }

    fn allow(self) {
        self.answer("200 OK", r#"{"action": "allow"}"#);
    }

    fn block(self) {
        self.answer("200 OK", r#"{"action": "block", "reason": "blocked"}"#);
    }
}

fn read_body(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        (stream.read(&mut byte).ok()? == 1).then(|| head.push(byte[0]))?;
    }
    let head = String::from_utf8(head).unwrap().to_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "))?.parse().unwrap();
    let mut body = vec![0; length];
    stream.read_exact(&mut body).ok()?;
    Some(body)
}

fn model() -> String {
    repository().join("host/path/text/tests/fixtures/byte-level/tokenizer.json").display().to_string()
}

fn ids(text: &str) -> Vec<i64> {
    afterbay_text::Encoder::load(model().as_ref()).unwrap().encode(text).unwrap()
}

/// A configuration with a tokenizer as reader.
fn tokenizer(sandbox: &Sandbox) -> Config {
    sandbox.config().sink("reader = \"tokenizer\"\ntool_calls = \"joined\"")
}

/// Adds the plugin, which asks about each row, and the endpoint.
fn moderated(config: Config, url: &str, on_fault: &str) -> Config {
    let config = config.sink(&format!("tokenizer = {:?}", model()));
    let settings = "endpoint = \"service\", format = \"webhook\", window = 1, overlap = 0, notice = \"no\"";
    let config =
        config.plugin_with("moderate", "builtin:moderate", settings, "deadline = \"10s\", hold = \"60s\"");
    let config = config.plugin_line(&format!("on_fault = {on_fault:?}"));
    config.call("service", url, "timeout = \"60s\"\nmax_in_flight = 2000")
}

/// The rows that the reader gets until a row with a finish reason.
fn until_last(reader: &mut Reader) -> Vec<ReaderRow> {
    let mut read: Vec<ReaderRow> = Vec::new();
    while read.last().is_none_or(|row| row.finish.is_none()) {
        read.extend(rows(&reader.frame()));
    }
    read
}

#[test]
fn a_row_waits_for_its_judgement_also_the_last_and_a_blocked_request_ends_with_the_notice() {
    for wire in WIRES {
        let (sandbox, service) = (Sandbox::new(), Service::start());
        let mut reader = Reader::bind(&sandbox.reader_side());
        let config = tokenizer(&sandbox).abort_by_push(&sandbox);
        let afterbay = Afterbay::run(&sandbox, &moderated(config, &service.url, "bypass"));
        let mut sender = Sender::connect(&sandbox.scheduler_side());
        let mut input = Input::connect(&sandbox.abort_side());
        let (one, two, no) = (ids("one"), ids("two"), ids("no"));
        let (mut a, mut b) = (SynthRequest::new("a"), SynthRequest::new("b"));
        sender.send(&batch(wire, vec![a.row(&one)]));
        let question = service.question();
        assert_eq!((&*question.rid, &*question.text), ("a", "one"), "{wire:?}");
        afterbay.abort_connected("a", &[]);
        assert_eq!(input.abort(), "a");
        question.allow();
        assert_eq!(rows(&reader.frame()), [row("a", &one, one.len() as u64, None)], "{wire:?}");

        // The last row waits.
        sender.send(&batch(wire, vec![b.row(&one)]));
        sender.send(&batch(wire, vec![b.last(&two)]));
        let (first, last) = (service.question(), service.question());
        last.allow();
        first.allow();
        let both = [one.clone(), two.clone()].concat();
        let tokens = both.len() as u64;
        let read = until_last(&mut reader);
        let received: Vec<i64> = read.iter().flat_map(|row| row.ids.clone()).collect();
        assert_eq!((&received, read.last().unwrap().completion_tokens), (&both, tokens), "{wire:?}");
        assert_eq!(read.last().unwrap().finish.as_deref(), Some("length"), "{wire:?}");

        // The scheduler's own end of a request does not hide a block.
        let mut c = SynthRequest::new("c");
        sender.send(&batch(wire, vec![c.last(&two)]));
        service.question().block();
        let read = until_last(&mut reader);
        assert_eq!(read, [row("c", &no, no.len() as u64, Some("stop:blocked"))], "{wire:?}");

        // A block in the middle ends the request, and the scheduler is told.
        let mut d = SynthRequest::new("d");
        sender.send(&batch(wire, vec![d.row(&one)]));
        service.question().block();
        let read = until_last(&mut reader);
        assert_eq!(read, [row("d", &no, no.len() as u64, Some("stop:blocked"))], "{wire:?}");
        assert_eq!(input.abort(), "d");
        sender.send(&batch(wire, vec![d.row(&one)]));
        sender.send(&batch(wire, vec![d.last(&two)]));

        let metrics = afterbay.until_metrics("d has ended", |metrics| {
            metrics.requests_ended() >= 3 && metrics.stream("tokens_swallowed_total") > 0
        });
        assert_eq!(metrics.stream("request_imbalances_total"), 0, "{wire:?}");
        assert_eq!(afterbay.stop(), 0);
        assert_eq!(verify(&sandbox).0, 0);
        let shown = journal(&sandbox, &["show", "d"]).success();
        assert!(shown.contains("moderate: finished"), "{shown}");
    }
}

#[test]
fn a_thousand_requests_wait_for_a_service_that_does_not_answer_and_no_other_request_does() {
    let (sandbox, service) = (Sandbox::new(), Service::start());
    let mut reader = Reader::bind(&sandbox.reader_side());
    let afterbay = Afterbay::run(&sandbox, &moderated(tokenizer(&sandbox), &service.url, "bypass"));
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let text = ids("held");
    let mut held: Vec<SynthRequest> =
        (0..1000).map(|number| SynthRequest::new(&format!("r{number}"))).collect();
    sender.send(&batch(Msgpack, held.iter_mut().map(|request| request.row(&text)).collect()));
    let mut waiting: Vec<Question> = (0..1000).map(|_| service.question()).collect();
    // The service has every question and answers none. Another request passes, row by row.
    let mut free = SynthRequest::new("free");
    for number in 1..=20 {
        sender.send(&batch(Msgpack, vec![free.row(&text)]));
        let question = service.question();
        assert_eq!(question.rid, "free");
        question.allow();
        assert_eq!(rows(&reader.frame()), [row("free", &text, number * text.len() as u64, None)]);
    }
    afterbay.until_metrics("1,000 rows are held", |metrics| metrics.plugin("moderate", "held_rows") == 1000);
    // The answers arrive in the opposite order.
    waiting.drain(..).rev().for_each(Question::allow);
    let mut received = BTreeMap::new();
    while received.len() < 1000 {
        received.extend(ids_of([reader.frame()]));
    }
    assert!(received.values().all(|ids| *ids == text));
    sender.send(&batch(Msgpack, held.iter_mut().map(|request| request.last(&[])).collect()));
    sender.send(&batch(Msgpack, vec![free.last(&[])]));
    let metrics = afterbay.until_metrics("all have ended", |metrics| metrics.requests_ended() == 1001);
    assert_eq!(metrics.stream("request_imbalances_total"), 0);
    assert_eq!(metrics.plugin_by("moderate", "holds_ended_total", "reason", "verdict"), 1020);
    assert_eq!(afterbay.stop(), 0);
}

#[test]
fn a_failed_call_follows_on_fault() {
    let (one, two) = (ids("one"), ids("two"));
    for on_fault in ["bypass", "terminate"] {
        let (sandbox, service) = (Sandbox::new(), Service::start());
        let mut reader = Reader::bind(&sandbox.reader_side());
        let afterbay = Afterbay::run(&sandbox, &moderated(tokenizer(&sandbox), &service.url, on_fault));
        let mut sender = Sender::connect(&sandbox.scheduler_side());
        let (mut a, mut b) = (SynthRequest::new("a"), SynthRequest::new("b"));
        sender.send(&batch(Msgpack, vec![a.row(&one)]));
        service.question().answer("503 Busy", "");
        let expected = match on_fault {
            "terminate" => row("a", &[], 0, Some("abort")),
            _ => row("a", &one, one.len() as u64, None),
        };
        assert_eq!(rows(&reader.frame()), [expected], "{on_fault}");
        let event = afterbay.event("HoldEnded");
        assert_eq!(event["why"], "a call about the request failed", "{event}");
        // The next call succeeds.
        sender.send(&batch(Msgpack, vec![b.last(&two)]));
        service.question().allow();
        assert_eq!(rows(&reader.frame()), [row("b", &two, two.len() as u64, Some("length"))], "{on_fault}");
        sender.send(&batch(Msgpack, vec![a.last(&[])]));
        let metrics =
            afterbay.until_metrics("both have ended", |metrics| metrics.stream("requests_live") == 0);
        assert_eq!(metrics.stream("request_imbalances_total"), 0);
        assert_eq!(afterbay.stop(), 0);
        assert_eq!(verify(&sandbox).0, 0);
    }
}

#[test]
fn a_call_under_way_at_a_reload_ends_by_its_old_terms() {
    let (sandbox, before, after) = (Sandbox::new(), Service::start(), Service::start());
    let mut reader = Reader::bind(&sandbox.reader_side());
    let afterbay = Afterbay::run(&sandbox, &moderated(tokenizer(&sandbox), &before.url, "bypass"));
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let text = ids("text");
    let mut a = SynthRequest::new("a");
    sender.send(&batch(Msgpack, vec![a.row(&text)]));
    let old = before.question();
    sandbox.write(&moderated(tokenizer(&sandbox), &after.url, "bypass"));
    let event = afterbay.event("ConfigReloaded");
    assert_eq!(event["changed"], "call changed", "{event}");
    sender.send(&batch(Msgpack, vec![a.last(&text)]));
    let new = after.question();
    old.allow();
    let tokens = text.len() as u64;
    assert_eq!(rows(&reader.frame()), [row("a", &text, tokens, None)]);
    new.allow();
    assert_eq!(rows(&reader.frame()), [row("a", &text, 2 * tokens, Some("length"))]);
    assert_eq!(afterbay.stop(), 0);
}

#[test]
fn after_kill_9_rows_that_wait_for_a_service_follow_on_fault_also_the_last() {
    let text = ids("text");
    let tokens = text.len() as u64;
    for on_fault in ["bypass", "terminate"] {
        let (sandbox, service) = (Sandbox::new(), Service::start());
        let (mut reader, mut credit, config) = sandbox.counting_tokenizer();
        let config = moderated(config, &service.url, on_fault);
        let afterbay = Afterbay::run(&sandbox, &config);
        let mut sender = Sender::connect(&sandbox.scheduler_side());
        let (mut a, mut b) = (SynthRequest::new("a"), SynthRequest::new("b"));
        sender.send(&batch(Msgpack, vec![a.row(&text), b.last(&text)]));
        let questions = [service.question(), service.question()];
        afterbay.until_metrics("the rows wait", |metrics| metrics.plugin("moderate", "held_rows") == 2);
        afterbay.kill();
        drop(questions);

        let afterbay = Afterbay::run(&sandbox, &config);
        let mut out = Vec::new();
        while out.len() < 2 {
            out.extend(rows(&reader.frame()));
            credit.finished().unwrap();
        }
        out.sort_by(|one, other| one.rid.cmp(&other.rid));
        let expected = match on_fault {
            "terminate" => [row("a", &[], 0, Some("abort")), row("b", &[], 0, Some("abort"))],
            _ => [row("a", &text, tokens, None), row("b", &text, tokens, Some("length"))],
        };
        assert_eq!(out, expected, "{on_fault}");
        let mut sender = Sender::connect(&sandbox.scheduler_side());
        sender.send(&batch(Msgpack, vec![a.last(&[])]));
        if on_fault == "bypass" {
            assert_eq!(rows(&reader.frame()), [row("a", &[], tokens, Some("length"))]);
            credit.finished().unwrap();
        }
        let metrics =
            afterbay.until_metrics("no request is left", |metrics| metrics.stream("requests_live") == 0);
        assert_eq!(metrics.stream("request_imbalances_total"), 0);
        assert_eq!(afterbay.stop(), 0);
        assert_eq!(verify(&sandbox).0, 0);
    }
}

#[test]
fn rows_that_an_earlier_plugin_holds_when_a_request_is_blocked_are_swallowed() {
    let (sandbox, service) = (Sandbox::new(), Service::start());
    let mut reader = Reader::bind(&sandbox.reader_side());
    let config = holds(tokenizer(&sandbox), "holds", LONG);
    let afterbay = Afterbay::run(&sandbox, &moderated(config, &service.url, "bypass"));
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let (text, no) = (ids("text"), ids("no"));
    let mut a = SynthRequest::new("a");
    sender.send(&batch(Msgpack, vec![a.row(&text)]));
    let question = service.question();
    sender.send(&batch(Msgpack, vec![a.row(&[HOLD])]));
    afterbay
        .until_metrics("the first plugin holds a row", |metrics| metrics.plugin("holds", "held_rows") == 1);
    question.block();
    assert_eq!(until_last(&mut reader), [row("a", &no, no.len() as u64, Some("stop:blocked"))]);
    sender.send(&batch(Msgpack, vec![a.last(&[5])]));
    let mut b = SynthRequest::new("b");
    sender.send(&batch(Msgpack, vec![b.last(&text)]));
    service.question().allow();
    assert_eq!(rows(&reader.frame()), [row("b", &text, text.len() as u64, Some("length"))]);
    assert_eq!(afterbay.stop(), 0);
    assert!(reader.until_closed().is_empty(), "no row follows the last one");
    assert_eq!(verify(&sandbox).0, 0);
}
