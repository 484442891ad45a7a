//! Each keyword, the bounds, and a text in parts against the whole value.

use serde_json::{Value, json};

use super::{JsonStream, Mismatch, Schema, SchemaOptions, StreamFault};

mod kinds;
mod suite;

fn compile(schema: &Value) -> Result<Schema, String> {
    Schema::compile(schema, SchemaOptions::default())
}

fn check(schema: &Value, value: &Value) -> Result<(), Mismatch> {
    compile(schema).unwrap().check(value)
}

/// Values that match a schema, and values that do not.
fn judges(schema: Value, valid: &[Value], invalid: &[Value]) {
    for value in valid {
        assert_eq!(check(&schema, value), Ok(()), "{schema} {value}");
    }
    for value in invalid {
        assert!(matches!(check(&schema, value), Err(Mismatch::Invalid { .. })), "{schema} {value}");
    }
}

#[test]
fn each_keyword_is_checked() {
    judges(
        json!({"type": ["integer", "null"]}),
        &[json!(1), json!(1.0), json!(null)],
        &[json!(1.5), json!("1")],
    );
    judges(json!({"enum": [1, "a", {"b": []}]}), &[json!(1.0), json!({"b": []})], &[json!("b"), json!({})]);
    judges(json!({"const": false}), &[json!(false)], &[json!(0), json!(null)]);
    judges(json!({"minimum": 1, "exclusiveMaximum": 3}), &[json!(1), json!("x")], &[json!(0.9), json!(3)]);
    judges(json!({"maximum": 3, "exclusiveMaximum": true}), &[json!(2.9)], &[json!(3)]);
    judges(json!({"multipleOf": 0.01}), &[json!(19.99), json!(0), json!(-3)], &[json!(0.001)]);
    judges(
        json!({"minLength": 2, "maxLength": 3}),
        &[json!("日本"), json!(1)],
        &[json!("日"), json!("abcd")],
    );
    judges(json!({"pattern": "^[a-z]+-\\d$"}), &[json!("ab-1"), json!(7)], &[json!("ab1"), json!("xab-1x")]);
    judges(
        json!({"items": {"type": "integer"}, "maxItems": 2}),
        &[json!([1, 2])],
        &[json!([1, "2"]), json!([1, 2, 3])],
    );
    judges(json!({"prefixItems": [true, false]}), &[json!([1])], &[json!([1, 2])]);
    judges(
        json!({"items": [{"type": "null"}], "additionalItems": false}),
        &[json!([null])],
        &[json!([null, 1])],
    );
    judges(
        json!({"contains": {"const": 1}, "maxContains": 1}),
        &[json!([2, 1])],
        &[json!([]), json!([1, 1])],
    );
    judges(json!({"uniqueItems": true}), &[json!([1, "1", [1]])], &[json!([1, 1.0]), json!([{}, {}])]);
    judges(
        json!({"properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": false}),
        &[json!({"a": ""}), json!([])],
        &[json!({}), json!({"a": 1}), json!({"a": "", "b": 1})],
    );
    judges(
        json!({"patternProperties": {"^x-": {"type": "integer"}}, "additionalProperties": {"type": "null"}}),
        &[json!({"x-a": 1, "b": null})],
        &[json!({"x-a": null}), json!({"b": 1})],
    );
    judges(
        json!({"propertyNames": {"maxLength": 1}, "minProperties": 1}),
        &[json!({"a": 1})],
        &[json!({}), json!({"ab": 1})],
    );
    judges(
        json!({"dependentRequired": {"a": ["b"]}}),
        &[json!({"b": 1}), json!({"a": 1, "b": 1})],
        &[json!({"a": 1})],
    );
    judges(
        json!({"dependencies": {"a": {"required": ["b"]}}}),
        &[json!({"a": 1, "b": 1})],
        &[json!({"a": 1})],
    );
    judges(json!({"allOf": [{"minimum": 1}, {"maximum": 2}]}), &[json!(2)], &[json!(0), json!(3)]);
    judges(json!({"anyOf": [{"type": "string"}, {"minimum": 2}]}), &[json!("a"), json!(2)], &[json!(1)]);
    judges(
        json!({"oneOf": [{"multipleOf": 2}, {"multipleOf": 3}]}),
        &[json!(2), json!(3)],
        &[json!(6), json!(1)],
    );
    judges(json!({"not": {"type": "string"}}), &[json!(1)], &[json!("a")]);
    judges(
        json!({"if": {"properties": {"k": {"const": 1}}}, "then": {"required": ["a"]}, "else": {"required": ["b"]}}),
        &[json!({"k": 1, "a": 0}), json!({"k": 2, "b": 0})],
        &[json!({"k": 1, "b": 0}), json!({"k": 2, "a": 0})],
    );
    judges(json!({"type": "string", "nullable": true}), &[json!(null)], &[json!(1)]);
}

