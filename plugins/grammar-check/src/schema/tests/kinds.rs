//! Kinds of schemas and values that other suites and real schemas have shown to go wrong.

use serde_json::{Value, json};

use super::super::value;
use super::{Mismatch, Schema, SchemaOptions, check, compile, streams, streams_as};

/// Checks texts that match a schema, and texts that do not, whole and in parts.
fn judges_texts(schema: &str, valid: &[&str], invalid: &[&str]) {
    let schema: Value = serde_json::from_str(schema).unwrap();
    let compiled = compile(&schema).unwrap_or_else(|why| panic!("{schema}: {why}"));
    for (texts, expected) in [(valid, true), (invalid, false)] {
        for text in texts {
            let checked = compiled.check(&value::read(text.as_bytes()).unwrap());
            assert_eq!(checked.is_ok(), expected, "{schema} {text}: {checked:?}");
            assert_ne!(checked, Err(Mismatch::TooMuch), "{schema} {text}");
            streams_as(&schema, &compiled, text, expected);
        }
    }
}

#[test]
fn numbers_are_compared_as_their_texts_have_them() {
    judges_texts(r#"{"multipleOf": 1}"#, &["500000000", "-3.0", "1e400"], &["500000000.5", "1e-400"]);
    judges_texts(
        r#"{"multipleOf": 0.01}"#,
        &["19.99", "0", "4.35"],
        &["19.990000001", "19.9900000000000000001"],
    );
    judges_texts(r#"{"multipleOf": 1e-8}"#, &["12391239123", "0.00000001"], &["0.000000001"]);
    judges_texts(
        r#"{"enum": [9007199254740993, {"a": 1.50}]}"#,
        &["9007199254740993", "9007199254740993.0", "{\"a\": 15e-1}"],
        &["9007199254740992", "{\"a\": 1.5000000000000000001}"],
    );
    judges_texts(
        r#"{"uniqueItems": true}"#,
        &[
            "[9007199254740992, 9007199254740993]",
            "[1, true, \"1\", [1], {\"a\": 1}, {\"a\": 2}, null, 0, false]",
        ],
        &["[1, 1.0]", "[{\"a\": [1], \"b\": 2}, 3, {\"b\": 2.0, \"a\": [1e0]}]"],
    );
    judges_texts(r#"{"maximum": 9007199254740992}"#, &["9007199254740992"], &["9007199254740993", "1e400"]);
    judges_texts(
        r#"{"exclusiveMinimum": 123456789012345678901234567890}"#,
        &["123456789012345678901234567890.1", "1e30"],
        &["123456789012345678901234567890", "123456789012345678901234567889"],
    );
    judges_texts(
        r#"{"type": "integer"}"#,
        &["123456789012345678901234567890", "1.0", "1e3"],
        &["1.5", "1e-1"],
    );
    judges_texts(r#"{"type": "number", "allOf": [{"type": "integer"}]}"#, &["1", "2.0"], &["1.5", "\"1\""]);
    judges_texts(r#"{"minimum": 0}"#, &["1e400", "-0.0"], &["-1e400", "-1e-400"]);
    let draft_4 = r#"{"$schema": "http://json-schema.org/draft-04/schema#", "type": "integer"}"#;
    judges_texts(draft_4, &["1", "12345678901234567890123"], &["1.0", "1e3"]);
}

#[test]
fn a_lone_surrogate_is_a_character() {
    judges_texts(
        r#"{"minLength": 1, "maxLength": 1}"#,
        &[r#""\ud83d""#, r#""\udc32""#, r#""\ud83d\udc32""#],
        &[r#""\ud83dx""#, r#""\\ud83d""#],
    );
    judges_texts(
        r#"{"additionalProperties": {"enum": ["a"]}}"#,
        &[r#"{"\ud83d": "a", "\ud83d\ude00\ud83d": "a"}"#],
        &[r#"{"\ud83d": "\ud83d"}"#],
    );
}

#[test]
fn each_draft_has_its_own_keywords() {
    let with = |draft: &str, schema: Value| {
        let mut schema = schema;
        schema["$schema"] = draft.into();
        schema.to_string()
    };
    let beside_ref = json!({
        "properties": {"a": {"$ref": "#/definitions/s", "maxLength": 1, "$id": "http://example.com/other"}},
        "definitions": {"s": {"type": "string"}},
    });
    for draft in ["http://json-schema.org/draft-04/schema#", "http://json-schema.org/draft-07/schema"] {
        judges_texts(&with(draft, beside_ref.clone()), &[r#"{"a": "abc"}"#], &[r#"{"a": 1}"#]);
    }
    for schema in [
        json!({"properties": {"a": {"$ref": "#/definitions/s", "maxLength": 1}}, "definitions": {"s": {"type": "string"}}}).to_string(),
        with("https://json-schema.org/draft/2020-12/schema", json!({"properties": {"a": {"$ref": "#/$defs/s", "maxLength": 1}}, "$defs": {"s": {"type": "string"}}})),
    ] {
        judges_texts(&schema, &[r#"{"a": "b"}"#], &[r#"{"a": "abc"}"#, r#"{"a": 1}"#]);
    }
    judges_texts(
        &with("https://example.com/catalogue/person.json", json!({"type": "integer"})),
        &["1"],
        &["\"a\""],
    );
    judges_texts(
        &with("http://json-schema.org/draft-04/schema", json!({"const": 1, "if": {}, "then": false})),
        &["2"],
        &[],
    );
    judges_texts(
        &with(
            "http://json-schema.org/draft-07/schema",
            json!({"unevaluatedProperties": false, "prefixItems": [false]}),
        ),
        &["[1]", r#"{"a": 1}"#],
        &[],
    );
    judges_texts(r#"{"type": "object", "extends": "x"}"#, &["{}"], &["1"]);
}

#[test]
fn references_lead_through_ids_and_anchors_of_the_document() {
    judges_texts(
        r##"{"$id": "https://example.com/r", "$ref": "https://example.com/r#/$defs/i", "$defs": {"i": {"type": "integer"}}}"##,
        &["1"],
        &["\"a\""],
    );
    let parts = r##"{
        "$id": "https://example.com/dir/main.json",
        "properties": {
            "a": {"$ref": "item.json"}, "b": {"$ref": "/dir/item.json#/$defs/name"}, "c": {"$ref": "item.json#here"},
            "d": {"$ref": "urn:example:d"}, "e": {"$ref": "main.json#/properties/b"}, "f": {"$ref": "#/$defs/no-id"}
        },
        "$defs": {
            "item": {"$id": "item.json", "$ref": "#/$defs/name", "$defs": {"name": {"$anchor": "here", "type": "string"}}},
            "urn": {"$id": "urn:example:d", "type": "null"},
            "no-id": {"enum": [{"$id": "item.json", "type": "null"}]}
        }}"##;
    judges_texts(
        parts,
        &[r#"{"a": "", "b": "", "c": "", "d": null, "e": ""}"#],
        &[r#"{"a": 1}"#, r#"{"b": 1}"#, r#"{"c": 1}"#, r#"{"d": 1}"#, r#"{"e": 1}"#, r#"{"f": 1}"#],
    );
    let draft_7 = r##"{"$schema": "http://json-schema.org/draft-07/schema#", "$id": "http://example.com/a.json",
        "allOf": [{"$ref": "b.json#c"}], "definitions": {"b": {"$id": "b.json", "definitions": {"c": {"$id": "#c", "type": "null"}}}}}"##;
    judges_texts(draft_7, &["null"], &["1"]);
    // Parts with an `id` whose pointers begin at the document.
    let generated = r##"{"$schema": "http://json-schema.org/draft-04/schema#", "id": "http://example.com/",
        "properties": {"a": {"id": "http://example.com/a", "items": {"$ref": "#/definitions/n"}}}, "definitions": {"n": {"type": "null"}}}"##;
    judges_texts(generated, &[r#"{"a": [null]}"#], &[r#"{"a": [1]}"#]);
    let tree = r##"{"$id": "http://example.com/strict", "$dynamicAnchor": "node", "$ref": "tree", "unevaluatedProperties": false,
        "$defs": {"tree": {"$id": "tree", "$dynamicAnchor": "node", "properties": {"children": {"items": {"$dynamicRef": "#node"}}}}}}"##;
    judges_texts(
        tree,
        &[r#"{"children": [{"children": []}]}"#],
        &[r#"{"children": [{"x": 1}]}"#, r#"{"x": 1}"#],
    );
    let elsewhere = json!({"$id": "http://example.com/a", "$ref": "b#/x"});
    assert_eq!(compile(&elsewhere).unwrap_err(), "/$ref: \"b#/x\" is in another document");
}

#[test]
fn what_no_keyword_has_evaluated_is_checked() {
    judges_texts(r#"{"unevaluatedProperties": true, "anyOf": [{}]}"#, &[r#"{"a": 1}"#], &[]);
    judges_texts(
        r#"{"properties": {"a": {}}, "unevaluatedProperties": false}"#,
        &[r#"{"a": 1}"#],
        &[r#"{"b": 1}"#],
    );
    let combined = r##"{
        "type": "object", "properties": {"kind": {"enum": ["x", "y"]}},
        "oneOf": [
            {"properties": {"kind": {"const": "x"}, "x": true}, "required": ["kind"]},
            {"properties": {"kind": {"const": "y"}, "y": true}, "patternProperties": {"^y-": true}, "required": ["kind"]}
        ],
        "if": {"properties": {"z": {"const": 1}}, "required": ["z"]}, "then": {"properties": {"one": true}},
        "not": {"required": ["never"]}, "dependentSchemas": {"d": {"properties": {"d": true}}},
        "unevaluatedProperties": {"type": "null"}}"##;
    judges_texts(
        combined,
        &[
            r#"{"kind": "x", "x": 1}"#,
            r#"{"kind": "y", "y": 1, "y-2": 1}"#,
            r#"{"kind": "x", "z": 1, "one": 1, "d": 1}"#,
            r#"{"kind": "x", "y": null}"#,
        ],
        &[
            r#"{"kind": "x", "y": 1}"#,
            r#"{"kind": "x", "z": 2}"#,
            r#"{"kind": "x", "one": 1}"#,
            r#"{"kind": "x", "e": 1}"#,
        ],
    );
    judges_texts(
        r##"{"allOf": [{"prefixItems": [true]}, {"contains": {"type": "string"}}], "unevaluatedItems": {"type": "null"}}"##,
        &[r#"[1, "a", null]"#, r#"["a"]"#],
        &[r#"[1, "a", 2]"#],
    );
    // Marks on another part of the value do not count.
    judges_texts(
        r#"{"properties": {"a": {"properties": {"b": {}}}}, "allOf": [{"properties": {"c": {}}}], "unevaluatedProperties": false}"#,
        &[r#"{"a": {"b": 1, "c": 1}, "c": 1}"#],
        &[r#"{"b": 1}"#],
    );
}

#[test]
fn a_name_counts_once_in_required_and_in_the_number_of_properties() {
    judges_texts(r#"{"required": ["a", "a"]}"#, &[r#"{"a": 1}"#], &["{}"]);
    judges_texts(r#"{"minProperties": 2}"#, &[r#"{"a": 1, "b": 1}"#], &[r#"{"a": 1, "a": 1}"#]);
    judges_texts(r#"{"maxProperties": 1}"#, &[r#"{"a": 1, "\u0061": 1}"#], &[r#"{"a": 1, "b": 1}"#]);
}

#[test]
fn long_values_and_deep_schemas_are_checked() {
    let items = |last: usize| Value::Array((0..4_000).chain([last]).map(|item| json!(item)).collect());
    judges_texts(r#"{"uniqueItems": true}"#, &[&items(4_000).to_string()], &[&items(7).to_string()]);
    let many: Vec<Value> = (0..101_000).map(|index| json!(format!("value {index}"))).collect();
    let schema = json!({"properties": {"a": {"enum": many}}}).to_string();
    judges_texts(&schema, &[r#"{"a": "value 100999"}"#], &[r#"{"a": "value 101000"}"#]);
    let tree = r##"{"$ref": "#/$defs/tree", "$defs": {"tree": {"anyOf": [{"type": "integer"}, {"$ref": "#/$defs/branch"}]},
        "branch": {"allOf": [{"type": "object"}], "properties": {"next": {"$ref": "#/$defs/tree"}}, "required": ["next"]}}}"##;
    let nested = |leaf: &str| format!("{}{leaf}{}", "{\"next\":".repeat(120), "}".repeat(120));
    judges_texts(tree, &[&nested("1")], &[&nested("\"x\"")]);
    let pattern = r#"{"pattern": "^(?:[a-z0-9]+(?:[._-][a-z0-9]+)*/)*[a-z0-9]+(?:[._-][a-z]+)*$"}"#;
    judges_texts(pattern, &[], &[&format!("\"{}\"", "a-b/".repeat(7_500))]);
}

#[test]
fn a_format_is_checked_on_request() {
    let schema =
        json!({"properties": {"on": {"type": "string", "format": "date"}, "at": {"format": "hostname"}}});
    let strict = Schema::compile(&schema, SchemaOptions { formats: true, draft: None }).unwrap();
    for (text, expected) in [
        (r#"{"on": "2026-11-28", "at": "no host"}"#, true),
        (r#"{"on": "tomorrow"}"#, false),
        (r#"{"on": "2026-11-31"}"#, false),
    ] {
        let value = serde_json::from_str(text).unwrap();
        assert_eq!(strict.check(&value).is_ok(), expected, "{text}");
        assert_eq!(streams(&strict, text, 3), expected, "{text}");
        assert_eq!(check(&schema, &value), Ok(()));
    }
    let why = strict.check(&json!({"on": "tomorrow"})).unwrap_err();
    assert_eq!(
        why,
        Mismatch::Invalid { pointer: "/on".to_owned(), why: "\"tomorrow\" is no date".to_owned() }
    );
}
