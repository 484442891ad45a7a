//! Several sinks of one stream: each request goes to one of them.

use std::collections::BTreeMap;
use std::time::Duration;

use afterbay_tests::commands::{journal, verify};
use afterbay_tests::frames::{SynthRequest, WIRES, batch, fixtures, ids, rows};
use afterbay_tests::sandbox::{Config, SINK};
use afterbay_tests::{Afterbay, Reader, Sandbox, Sender, load, until};
use afterbay_wire::synth::SynthWire::Msgpack;

/// The sinks' names in the order of the configuration.
const SINKS: [&str; 3] = [SINK, "second", "third"];

fn endpoint(sandbox: &Sandbox, sink: usize) -> String {
    sandbox.ipc(&format!("out-{sink}"))
}

fn config(sandbox: &Sandbox, lines: impl Fn(usize) -> String) -> Config {
    let config = sandbox.config().stream("route = \"crc32\"").connect(&endpoint(sandbox, 0)).sink(&lines(0));
    (1..SINKS.len())
        .fold(config, |config, sink| config.another_sink(SINKS[sink], &endpoint(sandbox, sink), &lines(sink)))
}

fn bind(sandbox: &Sandbox) -> Vec<Reader> {
    (0..SINKS.len()).map(|sink| Reader::bind(&endpoint(sandbox, sink))).collect()
}

/// Rids with Python's `zlib.crc32(rid.encode()) % 3`.
const PYTHON: [(&str, usize); 4] = [("r0", 2), ("r1", 0), ("r2", 2), ("r11", 1)];

/// The index of a request's sink.
fn sink_of(rid: &str) -> usize {
    // Computed bit by bit, independently of the library.
    let step = |crc: u32, _| if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
    let crc = rid.bytes().fold(!0u32, |crc, byte| (0..8).fold(crc ^ u32::from(byte), step));
    (!crc % 3) as usize
}

#[test]
fn crc32_routing_sends_each_request_to_one_sink_and_barriers_to_all() {
    PYTHON.iter().for_each(|(rid, sink)| assert_eq!(sink_of(rid), *sink, "{rid}"));
    for wire in WIRES {
        let sandbox = Sandbox::new();
        let mut readers = bind(&sandbox);
        let afterbay = Afterbay::run(&sandbox, &config(&sandbox, |_| String::new()));
        let mut sender = Sender::connect(&sandbox.scheduler_side());
        let frames = load(30, 20, wire);
        let (_, control) = fixtures().into_iter().find(|(name, _)| name.contains("freeze")).unwrap();
        for (index, frame) in frames.iter().enumerate() {
            if index == 7 {
                sender.send(&control);
            }
            sender.send(&frame.bytes);
        }
        let mut expected: Vec<BTreeMap<String, Vec<i64>>> = vec![BTreeMap::new(); SINKS.len()];
        for row in frames.iter().flat_map(|frame| rows(&frame.bytes)) {
            expected[sink_of(&row.rid)].entry(row.rid).or_default().extend(row.ids);
        }
        for (reader, expected) in readers.iter_mut().zip(&expected) {
            let (mut received, mut controls) = (BTreeMap::<String, Vec<i64>>::new(), 0);
            while received != *expected || controls == 0 {
                let frame = reader.frame();
                controls += u32::from(frame == control);
                for row in rows(&frame) {
                    let ids = received.entry(row.rid).or_default();
                    ids.extend(row.ids);
                    assert_eq!(ids.len() as u64, row.completion_tokens);
                }
            }
            assert_eq!(controls, 1);
            assert_eq!(reader.next_within(Duration::from_millis(50)), None);
        }
        assert_eq!(afterbay.stop(), 0);
        assert_eq!(verify(&sandbox).0, 0);
    }
}

#[test]
fn a_rule_of_delta_to_cumulative_applies_only_to_the_named_sink() {
    for wire in WIRES {
        let sandbox = Sandbox::new();
        let mut readers = bind(&sandbox);
        let settings = format!("rules = [{{ sink = {:?} }}]", SINKS[1]);
        let component = "builtin:delta-to-cumulative";
        let config =
            config(&sandbox, |_| String::new()).plugin_with("sum", component, &settings, "deadline = \"1s\"");
        let afterbay = Afterbay::run(&sandbox, &config);
        let mut sender = Sender::connect(&sandbox.scheduler_side());
        let mut requests = ["r1", "r11", "r0"].map(SynthRequest::new);
        for id in 1..=3 {
            let step = requests.iter_mut().map(|request| request.row(&[id]));
            sender.send(&batch(wire, step.collect()));
        }
        for (sink, reader) in readers.iter_mut().enumerate() {
            let given: Vec<Vec<i64>> =
                reader.take(3).iter().flat_map(|frame| rows(frame)).map(|row| row.ids).collect();
            let all = sink == 1;
            let expected =
                if all { [vec![1], vec![1, 2], vec![1, 2, 3]] } else { [vec![1], vec![2], vec![3]] };
            assert_eq!(given, expected, "{wire:?}, {}", SINKS[sink]);
        }
        assert_eq!(afterbay.stop(), 0);
        assert_eq!(verify(&sandbox).0, 0);
    }
}

