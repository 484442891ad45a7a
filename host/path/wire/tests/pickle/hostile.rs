//! Cut, broken and hostile input ends in an error value, soon, and never in a panic.

use std::time::{Duration, Instant};

use afterbay_wire::pickle::{
    MAX_DEPTH, MAX_OPCODES, MAX_PICKLE_BYTES, OpcodeError, ParseError, PickleWriteError, Tree,
};
use bytes::Bytes;

use crate::fixtures::frame;
use crate::same::assert_same;

/// The time limit of each test here. Each takes less than a second, unoptimised.
const SOON: Duration = Duration::from_secs(20);

fn parse(pickle: &[u8]) -> Result<Tree, ParseError> {
    Tree::parse(Bytes::copy_from_slice(pickle))
}

fn fault(pickle: &[u8]) -> OpcodeError {
    match parse(pickle) {
        Err(ParseError::Opcode { fault, .. }) => fault,
        other => panic!("{other:?}"),
    }
}

fn soon<T>(work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let done = work();
    assert!(start.elapsed() < SOON, "took {:?}", start.elapsed());
    done
}

#[test]
fn a_frame_cut_anywhere_is_an_error() {
    for name in
        ["tokid_n3", "tokid_finished", "str_finished", "emb_n2", "ctl_abort", "tokid_n3_time_stats_metrics"]
    {
        let pickle = frame(name);
        for end in 0..pickle.len() {
            assert!(Tree::parse(pickle.slice(..end)).is_err(), "{name} cut at {end}");
        }
    }
}

#[test]
fn a_frame_with_bytes_flipped_is_an_error_or_a_tree_that_can_be_written() {
    for name in
        ["tokid_n3", "str_finished", "tokid_logprobs", "tokid_customized_info", "tokid_n3_time_stats_metrics"]
    {
        let pickle = frame(name);
        for seed in 1..=1500u64 {
            let mut broken = pickle.to_vec();
            let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            for _ in 0..=seed % 3 {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                let at = random as usize % broken.len();
                broken[at] ^= 1 << (random >> 61) | (random >> 40) as u8 & 0x18;
            }
            let outcome = std::panic::catch_unwind(|| survives(&broken));
            assert!(outcome.is_ok(), "{name}, seed {seed}");
        }
    }
}

fn survives(pickle: &[u8]) {
    let Ok(tree) = parse(pickle) else { return };
    match tree.write() {
        Ok(again) => assert_same(&tree, &parse(&again).unwrap()),
        Err(error) => {
            assert!(matches!(error, PickleWriteError::TooDeep | PickleWriteError::Cycle), "{error}")
        }
    }
}

#[test]
fn an_unsupported_opcode_is_named() {
    // Persistent ids, extensions, buffers, INST and OBJ, strings of Python 2, and a byte that is no opcode.
    for opcode in b"PQ\x82\x83\x84\x97\x98ioSTU\x00\xff\x99".iter() {
        let error = parse(&[0x80, 5, b'N', *opcode, b'a', b'\n', b'b', b'\n', b'.']).unwrap_err();
        assert_eq!(error.to_string(), format!("opcode {opcode:#04x} at offset 3 is not understood"));
    }
    // Opcodes of protocols below 4: INT, LONG, FLOAT, UNICODE, LIST, DICT, PUT, BINPUT, LONG_BINPUT and GET.
    for opcode in b"ILFVldpqrg".iter() {
        assert_eq!(fault(&[b'(', *opcode, b'1', b'\n', b'.']), OpcodeError::NotUnderstood, "{opcode}");
    }
}

#[test]
fn a_declared_length_beyond_the_bytes_is_refused_before_anything_is_made() {
    let long = u64::to_le_bytes(1 << 63);
    for opcode in [0x8d, 0x8e, 0x96, 0x95] {
        let pickle = [&[opcode], &long[..], b"."].concat();
        assert_eq!(fault(&pickle), OpcodeError::Cut { needed: 1 << 63, left: 1 });
    }
    for opcode in [b'X', b'B', 0x8b] {
        let pickle = [&[opcode], &[0xff; 4][..], b"."].concat();
        assert_eq!(fault(&pickle), OpcodeError::Cut { needed: 0xffff_ffff, left: 1 });
    }
    assert_eq!(
        parse(b"\x8c\x03ab").unwrap_err().to_string(),
        "opcode 0x8c at offset 0 needs 3 bytes, 2 are left"
    );
}

