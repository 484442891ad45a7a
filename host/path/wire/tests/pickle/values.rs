//! Handmade values: views, memo references, and rows of several trees written as one batch.

use afterbay_wire::pickle::{Node, NodeId, Object, PickleWriteError, PickleWriter, SourceId, Tree};
use bytes::Bytes;

use crate::fixtures::{entries, frame, python, read};

fn parse(pickle: &[u8]) -> Tree {
    Tree::parse(Bytes::copy_from_slice(pickle)).unwrap()
}

#[test]
fn a_node_shows_its_value() {
    let tree = parse(b"\x80\x05(N\x88K\x07J\xff\xff\xff\xffG\x3f\xf8\0\0\0\0\0\0\x8c\x01aC\x02bct.");
    let &[none, yes, seven, minus, float, text, bytes] = tree.items(tree.root()).unwrap() else { panic!() };
    assert!(tree.is_none(none) && !tree.is_none(yes));
    assert_eq!((tree.bool(yes), tree.bool(none), tree.int(yes)), (Some(true), None, None));
    assert_eq!((tree.int(seven), tree.int(minus), tree.int(float)), (Some(7), Some(-1), None));
    assert_eq!((tree.float(float), tree.float(seven)), (Some(1.5), None));
    assert_eq!((tree.str(text), tree.str(bytes)), (Some("a"), None));
    assert_eq!((tree.bytes(bytes), tree.bytes(text)), (Some(&b"bc"[..]), None));
    assert_eq!((tree.items(none), tree.protocol()), (None, 5));
}

#[test]
fn a_long_of_eight_bytes_is_an_int_and_a_longer_one_is_not() {
    for (pickle, value) in [
        (&b"\x8a\0."[..], 0),
        (b"\x8a\x01\xff.", -1),
        (b"\x8a\x02\xff\0.", 255),
        (b"\x8a\x08\0\0\0\0\0\0\0\x80.", i64::MIN),
        (b"\x8b\x08\0\0\0\xff\xff\xff\xff\xff\xff\xff\x7f.", i64::MAX),
    ] {
        let tree = parse(pickle);
        assert_eq!(tree.int(tree.root()), Some(value));
    }
    let tree = parse(b"\x8a\x09\0\0\0\0\0\0\0\x80\0.");
    assert!(matches!(tree.node(tree.root()), Node::BigInt(b"\0\0\0\0\0\0\0\x80\0")));
}

#[test]
fn a_str_with_lone_surrogates_is_carried_and_is_no_rust_str() {
    let tree = parse(b"\x8c\x05a\xed\xa0\x80b.");
    assert!(matches!(tree.node(tree.root()), Node::Surrogates(b"a\xed\xa0\x80b")));
    assert_eq!(tree.str(tree.root()), None);
    assert!(tree.write().unwrap().windows(5).any(|bytes| bytes == b"a\xed\xa0\x80b"));
}

#[test]
fn a_key_that_is_there_twice_has_the_later_value() {
    let tree = parse(b"}(\x8c\x01aK\x01\x8c\x01bK\x02\x8c\x01aK\x03u.");
    let value = |key| tree.get(tree.root(), key).and_then(|value| tree.int(value));
    assert_eq!((value("a"), value("b"), value("c")), (Some(3), Some(2), None));
    assert_eq!(tree.pairs(tree.root()).unwrap().len(), 3);
}

#[test]
fn the_memo_refers_to_the_object_and_sees_what_it_becomes() {
    // [x, x] with x memoized empty and then filled
    let tree = parse(b"](]\x94Nah\0e.");
    let &[one, other] = tree.items(tree.root()).unwrap() else { panic!() };
    assert_eq!(one, other);
    assert_eq!(tree.items(one).unwrap().len(), 1);
    // (m.C(), built with {}; the same)
    let tree = parse(b"cm\nC\n)\x81\x94}bh\0\x86.");
    let &[one, other] = tree.items(tree.root()).unwrap() else { panic!() };
    assert_eq!(one, other);
    assert!(matches!(tree.node(one), Node::Build { .. }));
    // from the memo before it is built: (m.C(), the same, built)
    let tree = parse(b"cm\nC\n)\x81\x94h\0}b\x86.");
    let &[one, other] = tree.items(tree.root()).unwrap() else { panic!() };
    assert_eq!(one, other);
    assert!(matches!(tree.node(one), Node::Build { .. }));
}

