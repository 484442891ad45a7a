//! Clients that read their requests again: from any token, as the reader got them, to the end.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

use afterbay_tests::admin::{self, Address, Answer};
use afterbay_tests::browser::Browser;
use afterbay_tests::clients::{self, SECRET};
use afterbay_tests::commands::run_afterbay;
use afterbay_tests::components::example;
use afterbay_tests::frames::{SynthRequest, WIRES, batch};
use afterbay_tests::holds::{HOLD, LONG, RELEASE, holding};
use afterbay_tests::{Afterbay, Config, PATIENCE, Reader, Sandbox, Sender, repository};
use afterbay_wire::RequestRecord;
use afterbay_wire::synth::SynthWire::{self, Msgpack};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// Afterbay with an address for clients.
struct Served {
    sandbox: Sandbox,
    afterbay: Afterbay,
    address: Address,
    reader: Reader,
    sender: Sender,
}

/// A connection that gets server-sent events.
struct Events(BufReader<TcpStream>);

/// One event: its name, its id and its data.
type Event = (String, String, Value);

impl Events {
    /// The next event. `None`: the connection has ended.
    fn next(&mut self) -> Option<Event> {
        let (mut name, mut id, mut data) = (String::new(), String::new(), None);
        loop {
            let mut line = String::new();
            if self.0.read_line(&mut line).unwrap() == 0 {
                return None;
            }
            match line.trim_end().split_once(": ") {
                Some(("event", value)) => value.clone_into(&mut name),
                Some(("id", value)) => value.clone_into(&mut id),
                Some(("data", value)) => data = Some(serde_json::from_str(value).unwrap()),
                _ => {}
            }
            if line.trim_end().is_empty()
                && let Some(data) = data.take()
            {
                return Some((name, id, data));
            }
        }
    }

    /// The ids up to the end of the request, and the end.
    fn rest(mut self) -> (Vec<Value>, Value) {
        let mut ids = Vec::new();
        while let Some((name, _, data)) = self.next() {
            if name == "end" {
                assert_eq!(self.next(), None, "the connection ends");
                return (ids, data);
            }
            ids.extend(data["ids"].as_array().unwrap().clone());
        }
        panic!("no end after {ids:?}");
    }
}

impl Served {
    fn new(configure: impl FnOnce(&Sandbox) -> Config) -> Served {
        let sandbox = Sandbox::new();
        let config = clients::served(&sandbox, configure(&sandbox));
        let reader = Reader::bind(&sandbox.reader_side());
        let afterbay = Afterbay::run(&sandbox, &config);
        let address = clients::address(&afterbay, 0);
        let sender = Sender::connect(&sandbox.scheduler_side());
        Served { sandbox, afterbay, address, reader, sender }
    }

    /// Sends a row, which the reader gets.
    fn row(&mut self, wire: SynthWire, request: &mut SynthRequest, ids: &[i64]) {
        self.sender.send(&batch(wire, vec![request.row(ids)]));
        self.reader.frame();
    }

    fn token(&self, id: &str) -> String {
        clients::token(&self.sandbox, id)
    }

    fn get(&self, path: &str, headers: &[&str]) -> Answer {
        admin::ask(&self.address, &format!("GET {path}"), headers, "")
    }

    fn json(&self, id: &str, query: &str) -> Value {
        clients::read(&self.sandbox, &self.address, id, query)
    }

    /// Reads as a browser's `EventSource` does.
    fn events(&self, id: &str, query: &str, headers: &str) -> Events {
        let Address::Tcp(address) = self.address else { panic!("{}", self.address) };
        let mut socket = TcpStream::connect(address).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let token = self.token(id);
        // The answer to HTTP/1.0 is not in chunks.
        write!(
            socket,
            "GET /v1/streams/{id}?token={token}{query} HTTP/1.0\r\nAccept: text/event-stream\r\n{headers}\r\n"
        )
        .unwrap();
        let mut events = Events(BufReader::new(socket));
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert!(events.0.read_line(&mut head).unwrap() > 0, "{head}");
        }
        assert!(head.contains("200 OK") && head.contains("content-type: text/event-stream"), "{head}");
        assert!(head.contains("access-control-allow-origin: *"), "{head}");
        events
    }
}

fn tokens(event: Option<Event>) -> (String, Value, Value) {
    let (name, id, data) = event.unwrap();
    assert_eq!(name, "", "{data}");
    (id, data["from"].clone(), data["ids"].clone())
}