#[test]
fn a_pickle_that_is_cut_or_goes_on_says_so() {
    assert_eq!(parse(b"").unwrap_err(), ParseError::NoStop { offset: 0 });
    assert_eq!(parse(b"\x80\x05N").unwrap_err(), ParseError::NoStop { offset: 3 });
    assert_eq!(fault(b"N.N."), OpcodeError::Trailing(2));
    assert_eq!(fault(b"."), OpcodeError::Unfinished(0));
    assert_eq!(fault(b"NN."), OpcodeError::Unfinished(2));
    assert_eq!(fault(b"N(."), OpcodeError::Unfinished(2));
    for protocol in [0, 3, 6] {
        assert_eq!(fault(&[0x80, protocol, b'N', b'.']), OpcodeError::Protocol(protocol));
    }
    assert_eq!(fault(b"c12"), OpcodeError::Cut { needed: 3, left: 2 });
}

#[test]
fn a_stack_or_memo_that_does_not_hold_is_an_error() {
    for pickle in [
        &b"a."[..],
        b"Na.",
        b"]N(a.",
        b"](Na.",
        b"}(NNs.",
        b"0.",
        b"(N\x85\x86.",
        b"2.",
        b"\x94.",
        b"N(\x94.",
        b"R.",
        b"b.",
        b"s.",
    ] {
        assert!(matches!(fault(pickle), OpcodeError::NoValue | OpcodeError::NoMark), "{pickle:?}");
    }
    for pickle in [&b"t."[..], b"e.", b"Nu.", b"1.", b"(tt."] {
        assert_eq!(fault(pickle), OpcodeError::NoMark, "{pickle:?}");
    }
    assert_eq!(fault(b"h\x00."), OpcodeError::NoMemo(0));
    assert_eq!(fault(b"N\x94j\xff\xff\xff\xff."), OpcodeError::NoMemo(0xffff_ffff));
}

#[test]
fn a_mark_guards_what_is_below_it_also_after_an_inner_one() {
    // None; a mark; an inner mark made into a tuple; the tuple popped; the mark popped
    let tree = parse(b"N((t00.").unwrap();
    assert!(tree.is_none(tree.root()));
    assert_eq!(fault(b"N((t0\x85."), OpcodeError::NoValue);
}

#[test]
fn a_value_of_the_wrong_kind_is_an_error() {
    let pickles: [&[u8]; 13] = [
        b"NNa.",
        b"N(Ne.",
        b"NNNs.",
        b"}(Nu.",
        b"](N\x90.",
        b"N(N\x90.", // put into what takes none, or odd
        b"NNR.",
        b"NN\x81.",
        b"N))\x92.", // arguments that are no tuple, no dict
        b"NNb.",
        b"cos\nsystem\nNb.", // a state for what is no object
        b"NN\x93.",
        b"\x8c\x01aK\x01\x93.", // a global whose name is no str
    ];
    for pickle in pickles {
        assert_eq!(fault(pickle), OpcodeError::WrongKind, "{pickle:?}");
    }
    for pickle in [&b"\x8c\x01\xff."[..], b"\x8c\x02\xed\xa0."] {
        assert_eq!(fault(pickle), OpcodeError::BadText, "{pickle:?}");
    }
    assert_eq!(fault(b"\x8c\x03\xed\xa0\x80\x8c\x01a\x93."), OpcodeError::BadText);
}

#[test]
fn a_million_levels_are_read_and_not_written() {
    let levels = 1_000_000;
    let lists = [vec![b']'; levels], vec![b'a'; levels - 1], vec![b'.']].concat();
    let tuples = [vec![b')'], vec![0x85; levels], vec![b'.']].concat();
    let marks = [vec![b'('; levels], vec![b't'; levels], vec![b'.']].concat();
    let dicts = [b"}N".repeat(levels), b"}".to_vec(), vec![b's'; levels], vec![b'.']].concat();
    for pickle in [lists, tuples, marks, dicts] {
        let tree = soon(|| parse(&pickle).unwrap());
        assert_eq!(soon(|| tree.write()), Err(PickleWriteError::TooDeep));
    }
}

