//! Malformed rows and frames: no row passes a guard unseen, and the other rows of the batch get their verdicts.

use afterbay_tests::commands::{journal, verify};
use afterbay_tests::components::guest;
use afterbay_tests::frames::{SynthRequest, WIRES, batch, row, rows};
use afterbay_tests::{Afterbay, Config, Reader, Sandbox, Sender};
use afterbay_wire::synth::SynthWire::{Msgpack, Pickle};
use afterbay_wire::synth::{SynthRow, SynthWire};
use bytes::Bytes;

use crate::value_len::value_len;

/// The layout of the frames that `batch` writes as msgpack.
const LAYOUT: &str = include_str!("../../../host/path/wire/layouts/0.5.23.json");

/// A guard that drops every row that it sees.
fn guarded(sandbox: &Sandbox, on_fault: &str) -> Config {
    let config = sandbox.config().plugin("guard", &guest("judges"), "action = \"drop\"");
    config.plugin_line(&format!("on_fault = {on_fault:?}"))
}

/// A msgpack frame of three rows with another cell in the middle row.
fn with_cell(frame: &[u8], field: &str, cell: &[u8]) -> Bytes {
    let layouts: serde_json::Value = serde_json::from_str(LAYOUT).unwrap();
    let fields = layouts["BatchTokenIDOutput"].as_array().unwrap();
    let place = fields.iter().position(|name| name == field).unwrap();
    // The array's header, the class and the fields before it.
    let at = (0..=place).fold(3, |at, _| at + value_len(&frame[at..]));
    assert_eq!(frame[at], 0x93, "{field} has three cells");
    let at = at + 1 + value_len(&frame[at + 1..]);
    [&frame[..at], cell, &frame[at + value_len(&frame[at..])..]].concat().into()
}

/// A pickle in the shape of SGLang 0.5.14 with the rows `a`, `odd` and `b`, and another cell in the row `odd`.
fn pickled(field: &str, cell: &[u8]) -> Bytes {
    let mut out = b"\x80\x04csglang.srt.managers.io_struct\nBatchTokenIDOutput\n)\x81}(".to_vec();
    for (name, cells) in [
        ("rids", [&b"\x8c\x01a"[..], b"\x8c\x03odd", b"\x8c\x01b"]),
        ("finished_reasons", [b"N", b"N", b"N"]),
        ("decoded_texts", [b"\x8c\x00", b"\x8c\x00", b"\x8c\x00"]),
        ("decode_ids", [b"](K\x01e", b"](K\x02e", b"](K\x03e"]),
        ("read_offsets", [b"K\x00", b"K\x00", b"K\x00"]),
        ("output_ids", [b"](K\x01e", b"](K\x02e", b"](K\x03e"]),
        ("prompt_tokens", [b"K\x05", b"K\x05", b"K\x05"]),
        ("completion_tokens", [b"K\x01", b"K\x01", b"K\x01"]),
    ] {
        let [first, middle, last] = cells;
        let middle = if name == field { cell } else { middle };
        out.extend([0x8c, name.len() as u8]);
        out.extend([name.as_bytes(), b"](", first, middle, last, b"e"].concat());
    }
    out.extend(b"ub.");
    out.into()
}

/// The second and last row of a request.
fn three(odd: &str) -> Vec<SynthRow> {
    vec![SynthRequest::new("a").row(&[1]), SynthRequest::new(odd).row(&[2]), SynthRequest::new("b").row(&[3])]
}

/// A batch of SGLang in either encoding with another cell in the middle row.
fn odd(wire: SynthWire, field: &str, msgpack: &[u8], pickle: &[u8]) -> Bytes {
    match wire {
        Pickle => pickled(field, pickle),
        _ => with_cell(&batch(wire, three("odd")), field, msgpack),
    }
}

