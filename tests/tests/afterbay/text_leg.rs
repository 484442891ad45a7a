//! Both legs of a request: the scheduler's output, a detokenizer, and the detokenizer's output after it.

use std::collections::BTreeMap;
use std::time::Duration;

use afterbay_sockets::credit::{CreditWriter, ReaderKind};
use afterbay_tests::commands::{journal, json_lines, run_afterbay};
use afterbay_tests::components::guest;
use afterbay_tests::frames::{SynthRequest, WIRES, batch, rows};
use afterbay_tests::{Afterbay, Reader, Sandbox, Sender};
use afterbay_wire::synth::SynthWire::Msgpack;
use afterbay_wire::synth::{SynthBatch, SynthFinish, SynthRow, SynthWire};
use afterbay_wire::{BatchKind, DecodedFrame, Layouts, RequestRecord};
use bytes::Bytes;
use serde_json::{Value, json};

const TEXT: &str = "text";

/// The text of an id, with one to four bytes of UTF-8, so that a wrong cut is visible.
fn text_of(id: i64) -> String {
    let first = [0x61, 0xe0, 0x4e00, 0x1f600][id as usize % 4];
    char::from_u32(first + id as u32 / 4).unwrap().to_string()
}

/// The batch that a detokenizer makes of a batch of token ids.
fn detokenized(frame: &[u8], wire: SynthWire) -> Bytes {
    let rows = rows(frame).into_iter().map(|row| SynthRow {
        text: row.ids.iter().copied().map(text_of).collect(),
        finish: row.finish.map(|_| SynthFinish::Length(row.completion_tokens)),
        rid: row.rid,
        ids: row.ids,
        completion_tokens: row.completion_tokens,
        prompt_tokens: 7,
        ..SynthRow::default()
    });
    SynthBatch { rows: rows.collect() }.encode(BatchKind::Str, wire).unwrap()
}

/// The rid and text of each row.
fn texts(frame: &[u8]) -> Vec<(String, String)> {
    let DecodedFrame::Batch(batch) =
        afterbay_wire::decode(Bytes::copy_from_slice(frame), &Layouts::builtin())
    else {
        return Vec::new();
    };
    assert_eq!(batch.kind(), BatchKind::Str);
    (0..batch.rows()).map(|row| (batch.rid(row).to_owned(), batch.text(row).unwrap().to_owned())).collect()
}

/// A scheduler and the two sockets of a detokenizer between the two legs.
struct Legs {
    scheduler: Sender,
    detokenizer_in: Reader,
    detokenizer_out: Sender,
    wire: SynthWire,
}

impl Legs {
    fn connect(sandbox: &Sandbox, detokenizer_in: Reader, wire: SynthWire) -> Legs {
        let scheduler = Sender::connect(&sandbox.scheduler_side());
        let detokenizer_out = Sender::connect(&sandbox.ipc("text-in"));
        Legs { scheduler, detokenizer_in, detokenizer_out, wire }
    }

    /// Sends a batch through the first leg and the detokenizer into the second leg. `change` is the detokenizer's error.
    fn step(&mut self, frame: &[u8], change: impl Fn(Bytes) -> Bytes) {
        self.scheduler.send(frame);
        let received = self.detokenizer_in.frame();
        assert_eq!(received, frame);
        let made = match rows(frame).is_empty() {
            true => SynthBatch::default().encode(BatchKind::Str, self.wire).unwrap(),
            false => change(detokenized(&received, self.wire)),
        };
        self.detokenizer_out.send(&made);
    }
}