#[test]
fn memoize_takes_the_index_after_as_many_as_were_put() {
    let tree = parse(b"N\x94K\x07\x94\x86h\x01\x86.");
    assert_eq!(tree.int(tree.items(tree.root()).unwrap()[1]), Some(7));
}

#[test]
fn an_object_is_given_its_items_and_states_in_the_order_they_came() {
    // m.C(); append 1; ["a"] = 2; state {}; append 3
    let pickle = b"cm\nC\n)R\x94K\x01a\x8c\x01aK\x02s}bK\x03a.";
    let tree = parse(&parse(pickle).write().unwrap());
    let Node::Append { object, items } = tree.node(tree.root()) else { panic!() };
    assert_eq!(tree.int(tree.items(items).unwrap()[0]), Some(3));
    let Node::Build { object, .. } = tree.node(object) else { panic!() };
    let Node::SetItems { object, items } = tree.node(object) else { panic!() };
    assert_eq!(tree.pairs(items).unwrap().len(), 1);
    let Node::Append { object, items } = tree.node(object) else { panic!() };
    assert_eq!(tree.int(tree.items(items).unwrap()[0]), Some(1));
    assert!(matches!(tree.node(object), Node::Reduce { .. }));
    let object = tree.object(tree.root()).unwrap();
    assert_eq!(object, Object { module: "m", name: "C", fields: None });
}

#[test]
fn lists_filled_by_turns_keep_their_items() {
    for seed in 1..=200u64 {
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut pickle = b"]\x94]\x94]\x94".to_vec();
        let mut expected = [vec![], vec![], vec![]];
        for turn in 0..60 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let (list, count) = (random as usize % 3, random as usize >> 8 & 3);
            pickle.extend([b'h', list as u8, b'(']);
            pickle.extend([b'K', turn].repeat(count));
            pickle.extend(b"e0");
            expected[list].extend([i64::from(turn)].repeat(count));
        }
        pickle.extend(b"\x87.");
        let tree = parse(&pickle);
        for (list, expected) in tree.items(tree.root()).unwrap().iter().zip(expected) {
            let mut ids = Vec::new();
            tree.ids(*list, &mut ids).unwrap();
            assert_eq!(ids, expected, "seed {seed}");
        }
    }
}

#[test]
fn a_batch_of_either_shape_has_its_class_and_its_fields() {
    let versions = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../tests/fixtures/versions");
    for version in entries(versions.as_ref()) {
        let tree = Tree::parse(read(&version.join("tokid_n3.pickle"))).unwrap();
        let object = tree.object(tree.root()).unwrap();
        assert_eq!((object.module, object.name), ("sglang.srt.managers.io_struct", "BatchTokenIDOutput"));
        let fields = object.fields.unwrap();
        let rids = tree.items(tree.get(fields, "rids").unwrap()).unwrap();
        assert!(rids.len() == 3 && rids.iter().all(|rid| tree.str(*rid).is_some()));
        for ids in tree.items(tree.get(fields, "output_ids").unwrap()).unwrap() {
            assert_eq!(tree.ids_len(*ids), tree.ids(*ids, &mut Vec::new()));
            assert_eq!(tree.ids_len(*ids), Some(1));
        }
    }
}

