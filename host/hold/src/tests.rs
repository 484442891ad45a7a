//! What waits: when it is due, up to where it goes on, and its bounds.

use super::*;
use afterbay_batch::ReceivedTokens;
use afterbay_wire::synth::{SynthBatch, SynthRow, SynthWire};
use afterbay_wire::{DecodedFrame, Layouts};
use std::time::Duration;

const PLUGIN: &str = "holds";

fn held(rid: &str, ids: &[i64], frame: u64) -> HeldRow {
    let row = SynthRow { rid: rid.to_owned(), ids: ids.to_vec(), ..SynthRow::default() };
    let bytes = SynthBatch { rows: vec![row] }.encode(BatchKind::TokenId, SynthWire::Msgpack).unwrap();
    let DecodedFrame::Batch(batch) = afterbay_wire::decode(bytes, &Layouts::builtin()) else {
        panic!("no batch")
    };
    let came = ReceivedTokens { rows: 1, forwarded: ids.len() as u64, ..ReceivedTokens::default() };
    HeldRow::new(batch, FrameNo(frame), came)
}

fn slot() -> RequestSlot {
    RequestSlot(0)
}

fn push(held_rows: &mut HeldRows, number: u64, row: HeldRow, until: Instant) {
    held_rows.hold(number, slot(), &PLUGIN.into(), row, until);
}

