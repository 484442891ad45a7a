//! Held rows: when they are due, where joined rows may end, and the bounds.

use super::*;
use crate::ReceivedTokens;
use crate::SingleRows;
use afterbay_journal::RequestNo;
use afterbay_wire::synth::{SynthBatch, SynthRow, SynthWire};
use afterbay_wire::{DecodedFrame, Layouts};
use std::time::Duration;

const PLUGIN: &str = "holds";

fn batch(rows: Vec<SynthRow>) -> Batch {
    let bytes = SynthBatch { rows }.encode(BatchKind::TokenId, SynthWire::Msgpack).unwrap();
    match afterbay_wire::decode(bytes, &Layouts::builtin()) {
        DecodedFrame::Batch(batch) => batch,
        DecodedFrame::Barrier(_) => panic!("no batch"),
    }
}

fn row(rid: &str, ids: &[i64]) -> SynthRow {
    SynthRow { rid: rid.to_owned(), ids: ids.to_vec(), ..SynthRow::default() }
}

fn held(rid: &str, ids: &[i64], frame: u64) -> HeldRow {
    HeldRow::new(batch(vec![row(rid, ids)]), 0, FrameNo(frame), ReceivedTokens::of_row(ids.len() as u32))
}

fn request(number: u64) -> JournalRequest {
    JournalRequest::new(RequestNo(number), 0)
}

fn push(held_rows: &mut HeldRows, number: u64, row: HeldRow, until: Instant) {
    held_rows.hold(request(number), &PLUGIN.into(), row, until);
}

/// A vocabulary whose token N is the byte N.
fn bytes() -> JoinEnds {
    let file = tempfile::NamedTempFile::with_suffix(".json").unwrap();
    let (mut vocabulary, mut other) = (Vec::new(), 256_u32);
    for byte in 0..256_u32 {
        // The mapping of bytes to characters of GPT-2.
        let shown = matches!(byte, 33..=126 | 161..=172 | 174..=255);
        let code = if shown { byte } else { other };
        other += u32::from(!shown);
        vocabulary.push(format!("{:?}: {byte}", char::from_u32(code).unwrap().to_string()));
    }
    let tokenizer = format!(
        r#"{{"added_tokens": [], "decoder": {{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false}},
            "model": {{"type": "BPE", "merges": [], "vocab": {{{}}}}}}}"#,
        vocabulary.join(",")
    );
    std::fs::write(file.path(), tokenizer).unwrap();
    JoinEnds::WhereTextIsWhole(Vocabulary::load(file.path()).unwrap())
}

fn ids(row: &HeldRow) -> Vec<i64> {
    let mut ids = Vec::new();
    row.ids(&mut ids);
    ids
}

#[test]
fn held_rows_are_due_at_the_deadline_of_the_first_and_leave_as_one() {
    let mut held_rows = HeldRows::new(JoinEnds::Anywhere);
    let now = Instant::now();
    let later = now + Duration::from_secs(1);
    push(&mut held_rows, 3, held("a", &[1], 5), later);
    // A further hold does not make the time longer.
    push(&mut held_rows, 3, held("a", &[2, 3], 6), later + Duration::from_secs(9));
    push(&mut held_rows, 4, held("b", &[9], 6), later + Duration::from_secs(5));
    assert_eq!((held_rows.oldest(), held_rows.deadline(now)), (Some(FrameNo(5)), Some(later)));
    assert_eq!(
        (held_rows.rows_held(3, PLUGIN), held_rows.received_tokens(3), held_rows.size_of(PLUGIN)),
        (2, 3, (3, 4))
    );
    assert!(!held_rows.is_due(now) && held_rows.take_due(now).is_none());
    assert_eq!(held_rows.state(3, PLUGIN, later), HoldState::Ended(HoldEnd::Time));
    let due = held_rows.take_due(later).unwrap();
    assert_eq!((due.rows.len(), due.batch.rows()), (1, 1));
    let row = &due.rows[0];
    assert_eq!(
        (row.request.number().0, ids(&row.held), row.rows, row.why),
        (3, vec![1, 2, 3], 2, HoldEnd::Time)
    );
    assert_eq!(row.held.received, ReceivedTokens { rows: 2, forwarded: 3, ..ReceivedTokens::default() });
    assert!(!held_rows.has(3) && held_rows.has(4));
}

