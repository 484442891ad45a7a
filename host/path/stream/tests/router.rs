//! Which sink gets which rows of a frame.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use afterbay_batch::{Content, Destination, RoutingTable, SettledContent, SinkTarget};
use afterbay_config::Takes;
use afterbay_events::event::{BatchUnsplit, RowsNotSkipped};
use afterbay_events::{Events, Health, Metrics, Recorder, StreamTelemetry};
use afterbay_journal::FrameNo;
use afterbay_stream::delivery::Router;
use afterbay_wire::synth::{SynthBatch, SynthRow, SynthWire};
use afterbay_wire::{Batch, BatchKind, DecodedFrame, Layouts};
use bytes::Bytes;
use std::sync::Arc;

fn router(sinks: &[(&str, Takes)]) -> (Router, Recorder) {
    let (events, recorder) = Events::recorded();
    let counters = Metrics::new(events.clone(), Health::default()).stream("s");
    let telemetry = StreamTelemetry { stream: "s".into(), events, counters };
    let sinks = sinks.iter().map(|(name, takes)| SinkTarget {
        name: (*name).into(),
        journal_name: (*name).to_owned(),
        takes: *takes,
        front_end: (*takes == Takes::FrontEnd).then(|| format!("ipc://{name}")),
    });
    (Router::new(Arc::new(RoutingTable::new(sinks.collect())), telemetry), recorder)
}

fn batch(kind: BatchKind, rows: Vec<SynthRow>) -> Batch {
    let bytes = SynthBatch { rows }.encode(kind, SynthWire::Msgpack).unwrap();
    decoded(bytes)
}

fn decoded(bytes: Bytes) -> Batch {
    let DecodedFrame::Batch(batch) = afterbay_wire::decode(bytes, &Layouts::builtin()) else {
        panic!("no rows")
    };
    batch
}

fn row(rid: &str) -> SynthRow {
    SynthRow { rid: rid.to_owned(), ids: vec![1], completion_tokens: 1, ..SynthRow::default() }
}

fn of_worker(rid: &str, worker: &str) -> SynthRow {
    SynthRow { http_worker_ipc: Some(format!("ipc://{worker}")), ..row(rid) }
}

/// The content for one sink: the rids and numbers of rows, or how a whole frame is counted.
#[derive(Debug, PartialEq)]
enum Got {
    Nothing,
    Rows(Vec<(String, u64)>),
    Whole { counted: bool, rows: u32 },
    Aside,
}

fn rows_of(rows: &[(&str, u64)]) -> Got {
    Got::Rows(rows.iter().map(|(rid, number)| ((*rid).to_owned(), *number)).collect())
}

fn route<C: Into<SettledContent>>(router: &mut Router, sinks: usize, content: impl Fn() -> C) -> Vec<Got> {
    let got = (0..sinks).map(|sink| match router.content_for(FrameNo(3), content().into(), sink) {
        Content::Nothing => Got::Nothing,
        Content::Whole { counted, rows, .. } => Got::Whole { counted, rows },
        Content::Aside { .. } => Got::Aside,
        Content::Rows { batch, requests } => {
            Got::Rows(batch.rids().map(str::to_owned).zip(requests.iter().copied()).collect())
        }
    });
    got.collect()
}

/// Routes these rows. The number of each request is its position, from 1.
fn route_rows(
    router: &mut Router,
    sinks: usize,
    batch: &Batch,
    redirected: &[(u32, Destination)],
) -> Vec<Got> {
    route(router, sinks, || SettledContent {
        content: Content::Rows {
            batch: decoded(batch.bytes().clone()),
            requests: (1..=u64::from(batch.rows())).collect(),
        },
        to_all: false,
        redirected: redirected.to_vec(),
    })
}

const SHARES: [(&str, Takes); 2] = [("one", Takes::Share), ("two", Takes::Share)];

#[test]
fn requests_are_shared_out_by_the_hash_of_their_rid_and_each_row_keeps_its_request() {
    let (mut router, _) = router(&SHARES);
    let rids: Vec<String> = (0..8).map(|number| format!("req-{number}")).collect();
    let batch = batch(BatchKind::TokenId, rids.iter().map(|rid| row(rid)).collect());
    let of = |sink: u32| -> Vec<(&str, u64)> {
        let numbered = rids.iter().map(String::as_str).zip(1..);
        numbered.filter(|(rid, _)| crc32fast::hash(rid.as_bytes()) % 2 == sink).collect()
    };
    assert!(!of(0).is_empty() && !of(1).is_empty());
    assert_eq!(route_rows(&mut router, 2, &batch, &[]), [rows_of(&of(0)), rows_of(&of(1))]);
    // A sink that is not there gets nothing.
    assert_eq!(route_rows(&mut router, 3, &batch, &[])[2], Got::Nothing);
    // A batch of one reader's rows leaves whole.
    let (rid, _) = of(1)[0];
    let alone = self::batch(BatchKind::TokenId, vec![row(rid)]);
    assert_eq!(route_rows(&mut router, 2, &alone, &[]), [Got::Nothing, rows_of(&[(rid, 1)])]);
}

