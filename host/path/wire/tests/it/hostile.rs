//! Hostile frames end in values, in bounded time and memory.

use std::time::Duration;

use afterbay_wire::{BarrierKind, BatchPart, DecodedFrame, Layouts, PackError, WireError, Wrapped, decode};
use afterbay_wire::{Batch, Edit, Finish, FinishReason, Ids, TokenEdit};
use bytes::Bytes;

use crate::samples::{assert_same, open, read_batch, sample};
use crate::value_len::value_len;

/// The CPU time of this thread, which does not depend on the machine's load.
fn cpu_time() -> Duration {
    rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime).try_into().unwrap()
}

/// Decodes a hostile frame and calls every accessor. A barrier must keep the frame's bytes.
fn use_up(frame: &Bytes) {
    match decode(frame.clone(), &Layouts::builtin()) {
        DecodedFrame::Barrier(barrier) => {
            assert_eq!(barrier.bytes(), frame);
            barrier.to_json(Wrapped::Open);
        }
        DecodedFrame::Batch(batch) => {
            assert_eq!(batch.bytes(), frame);
            let mut ids = Ids::default();
            batch.output_ids(&mut ids);
            assert_eq!(ids.ends.len(), batch.rows() as usize);
            for row in 0..batch.rows() {
                assert!(batch.tokens(row) == 0 || !batch.is_unread(row));
                assert_eq!(ids.row(row).len(), batch.tokens(row) as usize);
                _ = (batch.finish(row), batch.text(row), batch.completion_tokens(row), batch.front_end(row));
            }
            batch.to_json(Wrapped::Open);
            let all: Vec<u32> = (0..batch.rows()).collect();
            if let Ok(ended) = batch.ended(&all, &FinishReason::Abort("ended".into())) {
                assert!(all.iter().all(|row| ended.tokens(*row) == 0 && ended.finish(*row) == Finish::Abort));
            }
            let last = batch.rows() - 1;
            if let Ok(one) = batch.take(&[last]) {
                assert_eq!(one.rid(0), batch.rid(last));
                _ = Batch::join(&[BatchPart { batch: &batch, rows: Some(&[0]) }, BatchPart::from(&one)]);
            }
            _ = batch.edit(&[Edit { tokens: TokenEdit::Delta(vec![1, 2]), ..Edit::new(last) }]);
            if let Ok(past) = batch.without_detokenizing(&[last]) {
                assert_eq!((past.rid(0), past.text(0)), (batch.rid(last), Some("")));
                assert!(batch.is_unread(last) || past.tokens(0) == batch.tokens(last));
            }
        }
    }
}

const SOME: [&str; 10] = [
    "frames/tokid_n3_time_stats_metrics.msgpack",
    "frames/tokid_customized_info.msgpack",
    "frames/tokid_logprobs.msgpack",
    "frames/str_finished.msgpack",
    "frames/tokid_routed_experts.msgpack",
    "frames/tokid_routed_experts.pickle",
    "frames/emb_n2.msgpack",
    "versions/0.5.23/tokid_logprobs.pickle",
    "versions/0.5.12/tokid_n3.pickle",
    "versions/0.5.15/tokid_n3.msgpack",
];

#[test]
fn a_frame_cut_anywhere_is_not_understood_and_still_counted() {
    for name in SOME {
        let whole = sample(name).bytes;
        for end in 0..whole.len() {
            let cut = whole.slice(..end);
            let DecodedFrame::Barrier(barrier) = decode(cut.clone(), &Layouts::builtin()) else {
                panic!("{name} cut at {end} is a batch");
            };
            assert!(matches!(barrier.kind, BarrierKind::NotUnderstood { .. }), "{name} cut at {end}");
            assert_eq!(barrier.bytes(), &cut);
            // The class stands within the first 200 bytes.
            assert!(end < 200 || barrier.counted(), "{name} cut at {end}");
        }
    }
}

#[test]
fn bytes_after_a_frame_are_noticed() {
    for name in SOME {
        let longer = [&sample(name).bytes[..], &[0xc0]].concat();
        let DecodedFrame::Barrier(barrier) = decode(longer.into(), &Layouts::builtin()) else {
            panic!("{name}")
        };
        assert!(matches!(barrier.kind, BarrierKind::NotUnderstood { .. }), "{name}");
    }
}

