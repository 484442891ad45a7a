//! Frames that mean harm end in values, in bounded time and memory.

use std::time::Duration;

use afterbay_wire::{BarrierKind, Decoded, Layouts, PackError, Part, WireError, Wrapped, decode};
use afterbay_wire::{Batch, Edit, Ids, Tokens};
use bytes::Bytes;

use crate::samples::{assert_same, open, read_batch, sample};

/// What this thread has used of the processor; a busy machine does not count.
fn cpu_time() -> Duration {
    rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime).try_into().unwrap()
}

/// A frame of hostile bytes is decoded and everything is asked of it; what is not understood must keep its bytes.
fn use_up(frame: &Bytes) {
    match decode(frame.clone(), &Layouts::builtin()) {
        Decoded::Barrier(barrier) => {
            assert_eq!(barrier.bytes(), frame);
            barrier.to_json(Wrapped::Open);
        }
        Decoded::Batch(batch) => {
            assert_eq!(batch.bytes(), frame);
            let mut ids = Ids::default();
            batch.output_ids(&mut ids);
            assert_eq!(ids.ends.len(), batch.rows() as usize);
            for row in 0..batch.rows() {
                assert!(!batch.rid(row).is_empty() || batch.tokens(row) < u32::MAX);
                assert_eq!(ids.row(row).len(), batch.tokens(row) as usize);
                _ = (
                    batch.finish(row),
                    batch.text(row),
                    batch.completion_tokens(row),
                    batch.http_worker_ipc(row),
                );
            }
            batch.to_json(Wrapped::Open);
            let splittable = batch.splittable().is_ok();
            let last = batch.rows() - 1;
            if let Ok(one) = batch.take(&[last]) {
                assert!(splittable || batch.rows() == 1);
                assert_eq!(one.rid(0), batch.rid(last));
                _ = Batch::join(&[Part { batch: &batch, rows: Some(&[0]) }, Part::from(&one)]);
            }
            _ = batch.edit(&[Edit { tokens: Tokens::Delta(vec![1, 2]), ..Edit::new(last) }]);
            if let Ok(past) = batch.without_detokenizing(&[last]) {
                assert_eq!((past.rid(0), past.text(0)), (batch.rid(last), Some("")));
                assert_eq!(past.tokens(0), batch.tokens(last));
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
            let Decoded::Barrier(barrier) = decode(cut.clone(), &Layouts::builtin()) else {
                panic!("{name} cut at {end} is a batch");
            };
            assert!(matches!(barrier.kind, BarrierKind::NotUnderstood { .. }), "{name} cut at {end}");
            assert_eq!(barrier.bytes(), &cut);
            // Its class stands within the first 200 bytes.
            assert!(end < 200 || barrier.counted(), "{name} cut at {end}");
        }
    }
}

#[test]
fn bytes_after_a_frame_are_noticed() {
    for name in SOME {
        let longer = [&sample(name).bytes[..], &[0xc0]].concat();
        let Decoded::Barrier(barrier) = decode(longer.into(), &Layouts::builtin()) else { panic!("{name}") };
        assert!(matches!(barrier.kind, BarrierKind::NotUnderstood { .. }), "{name}");
    }
}

#[test]
fn flipped_bytes_end_in_values_and_in_time() {
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0x5eed_u64);
    println!("SEED={seed}");
    let mut state = seed;
    let mut random = move |below: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % below
    };
    let begun = cpu_time();
    for name in SOME {
        let whole = sample(name).bytes;
        for _ in 0..1500 {
            let mut bytes = whole.to_vec();
            for _ in 0..=random(4) {
                let at = random(bytes.len());
                bytes[at] = match random(4) {
                    0 => bytes[at] ^ 1 << random(8),
                    1 => 0xff,
                    2 => [0xdd, 0xdf, 0xc6, 0xc9, 0xdb, b'(', b'h', b'R'][random(8)],
                    _ => random(256) as u8,
                };
            }
            use_up(&bytes.into());
        }
    }
    assert!(cpu_time() - begun < Duration::from_secs(60), "{:?}", cpu_time() - begun);
}

/// The beginning of a batch of 0.5.23 with this as its first column.
fn with_rids(rids: &[u8]) -> Bytes {
    [b"\xdc\x00\x36\xb2BatchTokenIDOutput", rids, &[0xc0; 64]].concat().into()
}

