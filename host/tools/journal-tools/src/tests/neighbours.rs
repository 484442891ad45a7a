//! The frames that requests shared, on small journals.

use super::{NS, STREAM, Scene, release};
use afterbay_journal::reader::{JournalReader, RequestFilter};
use afterbay_journal::{
    FrameNo, JournalRequest, Outcome, Passage, PluginAction, RELEASE_MARKER, RequestNo, RowFinish,
};
use afterbay_journal_view::neighbours::{SharedFrame, SharedFrames, Sums};
use afterbay_wire::BatchKind;
use afterbay_wire::synth::{SynthBatch, SynthRow, SynthWire};

impl Scene {
    /// Stores a frame with a row of each of these requests. `last` requests end with it.
    pub(super) fn batch(&mut self, requests: &[JournalRequest], last: &[JournalRequest]) -> FrameNo {
        self.now += NS;
        let rows = requests.iter().map(|_| SynthRow { rid: "r".into(), ids: vec![1], ..SynthRow::default() });
        let frame =
            SynthBatch { rows: rows.collect() }.encode(BatchKind::TokenId, SynthWire::Msgpack).unwrap();
        let frame = self.writer.append(&frame, self.now).unwrap().frame;
        self.batch_outcome(frame, requests, last, &[]);
        frame
    }

    fn batch_outcome(
        &mut self,
        frame: FrameNo,
        requests: &[JournalRequest],
        last: &[JournalRequest],
        actions: &[PluginAction<'_>],
    ) {
        let ends = (0..).zip(requests).filter(|(_, request)| last.contains(request));
        let finished: Vec<RowFinish<'_>> =
            ends.map(|(row, _)| RowFinish { row, reason: "stop".into(), completion_tokens: None }).collect();
        self.writer.outcome(&Outcome {
            requests: requests.into(),
            tokens: vec![1; requests.len()].into(),
            finished: finished.into(),
            actions: actions.into(),
            ..Outcome::new(frame, self.now, Passage::Unchanged)
        });
        last.iter().for_each(|request| self.writer.close(*request));
    }

    /// Each frame of the request: frame, own rows, batch size, and the others as `row:rid`. Then the sums.
    fn shared(&mut self, rid: &str) -> (Vec<(SharedFrame, String)>, Sums) {
        self.writer.flush().unwrap();
        let stream = JournalReader::open(self.dir.path()).unwrap().stream(STREAM).unwrap();
        let filter = RequestFilter { rid_prefix: Some(rid.to_owned()), ..RequestFilter::default() };
        let info = stream.requests(filter).unwrap().next().unwrap().unwrap();
        let mut frames = SharedFrames::of(&stream, &info).unwrap();
        let (mut found, mut sums) = (Vec::new(), Sums::default());
        while let Some(shared) = frames.next().unwrap() {
            sums.add(&shared, |request| frames.rid(request));
            let others = shared.others.iter().map(|(request, row)| format!("{row}:{}", frames.rid(*request)));
            let others = others.collect::<Vec<_>>().join(" ");
            found.push((shared, others));
        }
        (found, sums)
    }
}

fn seen(found: &[(SharedFrame, String)]) -> Vec<(u64, &[u32], usize, &str)> {
    found.iter().map(|(shared, others)| (shared.frame, &*shared.rows, shared.batch, &**others)).collect()
}

#[test]
fn each_frame_of_a_request_names_the_other_requests_and_their_rows() {
    let mut scene = Scene::new();
    let (a, b, c) = (scene.request("a"), scene.request("b"), scene.request("c"));
    scene.batch(&[b], &[]);
    scene.batch(&[b, a], &[]);
    scene.batch(&[a, c, b], &[b]);
    scene.batch(&[c], &[]);
    scene.batch(&[a], &[]);
    scene.batch(&[a, c], &[a]);
    let (found, sums) = scene.shared("a");
    assert_eq!(
        seen(&found),
        [(2, &[1][..], 2, "0:b"), (3, &[0], 3, "1:c 2:b"), (5, &[0], 1, ""), (6, &[0], 2, "1:c"),]
    );
    assert_eq!(sums.batches(), Some((1, 2, 3)));
    let neighbours: Vec<(&str, u64)> =
        sums.neighbours().into_iter().map(|(_, rid, frames)| (rid, frames)).collect();
    assert_eq!(neighbours, [("b", 2), ("c", 2)]);
}

#[test]
fn the_frames_of_a_request_are_found_across_segments_and_without_a_stored_frame() {
    let options = afterbay_journal::JournalOptions { segment_bytes: 4096, ..Default::default() };
    let mut scene = Scene::with(options);
    let (old, b) = (scene.request("old"), scene.request("b"));
    for _ in 0..100 {
        scene.batch(&[old, b], &[]);
    }
    scene.batch(&[old], &[old]);
    let a = scene.request("a");
    // The first frame of the request was forwarded without being stored.
    let skipped = scene.writer.skipped(1, scene.now);
    scene.batch_outcome(skipped, &[b, a], &[], &[]);
    for _ in 0..100 {
        scene.batch(&[a, b], &[]);
    }
    scene.batch(&[a], &[a]);
    for _ in 0..5000 {
        scene.batch(&[b], &[]);
    }
    let (found, sums) = scene.shared("a");
    assert_eq!((found.len(), sums.frames), (102, 102));
    assert_eq!(seen(&found[..2]), [(102, &[1][..], 2, "0:b"), (103, &[0], 2, "1:b")]);
    assert!(found[..101].iter().all(|(_, others)| others.ends_with(":b")));
    assert_eq!(sums.batches(), Some((1, 2, 2)));
}

#[test]
fn a_release_marker_is_no_batch_and_a_record_that_is_there_twice_counts_once() {
    let mut scene = Scene::new();
    let (a, b) = (scene.request("a"), scene.request("b"));
    let first = scene.batch(&[a, b], &[]);
    let marker = scene.writer.append(RELEASE_MARKER, scene.now).unwrap().frame;
    scene.batch_outcome(marker, &[a, b], &[], &[release(0), release(1)]);
    scene.batch_outcome(first, &[a, b], &[], &[]);
    scene.batch(&[a], &[a]);
    let (found, sums) = scene.shared("a");
    assert_eq!(seen(&found), [(1, &[0][..], 2, "1:b"), (3, &[0], 1, "")]);
    assert_eq!(sums.frames, 2);
}

#[test]
fn two_rows_of_a_request_in_one_frame_are_one_shared_frame() {
    let mut sums = Sums::default();
    let others = vec![(RequestNo(2), 1), (RequestNo(2), 2)];
    let shared = SharedFrame { frame: 1, received_unix_ns: 1, rows: vec![0], batch: 3, others };
    sums.add(&shared, |request| request.to_string());
    assert_eq!(sums.neighbours(), [(2, "2", 1)]);
}

#[test]
fn the_median_of_batch_sizes_is_the_middle_one() {
    let median = |sizes: &[usize]| {
        let mut sums = Sums::default();
        for &batch in sizes {
            let rows = vec![0];
            let shared = SharedFrame { frame: 1, received_unix_ns: 1, rows, batch, others: Vec::new() };
            sums.add(&shared, |request| request.to_string());
        }
        sums.batches()
    };
    assert_eq!(median(&[]), None);
    assert_eq!(median(&[7]), Some((7, 7, 7)));
    assert_eq!(median(&[9, 1, 5]), Some((1, 5, 9)));
    assert_eq!(median(&[1, 1, 8, 9]), Some((1, 1, 9)));
    assert_eq!(median(&[1, 2, 2, 2, 9]), Some((1, 2, 9)));
}