#[test]
fn every_integer_array_and_list_is_read_as_ids_and_nothing_else_is() {
    let folder = tempfile::tempdir().unwrap();
    python("make", folder.path());
    let tree = Tree::parse(read(&folder.path().join("arrays.5"))).unwrap();
    let arrays = tree.items(tree.root()).unwrap();
    assert_eq!(arrays.len(), 13);
    for (array, code) in arrays.iter().zip("bBhHiIlLqQfd".chars()) {
        let mut ids = vec![9];
        // Eight unsigned bytes may not fit; floats are not ids.
        match "LQfd".contains(code) {
            true => assert_eq!((tree.ids(*array, &mut ids), ids.as_slice()), (None, &[9][..]), "{code}"),
            false => assert_eq!((tree.ids(*array, &mut ids), ids.as_slice()), (Some(3), &[9, 0, 1, 127][..])),
        }
        assert_eq!(tree.ids_len(*array), (!"LQfd".contains(code)).then_some(3));
    }
    assert_eq!(tree.ids(arrays[12], &mut Vec::new()), Some(0));

    let tree = parse(b"](](K\x01J\xff\xff\xff\xffe](K\x01Ne]Ne.");
    let mut ids = vec![9];
    let read: Vec<_> = tree.items(tree.root()).unwrap().iter().map(|id| tree.ids(*id, &mut ids)).collect();
    assert_eq!((read, ids), (vec![Some(2), None, Some(0), None], vec![9, 1, -1]));
}

#[test]
fn an_array_of_another_class_or_kind_or_of_no_whole_items_is_no_ids() {
    let array = |class: &str, typecode: &str, format: u8, bytes: &str| {
        let head = format!("carray\n_array_reconstructor\n(c{class}\nX\x01\0\0\0{typecode}K");
        let tail = format!("C{}{bytes}tR.", bytes.len() as u8 as char);
        let tree = parse(&[head.as_bytes(), &[format], tail.as_bytes()].concat());
        (tree.ids(tree.root(), &mut Vec::new()), tree.ids_len(tree.root()))
    };
    assert_eq!(array("array\narray", "q", 12, "abcdefgh"), (Some(1), Some(1)));
    assert_eq!(array("array\narray", "q", 12, "abcdefg"), (None, None));
    assert_eq!(array("array\narray", "d", 12, "abcdefgh"), (None, None));
    assert_eq!(array("array\narray", "q", 10, "abcdefgh"), (None, None));
    assert_eq!(array("my\nArray", "q", 12, "abcdefgh"), (None, None));
}

/// Writes a batch again row by row, taking the rows in turn from trees of the same bytes.
fn rows_by_turns(pickle: &Bytes) -> Bytes {
    let trees = [Tree::parse(pickle.clone()).unwrap(), Tree::parse(pickle.clone()).unwrap()];
    let mut writer = PickleWriter::new(trees[0].protocol());
    let sources = [writer.source(&trees[0]), writer.source(&trees[1])];
    let root = trees[0].root();
    let fields = trees[0].object(root).unwrap().fields.unwrap();
    writer
        .object(sources[0], root, |writer| {
            for (name, column) in trees[0].pairs(fields).unwrap() {
                writer.str(trees[0].str(name).unwrap());
                match trees[0].items(column) {
                    Some(cells) => writer.list(|writer| copy_by_turns(writer, sources, cells))?,
                    None => writer.copy(sources[1], column)?,
                }
            }
            Ok(())
        })
        .unwrap();
    writer.finish().unwrap()
}

fn copy_by_turns(
    writer: &mut PickleWriter,
    sources: [SourceId; 2],
    cells: &[NodeId],
) -> Result<(), PickleWriteError> {
    cells.iter().enumerate().try_for_each(|(row, cell)| writer.copy(sources[row % 2], *cell))
}