#[test]
fn an_absent_sink_delays_no_other_and_gets_its_rows_when_it_connects() {
    let sandbox = Sandbox::new();
    // The second sink is absent and soon fills its queue.
    let mut readers: Vec<Reader> = [0, 2].map(|sink| Reader::bind(&endpoint(&sandbox, sink))).into();
    let config = config(&sandbox, |_| {
        "reader = \"tokenizer\"\ntool_calls = \"joined\"\nqueue = { frames = 4 }".to_owned()
    });
    let afterbay = Afterbay::run(&sandbox, &config);
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let frames = load(60, 40, Msgpack);
    frames.iter().for_each(|frame| sender.send(&frame.bytes));
    let sent: Vec<_> = frames.iter().flat_map(|frame| rows(&frame.bytes)).collect();
    let tokens = |sink: usize| {
        sent.iter().filter(|row| sink_of(&row.rid) == sink).map(|row| row.ids.len()).sum::<usize>()
    };
    let take = |reader: &mut Reader, sink: usize| {
        let (mut received, mut requests) = (0, BTreeMap::<String, u64>::new());
        while received < tokens(sink) {
            for row in rows(&reader.frame()) {
                assert_eq!(sink_of(&row.rid), sink);
                received += row.ids.len();
                let ids = requests.entry(row.rid).or_default();
                *ids += row.ids.len() as u64;
                assert_eq!(*ids, row.completion_tokens);
            }
        }
        assert_eq!(received, tokens(sink));
    };
    take(&mut readers[0], 0);
    take(&mut readers[1], 2);
    let metrics = afterbay.until_metrics("every frame is received", |metrics| {
        metrics.stream("frames_received_total") == frames.len() as u64
    });
    assert_eq!(metrics.sink_named("second", "spilled_frames"), frames.len() as u64 - 4);
    assert_eq!((metrics.sink("spilled_frames"), metrics.sink_named("third", "spilled_frames")), (0, 0));
    take(&mut Reader::bind(&endpoint(&sandbox, 1)), 1);
    assert_eq!(afterbay.stop(), 0);
    assert_eq!(verify(&sandbox).0, 0);
}

#[test]
fn memory_is_bounded_for_all_sinks_together_and_no_sink_stops_another() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&endpoint(&sandbox, 2));
    let config =
        config(&sandbox, |_| "reader = \"tokenizer\"\ntool_calls = \"joined\"".to_owned()).memory("1MiB");
    let afterbay = Afterbay::run(&sandbox, &config);
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    // Each sink has its own part of every frame. Two are absent and fill the memory.
    let frames = load(2000, 30, Msgpack);
    let bytes: usize = frames.iter().map(|frame| frame.bytes.len()).sum();
    assert!(bytes > 3 << 20, "{bytes} bytes");
    frames.iter().for_each(|frame| sender.send(&frame.bytes));
    let mut of_sink = [0; SINKS.len()];
    for row in frames.iter().flat_map(|frame| rows(&frame.bytes)) {
        of_sink[sink_of(&row.rid)] += row.ids.len();
    }
    let take = |reader: &mut Reader, sink: usize| {
        let mut received = 0;
        while received < of_sink[sink] {
            received += rows(&reader.frame()).iter().map(|row| row.ids.len()).sum::<usize>();
        }
        assert_eq!(received, of_sink[sink]);
    };
    take(&mut reader, 2);
    let metrics = afterbay.until_metrics("every frame is received", |metrics| {
        metrics.stream("frames_received_total") == frames.len() as u64
    });
    let frame = bytes as u64 / frames.len() as u64;
    assert!(metrics.stream("outbox_bytes") <= (1 << 20) + 3 * frame, "{}", metrics.stream("outbox_bytes"));
    assert!(metrics.sink("spilled_frames") > 0 && metrics.sink_named("second", "spilled_frames") > 0);
    for sink in 0..2 {
        take(&mut Reader::bind(&endpoint(&sandbox, sink)), sink);
    }
    assert_eq!(afterbay.stop(), 0);
    assert_eq!(verify(&sandbox).0, 0);
}

