//! Checks the table of columns against every field of every known version.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use afterbay_wire::columns::{COLUMNS, find};
use afterbay_wire::{BarrierKind, BatchKind, DecodedFrame, Layouts, WireError, decode};
use serde_json::Value;

use crate::samples::{all, introduction, root, sample};

/// Each field, and one place that has it.
fn every_field() -> BTreeMap<String, String> {
    let mut fields = BTreeMap::new();
    for entry in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("layouts")).unwrap() {
        let path = entry.unwrap().path();
        let layout: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        for kind in BatchKind::WITH_COLUMNS {
            for field in layout[kind.class()].as_array().unwrap() {
                fields.insert(field.as_str().unwrap().to_owned(), path.display().to_string());
            }
        }
    }
    for sample in all() {
        let Some(Value::Object(json)) = sample.json else { continue };
        if BatchKind::of_class(json["__struct__"].as_str().unwrap()).is_some() {
            json.keys().for_each(|field| _ = fields.insert(field.clone(), sample.name.clone()));
        }
    }
    fields.remove("__struct__");
    fields
}

#[test]
fn every_field_of_every_known_version_is_in_the_table() {
    let fields = every_field();
    assert!(fields.len() > 60, "{}", fields.len());
    for (field, place) in &fields {
        assert!(find(field).is_some(), "{field}, of {place}, is not in the table of what joining does");
    }
}

#[test]
fn the_table_has_no_field_that_no_version_has_and_none_twice() {
    let fields = every_field();
    for (at, column) in COLUMNS.iter().enumerate() {
        assert!(fields.contains_key(column.name), "{} is in no version", column.name);
        assert!(
            COLUMNS[..at].iter().all(|other| other.name != column.name),
            "{} is there twice",
            column.name
        );
    }
}

/// The layouts of a version, as its connector introduces them.
fn version(version: &str) -> Layouts {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("layouts/{version}.json"));
    let json: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    Layouts::introduced(&introduction("sglang", version, &json)).unwrap()
}

#[test]
fn every_layout_that_comes_with_afterbay_is_read() {
    for entry in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("layouts")).unwrap() {
        let path = entry.unwrap().path();
        let of = path.file_stem().unwrap().to_str().unwrap();
        let name = format!("versions/{of}/tokid_n1.msgpack");
        if !root().join(&name).exists() {
            version(of);
            continue;
        }
        let frame = sample(&name);
        for layouts in [version(of), Layouts::builtin()] {
            assert!(matches!(decode(frame.bytes.clone(), &layouts), DecodedFrame::Batch(_)), "{of}");
        }
    }
}

#[test]
fn a_batch_of_another_length_is_a_barrier_that_says_so() {
    let frame = sample("versions/0.5.23/tokid_n1.msgpack");
    let DecodedFrame::Barrier(barrier) = decode(frame.bytes.clone(), &version("0.5.15")) else {
        panic!("decoded by the layout of another version");
    };
    assert!(barrier.counted());
    assert_eq!(barrier.bytes(), &frame.bytes);
    let error = WireError::UnknownLayout { tag: "BatchTokenIDOutput".into(), elements: 54 };
    assert_eq!(barrier.kind, BarrierKind::NotUnderstood { error });
}

#[test]
fn a_layout_that_does_not_fit_is_noticed_by_the_types_of_what_is_read() {
    // The length is right; two fields have changed places.
    let json = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("layouts/0.5.23.json")).unwrap();
    let frame = sample("versions/0.5.23/tokid_n3.msgpack");
    for (one, other) in
        [("\"completion_tokens\"", "\"decode_ids\""), ("\"finished_reasons\"", "\"decoded_texts\"")]
    {
        let json = json.replace(one, "\"x\"").replace(other, one).replace("\"x\"", other);
        let json: Value = serde_json::from_str(&json).unwrap();
        let json = serde_json::json!({"BatchTokenIDOutput": json["BatchTokenIDOutput"]});
        let layouts = Layouts::introduced(&introduction("sglang", "0.5.24", &json)).unwrap();
        let DecodedFrame::Barrier(barrier) = decode(frame.bytes.clone(), &layouts) else {
            panic!("read wrong")
        };
        assert!(matches!(barrier.kind, BarrierKind::NotUnderstood { error: WireError::Cell { .. } }));
    }
}