#[test]
fn nesting_at_the_limit_is_written_and_one_more_is_not() {
    let nested = |levels: usize| [&b"]".repeat(levels)[..], &b"a".repeat(levels - 1), b"."].concat();
    parse(&nested(MAX_DEPTH)).unwrap().write().unwrap();
    assert_eq!(parse(&nested(MAX_DEPTH + 1)).unwrap().write(), Err(PickleWriteError::TooDeep));
}

#[test]
fn a_memo_bomb_stays_as_small_as_it_is() {
    // Each level holds the one before twice: 2^100 leaves.
    let mut pickle = b"N\x85\x94".to_vec();
    for level in 0..100 {
        pickle.extend([b'h', level, 0x86, 0x94]);
    }
    pickle.push(b'.');
    let tree = soon(|| parse(&pickle).unwrap());
    let again = soon(|| tree.write().unwrap());
    assert!(again.len() <= pickle.len() + 11, "{} bytes of {}", again.len(), pickle.len());

    // The same with DUP, and with lists.
    let dup = [b"N\x85".to_vec(), b"2\x86".repeat(100), b".".to_vec()].concat();
    assert!(soon(|| parse(&dup).unwrap().write().unwrap()).len() < 1000);
    let lists = [b"]".to_vec(), b"2\x86\x85".repeat(50), b".".to_vec()].concat();
    assert!(soon(|| parse(&lists).unwrap().write().unwrap()).len() < 1000);
}

#[test]
fn a_value_that_contains_itself_is_carried_if_possible_and_an_error_otherwise() {
    for pickle in [
        &b"]\x94h\0a."[..],
        b"}\x94Nh\0s.",
        b"cm\nC\n)\x81\x94}Nh\0sb.",
        b"cm\nC\n)R\x94h\0a.",
        b"\x8f\x94(h\0\x90.",
    ] {
        let tree = parse(pickle).unwrap();
        let again = parse(&tree.write().unwrap()).unwrap();
        assert_same(&tree, &again);
    }
    // t = ([t],), a class given a list of its own instance
    for pickle in [&b"]\x94\x85\x94h\0h\x01a0."[..], b"cm\nC\n]\x94\x85R\x94h\0h\x01a0."] {
        assert_eq!(parse(pickle).unwrap().write(), Err(PickleWriteError::Cycle));
    }
}

#[test]
fn a_million_items_one_by_one_stay_linear() {
    // Two lists in turn, so that neither can grow in place.
    let turns = [b"]\x94]\x94".to_vec(), b"h\0Na0h\x01Na0".repeat(500_000), b"\x86.".to_vec()].concat();
    let tree = soon(|| parse(&turns).unwrap());
    assert!(tree.items(tree.root()).unwrap().iter().all(|list| tree.items(*list).unwrap().len() == 500_000));
    // An object given as many states.
    let states = [b"cm\nC\n)\x81".to_vec(), b"Nb".repeat(1_000_000), b".".to_vec()].concat();
    let tree = soon(|| parse(&states).unwrap());
    assert_eq!(soon(|| tree.object(tree.root())), None);
    assert_eq!(soon(|| tree.write().unwrap()).iter().filter(|byte| **byte == b'b').count(), 1_000_000);
}

#[test]
fn too_many_opcodes_and_too_many_bytes_are_refused() {
    let enough = [b"N0".repeat(MAX_OPCODES / 2 - 1), b"N.".to_vec()].concat();
    soon(|| parse(&enough).unwrap());
    let pickle = [b"N0".repeat(MAX_OPCODES / 2), b"N.".to_vec()].concat();
    assert_eq!(soon(|| fault(&pickle)), OpcodeError::TooMany);
    let bytes = MAX_PICKLE_BYTES + 1;
    assert_eq!(Tree::parse(vec![0; bytes].into()).unwrap_err(), ParseError::TooLong { bytes });
}