#[test]
fn a_client_reads_its_request_from_any_token_and_follows_it_to_its_end() {
    for wire in WIRES {
        let mut served = Served::new(Sandbox::config);
        let mut request = SynthRequest::new("r");
        served.row(wire, &mut request, &[10, 11]);
        served.row(wire, &mut request, &[12]);
        let mut whole = served.events("r", "", "");
        let mut later = served.events("r", "&from=1", "");
        let mut again = served.events("r", "&from=0", "Last-Event-ID: 3\r\n");
        assert_eq!(tokens(whole.next()), ("3".into(), 0.into(), json!([10, 11, 12])), "{wire:?}");
        assert_eq!(tokens(later.next()), ("3".into(), 1.into(), json!([11, 12])));
        assert_eq!(
            served.json("r", "from=2"),
            json!({"from": 2, "ids": [12], "text": null, "next": 3, "ended": null})
        );
        served.row(wire, &mut request, &[13]);
        assert_eq!(tokens(whole.next()), ("4".into(), 3.into(), json!([13])));
        assert_eq!(
            tokens(again.next()),
            ("4".into(), 3.into(), json!([13])),
            "Last-Event-ID goes before from"
        );
        // Another request is not seen.
        let mut other = SynthRequest::new("other");
        served.sender.send(&batch(wire, vec![other.row(&[99]), request.last(&[14])]));
        served.reader.frame();
        let end = json!({"finish_reason": "length", "text": null, "tokens": 5});
        assert_eq!(whole.rest(), (vec![14.into()], end.clone()));
        assert_eq!(later.rest(), (vec![13.into(), 14.into()], end.clone()));
        // It has ended, and can still be read.
        assert_eq!(served.events("r", "&from=4", "").rest(), (vec![14.into()], end.clone()));
        assert_eq!(served.events("r", "&from=9", "").rest(), (vec![], end.clone()));
        assert_eq!(served.json("r", "from=5")["ended"], end);
        assert_eq!(served.afterbay.stop(), 0);
    }
}

#[test]
fn without_a_token_for_its_id_nobody_reads_a_request_and_nothing_is_listed() {
    let mut served = Served::new(Sandbox::config);
    served.row(Msgpack, &mut SynthRequest::new("r"), &[1]);
    served.row(Msgpack, &mut SynthRequest::new("s"), &[1]);
    let (of_r, unknown) = (served.token("r"), served.token("unknown"));
    let refused = [
        ("/v1/streams/r", 401, "token"),
        (&format!("/v1/streams/s?token={of_r}"), 403, "token"),
        (&format!("/v1/streams/r?token={}", of_r.replacen(|_: char| true, "9", 1)), 403, "token"),
        ("/v1/streams/r?token=1.AAAA", 403, "token"),
        (&format!("/v1/streams/unknown?token={unknown}"), 404, "unknown"),
        (&format!("/v1/streams/r?token={of_r}&from=-1"), 400, "query"),
        (&format!("/v1/streams/r?token={of_r}&form=1"), 400, "query"),
        ("/v1/streams", 404, "path"),
        ("/v1/streams/", 404, "path"),
    ];
    for (path, status, code) in refused {
        let answer = served.get(path, &[]);
        let body: Value = serde_json::from_str(&answer.body).unwrap_or_default();
        assert_eq!((answer.status, body["code"].as_str()), (status, Some(code)), "{path}: {}", answer.body);
    }
    assert_eq!(served.get(&format!("/v1/streams/r?token={of_r}"), &["Last-Event-ID: x"]).status, 400);
    // The secret is read at each request.
    std::fs::write(served.sandbox.path("clients.key"), SECRET.to_uppercase()).unwrap();
    assert_eq!(served.get(&format!("/v1/streams/r?token={of_r}"), &[]).status, 403);
    assert_eq!(served.json("r", "")["ids"], json!([1]));
    let config = served.sandbox.text("afterbay.toml");
    let wrong = run_afterbay(&["clients", "token", "r", "--for", "0s", "--config", &config]);
    assert!(wrong.stderr.contains("must be 1s to 365d"), "{}", wrong.stderr);
    assert_eq!(served.afterbay.stop(), 0);
}

