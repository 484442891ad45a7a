//! Grammars that requests bring in an attribute.

use afterbay_plugin::testing::{Harness, Metric, TestRow};
use afterbay_plugin::{Action, Ending, FinishKind, FinishReason, Replacement, RequestId, Verdict};
use serde_json::json;

use crate::{GrammarCheck, REQUEST_GRAMMAR_BYTES_MAX};

/// A plugin with 256 tokens of one byte and one special token.
fn plugin(settings: &serde_json::Value) -> Harness<GrammarCheck> {
    let tokens = (0..=u8::MAX).map(|byte| Some(vec![byte])).chain([None]).collect();
    Harness::with_tokens(&settings.to_string(), tokens).unwrap()
}

fn brings(plugin: &mut Harness<GrammarCheck>, request: RequestId, grammar: &serde_json::Value) {
    plugin.set_attributes(request, &json!({"tenant": "a", "grammar": grammar}).to_string());
}

fn row(request: RequestId, text: &str) -> TestRow {
    TestRow::new(request).ids(text.bytes().map(i64::from).collect::<Vec<i64>>())
}

/// The notes on the rows, by row.
fn notes(plugin: &mut Harness<GrammarCheck>, rows: &[TestRow]) -> Vec<(u32, String)> {
    let verdicts = plugin.process(rows);
    let notes = verdicts.into_iter().map(|Verdict { row, action }| match action {
        Action::Annotate(note) | Action::Finish(Ending { reason: FinishReason::Stop(note), .. }) => {
            (row, note)
        }
        other => panic!("{other:?}"),
    });
    notes.collect()
}