#[test]
fn a_slow_tokenizer_after_a_detokenizer_gets_the_exact_text_joined_and_show_joins_both_legs() {
    const REQUESTS: i64 = 12;
    const STEPS: i64 = 10;
    for wire in WIRES {
        let sandbox = Sandbox::new();
        let detokenizer_in = Reader::bind(&sandbox.ipc("detok"));
        let mut reader = Reader::bind(&sandbox.reader_side());
        let mut credit = CreditWriter::open(&sandbox.credit(), ReaderKind::Tokenizer).unwrap();
        let page = format!("credit = {:?}", sandbox.credit());
        let config = sandbox.config().connect(&sandbox.ipc("detok"));
        let config = config.next_leg(TEXT, &sandbox.ipc("text-in"), Some(&sandbox.reader_side()), &page);
        let mut afterbay = Afterbay::run(&sandbox, &config);
        afterbay.event_where("StreamStarted", |started| started["stream"] == TEXT);
        afterbay.event("CreditSeen");
        let mut legs = Legs::connect(&sandbox, detokenizer_in, wire);

        let mut requests: Vec<SynthRequest> =
            (0..REQUESTS).map(|at| SynthRequest::new(&format!("r-{at}"))).collect();
        let mut step = |ids: i64| {
            let id = |at: i64| [ids * 7 + at];
            let rows = requests.iter_mut().zip(0..).map(|(request, at)| match ids + 1 == STEPS {
                true => request.last(&id(at)),
                false => request.row(&id(at)),
            });
            batch(wire, rows.collect())
        };
        let idle = SynthBatch::default().encode(BatchKind::TokenId, wire).unwrap();
        let mut given = Vec::new();
        for at in 0..STEPS {
            legs.step(&step(at), |made| made);
            if at < 2 {
                given.push(reader.frame());
            }
            if at == 5 {
                legs.step(&idle, |made| made);
            }
        }
        // The reader has two unfinished frames. The others wait in the lanes before and after the idle batch.
        afterbay.until_metrics("the other frames wait", |metrics| {
            metrics.stream_named(TEXT, "outbox_frames") == STEPS as u64 - 2 + 1
        });
        // A health check does not wait for other requests.
        legs.step(&batch(wire, vec![SynthRequest::new("HEALTH_CHECK_1763649000.1").last(&[1])]), |made| made);
        assert_eq!(texts(&reader.frame()), [("HEALTH_CHECK_1763649000.1".to_owned(), text_of(1))]);
        (0..3).for_each(|_| credit.finished().unwrap());

        let mut received: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut given = given.into_iter();
        let mut frames = 0;
        while received.values().map(|texts| texts.concat().chars().count() as i64).sum::<i64>()
            < REQUESTS * STEPS
        {
            let frame = given.next().unwrap_or_else(|| {
                let frame = reader.frame();
                credit.finished().unwrap();
                frame
            });
            frames += 1;
            if texts(&frame).is_empty() {
                // The frame before the idle batch has six steps of every request.
                let six = |texts: &Vec<String>| texts.concat().chars().count() == 6;
                assert!(received.len() == REQUESTS as usize && received.values().all(six), "{received:?}");
            }
            for (rid, text) in texts(&frame) {
                received.entry(rid).or_default().push(text);
            }
        }
        assert_eq!(
            frames, 5,
            "two unchanged frames, one of waiting rows, the idle batch, and one of later rows"
        );
        for at in 0..REQUESTS {
            let whole: String = (0..STEPS).map(|step| text_of(step * 7 + at)).collect();
            assert_eq!(received[&format!("r-{at}")].concat(), whole);
        }

        afterbay.terminate();
        assert_eq!(afterbay.wait(), 0);
        // The second leg receives until the first leg has ended.
        let place = |event: &str, stream: &str| {
            let is = |line: &str| {
                line.contains(&format!("\"{event}\"")) && line.contains(&format!("\"{stream}\""))
            };
            afterbay
                .log()
                .lines()
                .position(is)
                .unwrap_or_else(|| panic!("{event} {stream}\n{}", afterbay.log()))
        };
        assert!(place("StreamStopped", "test") < place("DrainBegun", TEXT), "{}", afterbay.log());

        let listed = journal(&sandbox, &["ls", "--json"]).json_lines();
        assert_eq!(listed.len() as i64, REQUESTS + 1, "{listed:?}");
        for request in listed.iter().filter(|request| request["rid"] != "HEALTH_CHECK_1763649000.1") {
            let legs: Vec<&Value> = request["legs"].as_array().unwrap().iter().collect();
            assert_eq!([&legs[0]["stream"], &legs[1]["stream"]], ["test", TEXT], "{request}");
            for leg in legs {
                assert_eq!([&leg["rows"], &leg["tokens_received"], &leg["gaps"]], [STEPS, STEPS, 0], "{leg}");
            }
            assert_eq!(request["state"], "finished");
        }
        let only = journal(&sandbox, &["ls", "--json", "--stream", TEXT]).json_lines();
        assert!(only.len() == listed.len() && only.iter().all(|request| request["legs"] == Value::Null));
        assert_eq!(journal(&sandbox, &["ls", "--json", "--state", "live"]).json_lines(), Vec::<Value>::new());

        let shown = journal(&sandbox, &["show", "r-3", "--json"]).json_lines();
        let [shown] = &shown[..] else { panic!("{shown:?}") };
        // Like in `ls`, and with each row of both legs once.
        let of_ls = listed.iter().find(|request| request["rid"] == "r-3").unwrap().as_object().unwrap();
        assert!(of_ls.iter().all(|(name, value)| shown[name] == *value), "{shown}");
        let rows = shown["rows_seen"].as_array().unwrap();
        assert_eq!(rows.len() as i64, 2 * STEPS, "{shown}");
        let seen = |stream: &str, field: &str| -> Vec<Value> {
            rows.iter().filter(|row| row["stream"] == stream).map(|row| row[field].clone()).collect()
        };
        let all: Vec<Value> = (0..STEPS).map(|step| json!([step * 7 + 3])).collect();
        assert_eq!([seen("test", "ids"), seen(TEXT, "ids")], [all.clone(), all]);
        assert_eq!(
            seen(TEXT, "text"),
            (0..STEPS).map(|step| json!(text_of(step * 7 + 3))).collect::<Vec<_>>()
        );
        assert!(seen("test", "text").iter().all(Value::is_null));
        let shown = journal(&sandbox, &["show", "r-3"]).success();
        for part in [
            "r-3  finished, 2 legs: the first row on text",
            "of stream test,",
            "of stream text,",
            &text_of(3),
        ] {
            assert!(shown.contains(part), "{part} is not in\n{shown}");
        }

        let verified = journal(&sandbox, &["verify", "--json"]);
        let reports = json_lines(&verified.stdout);
        assert_eq!((verified.code, reports.len()), (0, 2), "{verified:?}");
        let text = reports.iter().find(|report| report["stream"] == TEXT).unwrap();
        assert_eq!((&text["after"], &text["requests_compared"]), (&json!(["test"]), &json!(REQUESTS + 1)));
    }
}