#[test]
fn a_client_gets_what_left_after_the_plugins_and_never_what_one_of_them_holds() {
    let mut served = Served::new(|sandbox| holding(sandbox, LONG));
    let mut request = SynthRequest::new("r");
    served.row(Msgpack, &mut request, &[1]);
    served.sender.send(&batch(Msgpack, vec![request.row(&[HOLD])]));
    served
        .afterbay
        .until_metrics("the plugin holds a row", |metrics| metrics.plugin("holds", "held_rows") == 1);
    let mut events = served.events("r", "", "");
    assert_eq!(tokens(events.next()).2, json!([1]));
    assert_eq!(served.json("r", "")["ids"], json!([1]), "the held row has not left");
    served.sender.send(&batch(Msgpack, vec![request.last(&[RELEASE])]));
    let left = afterbay_tests::frames::rows(&served.reader.frame());
    let ids: Vec<Value> = left.iter().flat_map(|row| row.ids.iter().map(|id| json!(id))).collect();
    assert_eq!(events.rest().0, ids);
    let whole = [vec![json!(1)], ids].concat();
    assert_eq!(served.events("r", "", "").rest().0, whole, "the same from the journal");
    assert_eq!(served.afterbay.stop(), 0);
}

#[test]
fn a_request_that_a_plugin_ends_has_ended_for_its_client() {
    let mut served = Served::new(|sandbox| {
        sandbox.config().plugin("loops", &example("stop-on-loop"), "window = 8, repeats = 4")
    });
    let mut request = SynthRequest::new("r");
    let mut ids = 0;
    for _ in 0..4 {
        served.row(Msgpack, &mut request, &[7, 8]);
        ids += 2;
    }
    // The scheduler goes on.
    served.sender.send(&batch(Msgpack, vec![request.row(&[7, 8])]));
    let (read, end) = served.events("r", "", "").rest();
    assert_eq!((read.len(), &end["finish_reason"]), (ids, &"stop".into()), "{end}");
    assert_eq!(served.json("r", "from=8")["ended"], end);
    assert_eq!(served.afterbay.stop(), 0);
}

#[test]
fn after_kill_9_a_client_goes_on_where_it_was() {
    let Served { sandbox, afterbay, address: before, mut reader, mut sender } = Served::new(Sandbox::config);
    let mut request = SynthRequest::new("r");
    for id in 0..3 {
        sender.send(&batch(Msgpack, vec![request.row(&[id])]));
        reader.frame();
    }
    let config = clients::served(&sandbox, sandbox.config());
    let served = Served { sandbox, afterbay, address: before, reader, sender };
    let mut events = served.events("r", "", "");
    assert_eq!(tokens(events.next()).0, "3");
    let Served { sandbox, afterbay, reader, .. } = served;
    afterbay.kill();

    let afterbay = Afterbay::run(&sandbox, &config);
    let (sender, address) = (Sender::connect(&sandbox.scheduler_side()), clients::address(&afterbay, 0));
    let mut served = Served { sandbox, afterbay, address, reader, sender };
    let events = served.events("r", "", "Last-Event-ID: 2\r\n");
    served.sender.send(&batch(Msgpack, vec![request.last(&[3])]));
    served.reader.frame();
    assert_eq!(events.rest().0, [json!(2), json!(3)]);
    assert_eq!(served.afterbay.stop(), 0);
}

#[test]
fn text_comes_in_whole_characters_and_the_id_of_an_event_is_behind_them() {
    let model = repository().join("host/path/text/tests/fixtures/byte-level/tokenizer.json");
    let encoder = afterbay_text::Encoder::load(&model).unwrap();
    let text = "caf\u{e9} \u{1f600}!";
    let ids = encoder.encode(text).unwrap();
    let mut served = Served::new(|sandbox| sandbox.config().sink(&format!("tokenizer = {model:?}")));
    let mut request = SynthRequest::new("r");
    let mut events = served.events_after(&mut request, ids[0]);
    for id in &ids[1..] {
        served.row(Msgpack, &mut request, &[*id]);
    }
    served.sender.send(&batch(Msgpack, vec![request.last(&[])]));
    let (mut read, mut seen) = (String::new(), 0);
    while let Some((name, id, data)) = events.next() {
        if name == "end" {
            break;
        }
        let piece = data["text"].as_str().unwrap();
        assert!(!piece.contains('\u{fffd}'), "{data}");
        seen += data["ids"].as_array().unwrap().len();
        assert_eq!(id, seen.to_string());
        read += piece;
    }
    assert_eq!((read.as_str(), seen), (text, ids.len()));
    assert_eq!(served.json("r", "")["text"], text);
    assert_eq!(served.afterbay.stop(), 0);
}

impl Served {
    /// Sends a first row, and reads the request from then on.
    fn events_after(&mut self, request: &mut SynthRequest, id: i64) -> Events {
        self.row(Msgpack, request, &[id]);
        self.events("r", "", "")
    }
}