fn not_checked(plugin: &Harness<GrammarCheck>) -> u64 {
    match plugin.metric("not_checked") {
        Some(Metric::Counter(count)) => count,
        None => 0,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_request_is_checked_against_its_own_grammar_only_if_the_settings_allow_it() {
    for kind in [json!({"json_schema": r#"{"enum": [7]}"#}), json!({"regex": "7"})] {
        let mut check = plugin(&json!({"grammar_attribute": "grammar", "on_violation": "finish"}));
        brings(&mut check, 1, &kind);
        brings(&mut check, 2, &kind);
        (1..=3).for_each(|request| check.open(request));
        assert_eq!(notes(&mut check, &[row(1, "7"), row(3, "8")]), []);
        let verdicts = check.process(&[row(2, "7x"), row(1, "")]);
        let reason = "token 2 (id 120, \"x\"): not allowed by the grammar".into();
        let replacement = Some(Replacement { ids: vec![55], text: None });
        let action = Action::Finish(Ending { reason, replacement });
        assert_eq!(verdicts, [Verdict { row: 0, action }], "{kind}");

        let mut check = plugin(&json!({"grammar": {"regex": "8*"}}));
        brings(&mut check, 1, &kind);
        check.open(1);
        assert_eq!(notes(&mut check, &[row(1, "8")]), [], "the grammar of the settings applies");
    }
}

#[test]
fn an_attribute_that_is_no_object_is_for_the_rules() {
    let mut check = plugin(&json!({"grammar_attribute": "grammar", "rules": [
        {"attribute": "grammar", "equals": "digits", "grammar": {"regex": "[0-9]*"}},
        {"rid_prefix": "request-2", "on_violation": "finish"}]}));
    brings(&mut check, 1, &json!("digits"));
    brings(&mut check, 2, &json!({"regex": "a*"}));
    (1..=2).for_each(|request| check.open(request));
    let verdicts = check.process(&[row(1, "1a"), row(2, "a1")]);
    let as_expected = |verdicts: &[Verdict]| match verdicts {
        [
            Verdict { row: 0, action: Action::Annotate(_) },
            Verdict { row: 1, action: Action::Finish(Ending { replacement: Some(replacement), .. }) },
        ] => replacement.ids == [97],
        _ => false,
    };
    assert!(as_expected(&verdicts), "{verdicts:?}");
}

#[test]
fn an_invalid_grammar_is_reported_once_and_the_request_is_not_checked() {
    let long = "a".repeat(REQUEST_GRAMMAR_BYTES_MAX + 1);
    for (grammar, why) in [
        (json!({"regex": "("}), "its grammar cannot be compiled: "),
        (json!({"json_schema": r#"{"type": "strin"}"#}), "its grammar cannot be compiled: "),
        (json!({"regex": long}), "its grammar cannot be compiled: 16385 bytes is over the limit of 16384"),
        (
            json!({"lark": "start: \"a\""}),
            "its grammar cannot be compiled: a Lark grammar must stand in the settings",
        ),
        // A schema as JSON would lose its order.
        (json!({"json_schema": {"type": "string"}}), "grammar: invalid type: map, expected a string"),
        (json!({"ebnf": "a"}), "grammar: unknown variant"),
        (json!({}), "grammar: "),
    ] {
        let mut check = plugin(&json!({"grammar_attribute": "grammar"}));
        brings(&mut check, 1, &grammar);
        check.open(1);
        let all = notes(&mut check, &[row(1, "x")]);
        let [(0, note)] = &all[..] else { panic!("{grammar}: {all:?}") };
        assert!(note.starts_with(&format!("not checked: {why}")), "{note}");
        assert_eq!(notes(&mut check, &[row(1, "x")]), [], "reported once");
        assert_eq!((not_checked(&check), check.logged().len()), (1, 1));
    }
}

#[test]
fn a_grammar_counts_before_the_first_token_and_is_reported_after_it() {
    let mut check = plugin(&json!({"grammar_attribute": "grammar"}));
    (1..=3).for_each(|request| check.open(request));
    brings(&mut check, 1, &json!({"regex": "a*"}));
    brings(&mut check, 1, &json!({"regex": "b*"}));
    assert_eq!(notes(&mut check, &[row(2, "ab"), row(3, "ab")]), []);
    brings(&mut check, 2, &json!({"regex": "a*"}));
    check.set_attributes(3, r#"{"tenant": "b"}"#);
    let late = "not checked: its grammar came after its first 2 tokens".to_owned();
    let violated = "token 2 (id 97, \"a\"): not allowed by the grammar".to_owned();
    assert_eq!(notes(&mut check, &[row(1, "ba"), row(2, "x"), row(3, "x")]), [(0, violated), (1, late)]);
    assert_eq!(not_checked(&check), 1);
    // A checked request keeps its grammar.
    brings(&mut check, 4, &json!({"regex": "a*"}));
    check.open(4);
    assert_eq!(notes(&mut check, &[row(4, "a")]), []);
    check.logged();
    brings(&mut check, 4, &json!({"regex": "a*"}));
    assert_eq!(check.logged(), [], "the same");
    brings(&mut check, 4, &json!({"regex": "b*"}));
    let line = check.logged().pop().unwrap();
    assert_eq!(line.message, "keeps its first grammar: another one came after 1 tokens");
    let all = notes(&mut check, &[row(4, "b")]);
    assert!(all[0].1.starts_with("token 2 "), "{all:?}");
}

#[test]
fn a_grammar_is_compiled_as_its_request_opens_and_checks_the_first_row() {
    let mut check = plugin(&json!({"grammar_attribute": "grammar", "grammars_max": 64}));
    for request in 1..=40 {
        brings(&mut check, request, &json!({"regex": format!("{request}*")}));
        check.open(request);
    }
    let last = (1..=40).map(|request| row(request, "x").finish(FinishKind::Length)).collect::<Vec<_>>();
    let all = notes(&mut check, &last);
    assert_eq!(all.len(), 40);
    assert!(
        all.iter().all(|(_, note)| note == "token 1 (id 120, \"x\"): not allowed by the grammar"),
        "{all:?}"
    );
}

#[test]
fn the_least_recently_used_grammar_is_replaced_unless_it_is_in_use() {
    let mut check = plugin(&json!({"grammar_attribute": "grammar", "grammars_max": 2}));
    let open = |check: &mut Harness<GrammarCheck>, request: RequestId, grammar: &str| {
        brings(check, request, &json!({"regex": grammar}));
        check.open(request);
        notes(check, &[row(request, "x")])
    };
    assert_eq!(open(&mut check, 1, "x1"), []);
    assert_eq!(open(&mut check, 2, "x2"), []);
    let refused = "not checked: 2 grammars of requests are in use, the limit".to_owned();
    assert_eq!(open(&mut check, 3, "x3"), [(0, refused)]);
    assert_eq!(open(&mut check, 4, "x1"), [], "the grammar is stored");
    check.close(2);
    assert_eq!(open(&mut check, 5, "x5"), [], "replaces the second grammar");
    // Requests keep their grammars.
    let mut all = |request: RequestId| notes(&mut check, &[row(request, "1")]).len();
    assert_eq!([1, 4, 5].map(&mut all), [0, 0, 1]);
}

#[test]
fn a_request_is_checked_by_the_grammar_that_it_asked_for_if_the_engine_does_not_enforce_it() {
    let asked = |kind: &str, value: &str, enforced: bool| {
        json!({"grammar": {"kind": kind, "value": value, "enforced": enforced}}).to_string()
    };
    let mut check = plugin(&json!({"grammar_asked": true, "on_violation": "finish"}));
    check.set_asked(1, &asked("json_schema", r#"{"enum": [7]}"#, false), &[]);
    check.set_asked(2, &asked("regex", "7", false), &[]);
    check.set_asked(3, &asked("regex", "7", true), &[]);
    check.set_asked(4, &asked("ebnf", "7", false), &[]);
    check.set_asked(5, &asked("json_object", "", false), &[]);
    (1..=6).for_each(|request| check.open(request));
    let rows: Vec<TestRow> = (1..=6).map(|request| row(request, "x")).collect();
    let found: Vec<u32> = notes(&mut check, &rows).into_iter().map(|(row, _)| row).collect();
    assert_eq!(found, [0, 1, 4]);

    let mut check = plugin(&json!({"grammar": {"regex": "x*"}}));
    check.set_asked(1, &asked("regex", "7", false), &[]);
    check.open(1);
    assert_eq!(notes(&mut check, &[row(1, "x")]), [], "the settings do not ask for it");
}