#[test]
fn verify_names_tokens_that_a_detokenizer_lost() {
    let sandbox = Sandbox::new();
    let detokenizer_in = Reader::bind(&sandbox.ipc("detok"));
    let mut reader = Reader::bind(&sandbox.reader_side());
    let config = sandbox.config().connect(&sandbox.ipc("detok"));
    let config = config.next_leg(TEXT, &sandbox.ipc("text-in"), Some(&sandbox.reader_side()), "");
    let afterbay = Afterbay::run(&sandbox, &config);
    afterbay.event_where("StreamStarted", |started| started["stream"] == TEXT);
    let mut legs = Legs::connect(&sandbox, detokenizer_in, Msgpack);
    let (mut whole, mut lacks) = (SynthRequest::new("whole"), SynthRequest::new("lacks"));
    legs.step(&batch(Msgpack, vec![whole.row(&[1, 2]), lacks.row(&[1, 2])]), |made| made);
    reader.frame();
    // The last row has one of two ids and counts one token, so that the second leg alone is consistent.
    legs.step(&batch(Msgpack, vec![whole.last(&[3, 4]), lacks.last(&[3, 4])]), |_| {
        let rows = [("whole", &[3, 4][..]), ("lacks", &[3])].map(|(rid, ids)| {
            let mut request = SynthRequest::new(rid);
            request.row(&[1, 2]);
            request.last(ids)
        });
        SynthBatch { rows: rows.into() }.encode(BatchKind::Str, Msgpack).unwrap()
    });
    reader.frame();
    assert_eq!(afterbay.stop(), 0);
    let verified = journal(&sandbox, &["verify", "--json"]);
    assert_eq!(verified.code, 1);
    let reports = json_lines(&verified.stdout);
    let problems = |stream: &str| {
        let report = reports.iter().find(|report| report["stream"] == stream).unwrap();
        report["problems"].as_array().unwrap().iter().map(|it| it["what"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(problems("test"), Vec::<Value>::new());
    assert_eq!(problems(TEXT), ["request \"lacks\": received 3 tokens, 4 left test"]);
}

/// Writes the file of a connector: the scheduler's, or with the suffix `.text` the detokenizers'.
fn meet(sandbox: &Sandbox, name: &str, fields: Value) {
    let mut met = json!({
        "format": 1, "engine": "sglang", "pid": std::process::id(), "written_unix_ns": 1, "sglang": "0.5.23", "mode": "normal",
        "ipc_format": "msgpack", "ingress": sandbox.scheduler_side(), "down": sandbox.ipc("detok"),
        "down_kind": "detokenizer", "instance_id": "an-instance", "leg": "tokens",
    });
    met.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let new = sandbox.path("rendezvous.new");
    std::fs::write(&new, met.to_string()).unwrap();
    std::fs::rename(new, sandbox.path(name)).unwrap();
}

/// Starts both legs with all endpoints from the rendezvous.
fn both(sandbox: &Sandbox) -> String {
    let config = sandbox.config().next_leg(TEXT, &sandbox.ipc("text-in"), None, "").to_toml();
    let connect = format!("connect = {:?}\n", sandbox.reader_side());
    config.replace(&connect, "")
}

#[test]
fn a_text_leg_starts_when_its_file_appears_and_the_first_leg_does_not_wait() {
    let sandbox = Sandbox::new();
    let text_ingress = sandbox.ipc("text-in");
    meet(&sandbox, "r.json", json!({"text_ingress": text_ingress}));
    // The stale file of an earlier server's instance.
    let text = |instance: &str, written: u64, down: &str| {
        let down = sandbox.ipc(down);
        meet(
            &sandbox,
            "r.json.text",
            json!({"leg": "text", "down": down, "down_kind": "tokenizer", "instance_id": instance, "written_unix_ns": written}),
        );
    };
    text("before", 1, "gone");
    let mut detokenizer = Reader::bind(&sandbox.ipc("detok"));
    let mut tokenizer = Reader::bind(&sandbox.ipc("tok"));
    let afterbay = Afterbay::run_toml(&sandbox, &both(&sandbox), &["--rendezvous", &sandbox.text("r.json")]);
    let mut scheduler = Sender::connect(&sandbox.scheduler_side());
    let frame = batch(Msgpack, vec![SynthRequest::new("r").last(&[1])]);
    scheduler.send(&frame);
    assert_eq!(detokenizer.frame(), frame);
    let waits = afterbay.until_ready(503);
    assert!(waits.contains("waits for the detokenizer to write") && waits.contains("r.json.text"), "{waits}");
    assert!(!sandbox.path("text-in").exists());

    text("an-instance", 2, "tok");
    afterbay.event_where("StreamStarted", |started| started["stream"] == TEXT);
    afterbay.until_ready(200);
    let made = detokenized(&frame, Msgpack);
    let mut detokenizer_out = Sender::connect(&text_ingress);
    detokenizer_out.send(&made);
    assert_eq!(tokenizer.frame(), made);

    // A second detokenizer writes the same file. Then SGLang restarts.
    text("an-instance", 3, "tok");
    detokenizer_out.send(&made);
    assert_eq!(tokenizer.frame(), made);
    // Afterbay reads the files ten times a second.
    std::thread::sleep(Duration::from_millis(250));
    assert_eq!(afterbay.events("DrainBegun"), Vec::<Value>::new());
    let mut other = Reader::bind(&sandbox.ipc("other"));
    text("an-instance", 4, "other");
    afterbay.event_where("StreamStopped", |stopped| stopped["stream"] == TEXT);
    afterbay_tests::until("both streams run again", || {
        afterbay.events("StreamStarted").iter().filter(|started| started["stream"] == TEXT).count() == 2
    });
    Sender::connect(&text_ingress).send(&made);
    assert_eq!(other.frame(), made);
    assert_eq!(afterbay.stop(), 0);
}

#[test]
fn each_tokenizer_of_the_rendezvous_gets_its_own_text_and_both_legs_agree() {
    for wire in WIRES {
        let sandbox = Sandbox::new();
        let text_ingress = sandbox.ipc("text-in");
        let workers: Vec<String> = (0..2).map(|at| sandbox.ipc(&format!("worker-{at}"))).collect();
        let named: Vec<Value> = workers.iter().map(|ipc| json!({"ipc": ipc, "credit": null})).collect();
        meet(&sandbox, "r.json", json!({"text_ingress": text_ingress}));
        let fields =
            json!({"leg": "text", "down": sandbox.ipc("tok"), "down_kind": "tokenizer", "workers": named});
        meet(&sandbox, "r.json.text", fields);
        let mut detokenizer = Reader::bind(&sandbox.ipc("detok"));
        let mut router = Reader::bind(&sandbox.ipc("tok"));
        let mut readers: Vec<Reader> = workers.iter().map(|ipc| Reader::bind(ipc)).collect();
        let afterbay =
            Afterbay::run_toml(&sandbox, &both(&sandbox), &["--rendezvous", &sandbox.text("r.json")]);
        afterbay.event_where("StreamStarted", |started| started["stream"] == TEXT);
        let mut scheduler = Sender::connect(&sandbox.scheduler_side());
        let mut detokenizer_out = Sender::connect(&text_ingress);
        let mut requests = ["a", "b", "c"].map(SynthRequest::new);
        for id in 0..4 {
            if id == 2 {
                // These sinks are not in the configuration, and a reload keeps them.
                let rule = "[[stream.attribute]]\nprefix = \"a\"\nset = { tenant = \"a\" }\n";
                sandbox.replace("afterbay.toml", both(&sandbox) + rule);
                afterbay.event("ConfigReloaded");
            }
            let rows: Vec<SynthRow> = requests
                .iter_mut()
                .enumerate()
                .map(|(at, request)| {
                    let row = if id == 3 { request.last(&[id]) } else { request.row(&[id]) };
                    // The third request belongs to a tokenizer that was attached later.
                    let ipc = workers.get(at).cloned().unwrap_or_else(|| "ipc:///attached".to_owned());
                    SynthRow { text: text_of(id), http_worker_ipc: Some(ipc), ..row }
                })
                .collect();
            scheduler.send(&batch(wire, rows.clone()));
            assert_eq!(detokenizer.frame(), batch(wire, rows.clone()));
            detokenizer_out.send(&SynthBatch { rows }.encode(BatchKind::Str, wire).unwrap());
            let text = |rid: &str| [(rid.to_owned(), text_of(id))];
            assert_eq!([texts(&readers[0].frame()), texts(&readers[1].frame())], [text("a"), text("b")]);
            assert_eq!(texts(&router.frame()), text("c"));
        }
        let signals: Value = serde_json::from_str(&afterbay.get("/v1/status").body).unwrap();
        let sinks = signals["streams"][1]["sinks"].as_array().unwrap().iter();
        let names: Vec<&Value> = sinks.map(|sink| &sink["name"]).collect();
        assert_eq!(names, ["reader", "reader-0", "reader-1"], "{signals}");
        assert_eq!(afterbay.stop(), 0);
        let verified = journal(&sandbox, &["verify", "--json"]);
        let reports = json_lines(&verified.stdout);
        let compared: Vec<&Value> = reports.iter().map(|report| &report["requests_compared"]).collect();
        assert_eq!((verified.code, &compared[..]), (0, &[&Value::Null, &json!(3)][..]), "{verified:?}");
    }
}

#[test]
fn an_impossible_text_leg_is_reported_and_delays_nothing() {
    for (fields, why) in [
        (
            json!({"text_ingress": null, "text_none": "with --skip-tokenizer-init there is none"}),
            "--skip-tokenizer-init",
        ),
        (json!({}), "this connector knows of no text leg"),
    ] {
        let sandbox = Sandbox::new();
        meet(&sandbox, "r.json", fields);
        let mut detokenizer = Reader::bind(&sandbox.ipc("detok"));
        let afterbay =
            Afterbay::run_toml(&sandbox, &both(&sandbox), &["--rendezvous", &sandbox.text("r.json")]);
        let absent = afterbay.event("StreamAbsent");
        assert_eq!(absent["stream"], TEXT, "{absent}");
        assert!(absent["why"].as_str().unwrap().contains(why), "{absent}");
        afterbay.until_ready(200);
        Sender::connect(&sandbox.scheduler_side()).send(b"a frame");
        assert_eq!(detokenizer.frame(), b"a frame");
        assert_eq!(afterbay.stop(), 0);
    }
}

#[test]
fn a_plugin_with_cumulative_ids_is_refused_before_a_second_leg() {
    let sandbox = Sandbox::new();
    let config = sandbox.config().plugin_with("sum", "builtin:delta-to-cumulative", "", "");
    let config = config.next_leg(TEXT, &sandbox.ipc("text-in"), Some(&sandbox.ipc("tok")), "");
    let file = sandbox.write(&config);
    let refused = run_afterbay(&["check", "--config", &file]);
    assert_eq!(refused.code, 64, "{refused:?}");
    let why = "plugin \"sum\": writes cumulative ids, and stream text after it counts each token once";
    assert!(refused.stderr.contains(why), "{}", refused.stderr);
}

#[test]
fn a_plugin_behind_the_detokenizer_reads_the_records_of_the_schedulers_stream_also_after_a_kill() {
    let sandbox = Sandbox::new();
    let detokenizer_in = Reader::bind(&sandbox.ipc("detok"));
    let mut reader = Reader::bind(&sandbox.reader_side());
    let plugin = format!(
        "[[stream.plugin]]\nname = \"p\"\ncomponent = {:?}\ngrant = [\"log\", \"request\", \"signals\"]\n\
         settings = {{ asks = true }}",
        guest("remembers")
    );
    let config = sandbox.config().connect(&sandbox.ipc("detok"));
    let config = config.next_leg(TEXT, &sandbox.ipc("text-in"), Some(&sandbox.reader_side()), &plugin);
    let afterbay = Afterbay::run(&sandbox, &config);
    afterbay.event_where("StreamStarted", |started| started["stream"] == TEXT);
    let mut legs = Legs::connect(&sandbox, detokenizer_in, Msgpack);
    for (rid, id) in [("long", 5), ("short", 6)] {
        let record = RequestRecord { rid: rid.into(), ..RequestRecord::default() };
        legs.scheduler.send(&record.with_prompt(&[id, 7]).to_frame());
    }
    let (mut long, mut short, mut unknown) =
        (SynthRequest::new("long"), SynthRequest::new("short"), SynthRequest::new("unknown"));
    // The first leg of the short request has ended when its second leg begins.
    legs.step(&batch(Msgpack, vec![long.row(&[1]), short.last(&[1]), unknown.row(&[1])]), |made| made);
    reader.frame();
    let answers = |afterbay: &Afterbay, count| {
        let asked = |log: &Value| log["line"].as_str().unwrap().starts_with("asked");
        let logged = afterbay.all_events_where("PluginLog", count, asked);
        let line =
            |log: &Value| format!("{} {}", log["rid"].as_str().unwrap(), log["line"].as_str().unwrap());
        let mut answers: Vec<String> = logged.iter().map(line).collect();
        answers.sort();
        answers
    };
    let of_long = r#"long asked {"rid":"long","prompt_tokens":2}, prompt Some([5, 7])"#;
    let of_unknown = "unknown asked nothing, prompt None";
    let of_short = r#"short asked {"rid":"short","prompt_tokens":2}, prompt Some([6, 7])"#;
    assert_eq!(answers(&afterbay, 3), [of_long, of_short, of_unknown]);
    afterbay.kill();
    let afterbay = Afterbay::run(&sandbox, &config);
    assert_eq!(answers(&afterbay, 2), [of_long, of_unknown]);
}