/// Changes one to four bytes of a frame at random places, some of them to a byte of `heads`, which begin big values. `SEED`
/// chooses others.
pub(crate) fn flips(heads: [u8; 8]) -> impl FnMut(&[u8]) -> Bytes {
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0x5eed_u64);
    println!("SEED={seed}");
    let mut state = seed;
    let mut random = move |below: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % below
    };
    move |whole| {
        let mut bytes = whole.to_vec();
        for _ in 0..=random(4) {
            let at = random(bytes.len());
            bytes[at] = match random(4) {
                0 => bytes[at] ^ 1 << random(8),
                1 => 0xff,
                2 => heads[random(8)],
                _ => random(256) as u8,
            };
        }
        bytes.into()
    }
}

#[test]
fn flipped_bytes_end_in_values_and_in_time() {
    let mut flip = flips([0xdd, 0xdf, 0xc6, 0xc9, 0xdb, b'(', b'h', b'R']);
    let begun = cpu_time();
    for name in SOME {
        let whole = sample(name).bytes;
        for _ in 0..1500 {
            use_up(&flip(&whole));
        }
    }
    assert!(cpu_time() - begun < Duration::from_secs(60), "{:?}", cpu_time() - begun);
}

/// The start of a batch of 0.5.23 with this first column.
fn with_rids(rids: &[u8]) -> Bytes {
    [b"\xdc\x00\x36\xb2BatchTokenIDOutput", rids, &[0xc0; 64]].concat().into()
}

fn error(frame: Bytes) -> WireError {
    match decode(frame, &Layouts::builtin()) {
        DecodedFrame::Barrier(barrier) => match barrier.kind {
            BarrierKind::NotUnderstood { error } => error,
            kind => panic!("{kind:?}"),
        },
        DecodedFrame::Batch(_) => panic!("a batch"),
    }
}

#[test]
fn declared_lengths_are_checked_before_anything_is_allocated() {
    for (rids, needed) in [
        (&b"\xdd\xff\xff\xff\xff"[..], 5 + 0xffff_ffff_u64),
        (b"\xdf\xff\xff\xff\xff", 5 + 2 * 0xffff_ffff_u64),
        (b"\xc6\xff\xff\xff\xff", 5 + 0xffff_ffff_u64),
        (b"\xc9\xff\xff\xff\xff\x01", 6 + 0xffff_ffff_u64),
        (b"\xdb\xff\xff\xff\xff", 5 + 0xffff_ffff_u64),
    ] {
        let cut = PackError::Cut { at: 22, needed, left: rids.len() + 64 };
        assert_eq!(error(with_rids(rids)), WireError::Pack(cut));
    }
    assert_eq!(
        error(with_rids(b"\xdd\xff\xff\xff\xff")).to_string(),
        "msgpack value at offset 22 needs 4294967300 bytes, 69 are left"
    );
}

/// The frames of `tokid_n3` in each encoding.
const THREE_ROWS: [&str; 2] = ["versions/0.5.23/tokid_n3.msgpack", "versions/0.5.12/tokid_n3.pickle"];

/// The cells of every column of a msgpack frame that is an array of three, from the byte at `from` on.
fn columns_of_three(frame: &[u8]) -> Vec<std::ops::Range<usize>> {
    let mut columns = Vec::new();
    let mut at = 4 + b"BatchTokenIDOutput".len();
    while at < frame.len() {
        let end = at + value_len(&frame[at..]);
        if frame[at] == 0x93 {
            columns.push(at + 1..end);
        }
        at = end;
    }
    columns
}

/// The frame of three rows with another cell in the middle row of the column whose middle cell satisfies `is`.
fn with_cell(is: impl Fn(&[u8]) -> bool, cell: &[u8]) -> Bytes {
    let frame = sample(THREE_ROWS[0]).bytes;
    for column in columns_of_three(&frame) {
        let first = column.start + value_len(&frame[column.start..]);
        let second = first..first + value_len(&frame[first..]);
        if is(&frame[second.clone()]) {
            return [&frame[..second.start], cell, &frame[second.end..]].concat().into();
        }
    }
    panic!("no column has such a cell");
}

fn is_text(cell: &[u8]) -> bool {
    matches!(cell[0], 0xa1..=0xbf | 0xd9)
}

fn is_ids(cell: &[u8]) -> bool {
    cell[0] == 0xc7
}