#[test]
fn a_tokenizer_with_a_sink_gets_its_own_rows_and_other_rows_go_to_the_reader() {
    let (mut router, _) = router(&[("reader", Takes::Share), ("a", Takes::FrontEnd), ("b", Takes::FrontEnd)]);
    let rows = vec![of_worker("x", "b"), row("y"), of_worker("z", "a"), of_worker("w", "unknown")];
    let got = route_rows(&mut router, 3, &batch(BatchKind::TokenId, rows), &[]);
    assert_eq!(got, [rows_of(&[("y", 2), ("w", 4)]), rows_of(&[("z", 3)]), rows_of(&[("x", 1)])]);
}

#[test]
fn a_message_without_rows_goes_to_all_readers_and_one_that_cannot_be_read_to_the_first() {
    let sinks = [("apart", Takes::Routed), ("one", Takes::Share), ("two", Takes::Share)];
    let (mut router, _) = router(&sinks);
    let whole = |counted, to_all| {
        let content = move || Content::undecoded(Bytes::from_static(b"?"), counted);
        move || SettledContent { to_all, ..content().into() }
    };
    let control = || Got::Whole { counted: false, rows: 0 };
    assert_eq!(route(&mut router, 3, whole(false, true)), [Got::Nothing, control(), control()]);
    let unread = Got::Whole { counted: true, rows: 1 };
    assert_eq!(route(&mut router, 3, whole(true, false)), [Got::Nothing, unread, Got::Nothing]);
    assert_eq!(route(&mut router, 3, || Content::Nothing), [Got::Nothing, Got::Nothing, Got::Nothing]);
    // Statistics are counted once.
    let aside = || Content::Aside { bytes: Bytes::from_static(b"?") };
    assert_eq!(route(&mut router, 3, aside), [Got::Nothing, Got::Aside, Got::Nothing]);
    // The only sink of a stream gets everything.
    let (mut router, _) = self::router(&[("only", Takes::Share)]);
    assert_eq!(route(&mut router, 1, whole(true, false)), [Got::Whole { counted: true, rows: 1 }]);
    assert_eq!(route(&mut router, 1, aside), [Got::Aside]);
    assert_eq!(route(&mut router, 1, || Content::Nothing), [Got::Nothing]);
    let two = batch(BatchKind::TokenId, vec![row("a"), row("b")]);
    assert_eq!(route_rows(&mut router, 1, &two, &[]), [rows_of(&[("a", 1), ("b", 2)])]);
}

#[test]
fn a_row_that_a_plugin_redirects_goes_there_and_to_its_reader_if_the_sink_is_gone() {
    let sinks = [("reader", Takes::Share), ("apart", Takes::Routed), ("skips", Takes::Skipped)];
    let (mut router, recorder) = router(&sinks);
    let batch = batch(BatchKind::TokenId, vec![row("a"), row("b"), row("c"), row("d")]);
    let to = |name: &str| Destination::To(name.to_owned());
    let redirected = [(1, to("apart")), (2, to("gone")), (3, Destination::SkipText), (9, to("apart"))];
    let got = route_rows(&mut router, 3, &batch, &redirected);
    assert_eq!(got, [rows_of(&[("a", 1), ("c", 3)]), rows_of(&[("b", 2)]), rows_of(&[("d", 4)])]);
    // Text has no detokenizer to skip.
    let text = self::batch(BatchKind::Str, vec![row("a"), row("b")]);
    let got = route_rows(&mut router, 3, &text, &[(1, Destination::SkipText)]);
    assert_eq!(got, [rows_of(&[("a", 1), ("b", 2)]), Got::Nothing, Got::Nothing]);
    let events = recorder.of::<RowsNotSkipped>();
    assert!(events.len() == 3 && events.iter().all(|event| (event.frame, event.rows) == (3, 1)));
}

/// Two rows. The batch can be read but not taken apart: a cell is deeper than the limit for writing.
fn unwritable() -> Batch {
    let deep = [&b"]".repeat(1_000)[..], &b"a".repeat(999)].concat();
    let mut out = b"\x80\x04csglang.srt.managers.io_struct\nBatchTokenIDOutput\n)\x81}(".to_vec();
    for (name, cells) in [
        ("rids", [&b"\x8c\x05req-0"[..], b"\x8c\x05req-4"]),
        ("finished_reasons", [b"N", b"N"]),
        ("decoded_texts", [b"\x8c\x00", b"\x8c\x00"]),
        ("decode_ids", [b"](K\x01e", b"](K\x02e"]),
        ("read_offsets", [b"K\x00", b"K\x00"]),
        ("output_ids", [b"](K\x01e", b"](K\x02e"]),
        ("prompt_tokens", [&deep, &deep]),
        ("completion_tokens", [b"K\x01", b"K\x01"]),
    ] {
        out.extend([0x8c, name.len() as u8]);
        out.extend([name.as_bytes(), b"](", &cells.concat(), b"e"].concat());
    }
    out.extend(b"ub.");
    decoded(out.into())
}

#[test]
fn a_batch_that_cannot_be_split_goes_whole_to_one_reader() {
    let batch = unwritable();
    let reader = |rid: &str| (crc32fast::hash(rid.as_bytes()) % 2) as usize;
    assert_ne!(reader("req-0"), reader("req-4"), "the rows are of two readers");
    let (mut router, recorder) = router(&SHARES);
    let got = route_rows(&mut router, 2, &batch, &[]);
    assert_eq!(got[reader("req-0")], Got::Whole { counted: true, rows: 2 });
    assert_eq!(got[reader("req-4")], Got::Nothing);
    let events = recorder.of::<BatchUnsplit>();
    assert!(!events.is_empty() && events.iter().all(|event| (event.frame, event.rows) == (3, 2)));
}