#[test]
fn references_lead_to_any_part_of_the_schema_and_may_be_cyclic() {
    let tree = json!({
        "$defs": {"a/b%": {"type": "integer"}, "named": {"$anchor": "here", "type": "null"}},
        "properties": {"next": {"$ref": "#"}, "value": {"$ref": "#/$defs/a~1b%25"}, "end": {"$ref": "#here"}},
        "additionalProperties": false,
    });
    judges(
        tree,
        &[json!({"next": {"next": {"value": 1}}, "end": null})],
        &[json!({"next": {"next": {"value": "1"}}}), json!({"end": 1}), json!({"next": {"x": 1}})],
    );
    let endless = json!({"$ref": "#"});
    assert_eq!(check(&endless, &json!(1)), Err(Mismatch::TooMuch));
}

#[test]
fn a_mismatch_names_the_value_and_its_place() {
    let schema = json!({"properties": {"list": {"items": {"type": "integer"}}}, "required": ["list"]});
    let found = |value: Value| match check(&schema, &value) {
        Err(Mismatch::Invalid { pointer, why }) => format!("{pointer}: {why}"),
        other => panic!("{other:?}"),
    };
    assert_eq!(found(json!({"list": [1, "two"]})), "/list/1: \"two\" is not integer");
    assert_eq!(found(json!({})), ": the property list is missing");
    assert_eq!(
        found(json!({"list": ["日".repeat(60)]})),
        format!("/list/0: \"{}… is not integer", "日".repeat(7))
    );
}

#[test]
fn a_schema_that_is_not_supported_or_invalid_is_refused_with_its_place() {
    for (schema, message) in [
        (json!({"properties": {"a": {"type": "strin"}}}), "/properties/a/type: unknown type \"strin\""),
        (
            json!({"$schema": "https://example.com/meta.json"}),
            "/$schema: \"https://example.com/meta.json\" is in another document",
        ),
        (
            json!({"$ref": "https://example.com/a.json"}),
            "/$ref: \"https://example.com/a.json\" is in another document",
        ),
        (json!({"$ref": "#/nowhere"}), "/$ref: \"#/nowhere\" does not exist"),
        (json!({"minLength": -1}), "/minLength: must be a whole number, 0 or more"),
        (json!({"anyOf": {}}), "/anyOf: must be an array"),
        (json!([]), ": a schema must be an object or a boolean"),
    ] {
        assert_eq!(compile(&schema).unwrap_err(), message);
    }
    assert!(compile(&json!({"pattern": "(?=a"})).unwrap_err().starts_with("/pattern: "));
}

#[test]
fn the_work_of_a_check_is_bounded() {
    // Each level doubles the work.
    let level = |level: u32| json!({"allOf": [{"$ref": format!("#/$defs/{level}")}, {"$ref": format!("#/$defs/{level}")}]});
    let levels: serde_json::Map<String, Value> = (0..40)
        .map(|index| (index.to_string(), level(index + 1)))
        .chain([("40".into(), json!(true))])
        .collect();
    assert_eq!(check(&json!({"$ref": "#/$defs/0", "$defs": levels}), &json!(1)), Err(Mismatch::TooMuch));
    let many = Value::Array((0..120_000).map(|index| json!(index)).collect());
    assert_eq!(check(&json!({"uniqueItems": true}), &many), Err(Mismatch::TooMuch));
}

/// Whether a text matches when it arrives in parts of this length.
fn streams(schema: &Schema, text: &str, length: usize) -> bool {
    let mut stream = JsonStream::new(schema.clone());
    text.as_bytes().chunks(length).all(|part| stream.push(part).is_ok()) && stream.is_complete() == Ok(true)
}

/// Checks that a text is judged like this however it arrives.
fn streams_as(schema: &Value, compiled: &Schema, text: &str, expected: bool) {
    for length in [1, 2, 3, 5, 7, 100, 1000] {
        assert_eq!(streams(compiled, text, length), expected, "{schema}: {text:?} in parts of {length}");
    }
}