#[test]
fn held_rows_leave_one_by_one_for_a_reader_of_single_rows() {
    let mut held_rows = HeldRows::new(Joins { ends: JoinEnds::Anywhere, single: SingleRows::All });
    let now = Instant::now();
    for (frame, id) in [(5, 1), (6, 2), (7, 3)] {
        push(&mut held_rows, 3, held("a", &[id], frame), now + Duration::from_secs(1));
    }
    push(&mut held_rows, 4, held("b", &[9], 7), now + Duration::from_secs(1));
    held_rows.release_now(3, PLUGIN, now);
    let mut left = || held_rows.take_due(now).map(|due| ids(&due.rows[0].held));
    assert_eq!([left(), left(), left(), left()], [Some(vec![1]), Some(vec![2]), Some(vec![3]), None]);
    // Rows of other requests may share the frame.
    push(&mut held_rows, 3, held("a", &[4], 8), now);
    held_rows.end_all(HoldEnd::Stop);
    assert_eq!(held_rows.take_due(now).unwrap().batch.rows(), 2);
    assert!(held_rows.is_empty());
}

#[test]
fn a_replacement_stays_with_the_rows_that_make_its_text_whole_for_a_reader_of_single_rows() {
    let mut held_rows = HeldRows::new(Joins { ends: bytes(), single: SingleRows::All });
    let now = Instant::now();
    // The first byte of two of a character, written by a plugin, and the second.
    push(&mut held_rows, 3, HeldRow { is_joined: true, ..held("a", &[0xc3], 5) }, now);
    push(&mut held_rows, 3, held("a", &[0xa4], 6), now);
    push(&mut held_rows, 3, held("a", &[0x41], 7), now);
    held_rows.release_now(3, PLUGIN, now);
    let mut left = || held_rows.take_due(now).map(|due| ids(&due.rows[0].held));
    assert_eq!([left(), left(), left()], [Some(vec![0xc3, 0xa4]), Some(vec![0x41]), None]);
}

#[test]
fn released_rows_leave_and_rows_held_after_them_stay() {
    let mut held_rows = HeldRows::new(JoinEnds::Anywhere);
    let now = Instant::now();
    let later = now + Duration::from_secs(1);
    push(&mut held_rows, 3, held("a", &[1], 5), later);
    push(&mut held_rows, 3, held("a", &[2], 6), later);
    held_rows.release_now(3, PLUGIN, now);
    push(&mut held_rows, 3, held("a", &[3], 7), later + Duration::from_secs(1));
    assert_eq!((held_rows.rows_held(3, PLUGIN), held_rows.state(3, PLUGIN, now)), (1, HoldState::Held));
    assert_eq!(held_rows.deadline(now), Some(now));
    let due = held_rows.take_due(now).unwrap();
    assert_eq!((ids(&due.rows[0].held), due.rows[0].why), (vec![1, 2], HoldEnd::Verdict));
    assert!(!held_rows.is_due(later));
    assert_eq!(held_rows.deadline(now), Some(later + Duration::from_secs(1)));
}

#[test]
fn the_first_rows_are_released_by_their_number_and_the_rest_keeps_its_own_time() {
    let mut held_rows = HeldRows::new(JoinEnds::Anywhere);
    let now = Instant::now();
    let at = |seconds| now + Duration::from_secs(seconds);
    push(&mut held_rows, 3, held("a", &[1], 5), at(1));
    let two = HeldRow::join(&[held("a", &[2], 6), held("a", &[3], 7)]).unwrap();
    push(&mut held_rows, 3, two, at(2));
    push(&mut held_rows, 3, held("a", &[4], 8), at(3));
    // The second row stands for two received rows, and cannot be released by half.
    held_rows.release_first(3, PLUGIN, 2, now);
    assert_eq!((held_rows.rows_held(3, PLUGIN), held_rows.state(3, PLUGIN, now)), (3, HoldState::Held));
    assert_eq!(ids(&held_rows.take_due(now).unwrap().rows[0].held), [1]);
    assert_eq!(held_rows.deadline(now), Some(at(2)), "the deadline of the second row");
    held_rows.release_first(3, PLUGIN, 1, now);
    assert!(!held_rows.is_due(now));
    held_rows.release_first(3, PLUGIN, 9, now);
    let due = held_rows.take_due(now).unwrap();
    assert_eq!((ids(&due.rows[0].held), due.rows[0].why), (vec![2, 3, 4], HoldEnd::Verdict));
    assert!(held_rows.is_empty());
    held_rows.release_first(3, PLUGIN, 1, now);
}

#[test]
fn released_rows_leave_before_the_end_of_their_request() {
    let mut held_rows = HeldRows::new(JoinEnds::Anywhere);
    let now = Instant::now();
    let later = now + Duration::from_secs(1);
    push(&mut held_rows, 3, held("a", &[1], 5), later);
    push(&mut held_rows, 3, held("a", &[2], 6), later);
    held_rows.release_first(3, PLUGIN, 1, now);
    held_rows.finish(3, PLUGIN, HoldEnd::Call);
    let due = held_rows.take_due(now).unwrap();
    assert_eq!((ids(&due.rows[0].held), due.rows[0].why), (vec![1], HoldEnd::Verdict));
    assert_eq!(held_rows.entries(3, PLUGIN), 1);
    let due = held_rows.take_due(now).unwrap();
    assert_eq!((ids(&due.rows[0].held), due.rows[0].why), (vec![2], HoldEnd::Call));
}

