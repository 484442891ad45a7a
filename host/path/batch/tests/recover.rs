//! Held rows are rebuilt from what the journal recorded, and the questions that the chain asks about them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use afterbay_batch::JoinEnds;
use afterbay_batch::hold::{HeldRows, HoldState, ROWS_MAX};
use afterbay_batch::{FrameDecoder, HeldRow, ReceivedTokens};
use afterbay_events::HoldEnd;
use afterbay_journal::{
    BacklogFrame, FrameNo, JournalRequest, Outcome, Passage, PluginAction, RELEASE_MARKER, RequestNo,
    StoredReplacement, Verdict,
};
use afterbay_wire::synth::{SynthBatch, SynthRow, SynthWire};
use afterbay_wire::{Batch, BatchKind, DecodedFrame, Finish, Layouts};
use std::time::{Duration, Instant};

const PLUGIN: &str = "holds";
const OTHER: &str = "other";

fn request(number: u64) -> JournalRequest {
    JournalRequest::new(RequestNo(number), 7)
}

fn row(rid: &str, ids: &[i64]) -> SynthRow {
    SynthRow { rid: rid.to_owned(), ids: ids.to_vec(), ..SynthRow::default() }
}

fn batch(rows: Vec<SynthRow>) -> Batch {
    let bytes = SynthBatch { rows }.encode(BatchKind::TokenId, SynthWire::Msgpack).unwrap();
    match afterbay_wire::decode(bytes, &Layouts::builtin()) {
        DecodedFrame::Batch(batch) => batch,
        DecodedFrame::Barrier(barrier) => panic!("{:?}", barrier.kind),
    }
}

fn held(ids: &[i64], frame: u64) -> HeldRow {
    HeldRow::new(batch(vec![row("a", ids)]), 0, FrameNo(frame), ReceivedTokens::of_row(ids.len() as u32))
}

fn action(
    row: u32,
    plugin: &'static str,
    verdict: Verdict,
    text: &str,
    ids: &[i64],
) -> PluginAction<'static> {
    let (text, ids) = (text.to_owned().into(), ids.to_vec().into());
    PluginAction { row, plugin: plugin.into(), verdict, text, ids, forwarded: 0 }
}

/// A frame as the journal has it. Request N is in row N - 1.
fn frame(number: u64, rows: Vec<SynthRow>, actions: Vec<PluginAction<'static>>) -> BacklogFrame {
    let tokens: Vec<u32> = rows.iter().map(|row| row.ids.len() as u32).collect();
    let requests: Vec<RequestNo> = (1..=rows.len() as u64).map(RequestNo).collect();
    let outcome = Outcome {
        requests: requests.into(),
        tokens: tokens.into(),
        actions: actions.into(),
        ..Outcome::new(FrameNo(number), 1, Passage::Changed)
    };
    let bytes = batch(rows).bytes().clone();
    BacklogFrame { frame: FrameNo(number), bytes, received_unix_ns: 1, outcome: Some(Box::new(outcome)) }
}

struct Recovered {
    rows: HeldRows,
    decoder: FrameDecoder,
    now: Instant,
}

impl Recovered {
    fn new() -> Recovered {
        let (rows, decoder) = (HeldRows::new(JoinEnds::Anywhere), FrameDecoder::new(Layouts::builtin()));
        Recovered { rows, decoder, now: Instant::now() }
    }

    fn repeat(&mut self, frame: &BacklogFrame) -> Result<(), String> {
        self.rows.recover(
            frame,
            &mut self.decoder,
            |number| (number != 9).then_some(request(number)),
            self.now,
        )
    }

    /// All frames are repeated, and no earlier process says when the rows leave.
    fn restore(&mut self) {
        self.rows.restore(&[], self.now, |_| false);
    }

    /// The rows that leave: the number of each request, its ids, and whether it ends.
    fn released(&mut self) -> Vec<(u64, Vec<i64>, bool)> {
        let mut released = Vec::new();
        while let Some(due) = self.rows.take_due(self.now) {
            for row in due.rows {
                assert_eq!((row.request.slot(), row.why), (7, HoldEnd::Start));
                released.push((row.request.number().0, ids(&row.held), row.held.is_last()));
            }
        }
        released
    }
}

fn ids(row: &HeldRow) -> Vec<i64> {
    let mut ids = Vec::new();
    row.ids(&mut ids);
    ids
}