#[test]
fn a_malformed_row_does_not_disable_a_guard_for_its_batch() {
    let long = "r".repeat(5_000);
    let deep = |depth: usize| [&vec![0x91; depth][..], &[0xc0]].concat();
    let deep_pickle = |depth: usize| [&b"]".repeat(depth)[..], &b"a".repeat(depth - 1)].concat();
    // array.array("i", [2]) in both encodings.
    let narrow = b"\xc7\x0a\x01\0\0\0\x02\xa1i\x02\0\0\0";
    let narrow_pickle = b"carray\n_array_reconstructor\n(carray\narray\n\x8c\x01iK\x08C\x04\x02\0\0\0tR";
    for wire in WIRES {
        let sandbox = Sandbox::new();
        let mut reader = Reader::bind(&sandbox.reader_side());
        let afterbay = Afterbay::run(&sandbox, &guarded(&sandbox, "terminate"));
        let mut sender = Sender::connect(&sandbox.scheduler_side());
        // Each frame, and the rid of its middle row.
        for (what, frame, middle) in [
            ("a rid over the bound", batch(wire, three(&long)), long.as_str()),
            ("a count that is deep", odd(wire, "prompt_tokens", &deep(40), &deep_pickle(40)), "odd"),
            ("a count that is none", odd(wire, "completion_tokens", b"\xa1x", b"\x8c\x01x"), "odd"),
            ("ids of 32 bits", odd(wire, "output_ids", narrow, narrow_pickle), "odd"),
        ] {
            sender.send(&frame);
            let sent = rows(&reader.frame());
            assert_eq!(sent.len(), 3, "{what}, {wire:?}");
            assert_eq!(sent[1].rid, middle, "{what}, {wire:?}");
            let are_dropped = sent.iter().all(|row| row.ids.is_empty() && row.finish.is_none());
            assert!(are_dropped, "{what}, {wire:?}: {sent:?}");
            let ends = [SynthRequest::new("a"), SynthRequest::new("b"), SynthRequest::new(middle)];
            sender.send(&batch(wire, ends.map(|mut request| request.last(&[])).into()));
            reader.frame();
        }
        let metrics = afterbay.until_metrics("every request has ended", |it| it.stream("requests_live") == 0);
        assert_eq!(metrics.plugin_by("guard", "verdicts_total", "action", "drop"), 24, "{wire:?}");
        assert_eq!(metrics.plugin("guard", "terminated_rows_total"), 0);
        assert_eq!((metrics.barriers("not_understood"), metrics.barriers("refused")), (0, 0));
        assert_eq!(afterbay.stop(), 0);
        let shown = journal(&sandbox, &["show", &long, "--json"]).json_lines();
        assert!(shown[0].to_string().contains("#sha256:"), "{shown:?}");
    }
}

#[test]
fn with_on_fault_terminate_an_unreadable_row_ends_only_its_own_request() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let afterbay = Afterbay::run(&sandbox, &guarded(&sandbox, "terminate"));
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    for wire in WIRES {
        sender.send(&odd(wire, "output_ids", b"\xa1x", b"\x8c\x01x"));
        let sent = rows(&reader.frame());
        assert_eq!([&sent[0], &sent[2]], [&row("a", &[], 0, None), &row("b", &[], 0, None)], "{wire:?}");
        assert_eq!((sent[1].rid.as_str(), &sent[1].ids[..]), ("odd", &[][..]), "{wire:?}");
        assert_eq!(sent[1].finish.as_deref(), Some("abort"), "{wire:?}");
        // Later rows of the ended request are swallowed.
        let ends = ["a", "odd", "b"].map(|rid| SynthRequest::new(rid).last(&[9]));
        sender.send(&batch(wire, ends.into()));
        let sent = rows(&reader.frame());
        assert_eq!(sent.iter().map(|row| row.rid.as_str()).collect::<Vec<_>>(), ["a", "b"], "{wire:?}");
    }
    afterbay.event("RowsUnread");
    let metrics = afterbay.until_metrics("every request has ended", |it| it.stream("requests_live") == 0);
    assert_eq!(metrics.plugin("guard", "terminated_rows_total"), 2);
    assert_eq!(metrics.plugin_by("guard", "faults_total", "kind", "unread"), 2);
    assert_eq!(metrics.stream("rows_unread_total"), 2);
    assert_eq!(afterbay.get("/readyz").status, 200, "such rows do not disable a guard");
    assert_eq!(afterbay.stop(), 0);
}

#[test]
fn an_unreadable_frame_passes_if_every_plugin_bypasses_and_else_ends_the_requests_it_names() {
    for on_fault in ["bypass", "terminate"] {
        let sandbox = Sandbox::new();
        let mut reader = Reader::bind(&sandbox.reader_side());
        let afterbay = Afterbay::run(&sandbox, &guarded(&sandbox, on_fault));
        let mut sender = Sender::connect(&sandbox.scheduler_side());
        let whole = batch(Msgpack, three("odd"));
        // Two unreadable frames: one whose ids are no arrays, and one whose end is missing.
        let named = strings_for_ids(&whole);
        let cut = whole.slice(..whole.len() - 3);
        let control = [&[0x91, 0xb3][..], b"OutputOfTheYear3000"].concat();
        for frame in [&named[..], &cut, &control] {
            sender.send(frame);
        }
        let metrics = match on_fault {
            "bypass" => {
                assert_eq!([reader.frame(), reader.frame(), reader.frame()], [&named[..], &cut, &control]);
                let metrics =
                    afterbay.until_metrics("every frame has passed", |it| it.barriers("control") == 1);
                assert_eq!((metrics.barriers("not_understood"), metrics.barriers("refused")), (2, 0));
                assert_eq!(metrics.plugin("guard", "bypassed_batches_total"), 2);
                metrics
            }
            _ => {
                let ended = rows(&reader.frame());
                let is_end = |rid: &str| row(rid, &[], ended[0].completion_tokens, Some("abort"));
                assert_eq!(ended, ["a", "odd", "b"].map(is_end), "{on_fault}");
                assert_eq!(reader.frame(), control, "no part of the other frame is sent");
                let metrics = afterbay.until_metrics("every frame is seen", |it| it.barriers("control") == 1);
                assert_eq!((metrics.barriers("not_understood"), metrics.barriers("refused")), (0, 2));
                metrics
            }
        };
        assert_eq!(metrics.plugin_by("guard", "faults_total", "kind", "unread"), 2, "{on_fault}");
        let event = afterbay.event("FrameNotUnderstood");
        assert_eq!(event["then"].as_str().unwrap().starts_with("forwarded"), on_fault == "bypass", "{event}");
        assert_eq!(afterbay.stop(), 0);
        assert_eq!(verify(&sandbox).0, 0, "{on_fault}");
    }
}

