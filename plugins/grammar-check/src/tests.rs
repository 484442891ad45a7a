//! Checks token ids, split into rows, against grammars of each kind.

use afterbay_plugin::{FinishKind, Opened, TokenId};

use crate::vocabulary::tests::Words;
use crate::*;

mod brought;
mod measure;

const WORDS: Words = Words(&[
    "{\"", "\":", "name", "age", "\"}", "\", \"", " \"", "true", "日本", "hello ", "abab", "    ", "\n\n",
    "null}",
]);

const SCHEMA: &str = r##"{"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"},
    "next": {"$ref": "#/$defs/next"}}, "required": ["name", "age"], "additionalProperties": false,
    "$defs": {"next": {"anyOf": [{"type": "null"}, {"$ref": "#"}]}}}"##;

fn vocabulary() -> Vocabulary {
    Vocabulary::read(&WORDS).unwrap()
}

fn schema() -> GrammarText {
    GrammarText::JsonSchema(SCHEMA.into())
}

fn compile(text: &GrammarText) -> Result<Grammar, afterbay_plugin::ConfigureError> {
    Compiler::new(&vocabulary()).compile(text)
}

fn matcher(text: &GrammarText) -> Matcher {
    compile(text).unwrap().matcher(0, None)
}

/// Checks a whole output in one last row.
fn whole(text: &GrammarText, ids: &[TokenId], finish: FinishKind) -> Result<(), Finding> {
    matcher(text).end(&vocabulary(), ids, finish)
}

fn ended(text: &str) -> Vec<TokenId> {
    [WORDS.ids(text), vec![WORDS.end()]].concat()
}

#[test]
fn an_allowed_output_is_complete_in_rows_of_any_length() {
    let text = "{\"name\": \"日本 \\\" 𠮷 hello \", \"age\": -12, \"next\": {\"name\": \"\", \"age\": 0,\n \"next\": null}}";
    let (vocabulary, ids) = (vocabulary(), ended(text));
    assert!(ids.len() > 30);
    for length in [1, 2, 7, ids.len()] {
        let mut matcher = matcher(&schema());
        let rows: Vec<&[TokenId]> = ids.chunks(length).collect();
        for row in &rows[..rows.len() - 1] {
            assert_eq!(matcher.push(&vocabulary, row), Ok(()));
        }
        assert_eq!(matcher.end(&vocabulary, rows[rows.len() - 1], FinishKind::Stop), Ok(()), "{length}");
    }
}

#[test]
fn only_the_first_token_that_is_not_allowed_is_found() {
    for (allowed, then) in [
        ("", "x"),
        ("{\"name", "x"),
        ("{\"name\": \"a\", \"", "x"),
        ("{\"name\":", "true"),
        ("{\"name\": \"a\", \"age\": 1.5", ","),
        ("{\"age\": 1", "}"),
        ("{\"name\": \"a", "\n"),
        ("{\"name\": \"a\", \"age\": 1}", "x"),
        // The first bytes of a character, then a byte of no character.
        ("{\"name\": \"\u{65e5}", "\u{1}"),
    ] {
        let (mut matcher, vocabulary) = (matcher(&schema()), vocabulary());
        let ids = [WORDS.ids(allowed), WORDS.ids(then), WORDS.ids("more")].concat();
        let at = WORDS.ids(allowed).len();
        assert_eq!(matcher.push(&vocabulary, &ids), Err(Finding::CannotContinue { at }), "{allowed} {then}");
        assert_eq!(matcher.push(&vocabulary, &ids), Ok(()), "reported once");
        assert_eq!(matcher.end(&vocabulary, &ids, FinishKind::Length), Ok(()));
    }
}

#[test]
fn a_token_is_not_allowed_if_its_last_bytes_are_not() {
    let regex = GrammarText::Regex("aba?".into());
    let ids = WORDS.ids("abab");
    assert_eq!(ids.len(), 1);
    assert_eq!(matcher(&regex).push(&vocabulary(), &ids), Err(Finding::CannotContinue { at: 0 }));
}