#[test]
fn rows_that_wait_behind_a_released_row_keep_its_time() {
    let mut held_rows = HeldRows::new(JoinEnds::Anywhere);
    let now = Instant::now();
    let later = now + Duration::from_secs(1);
    push(&mut held_rows, 3, held("a", &[1], 5), later);
    push(&mut held_rows, 3, held("a", &[2], 6), now);
    held_rows.release_first(3, PLUGIN, 1, now);
    assert_eq!(ids(&held_rows.take_due(now).unwrap().rows[0].held), [1]);
    assert!(!held_rows.is_due(now));
    assert_eq!(held_rows.deadline(now), Some(later));
}

#[test]
fn before_a_detokenizer_the_end_of_a_request_leaves_whether_the_text_is_whole_or_not() {
    let now = Instant::now();
    let later = now + Duration::from_secs(1);
    let half = || HeldRow { is_joined: true, ..held("a", &[97, 0xc3], 1) };
    let mut held_rows = HeldRows::new(bytes());
    push(&mut held_rows, 1, half(), later);
    held_rows.finish(1, PLUGIN, HoldEnd::Verdict);
    let due = held_rows.take_due(now).unwrap();
    assert_eq!((ids(&due.rows[0].held), due.rows[0].why), (vec![97, 0xc3], HoldEnd::Verdict));
    // The scheduler's own last row.
    let mut last = half();
    let finish = Some(afterbay_wire::FinishReason::Stop("x".to_owned()));
    last.edit(afterbay_wire::Edit { finish, ..afterbay_wire::Edit::new(0) }, last.received).unwrap();
    push(&mut held_rows, 1, last, later);
    assert!(held_rows.has_last_row(1) && !held_rows.is_due(now));
    held_rows.release_now(1, PLUGIN, now);
    assert_eq!(ids(&held_rows.take_due(now).unwrap().rows[0].held), [97, 0xc3]);
    assert!(held_rows.is_empty() && !held_rows.has_last_row(1));
}

#[test]
fn held_rows_of_several_requests_leave_side_by_side_in_order_of_request_numbers() {
    let mut held_rows = HeldRows::new(JoinEnds::Anywhere);
    let now = Instant::now();
    for number in [7, 2, 5] {
        push(&mut held_rows, number, held(&format!("r{number}"), &[number as i64], number), now);
    }
    held_rows.hold(request(9), &"other".into(), held("r9", &[9], 9), now);
    let due = held_rows.take_due(now).unwrap();
    let rids: Vec<&str> = due.batch.rids().collect();
    assert_eq!(rids, ["r2", "r5", "r7"]);
    assert_eq!(&*held_rows.take_due(now).unwrap().plugin, "other");
    assert!(held_rows.is_empty() && held_rows.batches.bytes == 0);
}

#[test]
fn held_rows_and_bytes_are_bounded() {
    let mut held_rows = HeldRows::new(JoinEnds::Anywhere);
    let later = Instant::now() + Duration::from_secs(60);
    for frame in 0..ROWS_MAX as u64 {
        let row = held("a", &[1], frame);
        assert_eq!(held_rows.check_room(1, PLUGIN, &row), Ok(()));
        push(&mut held_rows, 1, row, later);
    }
    let more = held("a", &[1], 9999);
    let why = held_rows.check_room(1, PLUGIN, &more).unwrap_err();
    assert_eq!(why, "held rows of the request: 4096, the limit");
    assert_eq!(held_rows.check_room(2, PLUGIN, &more), Ok(()));
    held_rows.batches.bytes = BYTES_MAX - more.batch.memory();
    assert_eq!(held_rows.check_room(2, PLUGIN, &more), Ok(()), "up to the bound");
    held_rows.batches.bytes += 1;
    let why = held_rows.check_room(2, PLUGIN, &more).unwrap_err();
    assert!(why.ends_with("bytes, limit 67108864"), "{why}");
}

