//! Ended requests of small journals.

use std::collections::HashMap;

use afterbay_journal::reader::{ErasedBy, JournalReader, RequestState};
use afterbay_journal::{
    FrameNo, JournalDirectory, JournalOptions, JournalRequest, JournalWriter, Outcome, Passage, PluginAction,
    RELEASE_MARKER, RowFinish, SWALLOWED, SegmentId, SinkContent, SyncPolicy, TokenGap, Verdict,
};
use afterbay_wire::synth::{SynthBatch, SynthFinish, SynthRow, SynthWire};
use afterbay_wire::vllm::{SynthOutput, SynthOutputs};
use afterbay_wire::{BatchKind, Drafts, Layouts};
use bytes::Bytes;

use super::*;
use crate::erase::FrameEraser;

mod engine_time;
mod output;

const MS: u64 = 1_000_000;
const WIRES: [SynthWire; 3] = [SynthWire::Msgpack, SynthWire::Pickle, SynthWire::EngineCore];

/// A journal of one stream, written as the stream writes it. Each frame takes 20 ms.
struct Scene {
    dir: tempfile::TempDir,
    directory: JournalDirectory,
    writer: JournalWriter,
    open: HashMap<String, JournalRequest>,
    tokens: HashMap<String, u64>,
    wire: SynthWire,
    now: u64,
}

/// A row of a frame: rid, ids, and whether it is the request's last.
type Row<'a> = (&'a str, &'a [i64], bool);

impl Scene {
    fn new(wire: SynthWire, segment_bytes: u64) -> Scene {
        let dir = tempfile::tempdir().unwrap();
        let options = JournalOptions { sync: SyncPolicy::None, segment_bytes, ..JournalOptions::default() };
        let directory = JournalDirectory::open(dir.path(), options).unwrap();
        let (writer, _) = directory.stream("s").unwrap();
        let (open, tokens, now) = (HashMap::new(), HashMap::new(), 1_700_000_000_000 * MS);
        Scene { dir, directory, writer, open, tokens, wire, now }
    }