#[test]
fn a_row_may_split_a_character_and_the_end_may_not() {
    let regex = GrammarText::Regex("日+".into());
    let bytes: Vec<TokenId> = "日".bytes().map(TokenId::from).collect();
    let (mut cut, vocabulary) = (matcher(&regex), vocabulary());
    assert_eq!(cut.push(&vocabulary, &bytes[..2]), Ok(()));
    assert_eq!(cut.end(&vocabulary, &bytes[2..], FinishKind::Length), Ok(()));
    assert_eq!(whole(&regex, &bytes[..2], FinishKind::Length), Err(Finding::TooEarly { at: None }));
}

#[test]
fn an_early_end_is_found_by_its_token_or_its_finish_reason() {
    let ids = WORDS.ids("{\"name\":");
    let at = ids.len();
    let stopped = [ids.clone(), vec![WORDS.end()]].concat();
    for finish in [FinishKind::Stop, FinishKind::Length] {
        let early = Err(Finding::TooEarly { at: Some(at) });
        assert_eq!(whole(&schema(), &stopped, finish), early, "{finish:?}");
    }
    for finish in [FinishKind::Length, FinishKind::Stop, FinishKind::Other] {
        assert_eq!(whole(&schema(), &ids, finish), Err(Finding::TooEarly { at: None }), "{finish:?}");
    }
    assert_eq!(whole(&schema(), &ids, FinishKind::Abort), Ok(()), "an aborted request may end anywhere");
    assert_eq!(whole(&schema(), &[], FinishKind::Stop), Err(Finding::TooEarly { at: None }));
    assert_eq!(whole(&schema(), &WORDS.ids("{\"name\": \"a\", \"age\": 1}"), FinishKind::Length), Ok(()));
}

#[test]
fn a_request_that_continues_after_an_early_end_token_violates_the_grammar() {
    for (on_violation, action) in
        [("report", RowAction::Report), ("finish", RowAction::Finish), ("abort", RowAction::Abort)]
    {
        let settings = serde_json::json!({"grammar": {"json_schema": SCHEMA}, "on_violation": on_violation});
        let mut check = check(&settings.to_string());
        let (text, end) = (WORDS.ids("{\"name\":"), WORDS.end());
        let place = text.len() + 1;
        let reason = format!("token {place} (id {end}): ends the text before the grammar is complete");
        let found = |allowed| Some(Judgement { action, kind: FindingKind::Violation, reason, allowed });
        check.open(&opened(1, 0));
        let row = [text, vec![end], WORDS.ids("xx")].concat();
        // The request continues in the same row or in another one.
        assert_eq!(check.row(1, &row, FinishKind::Length), found.clone()(place - 1));
        check.open(&opened(2, 0));
        assert_eq!(check.row(2, &row[..place - 1], FinishKind::Running), None);
        assert_eq!(check.row(2, &row[place - 1..place], FinishKind::Running), found(0));
    }
}

#[test]
fn a_stop_token_with_text_is_no_part_of_a_complete_output() {
    let complete = "{\"name\": \"a\", \"age\": 1}";
    let with = |text: &str, stop: &str| [WORDS.ids(text), WORDS.ids(stop)].concat();
    assert_eq!(whole(&schema(), &with(complete, "hello "), FinishKind::Stop), Ok(()));
    let cannot = Finding::CannotContinue { at: WORDS.ids(complete).len() };
    assert_eq!(whole(&schema(), &with(complete, "hello "), FinishKind::Length), Err(cannot));
    // Only one token can be the stop token.
    assert!(whole(&schema(), &with(complete, "xx"), FinishKind::Stop).is_err());
    let cut = "{\"name\": \"a\"";
    let early = Finding::TooEarly { at: Some(WORDS.ids(cut).len()) };
    assert_eq!(whole(&schema(), &with(cut, "hello "), FinishKind::Stop), Err(early));
}