#[test]
fn held_rows_keep_the_batch_of_their_frame_until_the_bound_is_reached() {
    let mut held_rows = HeldRows::new(JoinEnds::Anywhere);
    let now = Instant::now();
    let frame = batch((0..64).map(|at| row(&format!("r{at}"), &[at])).collect());
    for at in 0..64 {
        let row = HeldRow::new(frame.clone(), at, FrameNo(5), ReceivedTokens::of_row(1));
        push(&mut held_rows, u64::from(at), row, now);
    }
    let memory = frame.memory();
    assert_eq!(held_rows.batches.bytes, memory, "the batch counts once");
    for number in (0..64).filter(|number| *number != 7 && *number != 9) {
        held_rows.remove(number, PLUGIN, usize::MAX);
    }
    assert_eq!(held_rows.batches.bytes, memory, "two rows keep the batch");
    held_rows.batches.bytes = BYTES_MAX;
    assert_eq!(held_rows.check_room(99, PLUGIN, &held("a", &[1], 6)), Ok(()));
    let left = &held_rows.of(7, PLUGIN).unwrap().rows[0].batch;
    assert_eq!(held_rows.batches.bytes, BYTES_MAX - memory + left.memory());
    let due = held_rows.take_due(now).unwrap();
    let rows: Vec<Vec<i64>> = due.rows.iter().map(|row| ids(&row.held)).collect();
    assert_eq!(rows, [[7], [9]]);
}

#[test]
fn rows_of_one_frame_and_joined_rows_leave_together() {
    let mut held_rows = HeldRows::new(JoinEnds::Anywhere);
    let now = Instant::now();
    let frames =
        [1, 2].map(|at| batch(vec![row("a", &[10 + at]), row("b", &[20 + at]), row("c", &[30 + at])]));
    for (frame, number) in (5..).zip(&frames) {
        for at in 0..3 {
            let row = HeldRow::new(number.clone(), at, FrameNo(frame), ReceivedTokens::of_row(1));
            push(&mut held_rows, u64::from(3 - at), row, now);
        }
    }
    push(&mut held_rows, 9, held("d", &[40], 4), now);
    let due = held_rows.take_due(now).unwrap();
    let rows: Vec<(u64, Vec<i64>)> =
        due.rows.iter().map(|row| (row.request.number().0, ids(&row.held))).collect();
    assert_eq!(rows, [(9, vec![40]), (3, vec![11, 12]), (2, vec![21, 22]), (1, vec![31, 32])]);
    assert_eq!(due.batch.rids().collect::<Vec<_>>(), ["d", "a", "b", "c"]);
    assert!(held_rows.is_empty() && held_rows.batches.bytes == 0);
}

#[test]
fn before_a_detokenizer_held_rows_leave_up_to_where_the_text_is_whole() {
    let mut held_rows = HeldRows::new(bytes());
    let now = Instant::now();
    // "a", then "é" in two rows, then the first half of another.
    for (frame, byte) in [b'a', 0xc3, 0xa9, 0xc3].into_iter().enumerate() {
        push(&mut held_rows, 1, held("a", &[i64::from(byte)], frame as u64 + 1), now);
    }
    let due = held_rows.take_due(now).unwrap();
    assert_eq!((ids(&due.rows[0].held), due.rows[0].rows), (vec![97, 0xc3, 0xa9], 3));
    // A row that was not joined may leave by itself.
    let due = held_rows.take_due(now).unwrap();
    assert_eq!((ids(&due.rows[0].held), due.rows[0].rows), (vec![0xc3], 1));
    assert!(held_rows.is_empty());
}

#[test]
fn before_a_detokenizer_a_joined_row_stays_until_the_text_is_whole_or_the_stream_stops() {
    let mut held_rows = HeldRows::new(bytes());
    let now = Instant::now();
    push(&mut held_rows, 1, HeldRow { is_joined: true, ..held("a", &[97, 0xc3], 1) }, now);
    held_rows.release(1, PLUGIN);
    assert_eq!(held_rows.rows_held(1, PLUGIN), 0);
    assert!(!held_rows.is_due(now) && held_rows.deadline(now).is_none());
    assert!(held_rows.is_whole_with(1, PLUGIN, &held("a", &[0xa9], 2)));
    held_rows.end_all(HoldEnd::Stop);
    assert_eq!(held_rows.take_due(now).unwrap().rows[0].why, HoldEnd::Stop);
}

#[test]
fn before_a_detokenizer_rows_are_not_held_without_a_tokenizer() {
    let held_rows = HeldRows::new(JoinEnds::Nowhere);
    let why = held_rows.check(&held("a", &[1], 1)).unwrap_err();
    assert!(why.contains("sink.tokenizer"), "{why}");
    assert_eq!(HeldRows::new(JoinEnds::Anywhere).check(&held("a", &[1], 1)), Ok(()));
}

#[test]
fn held_rows_of_a_removed_plugin_leave() {
    let mut held_rows = HeldRows::new(JoinEnds::Anywhere);
    let now = Instant::now();
    push(&mut held_rows, 1, held("a", &[1], 1), now + Duration::from_secs(60));
    held_rows.end_missing([PLUGIN].into_iter());
    assert!(!held_rows.is_due(now));
    held_rows.end_missing(["other"].into_iter());
    assert_eq!(held_rows.take_due(now).unwrap().rows[0].why, HoldEnd::Instance);
}
