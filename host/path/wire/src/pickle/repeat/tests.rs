//! Reading ahead gives the same trees and the same errors as reading opcode by opcode.

use bytes::Bytes;
use proptest::prelude::*;

use crate::pickle::arena::{Arena, NodeId};
use crate::pickle::bounds::{MAX_ALIKE_BYTES, MAX_OPCODES};
use crate::pickle::error::OpcodeError;
use crate::pickle::parse::Parser;
use crate::pickle::tree::Tree;

type Parsed = Result<(NodeId, Arena), (usize, OpcodeError)>;

/// Parses a pickle opcode by opcode, or reads ahead.
fn parse(pickle: &[u8], opcodes_max: usize, is_plain: bool) -> (Parsed, Parser) {
    let mut parser = Parser::new();
    parser.is_plain = is_plain;
    parser.clear();
    parser.arena.clear();
    let parsed = parser.run(pickle, opcodes_max).map(|root| (root, parser.arena.clone()));
    (parsed, parser)
}

#[track_caller]
fn assert_as_plain(pickle: &[u8], opcodes_max: usize) -> Parsed {
    let (ahead, _) = parse(pickle, opcodes_max, false);
    assert_eq!(ahead, parse(pickle, opcodes_max, true).0, "{pickle:02x?}");
    ahead
}

fn fixture(name: &str) -> Bytes {
    let path = format!("{}/../../../tests/fixtures/frames/{name}.pickle", env!("CARGO_MANIFEST_DIR"));
    std::fs::read(path).unwrap().into()
}

/// A list of 12 values after a memoized class `a.b`, memo entry 0, and a memoized str, entry 1.
fn list(values: impl Fn(u8) -> Vec<u8>) -> Vec<u8> {
    let values: Vec<_> = (0..12).flat_map(values).collect();
    [&b"\x80\x05](ca\nb\n\x94\x8c\x01x\x94"[..], &values, b"e."].concat()
}

/// A row's array of token ids, as CPython writes it.
fn array(row: u8) -> Vec<u8> {
    [&b"h\0(h\0h\x01K\x0cC\x08"[..], &[row; 8], b"\x94t\x94R\x94"].concat()
}

#[test]
fn real_frames_give_the_same_trees() {
    for name in ["tokid_n1024", "tokid_n64", "tokid_n3_time_stats_metrics", "tokid_logprobs", "str_n64"] {
        let pickle = fixture(name);
        assert_as_plain(&pickle, MAX_OPCODES).unwrap();
    }
}

#[test]
fn changed_and_cut_frames_give_the_same_trees_or_errors() {
    let pickle = fixture("tokid_n64");
    for at in (0..pickle.len()).step_by(47) {
        assert_as_plain(&pickle[..at], MAX_OPCODES).unwrap_err();
        for changed in [0, b'K', b'h', 0x94, !pickle[at]] {
            let mut pickle = pickle.to_vec();
            pickle[at] = changed;
            let _either = assert_as_plain(&pickle, MAX_OPCODES);
        }
    }
}

#[test]
fn the_limit_of_opcodes_ends_at_the_same_opcode() {
    let stats = |row: u8| [&b"h\0)\x81\x94}\x94(h\x01G"[..], &[row; 8], b"ub"].concat();
    let text = |row: u8| [&b"\x8c\x02"[..], &[row; 2]].concat();
    let memoized = |row| [text(row), b"\x94".to_vec()].concat();
    let get = |_| b"h\x01".to_vec();
    let columns: [&dyn Fn(u8) -> Vec<u8>; 7] =
        [&array, &stats, &|row| vec![b'K', row], &|_| b"N".to_vec(), &get, &text, &memoized];
    for column in columns {
        let pickle = list(column);
        let needed = (0..).find(|max| parse(&pickle, *max, true).0.is_ok()).unwrap();
        assert!((0..needed).all(|max| assert_as_plain(&pickle, max).is_err()));
        assert_as_plain(&pickle, needed).unwrap();
    }
}

#[test]
fn values_alike_are_read_at_once() {
    let floats = |row: u8| [&b"h\0)\x81\x94}\x94(h\x01G"[..], &[row; 8], b"h\x01Nub"].concat();
    for values in [list(array), list(floats)] {
        let (parsed, parser) = parse(&values, MAX_OPCODES, false);
        parsed.unwrap();
        assert!(parser.has_learned(), "{values:02x?}");
    }
}