    /// The frame of these rows.
    fn bytes(&mut self, rows: &[Row<'_>]) -> Bytes {
        let rows = rows.iter().map(|(rid, ids, ends)| {
            let all = self.tokens.entry((*rid).to_owned()).or_default();
            *all += ids.len() as u64;
            SynthRow {
                rid: (*rid).to_owned(),
                ids: ids.to_vec(),
                finish: ends.then_some(SynthFinish::Length(*all)),
                completion_tokens: *all,
                prompt_tokens: 17,
                ..SynthRow::default()
            }
        });
        SynthBatch { rows: rows.collect() }.encode(BatchKind::TokenId, self.wire).unwrap()
    }

    fn append(&mut self, bytes: &[u8]) -> FrameNo {
        self.now += 20 * MS;
        self.writer.append(bytes, self.now).unwrap().frame
    }

    /// The outcome of a frame, whose rows changed as `actions` and `changed` say.
    fn outcome(
        &mut self,
        frame: FrameNo,
        rows: &[Row<'_>],
        actions: &[PluginAction<'static>],
        changed: Option<&[Row<'_>]>,
    ) {
        let open = &mut self.open;
        let requests = rows.iter().map(|(rid, ..)| {
            let request = open.entry((*rid).to_owned());
            *request.or_insert_with(|| self.writer.open(rid))
        });
        let requests: Vec<JournalRequest> = requests.collect();
        let finished = (0..).zip(rows).filter(|(_, row)| row.2).map(|(row, (rid, ..))| RowFinish {
            row,
            reason: "length".into(),
            completion_tokens: self.tokens.get(*rid).copied(),
        });
        let finished: Vec<_> = finished.collect();
        let tokens: Vec<u32> = rows.iter().map(|(_, ids, _)| ids.len() as u32).collect();
        let passage = match changed {
            None => Passage::Unchanged,
            Some([]) => Passage::Dropped,
            Some(_) => Passage::Changed,
        };
        let changed = changed.filter(|rows| !rows.is_empty()).map(|rows| {
            let rows = rows.iter().map(|(rid, ids, _)| SynthRow {
                rid: (*rid).to_owned(),
                ids: ids.to_vec(),
                ..SynthRow::default()
            });
            SynthBatch { rows: rows.collect() }.encode(BatchKind::TokenId, self.wire).unwrap()
        });
        self.writer.outcome(&Outcome {
            changed,
            requests: requests.as_slice().into(),
            tokens: tokens.as_slice().into(),
            finished: finished.as_slice().into(),
            actions: actions.into(),
            ..Outcome::new(frame, self.now, passage)
        });
        for ((rid, _, ends), request) in rows.iter().zip(requests) {
            if *ends {
                self.writer.close(request);
                self.open.remove(*rid);
                self.tokens.remove(*rid);
            }
        }
        self.writer.flush().unwrap();
    }

    fn step(&mut self, rows: &[Row<'_>]) {
        self.changed(rows, &[], None);
    }

    fn changed(&mut self, rows: &[Row<'_>], actions: &[PluginAction<'static>], changed: Option<&[Row<'_>]>) {
        let bytes = self.bytes(rows);
        let frame = self.append(&bytes);
        self.outcome(frame, rows, actions, changed);
    }

    /// Writes requests until there are so many segments.
    fn fill(&mut self, segments: usize) {
        for round in 0.. {
            if self.segments().len() >= segments {
                break;
            }
            self.step(&[(&format!("fill-{segments}-{round}"), &[1], true)]);
        }
    }

    fn segments(&self) -> Vec<SegmentId> {
        self.directory.segments("s").unwrap().into_iter().map(|(id, _)| id).collect()
    }

    fn reader(&self, frames: FrameUse) -> EndedReader {
        let stream = JournalReader::open(self.dir.path()).unwrap().stream("s").unwrap();
        EndedReader::new(stream, frames, &Layouts::builtin())
    }

    /// Everything that has ended.
    fn ended(&self, frames: FrameUse) -> Vec<EndedRequest> {
        ended(&mut self.reader(frames), &self.segments())
    }

    /// A journal of requests that begin and end over several segments.
    fn filled(wire: SynthWire) -> Scene {
        // Frames of vLLM are small.
        let segment_bytes = if wire == SynthWire::EngineCore { 4096 } else { 16_384 };
        let mut scene = Scene::new(wire, segment_bytes);
        for round in 0..40_i64 {
            let short = format!("short-{round}");
            scene.step(&[("long", &[round, 70_000 + round], round == 39), (&short, &[round], false)]);
            scene.step(&[(&short, &[151_000, 5], true)]);
        }
        scene
    }
}

/// Reads these segments to their ends.
fn ended(reader: &mut EndedReader, segments: &[SegmentId]) -> Vec<EndedRequest> {
    let mut all = Vec::new();
    for id in segments {
        assert!(reader.open(*id).unwrap());
        // Few at once, so that ends are taken in between.
        while reader.read(3).unwrap() {
            all.extend(reader.requests());
        }
        reader.finish_segment();
        all.extend(reader.requests());
    }
    all
}

fn action(row: u32, verdict: Verdict, ids: &[i64], forwarded: u32) -> PluginAction<'static> {
    let (plugin, text) = ("guard".into(), "why".into());
    PluginAction { row, plugin, verdict, text, ids: ids.to_vec().into(), forwarded }
}

fn of<'a>(ended: &'a [EndedRequest], rid: &str) -> &'a EndedRequest {
    let mut of_rid = ended.iter().filter(|request| request.info.rid == rid);
    let one = of_rid.next().unwrap();
    assert!(of_rid.next().is_none(), "{rid} ended once");
    one
}

#[test]
fn each_request_is_given_once_at_its_end_with_its_rows_ids_and_facts() {
    for wire in WIRES {
        let scene = Scene::filled(wire);
        assert!(scene.segments().len() > 2);
        let all = scene.ended(FrameUse::Contents);
        assert_eq!(all.len(), 41);
        assert!(all.is_sorted_by_key(|request| request.end), "in the order of the ends");
        let short = of(&all, "short-3");
        assert_eq!(short.contents.as_ref().unwrap().received, [3, 151_000, 5]);
        assert_eq!(short.rows.tokens, [1, 2]);
        let at = 1_700_000_000_000 * MS + 7 * 20 * MS;
        assert_eq!(short.rows.received_unix_ns, [at, at + 20 * MS]);
        assert_eq!((short.info.state, short.info.finish.as_str()), (RequestState::Finished, "length"));
        let long = of(&all, "long");
        let ids: Vec<i64> = (0..40).flat_map(|round| [round, 70_000 + round]).collect();
        let contents = long.contents.as_ref().unwrap();
        assert_eq!((&contents.received, &contents.sent, contents.rows_absent), (&ids, &None, 0));
        assert_eq!((long.rows.tokens.len(), long.rows_missing), (40, 0), "over all segments");
        let facts = long.facts.as_ref().unwrap();
        let engine = if wire == SynthWire::EngineCore { "vllm" } else { "sglang" };
        assert_eq!((facts.engine, facts.prompt_tokens), (engine, Some(17)));
        assert_eq!(facts.versions.is_some(), wire != SynthWire::Pickle);
        for request in &all {
            let (info, ledger) = (&request.info, &request.ledger);
            assert_eq!((ledger.received, ledger.forwarded), (info.received, info.forwarded));
        }
    }
}

#[test]
fn a_reader_without_contents_gives_the_same_totals_and_facts() {
    for wire in WIRES {
        let scene = Scene::filled(wire);
        let with = scene.ended(FrameUse::Contents);
        let facts = scene.ended(FrameUse::Facts);
        let none = scene.ended(FrameUse::None);
        for ((with, facts), none) in with.into_iter().zip(&facts).zip(none) {
            let without = EndedRequest { contents: None, ..with };
            assert_eq!(&without, facts);
            assert_eq!(EndedRequest { facts: None, gpu_ns: 0, ..without }, none);
        }
    }
}

#[test]
fn a_restart_at_any_boundary_gives_the_later_requests_as_a_reader_that_went_on() {
    let scene = Scene::filled(SynthWire::Msgpack);
    let segments = scene.segments();
    let mut reader = scene.reader(FrameUse::Contents);
    for at in 0..segments.len() - 1 {
        let done = ended(&mut reader, &segments[at..=at]);
        assert!(done.iter().all(|request| request.end.segment == segments[at]));
        let from = reader.needs().unwrap();
        let from = segments.iter().position(|id| *id == from).unwrap();
        assert_eq!(from, 0, "`long` began in the first segment");
        let mut again = scene.reader(FrameUse::Contents);
        let mut later = ended(&mut again, &segments[from..]);
        later.retain(|request| request.end.segment > segments[at]);
        let mut went_on = scene.reader(FrameUse::Contents);
        let mut all = ended(&mut went_on, &segments);
        all.retain(|request| request.end.segment > segments[at]);
        assert_eq!(later, all);
    }
    ended(&mut reader, &segments[segments.len() - 1..]);
    assert_eq!((reader.needs(), reader.live_requests(), reader.fold.bytes), (None, 0, 0), "all have ended");
}

#[test]
fn the_segment_of_a_frame_without_an_outcome_is_needed_until_two_segments_later() {
    let mut scene = Scene::new(SynthWire::Msgpack, 4096);
    let rows: &[Row<'_>] = &[("late", &[1, 2, 3], true)];
    let bytes = scene.bytes(rows);
    let frame = scene.append(&bytes);
    let first = scene.segments()[0];
    // The outcome stands in the segment after the frame's.
    scene.fill(2);
    scene.outcome(frame, rows, &[], None);
    let segments = scene.segments();
    let mut reader = scene.reader(FrameUse::Contents);
    ended(&mut reader, &segments[..1]);
    assert_eq!(reader.needs(), Some(first));
    let mut again = scene.reader(FrameUse::Contents);
    let all = ended(&mut again, &segments);
    assert_eq!(of(&all, "late").contents.as_ref().unwrap().received, [1, 2, 3]);
    // An outcome that never comes.
    let bytes = scene.bytes(&[("lost", &[1], false)]);
    scene.append(&bytes);
    scene.fill(5);
    let segments = scene.segments();
    let mut reader = scene.reader(FrameUse::Contents);
    ended(&mut reader, &segments[..4]);
    assert_eq!(reader.needs(), None);
}

#[test]
fn the_ids_as_sent_are_those_that_left() {
    for wire in WIRES {
        let mut scene = Scene::new(wire, 1 << 20);
        let replace = |ids: &[i64]| action(0, Verdict::Replace, ids, ids.len() as u32);
        scene.step(&[("r", &[1], false)]);
        scene.writer.plugins([("guard", "1.0.0", &[1; 32])].into_iter());
        scene.changed(&[("r", &[2, 3], false)], &[replace(&[9])], Some(&[("r", &[9], false)]));
        scene.changed(&[("r", &[4], false)], &[action(0, Verdict::Drop, &[], 0)], Some(&[]));
        scene.writer.plugins([("guard", "2.0.0", &[2; 32])].into_iter());
        // A held row leaves with the next one.
        scene.changed(&[("r", &[5], false)], &[action(0, Verdict::Hold, &[], 0)], Some(&[]));
        let release = action(0, Verdict::Release, &[1], 2);
        scene.changed(&[("r", &[6], false)], &[release], Some(&[("r", &[5, 6], false)]));
        // A release marker has no content of its own.
        scene.changed(&[("r", &[7], false)], &[action(0, Verdict::Hold, &[], 0)], Some(&[]));
        let frame = scene.append(RELEASE_MARKER);
        let release = action(0, Verdict::Release, &[1], 1);
        scene.outcome(frame, &[("r", &[], false)], &[release], Some(&[("r", &[7], false)]));
        scene.step(&[("r", &[8], true)]);
        let all = scene.ended(FrameUse::Contents);
        let request = of(&all, "r");
        let contents = request.contents.as_ref().unwrap();
        assert_eq!(contents.received, [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(contents.sent.as_deref(), Some(&[1, 9, 5, 6, 7, 8][..]), "{wire:?}");
        assert_eq!(request.ledger.forwarded, request.info.forwarded);
        assert_eq!((request.ledger.dropped, request.info.dropped), (1, 1));
        let by = &request.ledger.dropped_by;
        assert_eq!((by.len(), &*by[0].plugin, &*by[0].reason, by[0].tokens), (1, "guard", "why", 1));
        let rows: Vec<u32> = request.verdicts.iter().map(|verdict| verdict.row).collect();
        assert_eq!(rows, [1, 2, 3, 4, 5, 6]);
        let of = |version: &str, digit: &str| (Some(version.to_owned()), Some(digit.repeat(32)));
        let components = request
            .verdicts
            .iter()
            .map(|it| (it.version.as_deref().map(str::to_owned), it.digest.as_deref().map(str::to_owned)));
        let (first, second) = (of("1.0.0", "01"), of("2.0.0", "02"));
        let expected = [&first, &first, &second, &second, &second, &second].map(Clone::clone);
        assert_eq!(components.collect::<Vec<_>>(), expected);
        assert_eq!(request.rows.tokens.len() as u64, request.info.rows);
    }
}

#[test]
fn a_replacement_of_all_ids_so_far_begins_the_sent_ids_anew() {
    let mut scene = Scene::new(SynthWire::Msgpack, 1 << 20);
    scene.step(&[("r", &[1, 2], false)]);
    let all_ids = PluginAction {
        text: afterbay_journal::StoredReplacement::cumulative(2).into(),
        ..action(0, Verdict::Replace, &[], 2)
    };
    scene.changed(&[("r", &[3], false)], &[all_ids], Some(&[("r", &[7, 8], false)]));
    scene.step(&[("r", &[4], true)]);
    let all = scene.ended(FrameUse::Contents);
    let contents = of(&all, "r").contents.as_ref().unwrap();
    assert_eq!(
        (contents.received.as_slice(), contents.sent.as_deref()),
        (&[1, 2, 3, 4][..], Some(&[7, 8, 4][..]))
    );
}

#[test]
fn rows_after_a_plugins_end_are_swallowed_and_counted_apart_from_dropped_ones() {
    let mut scene = Scene::new(SynthWire::Msgpack, 1 << 20);
    let finish = action(0, Verdict::Finish, &[], 2);
    scene.changed(&[("r", &[1, 2], false)], &[finish], Some(&[("r", &[1, 2], true)]));
    let swallowed = PluginAction { text: SWALLOWED.into(), ..action(0, Verdict::Drop, &[], 0) };
    scene.changed(&[("r", &[3, 4, 5], true)], &[swallowed], Some(&[]));
    let all = scene.ended(FrameUse::Contents);
    let request = of(&all, "r");
    assert!(request.info.ended_early);
    let TokenLedger { received, forwarded, dropped, swallowed, .. } = request.ledger;
    assert_eq!((received, forwarded, dropped, swallowed), (5, 2, 3, 3));
    assert!(request.ledger.dropped_by.is_empty());
    assert_eq!(request.contents.as_ref().unwrap().sent.as_deref(), Some(&[1, 2][..]));
    assert_eq!(&*request.verdicts[0].reason, "why");
}

#[test]
fn a_request_that_the_next_segment_lists_no_longer_has_ended() {
    let mut scene = Scene::new(SynthWire::Msgpack, 4096);
    scene.step(&[("gone", &[1, 2], false), ("long", &[1, 2], false)]);
    scene.fill(2);
    scene.step(&[("gone", &[3], true), ("long", &[3], false)]);
    scene.fill(3);
    scene.step(&[("long", &[4], true)]);
    let segments = scene.segments();
    let mut reader = scene.reader(FrameUse::Contents);
    let first = ended(&mut reader, &segments[..1]);
    assert!(first.iter().all(|request| request.info.rid != "gone"));
    // The segment with the end of `gone` is lost.
    std::fs::remove_file(scene.dir.path().join("s").join(segments[1].to_string())).unwrap();
    let later = ended(&mut reader, &segments[2..]);
    let gone = of(&later, "gone");
    assert_eq!((gone.end.segment, gone.end.offset), (segments[2], u32::MAX));
    assert_eq!((gone.info.state, gone.info.rows, gone.info.received), (RequestState::Abandoned, 1, 2));
    assert_eq!(gone.contents.as_ref().unwrap().received, [1, 2]);
    let long = of(&later, "long");
    assert_eq!((long.info.rows, long.info.received, long.rows_missing), (3, 4, 1), "the journal's totals");
    assert_eq!(long.contents.as_ref().unwrap().received, [1, 2, 4]);
    assert_eq!(long.ledger.received, 3, "of the rows that were read");
}

#[test]
fn rows_past_the_bounds_on_memory_are_left_out_and_counted() {
    let scene = Scene::filled(SynthWire::Msgpack);
    let mut reader = scene.reader(FrameUse::Contents);
    reader.fold.request_bytes_max = 100;
    let all = ended(&mut reader, &scene.segments());
    let long = of(&all, "long");
    assert!(long.rows_missing > 0);
    assert_eq!(long.rows.tokens.len() as u64 + long.rows_missing, 40);
    assert_eq!((long.ledger.received, long.info.received), (80, 80), "the ledger counts all");
    assert_eq!(of(&all, "short-7").rows_missing, 0);
    let mut reader = scene.reader(FrameUse::Contents);
    reader.fold.stream_bytes_max = 100;
    let all = ended(&mut reader, &scene.segments());
    assert!(of(&all, "long").rows_missing > 0);
    assert_eq!(reader.fold.bytes, 0);
}

#[test]
fn an_erased_request_has_no_ids() {
    let mut scene = Scene::filled(SynthWire::Msgpack);
    scene.step(&[("other", &[1], true)]);
    let mut eraser = FrameEraser::new(|_: &str| Layouts::builtin());
    let names = ["s".to_owned()];
    while scene.directory.erase(&names, "short-3", ErasedBy::Rule, &mut eraser).is_err() {
        scene.writer.flush().unwrap();
        std::thread::yield_now();
    }
    let all = scene.ended(FrameUse::Contents);
    assert!(of(&all, "short-3").info.erased.is_some());
    assert_eq!(of(&all, "short-3").contents, None);
    assert_eq!(of(&all, "short-3").info.received, 3);
    assert!(of(&all, "short-4").contents.is_some());
}

#[test]
fn a_request_has_the_sink_of_its_last_row() {
    let mut scene = Scene::new(SynthWire::Msgpack, 1 << 20);
    scene.step(&[("r", &[1], true)]);
    let all = scene.ended(FrameUse::Contents);
    assert_eq!(of(&all, "r").sink, None, "no record names a sink");
    scene.writer.sent("reader", 1, SinkContent::Whole(FrameNo(1)), scene.now);
    scene.writer.flush().unwrap();
    let all = scene.ended(FrameUse::Contents);
    assert_eq!(of(&all, "r").sink.as_deref(), Some("reader"), "the only one");
    scene.writer.sent("other", 1, SinkContent::Whole(FrameNo(1)), scene.now);
    let rows: &[Row<'_>] = &[("a", &[1], true), ("b", &[1], true)];
    let bytes = scene.bytes(rows);
    let frame = scene.append(&bytes);
    let first = scene.writer.open("probe").number().0 + 1;
    scene.outcome(frame, rows, &[], None);
    let sinks = ["reader".to_owned(), "other".to_owned()];
    scene.writer.routed(frame, &sinks, &[first, first + 1], &[1, 0]);
    scene.writer.flush().unwrap();
    let all = scene.ended(FrameUse::Contents);
    assert_eq!(of(&all, "a").sink.as_deref(), Some("other"));
    assert_eq!(of(&all, "b").sink.as_deref(), Some("reader"));
}

#[test]
fn logprobs_are_given_if_every_id_has_one() {
    let mut scene = Scene::new(SynthWire::EngineCore, 1 << 20);
    for (with, rids) in [(true, ["all", "some"]), (false, ["none", "some"])] {
        let rows = rids.map(|rid| SynthOutput {
            request_id: rid.to_owned(),
            new_token_ids: vec![4, 5],
            logprobs: with.then_some(1),
            ..SynthOutput::default()
        });
        let bytes = SynthOutputs { rows: rows.to_vec(), ..SynthOutputs::default() }.encode();
        let frame = scene.append(&bytes);
        scene.outcome(frame, &[(rids[0], &[4, 5], true), (rids[1], &[4, 5], !with)], &[], None);
    }
    let all = scene.ended(FrameUse::Contents);
    let logprobs = |rid| of(&all, rid).contents.as_ref().unwrap().logprobs.clone();
    assert_eq!(logprobs("all").map(|all| all.len()), Some(2));
    assert_eq!((logprobs("some"), logprobs("none")), (None, None));
}

#[test]
fn frames_that_cannot_be_read_leave_unknown_ids_in_their_places() {
    let mut scene = Scene::new(SynthWire::Msgpack, 1 << 20);
    scene.step(&[("r", &[1, 2], false)]);
    let frame = scene.append(b"no frame");
    scene.outcome(frame, &[("r", &[3, 4], false)], &[], None);
    scene.step(&[("r", &[5], true)]);
    let all = scene.ended(FrameUse::Contents);
    let contents = of(&all, "r").contents.as_ref().unwrap();
    assert_eq!(
        (contents.received.as_slice(), contents.rows_absent),
        (&[1, 2, UNKNOWN_ID, UNKNOWN_ID, 5][..], 1)
    );
}

#[test]
fn gaps_are_given_with_their_rows_and_settled_frames_with_their_sizes() {
    let mut scene = Scene::new(SynthWire::Msgpack, 1 << 20);
    scene.step(&[("r", &[1], false)]);
    let rows: &[Row<'_>] = &[("r", &[4], true)];
    let bytes = scene.bytes(rows);
    let frame = scene.append(&bytes);
    let request = scene.open["r"];
    scene.writer.outcome(&Outcome {
        requests: (&[request]).into(),
        tokens: (&[1]).into(),
        gaps: vec![TokenGap { row: 0, expected: 2, got: 4 }].into(),
        ..Outcome::new(frame, scene.now, Passage::Unchanged)
    });
    scene.writer.close(request);
    scene.writer.flush().unwrap();
    let mut reader = scene.reader(FrameUse::None).with_settled_frames();
    let all = ended(&mut reader, &scene.segments());
    assert_eq!(of(&all, "r").gaps, [TokenGap { row: 1, expected: 2, got: 4 }]);
    assert_eq!(of(&all, "r").info.state, RequestState::Abandoned, "closed without a finish");
    let frames: Vec<SettledFrame> = reader.settled_frames().collect();
    assert_eq!(frames.len(), 2);
    assert_eq!((frames[1].frame, frames[1].bytes), (frame, Some(bytes.len() as u32)));
    assert_eq!((frames[1].requests, frames[1].tokens, frames[1].received_unix_ns), (1, 1, scene.now));
}

#[test]
fn the_last_row_says_the_counts_of_reasoning_and_drafts() {
    for wire in WIRES {
        let all = Scene::filled(wire).ended(FrameUse::Facts);
        let facts = of(&all, "long").facts.as_ref().unwrap();
        let counts = (wire != SynthWire::EngineCore).then_some(0);
        assert_eq!(facts.reasoning_tokens, counts, "vLLM counts none");
        assert_eq!(facts.drafts, Drafts::default(), "no speculative decoding");
    }
    let mut scene = Scene::new(SynthWire::EngineCore, 1 << 20);
    let bytes = include_bytes!("../../../../../tests/fixtures/vllm/syn_spec_counts.frame");
    let frame = scene.append(bytes);
    scene.outcome(frame, &[("cmpl-x-0-0a1b2c3d", &[7], true)], &[], None);
    let all = scene.ended(FrameUse::Facts);
    let usage = crate::usage::UsageRecord::new("i", &all[0]);
    assert_eq!((usage.drafted_tokens, usage.accepted_tokens), (Some(24), Some(14)));
    assert_eq!(usage.reasoning_tokens, None);
}