#[test]
fn a_text_does_not_continue_after_its_end() {
    let (mut matcher, vocabulary) = (matcher(&schema()), vocabulary());
    assert_eq!(matcher.push(&vocabulary, &ended("{\"name\": \"a\", \"age\": 1}")), Ok(()));
    assert_eq!(
        matcher.push(&vocabulary, &[WORDS.end(), WORDS.tool()]),
        Ok(()),
        "more end tokens are allowed"
    );
    let on = [WORDS.end(), TokenId::from(b' ')];
    assert_eq!(matcher.push(&vocabulary, &on), Err(Finding::CannotContinue { at: 1 }));
}

#[test]
fn an_unknown_id_is_never_allowed() {
    let any = GrammarText::Regex("(?s:.*)".into());
    for id in [-1, i64::MIN, i64::MAX, WORDS.tool() + 1] {
        let ids = [TokenId::from(b'a'), id];
        assert_eq!(whole(&any, &ids, FinishKind::Length), Err(Finding::CannotContinue { at: 1 }), "{id}");
    }
    // A byte that is in no UTF-8 text is not allowed either.
    assert_eq!(whole(&any, &[0xff], FinishKind::Length), Err(Finding::CannotContinue { at: 0 }));
}

#[test]
fn a_regex_matches_the_whole_output() {
    let regex = GrammarText::Regex("(yes|no)/[0-9]{2}".into());
    assert_eq!(whole(&regex, &ended("no/42"), FinishKind::Stop), Ok(()));
    assert_eq!(
        matcher(&regex).push(&vocabulary(), &WORDS.ids("no/421")),
        Err(Finding::CannotContinue { at: 5 })
    );
    assert_eq!(whole(&regex, &WORDS.ids("no/4"), FinishKind::Length), Err(Finding::TooEarly { at: None }));
}

#[test]
fn a_lark_grammar_may_name_special_tokens_by_id() {
    let lark = format!("start: \"hello \"+ (<[{}]> /[a-z]+/)?", WORDS.tool());
    let lark = GrammarText::Lark(lark);
    let called = [WORDS.ids("hello hello "), vec![WORDS.tool()], WORDS.ids("abab")].concat();
    assert_eq!(whole(&lark, &called, FinishKind::Length), Ok(()));
    assert_eq!(whole(&lark, &ended("hello "), FinishKind::Stop), Ok(()));
    // A special token that the grammar does not name ends the text.
    let first = [vec![WORDS.tool()], WORDS.ids("hello ")].concat();
    assert_eq!(matcher(&lark).push(&vocabulary(), &first), Err(Finding::EndsText { at: 0 }));
    let twice = [called, vec![WORDS.tool()], WORDS.ids("a")].concat();
    let at = twice.len() - 1;
    assert_eq!(matcher(&lark).push(&vocabulary(), &twice), Err(Finding::CannotContinue { at }));
}