#[test]
fn texts_that_are_not_ascii_or_differ_in_length_are_read_as_one_by_one() {
    let text = |row: u8| [&[0x8c, 2 + row / 8], &b"abc"[..2 + usize::from(row / 8)]].concat();
    let memoized = |row| [text(row), b"\x94".to_vec()].concat();
    let memoized_late = |row: u8| [text(row), if row < 4 { vec![] } else { b"\x94".to_vec() }].concat();
    let accent = |row: u8| if row == 5 { b"\x8c\x02\xc3\xa9\x94".to_vec() } else { memoized(row) };
    let invalid = |row: u8| if row == 5 { b"\x8c\x02\xff\xfe\x94".to_vec() } else { memoized(row) };
    let gap = |row: u8| if row == 2 { [text(row), b"q\x63".to_vec()].concat() } else { memoized(row) };
    let columns: [&dyn Fn(u8) -> Vec<u8>; 6] = [&text, &memoized, &memoized_late, &accent, &invalid, &gap];
    for column in columns {
        let _either = assert_as_plain(&list(column), MAX_OPCODES);
    }
}

/// Values that change an earlier value, refer to a memo entry of their own, or are too long.
#[test]
fn values_that_only_look_alike_are_read_opcode_by_opcode() {
    let own_entry = |row: u8| [b"h\0(K\x01\x94h", &[2 + row][..], b"t"].concat();
    let same_entry = |_: u8| b"h\0(]\x94h\x02t\x85".to_vec();
    let changes_earlier = |_: u8| b"h\0)\x81(h\x02]e".to_vec();
    let no_items = |_: u8| b"h\0(](et".to_vec();
    let too_long = |_: u8| [&b"h\0("[..], &[b'N'; MAX_ALIKE_BYTES], b"t\x85"].concat();
    let columns: [&dyn Fn(u8) -> Vec<u8>; 5] =
        [&own_entry, &same_entry, &changes_earlier, &no_items, &too_long];
    for column in columns {
        let pickle = list(column);
        let _either = assert_as_plain(&pickle, MAX_OPCODES);
        assert!(!parse(&pickle, MAX_OPCODES, false).1.has_learned());
    }
}

/// An opcode after a column of arrays may give one of them, which has a memo entry, a state.
#[test]
fn arrays_read_at_once_have_one_length_unless_one_of_them_changes_later() {
    let array = |row: u8| [&b"h\0(h\x01h\x02K\x0cC\x08"[..], &[row; 8], b"\x94t\x94R\x94"].concat();
    let arrays: Vec<u8> = (0..12).flat_map(array).collect();
    for (after, len) in [(&b""[..], Some(1)), (b"h\x1aNb0", None)] {
        let names = b"\x80\x05(carray\n_array_reconstructor\n\x94carray\narray\n\x94\x8c\x01q\x94";
        let pickle = [&names[..], b"](", &arrays, b"e", after, b"t."].concat();
        let (parsed, parser) = parse(&pickle, MAX_OPCODES, false);
        assert!(parsed.is_ok() && parser.has_learned());
        let tree = Tree::parse(pickle.into()).unwrap();
        let column = tree.items(tree.root()).unwrap()[3];
        assert_eq!(tree.equal_ids_len(tree.items(column).unwrap()), len);
    }
}

/// Opcodes with their arguments, in which 0xff stands for a byte that differs from row to row.
const OPCODES: [&[u8]; 28] = [
    b"h\0",
    b"h\x01",
    b"h\x02",
    b"j\0\0\0\0",
    b"N",
    b"\x88",
    b"K\xff",
    b"K\x05",
    b"M\x01\x02",
    b"C\x03\xff\xff\xff",
    b"C\0",
    b"G\xff\xff\xff\xff\xff\xff\xff\xff",
    b"\x8c\x02ab",
    b"\x8c\x02\xff\xff",
    b"\x8c\x02\xc3\xa9",
    b"]",
    b"}",
    b")",
    b"(",
    b"t",
    b"\x85",
    b"\x86",
    b"\x94",
    b"R",
    b"\x81",
    b"b",
    b"e",
    b"u",
];

proptest! {
    #[test]
    fn rows_of_any_opcodes_give_the_same_trees_or_errors(
        opcodes in prop::collection::vec(prop::sample::select(&OPCODES[..]), 0..14),
        is_made_valid: bool,
    ) {
        // Most random rows are invalid at once, so an opcode that makes the first row invalid is left out.
        let mut row = b"h\0".to_vec();
        for opcode in opcodes {
            let length = row.len();
            row.extend_from_slice(opcode);
            let first = [&b"](ca\nb\n\x94\x8c\x01x\x94"[..], &row].concat();
            if is_made_valid && !matches!(parse(&first, MAX_OPCODES, true).0, Err((at, _)) if at == first.len()) {
                row.truncate(length);
            }
        }
        let values = |number: u8| row.iter().map(|byte| if *byte == 0xff { number } else { *byte }).collect();
        let _either = assert_as_plain(&list(values), MAX_OPCODES);
    }
}
