//! Grammars that requests bring in an attribute.

use afterbay_plugin::testing::{Harness, Metric, TestRow};
use afterbay_plugin::{Action, Ending, FinishKind, Replacement, RequestId, Verdict};
use serde_json::json;

use crate::{GrammarCheck, REQUEST_GRAMMAR_BYTES_MAX};

/// Of one byte each, and one special.
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

/// What is said of the rows, by row.
fn said(plugin: &mut Harness<GrammarCheck>, rows: &[TestRow]) -> Vec<(u32, String)> {
    let verdicts = plugin.process(rows);
    let said = verdicts.into_iter().map(|Verdict { row, action }| match action {
        Action::Annotate(note) | Action::FinishAs(Ending { matched: note, .. }) => (row, note),
        other => panic!("{other:?}"),
    });
    said.collect()
}

fn not_checked(plugin: &Harness<GrammarCheck>) -> u64 {
    match plugin.metric("not_checked") {
        Some(Metric::Counter(count)) => count,
        None => 0,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_request_is_checked_against_what_it_brings_and_not_where_the_settings_do_not_say_so() {
    for kind in
        [json!({"json_schema": r#"{"enum": [7]}"#}), json!({"regex": "7"}), json!({"lark": "start: \"7\""})]
    {
        let mut check = plugin(&json!({"grammar_attribute": "grammar", "on_violation": "finish"}));
        brings(&mut check, 1, &kind);
        brings(&mut check, 2, &kind);
        (1..=3).for_each(|request| check.open(request));
        assert_eq!(said(&mut check, &[row(1, "7"), row(3, "8")]), []);
        let verdicts = check.process(&[row(2, "78"), row(1, "")]);
        let matched = "token 2 (id 56, \"8\"): not allowed by the grammar".to_owned();
        let instead = Replacement { ids: vec![55], text: None };
        let action = Action::FinishAs(Ending { matched, instead });
        assert_eq!(verdicts, [Verdict { row: 0, action }], "{kind}");

        let mut check = plugin(&json!({"grammar": {"regex": "8*"}}));
        brings(&mut check, 1, &kind);
        check.open(1);
        assert_eq!(said(&mut check, &[row(1, "8")]), [], "that of the settings");
    }
}

#[test]
fn what_is_no_object_is_for_the_rules_and_how_it_is_checked_they_say_in_either_case() {
    let mut check = plugin(&json!({"grammar_attribute": "grammar", "rules": [
        {"attribute": "grammar", "equals": "digits", "grammar": {"regex": "[0-9]*"}},
        {"rid_prefix": "request-2", "on_violation": "finish"}]}));
    brings(&mut check, 1, &json!("digits"));
    brings(&mut check, 2, &json!({"regex": "a*"}));
    (1..=2).for_each(|request| check.open(request));
    let verdicts = check.process(&[row(1, "1a"), row(2, "a1")]);
    let is_as_said = |verdicts: &[Verdict]| match verdicts {
        [
            Verdict { row: 0, action: Action::Annotate(_) },
            Verdict { row: 1, action: Action::FinishAs(ending) },
        ] => ending.instead.ids == [97],
        _ => false,
    };
    assert!(is_as_said(&verdicts), "{verdicts:?}");
}

#[test]
fn what_cannot_be_compiled_is_told_with_the_first_row_and_counted_and_the_request_goes_unchecked() {
    let long = "a".repeat(REQUEST_GRAMMAR_BYTES_MAX + 1);
    for (grammar, why) in [
        (json!({"regex": "("}), "its grammar cannot be compiled: "),
        (json!({"json_schema": r#"{"type": "strin"}"#}), "its grammar cannot be compiled: "),
        (json!({"regex": long}), "its grammar cannot be compiled: 4097 bytes is over the limit of 4096"),
        (
            json!({"regex": "(".repeat(65)}),
            "its grammar cannot be compiled: brackets 65 deep, the limit is 64",
        ),
        // Its order would be lost on the way.
        (json!({"json_schema": {"type": "string"}}), "grammar: invalid type: map, expected a string"),
        (json!({"ebnf": "a"}), "grammar: unknown variant"),
        (json!({}), "grammar: "),
    ] {
        let mut check = plugin(&json!({"grammar_attribute": "grammar"}));
        brings(&mut check, 1, &grammar);
        check.open(1);
        let said_of = said(&mut check, &[row(1, "x")]);
        let [(0, note)] = &said_of[..] else { panic!("{grammar}: {said_of:?}") };
        assert!(note.starts_with(&format!("not checked: {why}")), "{note}");
        assert_eq!(said(&mut check, &[row(1, "x")]), [], "told once");
        assert_eq!((not_checked(&check), check.logged().len()), (1, 1));
    }
}

#[test]
fn one_that_comes_before_the_first_token_holds_and_one_that_comes_later_is_told() {
    let mut check = plugin(&json!({"grammar_attribute": "grammar"}));
    (1..=3).for_each(|request| check.open(request));
    brings(&mut check, 1, &json!({"regex": "a*"}));
    brings(&mut check, 1, &json!({"regex": "b*"}));
    assert_eq!(said(&mut check, &[row(2, "ab"), row(3, "ab")]), []);
    brings(&mut check, 2, &json!({"regex": "a*"}));
    check.set_attributes(3, r#"{"tenant": "b"}"#);
    let told = "not checked: its grammar came after its first 2 tokens".to_owned();
    let violated = "token 2 (id 97, \"a\"): not allowed by the grammar".to_owned();
    assert_eq!(said(&mut check, &[row(1, "ba"), row(2, "x"), row(3, "x")]), [(1, told)]);
    assert_eq!(not_checked(&check), 1);
    assert_eq!(said(&mut check, &[row(1, "")]), [], "it is compiled");
    assert_eq!(said(&mut check, &[row(1, "")]), [(0, violated)]);
    // One that is checked goes on as it began.
    brings(&mut check, 4, &json!({"regex": "a*"}));
    check.open(4);
    assert_eq!(said(&mut check, &[row(4, "a")]), []);
    check.logged();
    brings(&mut check, 4, &json!({"regex": "a*"}));
    assert_eq!(check.logged(), [], "the same");
    brings(&mut check, 4, &json!({"regex": "b*"}));
    let line = check.logged().pop().unwrap();
    assert_eq!(line.message, "goes on with the grammar it began with: another came after 1 tokens");
    let all = said(&mut check, &[row(4, "b")]);
    assert!(all[0].1.starts_with("token 2 "), "{all:?}");
}

#[test]
fn a_call_compiles_one_and_what_comes_meanwhile_waits() {
    let mut check = plugin(&json!({"grammar_attribute": "grammar"}));
    for request in 1..=4 {
        brings(&mut check, request, &json!({"regex": format!("{request}*")}));
        check.open(request);
    }
    let all = |text: &str| (1..=4).map(|request| row(request, text)).collect::<Vec<_>>();
    let mut found = vec![];
    for step in 0..8 {
        // It is the last byte that nobody allows.
        let rows = if step == 0 { all("x") } else { all("") };
        found.extend(said(&mut check, &rows).into_iter().map(|(row, _)| (step, row)));
    }
    found.sort_unstable_by_key(|(_, row)| *row);
    assert_eq!(found.len(), 4, "{found:?}");
    let steps: Vec<u32> = found.iter().map(|(step, _)| *step).collect();
    assert!(steps.is_sorted() && steps[3] >= 2, "{found:?}");
    // The last row of one that was not compiled yet.
    for request in 5..=6 {
        brings(&mut check, request, &json!({"regex": format!("{request}+")}));
        check.open(request);
    }
    let last = (5..=6).map(|request| row(request, "x").finish(FinishKind::Length)).collect::<Vec<_>>();
    let all = said(&mut check, &last);
    let notes: Vec<&str> = all.iter().map(|(_, note)| note.as_str()).collect();
    assert!(notes[0].starts_with("token 1 "), "{notes:?}");
    let yet = "not checked any further after 0 tokens: its grammar was yet to be compiled";
    assert_eq!(notes[1..], [yet]);
}

#[test]
fn the_one_that_nobody_has_asked_for_longest_goes_first_and_none_that_is_in_use() {
    let mut check = plugin(&json!({"grammar_attribute": "grammar", "grammars_max": 2}));
    let open = |check: &mut Harness<GrammarCheck>, request: RequestId, grammar: &str| {
        brings(check, request, &json!({"regex": grammar}));
        check.open(request);
        said(check, &[row(request, "x")])
    };
    assert_eq!(open(&mut check, 1, "x1"), []);
    assert_eq!(open(&mut check, 2, "x2"), []);
    let refused = "not checked: 2 grammars of requests are in use, the limit".to_owned();
    assert_eq!(open(&mut check, 3, "x3"), [(0, refused)]);
    assert_eq!(open(&mut check, 4, "x1"), [], "it is there");
    check.close(2);
    assert_eq!(open(&mut check, 5, "x5"), [], "in the place of the second");
    // Whoever has one keeps it.
    let mut all = |request: RequestId| said(&mut check, &[row(request, "1")]).len();
    assert_eq!([1, 4, 5].map(&mut all), [0, 0, 1]);
}