fn error(frame: Bytes) -> WireError {
    match decode(frame, &Layouts::builtin()) {
        Decoded::Barrier(barrier) => match barrier.kind {
            BarrierKind::NotUnderstood { error } => error,
            kind => panic!("{kind:?}"),
        },
        Decoded::Batch(_) => panic!("a batch"),
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

#[test]
fn nesting_has_a_bound() {
    let deep = |depth: usize| [&vec![0x91; depth][..], &[0xc0]].concat();
    let too_deep = WireError::Pack(PackError::TooDeep { at: 22 + 31 });
    assert_eq!(error(with_rids(&deep(1_000_000))), too_deep);
    assert_eq!(error(with_rids(&deep(32))), too_deep);
    assert!(!matches!(error(with_rids(&deep(31))), WireError::Pack(PackError::TooDeep { .. })));
}

#[test]
fn what_is_neither_pickle_nor_msgpack_struct_is_passed_on() {
    for frame in [&b""[..], b"\xc0", b"hello", b"\x80", b"\x80\x06", b"\x80\x80", b"\xff\xff\xff\xff\xff"] {
        let it = error(Bytes::from_static(frame));
        assert_eq!(it, WireError::NotAFrame { head: frame.iter().copied().take(4).collect() });
    }
    assert_eq!(error(Bytes::from_static(b"\x90")), WireError::Pack(PackError::NoTag));
    assert_eq!(error(Bytes::from_static(b"\x91\x01")), WireError::Pack(PackError::NoTag));
    assert_eq!(error(Bytes::from_static(b"\x91\xa1\xff")), WireError::Pack(PackError::NoTag));
    assert_eq!(error(Bytes::from_static(b"\xc1")), WireError::NotAFrame { head: vec![0xc1] });
}

#[test]
fn long_headers_are_as_good_as_short_ones() {
    // The array of fields, the tag, and rids, each with the longest header there is.
    let frame = sample("versions/0.5.23/tokid_n1.msgpack");
    let tag = b"BatchTokenIDOutput";
    assert_eq!(frame.bytes[..4], [0xdc, 0, 54, 0xa0 | tag.len() as u8]);
    let rids = 4 + tag.len();
    assert_eq!(frame.bytes[rids], 0x91);
    let long =
        [b"\xdd\0\0\0\x36\xdb\0\0\0\x12", &tag[..], b"\xdd\0\0\0\x01", &frame.bytes[rids + 1..]].concat();
    let Decoded::Batch(batch) = decode(long.into(), &Layouts::builtin()) else { panic!("not understood") };
    assert_same(&frame.name, &open(&batch), &open(&read_batch(&frame.bytes)));
}

#[test]
fn a_name_of_a_class_that_is_too_long_is_cut() {
    let frame = [&b"\x91\xdb\0\0\x10\0"[..], &[b'x'; 4096]].concat();
    let Decoded::Barrier(barrier) = decode(frame.into(), &Layouts::builtin()) else { panic!("a batch") };
    assert_eq!(barrier.kind, BarrierKind::Control { tag: "x".repeat(128) });
}

/// A pickled batch of 0.5.14's shape, its columns by this function; values put in the memo can be said again.
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

/// A list of `rows` items: `first`, which is memoized, said again and again.
fn again(first: &[u8], memo: u8, rows: usize) -> Vec<u8> {
    let mut out = b"](".to_vec();
    out.extend(first);
    out.extend([b'q', memo]);
    (1..rows).for_each(|_| out.extend([b'h', memo]));
    out.push(b'e');
    out
}

#[test]
fn a_pickle_that_says_one_value_many_times_is_bounded() {
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
    // A column that is not read until it is joined or edited; all rows are of one request.
    let frame = batch(one, none, few, list(ROWS));
    let batch = read_batch(&frame);
    let expands = afterbay_wire::RowsError::Expands { name: "output_token_logprobs_val".into() };
    assert_eq!(Batch::join(&[Part::from(&batch)]).unwrap_err(), expands);
    let edits: Vec<_> =
        (0..batch.rows()).map(|row| Edit { tokens: Tokens::Empty, ..Edit::new(row) }).collect();
    assert_eq!(batch.edit(&edits).unwrap_err(), expands);
    assert_eq!(batch.take(&[0, 1, 2]).unwrap().rows(), 3);
    assert!(batch.to_json(Wrapped::Open)["output_token_logprobs_val"].is_array());
    assert!(cpu_time() - begun < Duration::from_secs(10), "{:?}", cpu_time() - begun);
}

#[test]
fn a_tensor_that_is_said_many_times_does_not_pass_the_detokenizer() {
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