/// Checks that the rows of a batch from [`with_cell`] equal those of the sample, except the middle one.
fn others_are_as_they_were(batch: &Batch) {
    let whole = read_batch(&sample(THREE_ROWS[0]).bytes);
    for row in [0, 2] {
        let (mut ids, mut were) = (Vec::new(), Vec::new());
        batch.row_ids(row, &mut ids);
        whole.row_ids(row, &mut were);
        assert_eq!((batch.rid(row), ids), (whole.rid(row), were));
        assert_eq!(batch.tokens(row), whole.tokens(row));
        assert!(!batch.is_unread(row));
    }
}

#[test]
fn a_deeply_nested_value_is_carried() {
    let deep = |depth: usize| [&vec![0x91; depth][..], &[0xc0]].concat();
    let frame = sample(THREE_ROWS[0]).bytes;
    // The count of the middle row.
    for depth in [31, 32, 33, 100_000] {
        let frame = with_cell(|cell| cell.len() == 1 && cell[0] < 0x80, &deep(depth));
        let batch = read_batch(&frame);
        others_are_as_they_were(&batch);
        assert_eq!(batch.unread(), []);
        let edit = Edit { tokens: TokenEdit::Drop, ..Edit::new(0) };
        assert_eq!(batch.edit(&[edit]).unwrap().unwrap().rows(), 2);
        assert_eq!(batch.take(&[1]).unwrap().rid(0), batch.rid(1));
        batch.to_json(Wrapped::Open);
    }
    // The whole column.
    let end = frame.len() - value_len(&frame[frame.len() - 1..]);
    assert_eq!(frame[end..], [0xc0]);
    let batch = read_batch(&[&frame[..end], &deep(1_000)[..]].concat().into());
    others_are_as_they_were(&batch);
}

#[test]
fn a_count_that_is_not_an_integer_is_unknown_and_its_row_is_read() {
    let whole = read_batch(&sample(THREE_ROWS[0]).bytes);
    let count = whole.completion_tokens(1).unwrap() as u8;
    for odd in [&b"\xa1x"[..], b"\xcb\x3f\xf0\0\0\0\0\0\0", b"\xc0", b"\xff", b"\x90", b"\x80"] {
        let batch = read_batch(&with_cell(|cell| *cell == [count], odd));
        others_are_as_they_were(&batch);
        assert_eq!(batch.unread(), []);
        assert_eq!(batch.tokens(1), whole.tokens(1));
    }
}

#[test]
fn ids_of_32_bits_in_one_row_are_read_like_all_others() {
    // Two ids of 32 bits have the bytes and the header of one id of 64 bits.
    let narrow = [&[0xc7, 14, 1, 0, 0, 0, 2, 0xa1, b'i'][..], &[5, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]].concat();
    let frame = with_cell(is_ids, &narrow);
    let batch = read_batch(&frame);
    assert_eq!(batch.unread(), []);
    others_are_as_they_were(&batch);
    use_up(&frame);
    // The first array of ids is for the detokenizer. This test changes both arrays.
    let both = sample(THREE_ROWS[0]).bytes;
    let mut both = both.to_vec();
    for column in columns_of_three(&both.clone()) {
        let second = column.start + value_len(&both[column.start..]);
        if is_ids(&both[second..]) && value_len(&both[second..]) == narrow.len() {
            both[second..second + narrow.len()].copy_from_slice(&narrow);
        }
    }
    let batch = read_batch(&both.clone().into());
    let (mut ids, mut all) = (Vec::new(), Ids::default());
    batch.row_ids(1, &mut ids);
    batch.output_ids(&mut all);
    assert_eq!((&ids[..], all.row(1), batch.tokens(1)), (&[5, -1][..], &[5, -1][..], 2));
    assert_eq!(batch.token_counts().nth(1), Some(2));
    others_are_as_they_were(&batch);
    use_up(&both.into());
}

