//! Pickles of CPython that are read and written again are the same to CPython.

use std::path::Path;

use afterbay_wire::pickle::{Parser, Tree};
use base64::Engine as _;
use bytes::Bytes;
use serde_json::Value;

use crate::fixtures::{entries, frame, jsons, pickles, python, read};
use crate::same::assert_same;

#[test]
fn every_frame_written_again_is_the_same_to_cpython() {
    let folder = tempfile::tempdir().unwrap();
    for (number, path) in pickles().iter().enumerate() {
        let name = format!("{number}_{}", path.file_name().unwrap().display());
        std::fs::write(folder.path().join(name), read(path)).unwrap();
    }
    assert_same_to_cpython(folder.path());
}

#[test]
fn every_pickle_inside_a_frame_is_the_same_to_cpython() {
    let folder = tempfile::tempdir().unwrap();
    let mut number = 0;
    for path in jsons() {
        each_bytes(&serde_json::from_slice(&read(&path)).unwrap(), &mut |pickle| {
            // Other columns have bytes that are not pickles.
            if pickle.starts_with(b"\x80\x04\x95") {
                number += 1;
                std::fs::write(folder.path().join(number.to_string()), pickle).unwrap();
            }
        });
    }
    assert!(number > 30, "{number} pickles found");
    assert_same_to_cpython(folder.path());
}

#[test]
fn every_kind_of_object_in_every_protocol_is_the_same_to_cpython() {
    let folder = tempfile::tempdir().unwrap();
    python("make", folder.path());
    assert!(entries(folder.path()).len() > 60);
    assert_same_to_cpython(folder.path());
}

#[test]
fn a_parser_reads_one_pickle_after_another() {
    let mut parser = Parser::new();
    for path in pickles() {
        let again = parser.parse(read(&path)).unwrap();
        assert_same(&Tree::parse(read(&path)).unwrap(), &again);
        parser.parse(read(&path).slice(..20)).unwrap_err();
    }
}

#[test]
fn the_memory_of_a_dropped_tree_is_reused_clean() {
    let first = Tree::parse(frame("tokid_n1024")).unwrap();
    for _ in 0..10 {
        let trees = [(); 6].map(|()| Tree::parse(frame("tokid_n1024")).unwrap());
        trees.iter().for_each(|tree| assert_same(&first, tree));
    }
}

#[test]
fn a_frame_written_again_is_no_longer_than_it_was() {
    for path in pickles() {
        let (pickle, again) = (read(&path), Tree::parse(read(&path)).unwrap().write().unwrap());
        assert!(again.len() <= pickle.len(), "{}: {} > {}", path.display(), again.len(), pickle.len());
    }
    assert!(frame("tokid_n1024").len() > 100_000, "so there is one with several frames");
}

/// Reads every pickle in the folder, writes it again beside it, and lets CPython compare both.
fn assert_same_to_cpython(folder: &Path) {
    let paths = entries(folder);
    for path in &paths {
        let tree = Tree::parse(read(path)).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let again = tree.write().unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert_same(&tree, &Tree::parse(again.clone()).unwrap());
        std::fs::write(format!("{}.again", path.display()), again).unwrap();
    }
    assert_eq!(python("compare", folder).trim(), paths.len().to_string());
}

fn each_bytes(value: &Value, found: &mut impl FnMut(Bytes)) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| each_bytes(item, found)),
        Value::Object(items) => match items.get("__bytes__") {
            Some(text) => {
                let bytes = base64::engine::general_purpose::STANDARD.decode(text.as_str().unwrap()).unwrap();
                found(bytes.into());
            }
            None => items.values().for_each(|item| each_bytes(item, found)),
        },
        _ => {}
    }
}