#[test]
fn rows_of_several_trees_make_a_batch_that_is_the_same_to_cpython() {
    let folder = tempfile::tempdir().unwrap();
    let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../tests/fixtures");
    let mut written = 0;
    for shape in ["frames", "versions/0.5.6", "versions/0.5.14", "versions/0.5.15"] {
        for path in entries(format!("{fixtures}/{shape}").as_ref()) {
            let name = path.file_name().unwrap().to_str().unwrap();
            if name.ends_with(".pickle") && !name.starts_with("ctl") {
                let to = folder.path().join(format!("{}_{name}", shape.replace('/', "_")));
                std::fs::write(&to, read(&path)).unwrap();
                std::fs::write(format!("{}.again", to.display()), rows_by_turns(&read(&path))).unwrap();
                written += 1;
            }
        }
    }
    assert!(written > 60, "{written}");
    // Rows that shared an object no longer do if they come from two trees.
    assert_eq!(python("compare-values", folder.path()).trim(), written.to_string());
}

#[test]
fn a_global_of_several_trees_is_written_once() {
    let pickle = rows_by_turns(&frame("tokid_n64"));
    for name in ["_array_reconstructor", "SchedulerReqTimeStats"] {
        assert_eq!(pickle.windows(name.len()).filter(|at| *at == name.as_bytes()).count(), 1, "{name}");
    }
}

#[test]
fn ids_are_written_as_an_array_or_a_list() {
    let ids = [0, 255, -1, i64::MAX, i64::MIN];
    let mut writer = PickleWriter::new(5);
    writer
        .tuple(|writer| {
            writer.id_array(&ids);
            writer.id_list(&ids)?;
            writer.id_array(&[7; 100]);
            writer.id_array(&[]);
            writer.id_list(&[])
        })
        .unwrap();
    let pickle = writer.finish().unwrap();
    let tree = parse(&pickle);
    let read = |at: usize| {
        let mut out = Vec::new();
        tree.ids(tree.items(tree.root()).unwrap()[at], &mut out).unwrap();
        out
    };
    assert_eq!((read(0), read(1), read(2)), (ids.to_vec(), ids.to_vec(), vec![7; 100]));
    assert_eq!((read(3), read(4)), (vec![], vec![]));
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("ids"), &pickle).unwrap();
    std::fs::write(folder.path().join("ids.again"), tree.write().unwrap()).unwrap();
    python("compare", folder.path());
}

#[test]
fn a_pickle_is_one_frame_as_long_as_itself() {
    for (protocol, header) in [(0, 4), (4, 4), (5, 5), (200, 5)] {
        let mut writer = PickleWriter::new(protocol);
        writer.bytes(&[7; 200_000]);
        let pickle = writer.finish().unwrap();
        assert_eq!(pickle[..3], [0x80, header, 0x95]);
        assert_eq!(u64::from_le_bytes(pickle[3..11].try_into().unwrap()), pickle.len() as u64 - 11);
    }
}

#[test]
fn a_bytearray_makes_the_pickle_one_of_protocol_five() {
    let tree = parse(b"\x80\x05\x96\x01\0\0\0\0\0\0\0a.");
    let mut writer = PickleWriter::new(4);
    let source = writer.source(&tree);
    writer.copy(source, tree.root()).unwrap();
    assert_eq!(writer.finish().unwrap()[1], 5);
}

#[test]
fn a_pickle_that_is_not_one_value_is_not_written() {
    assert_eq!(PickleWriter::new(5).finish(), Err(PickleWriteError::NotOneValue(0)));
    let mut writer = PickleWriter::new(5);
    writer.none();
    writer.int(1);
    assert_eq!(writer.finish(), Err(PickleWriteError::NotOneValue(2)));
    let mut writer = PickleWriter::new(5);
    let odd = writer.dict(|writer| {
        writer.str("key");
        Ok(())
    });
    assert_eq!(odd, Err(PickleWriteError::Unpaired(1)));
}

#[test]
fn an_object_without_named_fields_is_no_model() {
    for pickle in [&b"N."[..], b"cm\nC\n)R.", b"cm\nC\n)\x81Nb.", b"cmsgspec._utils\nrebuild\n(cm\nC\nNtR."] {
        let tree = parse(pickle);
        let mut writer = PickleWriter::new(5);
        let source = writer.source(&tree);
        assert_eq!(writer.object(source, tree.root(), |_| Ok(())), Err(PickleWriteError::NoFields));
    }
}