#[test]
fn rows_that_an_earlier_run_held_and_did_not_release_are_held_again_and_leave_at_once() {
    let mut recovered = Recovered::new();
    let hold = |row| action(row, PLUGIN, Verdict::Hold, "", &[]);
    recovered.repeat(&frame(1, vec![row("a", &[1]), row("b", &[2, 3])], vec![hold(0), hold(1)])).unwrap();
    recovered.repeat(&frame(2, vec![row("a", &[4]), row("b", &[5])], vec![hold(0)])).unwrap();
    // Two of the three rows of the first request are released with its next row.
    let release = action(0, PLUGIN, Verdict::Release, "", &[2]);
    recovered.repeat(&frame(3, vec![row("a", &[6])], vec![release])).unwrap();
    recovered.restore();
    assert_eq!((recovered.rows.has(1), recovered.rows.received_tokens(2)), (false, 2));
    assert_eq!(recovered.rows.state(2, PLUGIN, recovered.now), HoldState::Ended(HoldEnd::Start));
    assert_eq!((recovered.rows.first_frame(2), recovered.rows.first_frame(1)), (Some(FrameNo(1)), None));
    assert_eq!(recovered.released(), [(2, vec![2, 3], false)]);
}

#[test]
fn a_release_of_some_rows_leaves_the_rest_and_a_plugin_behind_may_hold_what_was_released() {
    let mut recovered = Recovered::new();
    for number in 1..=3 {
        let hold = action(0, PLUGIN, Verdict::Hold, "", &[]);
        recovered.repeat(&frame(number, vec![row("a", &[number as i64])], vec![hold])).unwrap();
    }
    // A marker has no row of its own.
    let actions =
        vec![action(0, PLUGIN, Verdict::Release, "", &[2]), action(0, OTHER, Verdict::Hold, "", &[])];
    let mut marker = frame(4, vec![row("a", &[9])], actions);
    marker.bytes = RELEASE_MARKER.into();
    recovered.repeat(&marker).unwrap();
    assert_eq!((recovered.rows.entries(1, PLUGIN), recovered.rows.entries(1, OTHER)), (1, 1));
    assert_eq!(recovered.rows.first_frame(1), Some(FrameNo(1)), "of both plugins");
    assert!(recovered.rows.has_any_of(PLUGIN) && recovered.rows.has_any_of(OTHER));
    recovered.restore();
    assert_eq!(recovered.released(), [(1, vec![3], false), (1, vec![1, 2], false)]);
    assert!(!recovered.rows.has_any_of(PLUGIN));
}

#[test]
fn a_held_row_is_rebuilt_with_the_changes_of_the_plugins_before() {
    let cases = [
        (action(0, OTHER, Verdict::Replace, "", &[7, 8]), vec![7, 8], (0, 1, 0), Finish::Running),
        (
            action(0, OTHER, Verdict::Replace, &StoredReplacement::with_text("x").unwrap(), &[7]),
            vec![7],
            (0, 1, 0),
            Finish::Running,
        ),
        (action(0, OTHER, Verdict::Drop, "", &[]), vec![], (0, 0, 1), Finish::Running),
        (action(0, OTHER, Verdict::Length, "", &[]), vec![1], (1, 0, 0), Finish::Length),
        (action(0, OTHER, Verdict::Abort, "why", &[]), vec![1], (1, 0, 0), Finish::Abort),
        (action(0, OTHER, Verdict::Annotate, "note", &[]), vec![1], (1, 0, 0), Finish::Running),
    ];
    for (change, expected, (forwarded, replaced, dropped), finish) in cases {
        let mut recovered = Recovered::new();
        let name = format!("{:?}", change.verdict);
        let actions = vec![change, action(0, PLUGIN, Verdict::Hold, "", &[])];
        recovered.repeat(&frame(1, vec![row("a", &[1])], actions)).unwrap();
        let due = recovered.rows.take_due(recovered.now).unwrap();
        let received = ReceivedTokens { rows: 1, forwarded, replaced, dropped };
        let row = &due.rows[0].held;
        assert_eq!((ids(row), row.received, row.finish()), (expected, received, finish), "{name}");
    }
    let mut recovered = Recovered::new();
    let actions =
        vec![action(0, OTHER, Verdict::Finish, "enough", &[]), action(0, PLUGIN, Verdict::Hold, "", &[])];
    recovered.repeat(&frame(1, vec![row("a", &[1])], actions)).unwrap();
    assert!(recovered.rows.has_last_row(1));
    let due = recovered.rows.take_due(recovered.now).unwrap();
    assert!(matches!(due.rows[0].held.finish(), Finish::Stop { .. }));
    assert!(!recovered.rows.has_last_row(1));
}

#[test]
fn frames_without_holds_and_requests_that_have_ended_are_passed_over() {
    let mut recovered = Recovered::new();
    let mut unaccounted = frame(1, vec![row("a", &[1])], vec![action(0, PLUGIN, Verdict::Hold, "", &[])]);
    unaccounted.outcome = None;
    recovered.repeat(&unaccounted).unwrap();
    recovered
        .repeat(&frame(2, vec![row("a", &[1])], vec![action(0, PLUGIN, Verdict::Drop, "", &[])]))
        .unwrap();
    let rows: Vec<SynthRow> = (1..=9).map(|number| row(&format!("req-{number}"), &[number])).collect();
    recovered.repeat(&frame(3, rows, vec![action(8, PLUGIN, Verdict::Hold, "", &[])])).unwrap();
    // A row that the frame does not have.
    recovered
        .repeat(&frame(4, vec![row("a", &[1])], vec![action(3, PLUGIN, Verdict::Hold, "", &[])]))
        .unwrap();
    assert!(recovered.rows.is_empty());
}