#[test]
fn a_row_with_an_unreadable_rid_or_ids_is_named_and_the_others_are_read() {
    for (is, cell, column) in [
        (is_text as fn(&[u8]) -> bool, &b"\x07"[..], "rids"),
        (is_text, b"\xc0", "rids"),
        (is_ids, b"\xc0", "decode_ids"),
        (is_ids, b"\xa1x", "decode_ids"),
        (is_ids, b"\xc7\x0b\x01\0\0\0\x02\xa1q12345", "decode_ids"),
    ] {
        let frame = with_cell(is, cell);
        let batch = read_batch(&frame);
        assert_eq!(batch.unread(), [afterbay_wire::Unread { row: 1, column }]);
        assert_eq!((batch.tokens(1), batch.token_counts().nth(1)), (0, Some(0)));
        others_are_as_they_were(&batch);
        use_up(&frame);
        // The row can be ended with its rid unchanged.
        let end = Edit {
            tokens: TokenEdit::Empty,
            finish: Some(afterbay_wire::FinishReason::Stop("x".to_owned())),
            ..Edit::new(1)
        };
        let edited = batch.edit(&[end]).unwrap().unwrap();
        assert_eq!((edited.rows(), edited.tokens(1), edited.rid_of(1)), (3, 0, batch.rid_of(1)));
        assert!(edited.finish(1) != Finish::Running);
        // Taken alone, the row is unchanged.
        let alone = batch.take(&[1]).unwrap();
        assert_eq!((alone.unread().len(), alone.rid_of(0)), (1, batch.rid_of(1)));
    }
}

#[test]
fn a_rid_of_any_length_or_with_lone_surrogates_is_carried() {
    let long = [&[0xdb, 0, 0x10, 0, 0][..], &vec![b'r'; 1 << 20]].concat();
    let batch = read_batch(&with_cell(is_text, &long));
    assert_eq!((batch.rid(1).len(), batch.unread()), (1 << 20, &[][..]));
    others_are_as_they_were(&batch);
    // "\ud800", as CPython pickles it.
    let frame = pickled(&[
        ("rids", b"](X\x01\0\0\0aX\x03\0\0\0\xed\xa0\x80e".to_vec()),
        ("finished_reasons", b"](NNe".to_vec()),
        ("output_ids", b"](](K\x01e](K\x02ee".to_vec()),
    ]);
    let batch = read_batch(&frame);
    assert_eq!((batch.unread(), batch.rid_of(1)), (&[][..], Some(&b"\xed\xa0\x80"[..])));
    assert_eq!((batch.rid(0), batch.tokens(1), batch.has_text_rids()), ("a", 1, false));
    // The row's request is unknown, so the row stays unchanged.
    assert!(Batch::join(&[BatchPart::from(&batch), BatchPart::from(&batch)]).is_err());
    let edit = Edit { tokens: TokenEdit::Delta(vec![9]), ..Edit::new(1) };
    assert_eq!(batch.edit(&[edit]).unwrap().unwrap().rid_of(1), batch.rid_of(1));
}

#[test]
fn rows_that_cannot_be_written_are_ended_in_a_frame_of_their_own() {
    for name in THREE_ROWS.iter().chain(&SOME) {
        let batch = read_batch(&sample(name).bytes);
        let rows: Vec<u32> = (0..batch.rows()).collect();
        let reason = FinishReason::Error { status: 500, message: "not judged".into() };
        let ended = batch.ended(&rows, &reason).unwrap();
        assert!(ended.is_like(&batch), "{name}");
        for row in rows {
            assert_eq!((ended.rid(row), ended.finish(row)), (batch.rid(row), Finish::Error), "{name}");
            assert_eq!((ended.tokens(row), ended.text(row).unwrap_or_default()), (0, ""), "{name}");
            assert_eq!(ended.front_end(row), batch.front_end(row), "{name}");
        }
        let last = batch.rows() - 1;
        assert_eq!(batch.ended(&[last], &reason).unwrap().rid(0), batch.rid(last));
        assert!(batch.ended(&[], &reason).is_err() && batch.ended(&[last + 1], &reason).is_err());
    }
}

