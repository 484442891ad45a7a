//! Random values, written, read, and written again.

use afterbay_wire::pickle::{Node, NodeId, PickleWriteError, PickleWriter, Tree};
use proptest::prelude::*;

use crate::fixtures::python;
use crate::same::assert_same;

#[derive(Clone, Debug, PartialEq)]
enum Value {
    None,
    Bool(bool),
    Int(i64),
    /// The float's bits, which can be compared.
    Float(u64),
    Str(String),
    Bytes(Vec<u8>),
    Ids(Vec<i64>),
    List(Vec<Value>),
    Tuple(Vec<Value>),
    Dict(Vec<(Value, Value)>),
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::None),
        any::<bool>().prop_map(Value::Bool),
        any::<i64>().prop_map(Value::Int),
        (-300..70_000i64).prop_map(Value::Int),
        any::<u64>().prop_map(Value::Float),
        ".{0,300}".prop_map(Value::Str),
        prop::collection::vec(any::<u8>(), 0..300).prop_map(Value::Bytes),
        prop::collection::vec(any::<i64>(), 0..40).prop_map(Value::Ids),
    ];
    leaf.prop_recursive(6, 60, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::List),
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::Tuple),
            prop::collection::vec((inner.clone(), inner), 0..4).prop_map(Value::Dict),
        ]
    })
}

fn write(writer: &mut PickleWriter, value: &Value) -> Result<(), PickleWriteError> {
    match value {
        Value::None => writer.none(),
        Value::Bool(value) => writer.bool(*value),
        Value::Int(int) => writer.int(*int),
        Value::Float(bits) => writer.float(f64::from_bits(*bits)),
        Value::Str(text) => writer.str(text),
        Value::Bytes(bytes) => writer.bytes(bytes),
        Value::Ids(ids) => writer.id_array(ids),
        Value::List(items) => {
            return writer.list(|writer| items.iter().try_for_each(|item| write(writer, item)));
        }
        Value::Tuple(items) => {
            return writer.tuple(|writer| items.iter().try_for_each(|item| write(writer, item)));
        }
        Value::Dict(pairs) => {
            return writer.dict(|writer| {
                pairs.iter().try_for_each(|(key, value)| {
                    write(writer, key)?;
                    write(writer, value)
                })
            });
        }
    }
    Ok(())
}

fn read(tree: &Tree, id: NodeId) -> Value {
    let all = |items: &[NodeId]| items.iter().map(|item| read(tree, *item)).collect();
    match tree.node(id) {
        Node::None => Value::None,
        Node::Bool(value) => Value::Bool(value),
        Node::Int(int) => Value::Int(int),
        Node::Float(float) => Value::Float(float.to_bits()),
        Node::Str(text) => Value::Str(text.into()),
        Node::Bytes(bytes) => Value::Bytes(bytes.into()),
        Node::List(items) => Value::List(all(items)),
        Node::Tuple(items) => Value::Tuple(all(items)),
        Node::Dict(pairs) => {
            Value::Dict(pairs.map(|(key, value)| (read(tree, key), read(tree, value))).collect())
        }
        Node::Reduce { .. } => {
            let mut ids = Vec::new();
            tree.ids(id, &mut ids).unwrap();
            Value::Ids(ids)
        }
        other => panic!("{other:?}"),
    }
}

proptest! {
    #[test]
    fn a_value_written_is_read_as_it_was(value in value(), protocol in 4..=5u8) {
        let mut writer = PickleWriter::new(protocol);
        write(&mut writer, &value).unwrap();
        let tree = Tree::parse(writer.finish().unwrap()).unwrap();
        prop_assert_eq!(read(&tree, tree.root()), value);
        assert_same(&tree, &Tree::parse(tree.write().unwrap()).unwrap());
    }
}