/// A msgpack frame with a str in place of each array of ids.
fn strings_for_ids(frame: &[u8]) -> Bytes {
    let mut out = Vec::new();
    let mut at = 0;
    while at < frame.len() {
        match frame[at..] {
            [0xc7, len, 1, ..] => {
                out.extend(b"\xa1x");
                at += 3 + usize::from(len);
            }
            _ => {
                out.push(frame[at]);
                at += 1;
            }
        }
    }
    out.into()
}

#[test]
fn with_on_fault_terminate_a_verdict_on_a_batch_that_cannot_be_written_ends_all_its_requests() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let afterbay = Afterbay::run(&sandbox, &guarded(&sandbox, "terminate"));
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    // Deeper than the limit for writing a pickle.
    let deep = [&b"]".repeat(1_000)[..], &b"a".repeat(999)].concat();
    sender.send(&pickled("prompt_tokens", &deep));
    let sent = rows(&reader.frame());
    for (row, rid) in sent.iter().zip(["a", "odd", "b"]) {
        assert_eq!((row.rid.as_str(), &row.ids[..], row.finish.as_deref()), (rid, &[][..], Some("abort")));
    }
    assert_eq!(sent.len(), 3);
    afterbay.event("VerdictFailed");
    assert_eq!(afterbay.stop(), 0);
    assert_eq!(verify(&sandbox).0, 0);
}

#[test]
fn only_the_exact_form_of_a_health_check_is_exempt_from_plugins() {
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let afterbay = Afterbay::run(&sandbox, &guarded(&sandbox, "terminate"));
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let real = ["HEALTH_CHECK_5b0c1f0a5b0c1f0a5b0c1f0a5b0c1f0a", "HEALTH_CHECK_1763649000.1234567"];
    let like =
        ["HEALTH_CHECK", "HEALTH_CHECK_1", "HEALTH_CHECK_5B0C1F0A5B0C1F0A5B0C1F0A5B0C1F0A", "HEALTH_CHECK_x"];
    for wire in WIRES {
        for rid in real {
            let frame = batch(wire, vec![SynthRequest::new(rid).last(&[5])]);
            sender.send(&frame);
            assert_eq!(reader.frame(), frame, "{rid}");
            // A health check has one token.
            sender.send(&batch(wire, vec![SynthRequest::new(rid).last(&[5, 6])]));
            assert!(rows(&reader.frame())[0].ids.is_empty(), "{rid}");
        }
        for rid in like {
            sender.send(&batch(wire, vec![SynthRequest::new(rid).last(&[5])]));
            assert!(rows(&reader.frame())[0].ids.is_empty(), "{rid}");
        }
    }
    assert_eq!(afterbay.stop(), 0);
}

#[test]
fn a_refused_frame_stays_refused_after_a_kill() {
    let sandbox = Sandbox::new();
    let config = guarded(&sandbox, "terminate").credit(&sandbox);
    let mut reader = Reader::bind(&sandbox.reader_side());
    let afterbay = Afterbay::run(&sandbox, &config);
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let whole = batch(Msgpack, three("odd"));
    sender.send(&whole.slice(..whole.len() - 3));
    sender.send(&strings_for_ids(&whole));
    let is_end = |rid: &str| row(rid, &[], 1, Some("abort"));
    assert_eq!(rows(&reader.frame()), ["a", "odd", "b"].map(is_end));
    afterbay.until_metrics("both frames are refused", |metrics| metrics.barriers("refused") == 2);
    // The credit page counts no finished frame.
    drop((reader, sender));
    afterbay.kill();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let afterbay = Afterbay::run(&sandbox, &config);
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    sender.send(&batch(Msgpack, vec![SynthRequest::new("later").row(&[1])]));
    let mut sent = Vec::new();
    while sent.last().is_none_or(|row: &afterbay_tests::frames::ReaderRow| row.rid != "later") {
        sent.extend(rows(&reader.frame()));
    }
    assert!(sent.iter().all(|row| row.ids.is_empty()), "{sent:?}");
    assert_eq!(afterbay.stop(), 0);
}