#[test]
fn a_batch_whose_columns_cannot_be_read_names_its_rows() {
    let columns = |ids: &[u8]| {
        pickled(&[
            ("rids", b"](X\x01\0\0\0aX\x01\0\0\0be".to_vec()),
            ("finished_reasons", b"](NNe".to_vec()),
            ("output_ids", ids.to_vec()),
        ])
    };
    for odd in [&b"](X\x01\0\0\0xX\x01\0\0\0xe"[..], b"](](K\x01ee", b"K\x01"] {
        let DecodedFrame::Barrier(barrier) = decode(columns(odd), &Layouts::builtin()) else {
            panic!("a batch")
        };
        assert!(barrier.hides_rows());
        let named = barrier.named_rows().unwrap();
        let ended = named.ended(&[0, 1], &FinishReason::Length).unwrap();
        assert_eq!(ended.rids().collect::<Vec<_>>(), ["a", "b"]);
        barrier.to_json(Wrapped::Open);
    }
    for (frame, hides) in [
        (sample(THREE_ROWS[0]).bytes.slice(..300), true),
        (Bytes::from_static(b"no message of SGLang's"), false),
        (Bytes::from_static(b"\x91\xa5Other"), false),
    ] {
        let DecodedFrame::Barrier(barrier) = decode(frame, &Layouts::builtin()) else { panic!("a batch") };
        assert_eq!((barrier.hides_rows(), barrier.named_rows().is_none()), (hides, true));
    }
}

#[test]
fn a_frame_of_neither_encoding_is_a_barrier() {
    for frame in [&b""[..], b"\xc0", b"hello", b"\x80", b"\x80\x06", b"\x80\x80", b"\xff\xff\xff\xff\xff"] {
        let it = error(Bytes::from_static(frame));
        assert_eq!(it, WireError::NotAFrame { head: frame.iter().copied().take(4).collect() });
    }
    assert_eq!(error(Bytes::from_static(b"\x90")), WireError::Pack(PackError::NoTag));
    assert_eq!(error(Bytes::from_static(b"\x91\x01")), WireError::Pack(PackError::NoTag));
    assert_eq!(error(Bytes::from_static(b"\x91\xa1\xff")), WireError::Pack(PackError::NoTag));
    assert!(matches!(error(Bytes::from_static(b"\xc1")), WireError::Parts(_)));
}

#[test]
fn long_headers_are_read_like_short_ones() {
    // The array of fields, the tag and rids, each with the longest possible header.
    let frame = sample("versions/0.5.23/tokid_n1.msgpack");
    let tag = b"BatchTokenIDOutput";
    assert_eq!(frame.bytes[..4], [0xdc, 0, 54, 0xa0 | tag.len() as u8]);
    let rids = 4 + tag.len();
    assert_eq!(frame.bytes[rids], 0x91);
    let long =
        [b"\xdd\0\0\0\x36\xdb\0\0\0\x12", &tag[..], b"\xdd\0\0\0\x01", &frame.bytes[rids + 1..]].concat();
    let DecodedFrame::Batch(batch) = decode(long.into(), &Layouts::builtin()) else {
        panic!("not understood")
    };
    assert_same(&frame.name, &open(&batch), &open(&read_batch(&frame.bytes)));
}

#[test]
fn a_long_class_name_is_cut() {
    let frame = [&b"\x91\xdb\0\0\x10\0"[..], &[b'x'; 4096]].concat();
    let DecodedFrame::Barrier(barrier) = decode(frame.into(), &Layouts::builtin()) else { panic!("a batch") };
    assert_eq!(barrier.kind, BarrierKind::Control { tag: "x".repeat(128) });
}

/// A pickled batch in the form of 0.5.14, with columns from this function. Memoized values can be repeated.
fn pickled(columns: &[(&str, Vec<u8>)]) -> Bytes {
    let mut out = b"\x80\x04csglang.srt.managers.io_struct\nBatchTokenIDOutput\n)\x81}(".to_vec();
    for (name, value) in columns {
        out.extend([0x8c, name.len() as u8]);
        out.extend(name.as_bytes());
        out.extend(value);
    }
    out.extend(b"ub.");
    out.into()
}

/// A list of `rows` items: `first`, which is the memo's next value, by its number from 1, and repetitions of it.
fn again(first: &[u8], memo: u8, rows: usize) -> Vec<u8> {
    let mut out = b"](".to_vec();
    out.extend(first);
    out.push(0x94);
    (1..rows).for_each(|_| out.extend([b'h', memo - 1]));
    out.push(b'e');
    out
}