#[test]
fn a_row_that_cannot_be_rebuilt_is_named_and_the_others_are_held() {
    let mut recovered = Recovered::new();
    let hold = |row| action(row, PLUGIN, Verdict::Hold, "", &[]);
    let long = "x".repeat(70_000);
    let actions = vec![
        action(0, OTHER, Verdict::Replace, &StoredReplacement::cumulative(5), &[]),
        hold(0),
        action(1, OTHER, Verdict::Abort, &long, &[]),
        hold(1),
    ];
    recovered.repeat(&frame(1, vec![row("a", &[1]), row("b", &[2])], actions)).unwrap();
    // The first row has all ids of the request: it stays as it was.
    assert_eq!(recovered.rows.received_tokens(1), 1);
    // A last row is followed by none.
    let why = recovered
        .repeat(&frame(
            2,
            vec![row("a", &[3]), row("b", &[4])],
            vec![hold(0), action(1, PLUGIN, Verdict::Release, "", &[1])],
        ))
        .unwrap_err();
    assert!(why.starts_with("frame 2 row 1: "), "{why}");
    assert_eq!(recovered.rows.entries(1, PLUGIN), 2);
}

#[test]
fn a_row_that_could_not_be_written_leaves_by_itself_as_soon_as_it_can() {
    let mut rows = HeldRows::new(JoinEnds::Anywhere);
    let now = Instant::now();
    rows.hold_again(request(1), &PLUGIN.into(), held(&[1], 1), now + Duration::from_secs(9));
    assert!(rows.is_due(now));
    let due = rows.take_due(now).unwrap();
    assert_eq!((due.rows[0].why, due.rows[0].request), (HoldEnd::Columns, request(1)));
    assert!(!rows.is_due(now));
}

#[test]
fn the_state_of_a_request_says_what_its_rows_wait_for() {
    let mut rows = HeldRows::new(JoinEnds::Anywhere);
    let now = Instant::now();
    let later = now + Duration::from_secs(1);
    assert_eq!(rows.state(1, PLUGIN, now), HoldState::None);
    rows.hold(request(1), &PLUGIN.into(), held(&[1], 1), later);
    assert_eq!((rows.state(1, PLUGIN, now), rows.state(1, OTHER, now)), (HoldState::Held, HoldState::None));
    rows.release(1, PLUGIN);
    assert_eq!(rows.state(1, PLUGIN, now), HoldState::Released);
    assert_eq!(
        (rows.rows_held(1, PLUGIN), rows.entries(1, PLUGIN), rows.released_entries(1, PLUGIN)),
        (0, 1, 1)
    );
    assert_eq!(rows.deadline(now), Some(later), "no later than the hold");
    // A second release does not make the time longer.
    rows.hold(request(1), &PLUGIN.into(), held(&[2], 2), later + Duration::from_secs(5));
    rows.release(1, PLUGIN);
    assert_eq!(rows.deadline(now), Some(later));
    assert_eq!(rows.state(1, PLUGIN, later), HoldState::Ended(HoldEnd::Time));
    rows.end_instance(OTHER);
    assert_eq!(rows.state(1, PLUGIN, now), HoldState::Released);
    rows.end_instance(PLUGIN);
    rows.end_request(1, PLUGIN, HoldEnd::Verdict);
    assert_eq!(rows.state(1, PLUGIN, now), HoldState::Ended(HoldEnd::Instance), "the first reason counts");
    assert_eq!(rows.remove(1, PLUGIN, 1).len(), 1);
    assert_eq!(rows.remove(1, PLUGIN, usize::MAX).len(), 1);
    assert_eq!((rows.remove(1, PLUGIN, 1).len(), rows.size_of(PLUGIN)), (0, (0, 0)));
    assert!(rows.is_empty());
}

#[test]
fn as_many_rows_as_the_bound_allows_are_held() {
    let mut rows = HeldRows::new(JoinEnds::Anywhere);
    let (now, one) = (Instant::now(), held(&[1], 1));
    for _ in 0..ROWS_MAX {
        assert_eq!(rows.check_room(1, PLUGIN, &one), Ok(()));
        rows.hold(request(1), &PLUGIN.into(), held(&[1], 1), now);
    }
    assert!(rows.check_room(1, PLUGIN, &one).unwrap_err().contains("4096"));
    assert_eq!(rows.check_room(1, OTHER, &one), Ok(()), "the bound is each plugin's");
    // A row that leaves makes room.
    rows.remove(1, PLUGIN, 1);
    assert_eq!(rows.check_room(1, PLUGIN, &one), Ok(()));
}