#[test]
fn a_text_that_arrives_in_parts_is_judged_like_the_whole_value() {
    let object = json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 6}, "free": {"type": "string"}, "n": {"type": "integer", "maximum": 9},
            "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2, "minItems": 1},
            "maybe": {"anyOf": [{"type": "null"}, {"$ref": "#"}]},
            "one": {"oneOf": [{"required": ["x"]}, {"required": ["y"]}]},
            "unique": {"uniqueItems": true}, "any": {},
        },
        "required": ["name", "n"],
        "additionalProperties": false,
    });
    let open =
        json!({"additionalProperties": {"type": "boolean"}, "maxProperties": 2, "properties": {"s": false}});
    let texts = [
        r#"{"name": "é\u00e9", "n": 9, "free": "any \n 日本 𠮷"}"#,
        r#" {"n":1e0,"name":"", "tags": [ "a" , "b" ] } "#,
        r#"{"name": "1234567", "n": 1}"#,
        r#"{"name": "a", "n": 10}"#,
        r#"{"name": "a", "n": 1.5}"#,
        r#"{"name": "a"}"#,
        r#"{"name": "a", "n": 1, "nam": 2}"#,
        r#"{"name": "a", "n": 1, "tags": []}"#,
        r#"{"name": "a", "n": 1, "tags": ["a", "c"]}"#,
        r#"{"name": "a", "n": 1, "tags": ["a", "b", "a"]}"#,
        r#"{"name": "a", "n": 1, "maybe": {"name": "b", "n": 2, "maybe": null}}"#,
        r#"{"name": "a", "n": 1, "maybe": {"name": "b"}}"#,
        r#"{"name": "a", "n": 1, "one": {"x": [1, {"x": {}}]}}"#,
        r#"{"name": "a", "n": 1, "one": {"x": 1, "y": 2}}"#,
        r#"{"name": "a", "n": 1, "unique": [1, [2], "]"], "any": {"a": [{}, []]}}"#,
        r#"{"name": "a", "n": 1, "unique": [1, 1.0]}"#,
        r#"{"s": true}"#,
        r#"{"a": true, "b": false}"#,
        r#"{"a": true, "b": false, "c": true}"#,
        r#"{"a": 1}"#,
        "[1, 2",
        "{} {}",
        "[1,]",
        "{\"a\" 1}",
        "[}",
        "[01]",
        "[1.]",
        "[-]",
        "12",
        "-0.5e+3",
        "\"\u{1}\"",
        r#""\x""#,
        r#""\u12g4""#,
        "nul",
        "null",
        "truex",
        "",
        " ",
    ];
    for schema in
        [object, open, json!({"type": ["number", "null"]}), json!(true), json!({"const": {"a": true}})]
    {
        let compiled = compile(&schema).unwrap();
        for text in texts {
            let value: Result<Value, _> = serde_json::from_str(text);
            let expected = value.is_ok_and(|value| compiled.check(&value).is_ok());
            streams_as(&schema, &compiled, text, expected);
        }
    }
}

#[test]
fn a_text_is_refused_at_its_first_byte_that_is_not_allowed() {
    let schema = json!({
        "type": "object",
        "properties": {"name": {"type": "string"}, "list": {"type": "array", "items": {"type": "integer"}, "maxItems": 1}},
        "required": ["name"],
        "additionalProperties": false,
    });
    let compiled = compile(&schema).unwrap();
    let mut number = JsonStream::new(compile(&json!({"enum": [7]})).unwrap());
    assert_eq!([number.push(b"7"), number.push(b"x")], [Ok(()), Err(StreamFault::NotAllowed)]);
    for (allowed, then) in [
        ("", "["),
        ("{\"na", "x"),
        ("{\"name", "s"),
        ("{\"name\": ", "1"),
        ("{\"list\": ", "{"),
        ("{\"list\": [", "\""),
        ("{\"list\": [1", ","),
        ("{\"list\": [1]", "}"),
        ("{\"name\": \"\"}", "}"),
        ("{\"name\": \"a", "\n"),
        ("{\"name\": \"\\", "x"),
    ] {
        let mut stream = JsonStream::new(compiled.clone());
        assert_eq!(stream.push(allowed.as_bytes()), Ok(()), "{allowed}");
        assert_eq!(stream.push(then.as_bytes()), Err(StreamFault::NotAllowed), "{allowed} {then}");
    }
}