#[test]
fn a_pickle_that_repeats_one_value_is_bounded() {
    const ROWS: usize = 100_000;
    let list = |len: usize| [b"](", &b"K\x01".repeat(len)[..], b"e"].concat();
    let text = |len: usize| [&b"X"[..], &(len as u32).to_le_bytes(), &vec![b'x'; len]].concat();
    let dict = |len: u32| {
        let entries =
            (0..len).flat_map(|key| [&b"J"[..], &key.to_le_bytes(), b"N"].concat()).collect::<Vec<_>>();
        [b"}(", &entries[..], b"u"].concat()
    };
    let batch = |rid: Vec<u8>, reason: Vec<u8>, ids: Vec<u8>, logprobs: Vec<u8>| {
        pickled(&[
            ("rids", again(&rid, 1, ROWS)),
            ("finished_reasons", again(&reason, 2, ROWS)),
            ("output_ids", again(&ids, 3, ROWS)),
            ("output_token_logprobs_val", again(&logprobs, 4, ROWS)),
        ])
    };
    let (one, none, few) = (text(1), b"N".to_vec(), list(2));
    let begun = cpu_time();
    for (name, frame) in [
        ("rids", batch(text(ROWS), none.clone(), few.clone(), few.clone())),
        ("finished_reasons", batch(one.clone(), dict(ROWS as u32), few.clone(), few.clone())),
        ("output_ids", batch(one.clone(), none.clone(), list(ROWS), few.clone())),
    ] {
        assert_eq!(error(frame.clone()), WireError::Expands { name });
        use_up(&frame);
    }
    // A column that is read only for joining or editing. All rows are of one request.
    let frame = batch(one, none, few, list(ROWS));
    let batch = read_batch(&frame);
    let expands = afterbay_wire::RowsError::Expands { name: "output_token_logprobs_val".into() };
    assert_eq!(Batch::join(&[BatchPart::from(&batch)]).unwrap_err(), expands);
    let edits: Vec<_> =
        (0..batch.rows()).map(|row| Edit { tokens: TokenEdit::Empty, ..Edit::new(row) }).collect();
    assert_eq!(batch.edit(&edits).unwrap_err(), expands);
    assert_eq!(batch.take(&[0, 1, 2]).unwrap().rows(), 3);
    assert!(batch.to_json(Wrapped::Open)["output_token_logprobs_val"].is_array());
    assert!(cpu_time() - begun < Duration::from_secs(10), "{:?}", cpu_time() - begun);
}

#[test]
fn a_repeated_tensor_does_not_pass_the_detokenizer() {
    const ROWS: usize = 10_000;
    let items = vec![7; 100_000];
    let saved = [b"ctorch\nCharStorage\n".as_slice(), &(items.len() as u64).to_le_bytes(), &items].concat();
    let mut tensor = b"ctorch._utils\n_rebuild_tensor_v2\n(ctorch.storage\n_load_from_bytes\n(B".to_vec();
    tensor.extend((saved.len() as u32).to_le_bytes());
    tensor.extend(&saved);
    tensor.extend(b"tRK\x00(J");
    tensor.extend((items.len() as u32).to_le_bytes());
    tensor.extend(b"t(K\x01ttR");
    let frame = |rows: usize| {
        let said = |value: &[u8], memo: u8| again(value, memo, rows);
        pickled(&[
            ("rids", said(b"X\x01\0\0\0r", 1)),
            ("finished_reasons", said(b"N", 2)),
            ("decoded_texts", said(b"X\0\0\0\0", 3)),
            ("decode_ids", said(b"](K\x01e", 4)),
            ("read_offsets", said(b"K\x00", 5)),
            ("output_ids", said(b"](K\x01e", 6)),
            ("skip_special_tokens", said(b"\x88", 7)),
            ("spaces_between_special_tokens", said(b"\x88", 8)),
            ("no_stop_trim", said(b"\x89", 9)),
            ("routed_experts", said(&tensor, 10)),
        ])
    };
    let rows = |batch: &Batch| (0..batch.rows()).collect::<Vec<_>>();
    let honest = read_batch(&frame(3));
    let past = honest.without_detokenizing(&rows(&honest)).unwrap();
    assert_eq!(open(&past)["routed_experts"][2].as_str().unwrap().len(), items.len().div_ceil(3) * 4);
    let hostile = read_batch(&frame(ROWS));
    let begun = cpu_time();
    let expands = afterbay_wire::RowsError::Expands { name: "routed_experts".into() };
    assert_eq!(hostile.without_detokenizing(&rows(&hostile)).unwrap_err(), expands);
    assert!(cpu_time() - begun < Duration::from_secs(10), "{:?}", cpu_time() - begun);
}