#[test]
fn a_loop_of_whitespace_is_found_past_the_limit_and_0_means_no_limit() {
    let (grammar, vocabulary) = (compile(&schema()).unwrap(), vocabulary());
    let looping = |spaces: usize, whitespace_max| {
        let ids = [WORDS.ids("{"), WORDS.ids("    ").repeat(spaces / 4)].concat();
        grammar.matcher(whitespace_max, None).push(&vocabulary, &ids)
    };
    assert_eq!(looping(40, 40), Ok(()));
    assert_eq!(looping(44, 40), Err(Finding::Whitespace { at: 11 }));
    assert_eq!(looping(400, 0), Ok(()));
    // The count continues over rows and restarts after any other byte.
    let mut matcher = grammar.matcher(6, None);
    for row in ["{\n\n", "    ", "\"name\"", "    :", "    "] {
        assert_eq!(matcher.push(&vocabulary, &WORDS.ids(row)), Ok(()), "{row:?}");
    }
    assert_eq!(matcher.push(&vocabulary, &WORDS.ids("\n\n\n\n")), Err(Finding::Whitespace { at: 1 }));
    // Blanks in a string are content, whether its characters matter or not.
    for schema in ["{}", r#"{"maxProperties": 1, "items": {"pattern": "a"}}"#, r#"{"not": {"type": "null"}}"#]
    {
        let grammar = compile(&GrammarText::JsonSchema(schema.into())).unwrap();
        for text in ["[\"    ", "{\"    ", "[\"a", "[\"\\n"] {
            let mut matcher = grammar.matcher(6, None);
            let ids = WORDS.ids(&format!("{text}{}", "    ".repeat(9)));
            assert_eq!(matcher.push(&vocabulary, &ids), Ok(()), "{schema} {text}");
            let after = WORDS.ids("a\" ");
            assert_eq!(matcher.push(&vocabulary, &after), Ok(()), "{schema} {text}");
        }
        let ids = [WORDS.ids("[\"a\""), WORDS.ids("    ").repeat(2)].concat();
        let found = grammar.matcher(6, None).push(&vocabulary, &ids);
        assert!(matches!(found, Err(Finding::Whitespace { .. })), "{schema}: {found:?}");
    }
}

#[test]
fn requests_share_a_grammar_but_not_their_positions_in_it() {
    let (grammar, vocabulary) = (compile(&schema()).unwrap(), vocabulary());
    let texts = ["{\"name\": \"a\", \"age\": 1}", "{\"name\": \"hello \", \"age\": 22}", "{\"age\": 1}"];
    let mut matchers: Vec<Matcher> = texts.iter().map(|_| grammar.matcher(0, None)).collect();
    let mut found = vec![];
    for at in 0..40 {
        for (request, text) in texts.iter().enumerate() {
            let ids = WORDS.ids(text);
            let row = ids.get(at).map(std::slice::from_ref).unwrap_or_default();
            if let Err(finding) = matchers[request].push(&vocabulary, row) {
                found.push((request, at, finding));
            }
        }
    }
    assert_eq!(found, [(2, 5, Finding::CannotContinue { at: 0 })]);
    assert_eq!(matchers.pop().unwrap().end(&vocabulary, &[], FinishKind::Stop), Ok(()), "already reported");
    for mut matcher in matchers {
        assert_eq!(matcher.end(&vocabulary, &[], FinishKind::Stop), Ok(()));
    }
}

#[test]
fn an_invalid_grammar_is_refused_under_the_name_of_its_setting() {
    let refused = |text: GrammarText| match compile(&text) {
        Ok(_) => panic!("{text:?} is not refused"),
        Err(error) => error.message(),
    };
    for (text, with) in [
        (GrammarText::JsonSchema("{".into()), "/grammar/json_schema: invalid JSON: "),
        (GrammarText::JsonSchema(r#"{"type": "strin"}"#.into()), "/grammar/json_schema: "),
        (GrammarText::JsonSchema(r#"{"pattern": "("}"#.into()), "/grammar/json_schema: "),
        (
            GrammarText::JsonSchema(r#"{"$ref": "https://example.com/a.json"}"#.into()),
            "/grammar/json_schema: ",
        ),
        (GrammarText::Regex("(".into()), "/grammar/regex: "),
        (GrammarText::Lark("start: other".into()), "/grammar/lark: "),
        (GrammarText::Lark("start: <[9999]>".into()), "/grammar/lark: "),
    ] {
        let error = refused(text);
        assert!(error.starts_with(with) && error.len() > with.len(), "{error}");
    }
    let long = GrammarText::Regex("a".repeat(GRAMMAR_BYTES_MAX + 1));
    assert_eq!(refused(long), "/grammar/regex: 1048577 bytes is over the limit of 1048576");
}

#[test]
fn a_text_that_needs_too_many_states_is_not_checked_and_the_next_request_is() {
    // Up to 2^20 states: nearly every byte needs a new one.
    let settings =
        serde_json::from_str(r#"{"grammar": {"regex": "(?s:.*a.{20})"}, "on_violation": "abort"}"#);
    let regex = crate::regex::RegexLimits { compiled: 1 << 20, automaton: 40 << 10 };
    let limits = crate::grammar::GrammarLimits { regex, ..crate::grammar::GrammarLimits::OF_SETTINGS };
    let mut check = GrammarCheck::within(limits, &settings.unwrap(), &WORDS).unwrap();
    let mut seed = 1_u64;
    let mut rows = || -> Vec<TokenId> {
        let mut a_or_b = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            if seed >> 63 == 0 { TokenId::from(b'a') } else { TokenId::from(b'b') }
        };
        (0..400).map(|_| a_or_b()).collect()
    };
    for request in [1, 2] {
        check.open(&opened(request, 0));
        check.begin_batch();
        let mut judged = check.row(request, &rows(), FinishKind::Running);
        for _ in 0..100 {
            check.begin_batch();
            judged = judged.or_else(|| check.row(request, &[], FinishKind::Running));
        }
        let judged = judged.unwrap();
        assert_eq!(judged.action, RowAction::Report, "not the text's fault: {judged:?}");
        assert!(judged.reason.starts_with("no longer checked after "), "{judged:?}");
        assert!(judged.reason.len() <= 256);
    }
    check.open(&opened(3, 0));
    check.begin_batch();
    assert_eq!(check.row(3, &WORDS.ids("aaaaaaaaaaaaaaaaaaaaaa"), FinishKind::Length), None);
}

fn opened(request: u64, received_tokens: u64) -> Opened {
    let (rid, front_end, sink) = ("r".into(), String::new(), String::new());
    Opened {
        request,
        rid,
        front_end,
        sink,
        arrived_ms: 0,
        prompt_tokens: 5,
        received_tokens,
        resumed: received_tokens > 0,
    }
}

fn check(settings: &str) -> GrammarCheck {
    GrammarCheck::new(&serde_json::from_str(settings).unwrap(), &WORDS).unwrap()
}

fn refused(settings: &str) -> String {
    GrammarCheck::new(&serde_json::from_str(settings).unwrap(), &WORDS).err().unwrap().message()
}

#[test]
fn a_finding_has_the_action_of_the_settings_and_names_the_token() {
    for (on_violation, action) in
        [("report", RowAction::Report), ("finish", RowAction::Finish), ("abort", RowAction::Abort)]
    {
        let settings = serde_json::json!({"grammar": {"json_schema": SCHEMA}, "on_violation": on_violation,
            "on_early_end": "abort", "whitespace_max": 8});
        let mut check = check(&settings.to_string());
        for request in 1..5 {
            check.open(&opened(request, 0));
        }
        assert_eq!(check.row(1, &WORDS.ids("{\"name"), FinishKind::Running), None);
        let judged = check.row(1, &WORDS.ids("\":true,"), FinishKind::Running).unwrap();
        let true_id = WORDS.ids("true")[0];
        let reason = format!("token 4 (id {true_id}, \"true\"): not allowed by the grammar");
        assert_eq!(judged, Judgement { action, kind: FindingKind::Violation, reason, allowed: 1 });
        assert_eq!(check.row(1, &WORDS.ids("xx"), FinishKind::Length), None, "reported once");

        let judged = check.row(2, &[WORDS.end()], FinishKind::Stop).unwrap();
        let reason = format!("token 1 (id {}): ends the text before the grammar is complete", WORDS.end());
        assert_eq!(
            judged,
            Judgement { action: RowAction::Abort, kind: FindingKind::EarlyEnd, reason, allowed: 1 }
        );

        assert_eq!(check.row(3, &WORDS.ids("{\"name"), FinishKind::Running), None);
        let judged = check.row(3, &[], FinishKind::Length).unwrap();
        let reason = "ended after 2 tokens, before the grammar is complete".to_owned();
        assert_eq!(
            judged,
            Judgement { action: RowAction::Abort, kind: FindingKind::EarlyEnd, reason, allowed: 0 }
        );

        let judged = check.row(4, &WORDS.ids("{            "), FinishKind::Running).unwrap();
        let spaces = WORDS.ids("    ")[0];
        let reason = format!("token 4 (id {spaces}, \"    \"): over 8 bytes of whitespace in a row");
        assert_eq!(judged, Judgement { action, kind: FindingKind::Violation, reason, allowed: 3 });
    }
}

#[test]
fn resumed_and_closed_requests_are_not_checked() {
    let mut check = check(r#"{"grammar": {"regex": "a"}}"#);
    check.open(&opened(1, 3));
    let judged = check.row(1, &WORDS.ids("x"), FinishKind::Running).unwrap();
    let reason = "not checked: its first 3 tokens came before this instance".to_owned();
    assert_eq!(
        judged,
        Judgement { action: RowAction::Report, kind: FindingKind::NotChecked, reason, allowed: 1 }
    );
    assert_eq!(check.row(1, &WORDS.ids("x"), FinishKind::Running), None, "reported once");
    check.open(&opened(2, 0));
    check.close(2);
    assert_eq!(check.row(2, &WORDS.ids("x"), FinishKind::Running), None);
}

fn named(request: u64, rid: &str) -> Opened {
    Opened { rid: rid.into(), ..opened(request, 0) }
}

#[test]
fn the_first_matching_rule_decides() {
    let mut check = check(
        r#"{"grammar": {"regex": "[0-9]*"}, "on_violation": "finish", "rules": [
            {"rid_prefix": "free-"},
            {"rid_prefix": "a-", "rid_pattern": "z$", "grammar": {"regex": "z*"}, "on_violation": "abort"},
            {"rid_prefix": "a-", "grammar": {"regex": "a*"}}]}"#,
    );
    check.open(&named(1, "free-a-z"));
    assert_eq!(check.row(1, &WORDS.ids("x"), FinishKind::Running), None);
    let mut judged = |request, rid, text| {
        check.open(&named(request, rid));
        check.row(request, &WORDS.ids(text), FinishKind::Running).map(|judged| judged.action)
    };
    assert_eq!(judged(2, "a-z", "zz"), None);
    assert_eq!(judged(3, "a-z", "a"), Some(RowAction::Abort));
    assert_eq!(judged(4, "a-zy", "a"), None);
    assert_eq!(judged(5, "a-zy", "z"), Some(RowAction::Finish));
    assert_eq!(judged(6, "other", "7"), None);
    assert_eq!(judged(7, "other", "a"), Some(RowAction::Finish));
}

#[test]
fn without_a_general_grammar_only_requests_that_match_a_rule_are_checked() {
    let mut check = check(r#"{"rules": [{"rid_pattern": "^json-[0-9]+$", "grammar": {"regex": "a"}}]}"#);
    check.open(&named(1, "json-12"));
    check.open(&named(2, "json-x"));
    assert_eq!(check.row(2, &WORDS.ids("x"), FinishKind::Running), None);
}

#[test]
fn invalid_settings_are_refused_with_their_pointer() {
    assert_eq!(
        refused("{}"),
        "/grammar: is missing, no rule has one, and there is neither grammar_attribute nor grammar_asked nor tool_calls: nothing would be checked"
    );
    assert!(refused(r#"{"rules": [{"rid_prefix": "a"}]}"#).starts_with("/grammar: is missing"));
    let neither = refused(r#"{"rules": [{"grammar": {"regex": "a"}}]}"#);
    assert_eq!(
        neither,
        "/rules/0: has neither rid_prefix nor rid_pattern nor attribute and would match every request"
    );
    let equals = refused(r#"{"rules": [{"rid_prefix": "a", "equals": 1, "grammar": {"regex": "a"}}]}"#);
    assert_eq!(equals, "/rules/0/equals: needs an attribute to compare with");
    let pattern = refused(r#"{"rules": [{"rid_pattern": "(", "grammar": {"regex": "a"}}]}"#);
    assert!(pattern.starts_with("/rules/0/rid_pattern: "), "{pattern}");
    let grammar =
        refused(r#"{"grammar": {"regex": "a"}, "rules": [{"rid_prefix": "a", "grammar": {"regex": "("}}]}"#);
    assert!(grammar.starts_with("/rules/0/grammar/regex: "), "{grammar}");
    let none = refused(r#"{"grammar": {"regex": "a"}, "work_per_call": 0}"#);
    assert_eq!(none, "/work_per_call: is 0, must be 1 or more");
    let rules = vec![serde_json::json!({"rid_prefix": "a"}); RULES_MAX + 1];
    let many = refused(&serde_json::json!({"grammar": {"regex": "a"}, "rules": rules}).to_string());
    assert_eq!(many, "/rules: has 65 rules, the limit is 64");
}

#[test]
fn a_grammar_begins_after_a_marker_in_any_tokens_or_after_a_special_token() {
    let settings = |after: &str| {
        format!(
            r#"{{"grammar": {{"regex": "[0-9]+"}}, "begins_after": "{after}", "on_violation": "finish"}}"#
        )
    };
    // The marker may end within a token, with the start of the grammar's text.
    for (after, before) in [("</think>", "so: <</think>"), ("hello \\\"", "hel hello \""), ("ab", "xaab")] {
        for length in [1, 2, 3, 50] {
            let mut check = check(&settings(after));
            check.open(&opened(1, 0));
            let ids = [WORDS.ids(before), WORDS.ids("42")].concat();
            for row in ids.chunks(length) {
                assert_eq!(check.row(1, row, FinishKind::Running), None, "{after} in {length}");
            }
            let judged = check.row(1, &WORDS.ids("x"), FinishKind::Running).unwrap();
            assert!(judged.reason.starts_with(&format!("token {} ", ids.len() + 1)), "{judged:?}");
        }
    }
    let mut special = check(&settings("<tool>"));
    special.open(&opened(1, 0));
    let begun = [WORDS.ids("free"), vec![WORDS.tool()], WORDS.ids("4")].concat();
    assert_eq!(special.row(1, &begun, FinishKind::Running), None);
    assert!(special.row(1, &WORDS.ids("x"), FinishKind::Running).is_some());
    // "abab": the grammar's text begins within the token.
    let mut within = check(&settings("aba"));
    within.open(&opened(1, 0));
    let judged = within.row(1, &WORDS.ids("abab"), FinishKind::Running).unwrap();
    assert_eq!(judged.kind, FindingKind::Violation, "b is no digit");
    let mut never = check(&settings("</think>"));
    never.open(&opened(1, 0));
    assert_eq!(never.row(1, &WORDS.ids("42"), FinishKind::Stop).unwrap().kind, FindingKind::EarlyEnd);
}

#[test]
fn the_plugin_gives_one_verdict_one_log_line_and_one_count() {
    use afterbay_plugin::Action::Annotate;
    use afterbay_plugin::testing::{Harness, Metric, TestRow};
    use afterbay_plugin::{Action, Ending, FinishReason, Replacement, Verdict};
    let tokens: Vec<Option<Vec<u8>>> = (0..=u8::MAX).map(|byte| Some(vec![byte])).chain([None]).collect();
    for (on_violation, action) in [
        ("report", Action::Annotate as fn(String) -> Action),
        ("finish", |matched| {
            let replacement = Some(Replacement { ids: vec![97], text: None });
            Action::Finish(Ending { reason: FinishReason::Stop(matched), replacement })
        }),
        ("abort", |message| Action::Finish(FinishReason::Abort(message).into())),
    ] {
        let settings = serde_json::json!({"grammar": {"regex": "a*"}, "on_violation": on_violation});
        let mut plugin = Harness::<GrammarCheck>::with_tokens(&settings.to_string(), tokens.clone()).unwrap();
        plugin.open(1);
        plugin.open_as(opened(2, 7));
        plugin.open(3);
        let verdicts = plugin.process(&[TestRow::new(1).ids([97]), TestRow::new(2).ids([98])]);
        let [Verdict { row: 1, action: Annotate(missed) }] = &verdicts[..] else { panic!("{verdicts:?}") };
        assert_eq!(missed, "not checked: its first 7 tokens came before this instance");
        let verdicts = plugin.process(&[TestRow::new(3).ids([97, 256]), TestRow::new(1).ids([97, 98])]);
        assert_eq!(verdicts.len(), 1, "{verdicts:?}");
        let reason = "token 3 (id 98, \"b\"): not allowed by the grammar".to_owned();
        assert_eq!((verdicts[0].row, &verdicts[0].action), (1, &action(reason)));
        assert_eq!(plugin.process(&[TestRow::new(1).ids([98])]), []);
        let logged: Vec<_> = plugin.logged().iter().map(|line| line.request).collect();
        assert_eq!(logged, [Some(2), Some(1)]);
        assert_eq!(plugin.metric("violations"), Some(Metric::Counter(1)));
        assert_eq!(plugin.metric("not_checked"), Some(Metric::Counter(1)));
        plugin.close(1);
    }
    let none = Harness::<GrammarCheck>::new(r#"{"grammar": {"regex": "a"}}"#).err().unwrap();
    assert_eq!(none.message(), "the tokenizer has no tokens");
}

#[test]
fn a_rule_may_select_requests_by_an_attribute() {
    use afterbay_plugin::testing::{Harness, TestRow};
    let tokens: Vec<Option<Vec<u8>>> = (0..=u8::MAX).map(|byte| Some(vec![byte])).chain([None]).collect();
    let settings =
        r#"{"rules": [{"attribute": "grammar", "equals": "yes-no", "grammar": {"regex": "yes|no"}}]}"#;
    let mut plugin = Harness::<GrammarCheck>::with_tokens(settings, tokens).unwrap();
    plugin.set_attributes(1, r#"{"grammar": "yes-no"}"#);
    plugin.set_attributes(2, r#"{"grammar": "other"}"#);
    (1..=3).for_each(|request| plugin.open(request));
    let row = |request| TestRow::new(request).ids([i64::from(b'x')]);
    let verdicts = plugin.process(&[row(3), row(2), row(1)]);
    assert_eq!(verdicts.iter().map(|verdict| verdict.row).collect::<Vec<_>>(), [2], "{verdicts:?}");
}

#[test]
fn known_paths_agree_with_the_parser() {
    let lark = "start: (word \" \"*)+ NUMBER?\nword: /[a-z日]+/ | \"{\" word \"}\"\nNUMBER: /[0-9]{2,4}/";
    let grammars = [lark, "start: /(?s:[^\"]*(ab)+[0-9]?)/"].map(|lark| GrammarText::Lark(lark.into()));
    let texts = [
        "{\"name\": \"hello 日本 hello hello \\\" abab\", \"age\": 12, \"next\": {\"name\": \"abab\"",
        "abab hello {\"x\": 日本 hello hello hello abab7",
        "hello {abab} 日本 hello hello hello hello hello 日本日本 1234",
    ];
    let vocabulary = vocabulary();
    let mut seed = 1_u64;
    let mut random = |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % below
    };
    let (mut ended, mut found) = (0, 0);
    for text in &grammars {
        let (by_path, by_token) = (compile(text).unwrap(), compile(text).unwrap());
        let crate::grammar::GrammarKind::Lark(lark) = &by_token.kind else { panic!("{text:?}") };
        lark.counts_each_token();
        for _ in 0..150 {
            let mut ids = WORDS.ids(texts[random(texts.len())]);
            // Repeat a part, change a token, and cut the text.
            let (from, to) = (random(ids.len()), random(ids.len()));
            if from < to {
                let part = ids[from..to].repeat(random(20));
                ids.splice(from..to, part);
            }
            if random(2) == 0 && !ids.is_empty() {
                let at = random(ids.len());
                ids[at] = random(WORDS.tool() as usize + 1) as TokenId;
            }
            ids.truncate(random(2 * ids.len() + 1));
            let finish = [FinishKind::Stop, FinishKind::Length, FinishKind::Abort][random(3)];
            let row = 1 + random(5);
            let whole = |grammar: &Grammar| {
                let mut matcher = grammar.matcher(8, None);
                let rows: Vec<&[TokenId]> = ids.chunks(row).collect();
                let (last, before) =
                    rows.split_last().map_or((&[][..], &[][..]), |(last, before)| (*last, before));
                for (at, row) in before.iter().enumerate() {
                    matcher.push(&vocabulary, row).map_err(|finding| (at, finding))?;
                }
                matcher.end(&vocabulary, last, finish).map_err(|finding| (before.len(), finding))
            };
            let (one, other) = (whole(&by_path), whole(&by_token));
            assert_eq!(one, other, "{text:?} {ids:?} {finish:?}");
            *if one.is_ok() { &mut ended } else { &mut found } += 1;
        }
    }
    assert!(ended > 20 && found > 100, "{ended} {found}");
}