/// Tokens that are bytes: id N is the byte N.
fn bytes() -> Joins {
    let file = tempfile::NamedTempFile::with_suffix(".json").unwrap();
    let (mut vocabulary, mut other) = (Vec::new(), 256_u32);
    for byte in 0..256_u32 {
        // As GPT-2 writes bytes as characters.
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
    Joins::WhereTextIsWhole(Vocabulary::load(file.path()).unwrap())
}

fn ids(row: &HeldRow) -> Vec<i64> {
    let mut ids = Vec::new();
    row.batch.row_ids(0, &mut ids);
    ids
}

#[test]
fn what_waits_is_due_when_the_time_of_the_first_is_over_and_goes_on_as_one() {
    let mut held_rows = HeldRows::new(Joins::Anywhere);
    let now = Instant::now();
    let later = now + Duration::from_secs(1);
    push(&mut held_rows, 3, held("a", &[1], 5), later);
    // A further hold does not make the time longer.
    push(&mut held_rows, 3, held("a", &[2, 3], 6), later + Duration::from_secs(9));
    push(&mut held_rows, 4, held("b", &[9], 6), later + Duration::from_secs(5));
    assert_eq!((held_rows.oldest(), held_rows.deadline()), (Some(FrameNo(5)), Some(later)));
    assert_eq!(
        (held_rows.rows_held(3, PLUGIN), held_rows.received_tokens(3), held_rows.size_of(PLUGIN)),
        (2, 3, (3, 4))
    );
    assert!(!held_rows.is_due(now) && held_rows.take_due(now).is_none());
    assert_eq!(held_rows.state(3, PLUGIN, later), HoldState::Ended(HoldEnd::Time));
    let due = held_rows.take_due(later).unwrap();
    assert_eq!((due.rows.len(), due.batch.rows()), (1, 1));
    let row = &due.rows[0];
    assert_eq!((row.number, ids(&row.held), row.rows, row.why), (3, vec![1, 2, 3], 2, HoldEnd::Time));
    assert_eq!(row.held.came, ReceivedTokens { rows: 2, forwarded: 3, ..ReceivedTokens::default() });
    assert!(!held_rows.has(3) && held_rows.has(4));
}

#[test]
fn what_a_plugin_has_let_go_goes_on_by_itself_and_what_it_holds_behind_that_waits() {
    let mut held_rows = HeldRows::new(Joins::Anywhere);
    let now = Instant::now();
    let later = now + Duration::from_secs(1);
    push(&mut held_rows, 3, held("a", &[1], 5), later);
    push(&mut held_rows, 3, held("a", &[2], 6), later);
    held_rows.release_now(3, PLUGIN, now);
    push(&mut held_rows, 3, held("a", &[3], 7), later + Duration::from_secs(1));
    assert_eq!((held_rows.rows_held(3, PLUGIN), held_rows.state(3, PLUGIN, now)), (1, HoldState::Held));
    assert_eq!(held_rows.deadline(), Some(now));
    let due = held_rows.take_due(now).unwrap();
    assert_eq!((ids(&due.rows[0].held), due.rows[0].why), (vec![1, 2], HoldEnd::Verdict));
    assert!(!held_rows.is_due(later));
    assert_eq!(held_rows.deadline(), Some(later + Duration::from_secs(1)));
}

#[test]
fn requests_that_wait_with_one_plugin_go_on_side_by_side_in_order_of_their_numbers() {
    let mut held_rows = HeldRows::new(Joins::Anywhere);
    let now = Instant::now();
    for number in [7, 2, 5] {
        push(&mut held_rows, number, held(&format!("r{number}"), &[number as i64], number), now);
    }
    held_rows.hold(9, slot(), &"other".into(), held("r9", &[9], 9), now);
    let due = held_rows.take_due(now).unwrap();
    let rids: Vec<&str> = due.batch.rids().collect();
    assert_eq!(rids, ["r2", "r5", "r7"]);
    assert_eq!(&*held_rows.take_due(now).unwrap().plugin, "other");
    assert!(held_rows.is_empty() && held_rows.bytes == 0);
}

#[test]
fn rows_and_bytes_that_wait_are_bounded() {
    let mut held_rows = HeldRows::new(Joins::Anywhere);
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
    held_rows.bytes = BYTES_MAX;
    let why = held_rows.check_room(2, PLUGIN, &more).unwrap_err();
    assert!(why.ends_with("bytes, limit 67108864"), "{why}");
}

#[test]
fn before_a_detokenizer_what_waits_goes_on_up_to_where_the_text_is_whole() {
    let mut held_rows = HeldRows::new(bytes());
    let now = Instant::now();
    // "a", then "é" in two rows, then the first half of another.
    for (frame, byte) in [b'a', 0xc3, 0xa9, 0xc3].into_iter().enumerate() {
        push(&mut held_rows, 1, held("a", &[i64::from(byte)], frame as u64 + 1), now);
    }
    let due = held_rows.take_due(now).unwrap();
    assert_eq!((ids(&due.rows[0].held), due.rows[0].rows), (vec![97, 0xc3, 0xa9], 3));
    // What came so goes by itself.
    let due = held_rows.take_due(now).unwrap();
    assert_eq!((ids(&due.rows[0].held), due.rows[0].rows), (vec![0xc3], 1));
    assert!(held_rows.is_empty());
}

#[test]
fn before_a_detokenizer_what_was_made_of_several_waits_until_the_text_is_whole_or_nothing_more_comes() {
    let mut held_rows = HeldRows::new(bytes());
    let now = Instant::now();
    push(&mut held_rows, 1, HeldRow { is_made: true, ..held("a", &[97, 0xc3], 1) }, now);
    held_rows.release(1, PLUGIN);
    assert_eq!(held_rows.rows_held(1, PLUGIN), 0);
    assert!(!held_rows.is_due(now) && held_rows.deadline().is_none());
    assert!(held_rows.is_whole_with(1, PLUGIN, &held("a", &[0xa9], 2).batch));
    held_rows.end_all(HoldEnd::Stop, None);
    assert_eq!(held_rows.take_due(now).unwrap().rows[0].why, HoldEnd::Stop);
}

#[test]
fn where_no_tokenizer_is_known_rows_before_a_detokenizer_are_not_held() {
    let held_rows = HeldRows::new(Joins::Nowhere);
    let why = held_rows.check(&held("a", &[1], 1)).unwrap_err();
    assert!(why.contains("sink.tokenizer"), "{why}");
    assert_eq!(HeldRows::new(Joins::Anywhere).check(&held("a", &[1], 1)), Ok(()));
}

#[test]
fn what_waits_with_a_plugin_that_is_gone_goes_on() {
    let mut held_rows = HeldRows::new(Joins::Anywhere);
    let now = Instant::now();
    push(&mut held_rows, 1, held("a", &[1], 1), now + Duration::from_secs(60));
    held_rows.end_missing([PLUGIN].into_iter());
    assert!(!held_rows.is_due(now));
    held_rows.end_missing(["other"].into_iter());
    assert_eq!(held_rows.take_due(now).unwrap().rows[0].why, HoldEnd::Instance);
}