/// Values of a column: some of one kind and length one after the other. Their class and names are in the memo.
fn column(blocks: &[(u8, u8, u64)]) -> Vec<u8> {
    let mut pickle = b"\x80\x05](carray\n_array_reconstructor\n\x940carray\narray\n\x940\x8c\x01q\x940cstats\nStats\n\x940\
                       \x8c\x04time\x940\x8c\x05again\x940"
        .to_vec();
    for &(kind, count, content) in blocks {
        for number in 0..u64::from(count) {
            let bytes = (content.wrapping_add(number * 7919)).to_le_bytes();
            match kind {
                0 => {
                    let ids = bytes.repeat(1 + content as usize % 3);
                    pickle.extend(b"h\x00(h\x01h\x02K\x0cC");
                    pickle.push(ids.len() as u8);
                    pickle.extend(ids);
                    pickle.extend(b"tR");
                }
                1 => pickle.extend([b"h\x03)\x81}(h\x04G".as_slice(), &bytes, b"ub"].concat()),
                2 => pickle.extend([b"h\x03)\x81}(h\x04K".as_slice(), &bytes[..1], b"ub"].concat()),
                3 => {
                    let text = number.to_string().repeat(1 + content as usize % 4);
                    pickle.extend([&[0x8c, text.len() as u8], text.as_bytes()].concat());
                }
                4 => pickle.extend([b'M', bytes[0], bytes[1]]),
                5 => pickle.extend([b'K', content as u8]),
                6 => pickle.extend(b"h\x05"),
                7 => pickle.extend([b"](G".as_slice(), &bytes, b"C\x02", &bytes[..2], b"Ne"].concat()),
                8 => pickle.extend([b"](J".as_slice(), &bytes[..4], b"h\x05e\x940"].concat()),
                // Values that are referred to again.
                _ => pickle.extend([b"(C\x02".as_slice(), &bytes[..2], b"t\x94h", &[6]].concat()),
            }
        }
    }
    pickle.extend(b"e.");
    pickle
}

proptest! {
    #[test]
    fn nodes_copied_together_are_written_as_one_by_one(
        blocks in prop::collection::vec((0u8..9, 1u8..20, any::<u64>()), 0..8),
        again in any::<bool>(),
        cuts in prop::collection::vec((0u32..3, 1u32..30), 0..20),
    ) {
        let mut blocks = blocks;
        if again {
            // The last kind puts its values into the memo and gets the first.
            blocks.insert(0, (9, 3, 1));
        }
        let tree = Tree::parse(column(&blocks).into()).unwrap();
        let nodes = tree.items(tree.root()).unwrap();
        let mut ranges = Vec::new();
        let mut at = 0;
        for (skip, take) in cuts {
            let start = (at + skip).min(nodes.len() as u32);
            at = (start + take).min(nodes.len() as u32);
            ranges.push(start..at);
        }
        let picked = || ranges.iter().flat_map(|range| &nodes[range.start as usize..range.end as usize]);
        let written = |copy: &dyn Fn(&mut PickleWriter, afterbay_wire::pickle::SourceId) -> Result<(), PickleWriteError>| {
            let mut writer = PickleWriter::new(5);
            let source = writer.source(&tree);
            writer.list(|writer| copy(writer, source)).unwrap();
            writer.finish().unwrap()
        };
        let count = picked().count();
        let together = written(&|writer, source| writer.copy_ranges(source, nodes, ranges.iter().cloned(), count));
        let one_by_one = written(&|writer, source| picked().try_for_each(|id| writer.copy(source, *id)));
        prop_assert_eq!(together, one_by_one);
    }
}

#[test]
fn random_programs_written_again_are_the_same_to_cpython() {
    let folder = tempfile::tempdir().unwrap();
    let mut shared = 0;
    for seed in 1..=400u64 {
        let pickle = program(seed);
        let tree = Tree::parse(pickle.clone().into()).unwrap();
        match tree.write() {
            Ok(again) => {
                assert_same(&tree, &Tree::parse(again.clone()).unwrap());
                shared += usize::from(again.windows(2).any(|bytes| bytes == b"h\0"));
                std::fs::write(folder.path().join(seed.to_string()), pickle).unwrap();
                std::fs::write(folder.path().join(format!("{seed}.again")), again).unwrap();
            }
            Err(error) => assert_eq!(error, PickleWriteError::Cycle, "seed {seed}"),
        }
    }
    let compared: usize = python("compare-loadable", folder.path()).trim().parse().unwrap();
    assert!(compared > 200 && shared > 200, "{compared} compared, {shared} with something shared");
}

/// A program of random opcodes, without those that are invalid at their place.
fn program(seed: u64) -> Vec<u8> {
    let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut program = b"(".to_vec();
    for _ in 0..100 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let length = program.len();
        program.extend(OPCODES[(random >> 32) as usize % OPCODES.len()]);
        if Tree::parse([&program[..], b"t."].concat().into()).is_err() {
            program.truncate(length);
        }
    }
    program.extend(b"t.");
    program
}

const OPCODES: [&[u8]; 24] = [
    b"N",
    b"K\x07",
    b"\x8c\x01a",
    b"C\x01b",
    b"]",
    b"]\x94",
    b"}",
    b"}\x94",
    b"\x8f\x94",
    b")",
    b"cm\nC\n",
    b"cm\nC\n)\x81\x94",
    b"cm\nC\n)R\x94",
    b"h\0",
    b"h\x01",
    b"h\x02",
    b"2",
    b"a",
    b"s",
    b"b",
    b"\x85",
    b"\x86",
    b"R",
    b"(NNe",
];