#[test]
fn show_names_the_sink_that_took_a_row_also_after_the_sinks_changed() {
    let sandbox = Sandbox::new();
    let mut readers: Vec<Reader> = [0, 2].map(|sink| Reader::bind(&endpoint(&sandbox, sink))).into();
    let config = config(&sandbox, |_| "reader = \"tokenizer\"\ntool_calls = \"joined\"".to_owned());
    let afterbay = Afterbay::run(&sandbox, &config);
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let rids = ["r1", "r11", "r0"];
    assert_eq!(rids.map(sink_of), [0, 1, 2]);
    let mut requests = rids.map(SynthRequest::new);
    // Two sinks get their rows at once. The rows for the second wait and are joined.
    for ids in 1..=2 {
        sender.send(&batch(Msgpack, requests.iter_mut().map(|request| request.row(&[ids])).collect()));
        readers.iter_mut().for_each(|reader| drop(reader.frame()));
    }
    let taken_by = |rid: &str| -> Vec<Vec<String>> {
        let shown = journal(&sandbox, &["show", rid, "--json"]).json_lines();
        let rows = shown[0]["rows_seen"].as_array().unwrap().iter();
        rows.map(|row| serde_json::from_value(row["taken_by"].clone()).unwrap()).collect()
    };
    let say = |second: &[&str]| {
        let expected = [&[SINKS[0]][..], second, &[SINKS[2]]];
        rids.iter().zip(expected).all(|(rid, sinks)| taken_by(rid) == [sinks, sinks])
    };
    until("the journal records which sinks took the rows", || say(&[]));
    let mut second = Reader::bind(&endpoint(&sandbox, 1));
    second.frame();
    until("the journal records that the second sink took its rows", || say(&["second"]));
    assert_eq!(afterbay.stop(), 0);

    // The hash selects another sink for each rid, because one of the two sinks is new.
    let other = sandbox.config().stream("route = \"crc32\"").connect(&endpoint(&sandbox, 0));
    let other = other.another_sink("new", &endpoint(&sandbox, 2), "");
    let afterbay = Afterbay::run(&sandbox, &other);
    sender = Sender::connect(&sandbox.scheduler_side());
    sender.send(&batch(Msgpack, vec![SynthRequest::new("later").last(&[1])]));
    assert_eq!(rows(&readers[1].frame())[0].rid, "later");
    until("the later request is persisted", || journal(&sandbox, &["show", "later"]).code == 0);
    assert_eq!(afterbay.stop(), 0);
    assert!(say(&["second"]), "{:?}", rids.map(taken_by));
    let (code, report) = verify(&sandbox);
    assert_eq!(code, 0, "{report}");
}

#[test]
fn a_reload_changes_the_queue_of_a_sink() {
    let sandbox = Sandbox::new();
    let afterbay = Afterbay::run(&sandbox, &sandbox.config());
    sandbox.write(&sandbox.config().sink("queue = { frames = 4 }"));
    afterbay.event_where("ConfigReloaded", |event| event["changed"] == "queue of \"test\" changed");
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let frames = load(5, 20, Msgpack);
    frames.iter().for_each(|frame| sender.send(&frame.bytes));
    afterbay.until_metrics("frames past the new bound wait in the journal", |metrics| {
        metrics.sink("spilled_frames") == frames.len() as u64 - 4
    });
}

#[test]
fn a_start_without_a_former_sink_reports_its_unsent_frames() {
    let sandbox = Sandbox::new();
    let afterbay = Afterbay::run(&sandbox, &config(&sandbox, |_| String::new()));
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let frames = load(5, 20, Msgpack);
    frames.iter().for_each(|frame| sender.send(&frame.bytes));
    afterbay.until_metrics("every frame waits", |metrics| {
        metrics.stream("frames_received_total") == frames.len() as u64
    });
    afterbay.kill();
    let afterbay = Afterbay::run(&sandbox, &sandbox.config().connect(&endpoint(&sandbox, 0)));
    for sink in &SINKS[1..] {
        let removed = afterbay.event_where("SinkRemoved", |removed| removed["sink"] == *sink);
        assert_eq!(removed["frames"], frames.len(), "{removed}");
    }
    let mut reader = Reader::bind(&endpoint(&sandbox, 0));
    let sent = ids(frames.iter().map(|frame| &frame.bytes));
    let mut received = Vec::new();
    while ids(&received) != sent {
        received.push(reader.frame());
    }
    assert_eq!(afterbay.stop(), 0);
    assert_eq!(verify(&sandbox).0, 0);
}