#[test]
fn the_id_that_a_client_got_finds_its_request_and_each_sample_by_its_number() {
    let mut served = Served::new(|sandbox| sandbox.config().stream("engine = \"vllm\""));
    let wire = SynthWire::EngineCore;
    let mut one = SynthRequest::new("cmpl-7-1a2b3c4d");
    let mut samples = ["0_cmpl-8-1a2b3c4d", "1_cmpl-8-1a2b3c4d"].map(SynthRequest::new);
    let rows = samples.iter_mut().zip([1, 2]).map(|(sample, id)| sample.row(&[id])).collect();
    served.row(wire, &mut one, &[7]);
    served.sender.send(&batch(wire, rows));
    served.reader.frame();
    assert_eq!(served.json("cmpl-7", "")["ids"], json!([7]));
    let bearer = format!("Authorization: Bearer {}", served.token("cmpl-8"));
    let ambiguous = served.get("/v1/streams/cmpl-8", &[&bearer]);
    assert!(ambiguous.status == 409 && ambiguous.body.contains("sample=0 to sample=1"), "{ambiguous:?}");
    assert_eq!(served.json("cmpl-8", "sample=1")["ids"], json!([2]));
    let absent = served.get("/v1/streams/cmpl-8?sample=2", &[&bearer]);
    assert!(absent.status == 400 && absent.body.contains("the last is sample=1"), "{absent:?}");
    assert_eq!(served.afterbay.stop(), 0);
}

#[test]
fn a_client_that_reads_a_request_again_renews_its_lease() {
    let mut served = Served::new(|sandbox| sandbox.config().abort_by_push(sandbox).leases("1h", 2));
    let record = RequestRecord { rid: "r".into(), lease_ms: Some(600_000), ..RequestRecord::default() };
    let mut request = SynthRequest::new("r");
    served.sender.send(&record.to_frame());
    served.row(Msgpack, &mut request, &[1]);
    served.sender.send(br#"{"afterbay":"left","rid":"r"}"#);
    served.afterbay.until_metrics("the lease runs", |metrics| metrics.stream("leases_live") == 1);
    let mut events = served.events("r", "", "");
    assert_eq!(tokens(events.next()).2, json!([1]));
    served.afterbay.until_metrics("it is renewed", |metrics| metrics.stream("leases_renewed_total") >= 2);
    served.sender.send(&batch(Msgpack, vec![request.last(&[2])]));
    served.reader.frame();
    assert_eq!(events.rest().0, [json!(2)]);
    assert_eq!(served.afterbay.stop(), 0);
}

#[test]
fn a_browser_goes_on_by_itself_where_its_connection_broke() {
    let Some(mut browser) = Browser::start() else { return };
    let sandbox = Sandbox::new();
    std::fs::write(sandbox.path("clients.key"), SECRET).unwrap();
    let listen = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let config = sandbox.config().clients(&listen.to_string(), &sandbox.text("clients.key"));
    let reader = Reader::bind(&sandbox.reader_side());
    let afterbay = Afterbay::run(&sandbox, &config);
    let address = clients::address(&afterbay, 0);
    let sender = Sender::connect(&sandbox.scheduler_side());
    let mut served = Served { sandbox, afterbay, address, reader, sender };
    let mut request = SynthRequest::new("r");
    served.row(Msgpack, &mut request, &[1, 2]);
    let url = json!(format!("http://{listen}/v1/streams/r?token={}", served.token("r")));
    browser.eval(&format!(
        "window.got = []; window.ended = null; const source = new EventSource({url}); \
         source.onmessage = (event) => got.push(...JSON.parse(event.data).ids); \
         source.addEventListener('end', (event) => {{ ended = JSON.parse(event.data); source.close(); }});"
    ));
    browser.until("got.length === 2");
    // The process that serves it dies, and Afterbay starts another one.
    let status = std::fs::read(served.sandbox.journal().join(".followers/STATUS")).unwrap();
    let status: Value = serde_json::from_slice(&status).unwrap();
    let pid = status["pid"].as_i64().and_then(|pid| Pid::from_raw(pid as i32)).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    served.row(Msgpack, &mut request, &[3]);
    served.sender.send(&batch(Msgpack, vec![request.last(&[4])]));
    served.reader.frame();
    browser.until("ended");
    assert_eq!(browser.eval("got"), json!([1, 2, 3, 4]));
    assert_eq!(browser.eval("ended.finish_reason"), "length");
    assert_eq!(served.afterbay.stop(), 0);
}
