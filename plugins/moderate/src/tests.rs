//! The plugin against a service that the test plays.

use afterbay_plugin::call::{CallError, Response};
use afterbay_plugin::testing::{Harness, Metric, SentCall, TestRow};
use afterbay_plugin::{
    Action, Ending, FinishKind, FinishReason, Replacement, RequestAction, RequestVerdict, TokenId, Verdict,
};
use serde_json::{Value, json};

use super::*;

/// One token for each byte.
fn plugin(settings: &str) -> Harness<Moderate> {
    let tokens = (0..=255).map(|byte| Some(vec![byte])).collect();
    Harness::with_tokens(settings, tokens).unwrap()
}

fn ids(text: &str) -> Vec<TokenId> {
    text.bytes().map(TokenId::from).collect()
}

fn row(text: &str, waiting: u32) -> TestRow {
    TestRow::new(1).ids(ids(text)).waiting(waiting)
}

fn hold() -> Vec<Verdict> {
    vec![Verdict { row: 0, action: Action::Hold(60_000) }]
}

fn input(call: &SentCall) -> String {
    let body: Value = serde_json::from_slice(&call.body).unwrap();
    body["input"].as_str().unwrap().to_owned()
}

fn flagged(flagged: bool) -> Result<Response, CallError> {
    let body = json!({ "results": [{ "flagged": flagged, "categories": { "hate": flagged } }] });
    Ok(Response { status: 200, body: body.to_string().into_bytes() })
}

fn release(rows: u32) -> Vec<RequestVerdict> {
    vec![RequestVerdict { request: 1, action: RequestAction::Release(rows) }]
}

fn finish(text: &str, reason: &str) -> Vec<RequestVerdict> {
    let replacement = Some(Replacement { ids: ids(text), text: Some(text.to_owned()) });
    let ending = Ending { reason: FinishReason::Stop(reason.to_owned()), replacement };
    vec![RequestVerdict { request: 1, action: RequestAction::Finish(ending) }]
}

const SMALL: &str = r#"{"endpoint": "m", "window": 4, "overlap": 2, "notice": "[x]", "reason": "no"}"#;

#[test]
fn text_waits_until_its_window_is_judged_and_the_service_sees_the_overlap() {
    let mut plugin = plugin(SMALL);
    plugin.open(1);
    assert_eq!(plugin.process(&[row("ab", 0)]), hold());
    assert!(plugin.calls().is_empty(), "the window is not full");
    assert_eq!(plugin.process(&[row("cd", 1)]), hold());
    let first = plugin.calls().remove(0);
    assert_eq!((input(&first).as_str(), first.endpoint.as_str()), ("abcd", "m"));
    assert_eq!(plugin.process(&[row("efgh", 2)]), hold());
    let second = plugin.calls().remove(0);
    assert_eq!(input(&second), "cdefgh");
    // The answers arrive in another order.
    assert_eq!(plugin.answer(&second, flagged(false)), []);
    assert_eq!(plugin.answer(&first, flagged(false)), release(3));
    let allowed = plugin.metric_with("windows", &[("result", "allowed")]);
    assert_eq!(allowed, Some(Metric::Counter(2)));
}

#[test]
fn blocked_text_is_replaced_by_the_notice_and_allowed_text_before_it_passes() {
    let mut plugin = plugin(SMALL);
    plugin.open(1);
    plugin.process(&[row("good", 0)]);
    plugin.process(&[row("evil", 1)]);
    let calls = plugin.calls();
    assert_eq!(plugin.answer(&calls[1], flagged(true)), [], "the text before it is not judged");
    assert_eq!(plugin.answer(&calls[0], flagged(false)), finish("good[x]", "no"));
    assert_eq!(plugin.process(&[row("more", 2)]), [], "the host ends the request");
    assert!(plugin.calls().is_empty());
}

#[test]
fn the_last_row_waits_too_and_the_rest_of_the_text_is_judged() {
    let mut plugin = plugin(SMALL);
    plugin.open(1);
    assert_eq!(plugin.process(&[row("a", 0)]), hold());
    assert_eq!(plugin.process(&[row("", 1).finish(FinishKind::Stop)]), hold());
    let last = plugin.calls().remove(0);
    assert_eq!(input(&last), "a");
    assert_eq!(plugin.answer(&last, flagged(false)), release(2));
    plugin.open(2);
    let empty = TestRow::new(2).waiting(0).finish(FinishKind::Stop);
    assert_eq!(plugin.process(&[empty]), [], "no text waits");
}

#[test]
fn a_last_row_without_text_waits_behind_the_last_window() {
    let mut plugin = plugin(SMALL);
    plugin.open(1);
    plugin.process(&[row("abcd", 0)]);
    assert_eq!(plugin.process(&[row("", 1).finish(FinishKind::Stop)]), hold());
    let calls = plugin.calls();
    assert_eq!((calls.len(), plugin.answer(&calls[0], flagged(false))), (1, release(2)));
}

#[test]
fn rows_that_left_unjudged_are_neither_released_nor_replaced() {
    let mut plugin = plugin(SMALL);
    plugin.open(1);
    plugin.process(&[row("abcd", 0)]);
    let first = plugin.calls().remove(0);
    // The host holds no row: the hold's time has passed.
    plugin.process(&[row("efgh", 0)]);
    let second = plugin.calls().remove(0);
    assert_eq!(plugin.answer(&first, flagged(false)), []);
    assert_eq!(plugin.answer(&second, flagged(true)), finish("[x]", "no"));
}

#[test]
fn after_a_failure_nothing_is_held_and_a_later_block_ends_the_request() {
    for error in
        [CallError::TimedOut, CallError::Overloaded, CallError::Failed("x".into()), CallError::Cancelled]
    {
        let mut plugin = plugin(SMALL);
        plugin.open(1);
        plugin.process(&[row("abcd", 0)]);
        plugin.process(&[row("efgh", 1)]);
        let calls = plugin.calls();
        assert_eq!(plugin.answer(&calls[0], Err(error)), []);
        assert_eq!(plugin.answer(&calls[1], flagged(true)), finish("[x]", "no"));
    }
}

#[test]
fn an_answer_that_is_no_judgement_ends_the_request() {
    let wrong = ["", "{}", r#"{"results": []}"#, r#"{"results": [{}]}"#, r#"{"results": [{"flagged": 1}]}"#];
    let answers =
        wrong.map(|body| (200, body)).into_iter().chain([(401, r#"{"results": [{"flagged": false}]}"#)]);
    for (status, body) in answers {
        let mut plugin = plugin(SMALL);
        plugin.open(1);
        plugin.process(&[row("abcd", 0)]);
        let call = plugin.calls().remove(0);
        let response = Response { status, body: body.into() };
        let expected = finish("[x]", "afterbay: moderation gave no judgement");
        assert_eq!(plugin.answer(&call, Ok(response)), expected, "{body}");
    }
}

#[test]
fn only_the_given_categories_count() {
    let settings = r#"{"endpoint": "m", "window": 1, "model": "omni", "categories": ["hate"]}"#;
    for (categories, is_blocked) in
        [(json!({ "hate": false, "sex": true }), false), (json!({ "hate": true }), true)]
    {
        let mut plugin = plugin(settings);
        plugin.open(1);
        plugin.process(&[row("a", 0)]);
        let call = plugin.calls().remove(0);
        assert_eq!(serde_json::from_slice::<Value>(&call.body).unwrap()["model"], "omni");
        let body = json!({ "results": [{ "flagged": true, "categories": categories }] });
        let verdicts =
            plugin.answer(&call, Ok(Response { status: 200, body: body.to_string().into_bytes() }));
        assert_eq!(matches!(verdicts[0].action, RequestAction::Finish(_)), is_blocked);
    }
}

#[test]
fn a_webhook_gets_the_rid_and_the_attributes_and_gives_its_reason() {
    let mut plugin = plugin(r#"{"endpoint": "m", "window": 1, "format": "webhook"}"#);
    plugin.set_attributes(1, r#"{"tenant": "t"}"#);
    plugin.open(1);
    plugin.process(&[row("a", 0)]);
    plugin.process(&[row("b", 1).finish(FinishKind::Stop)]);
    let calls = plugin.calls();
    let bodies: Vec<Value> = calls.iter().map(|call| serde_json::from_slice(&call.body).unwrap()).collect();
    let rid = bodies[0]["rid"].clone();
    assert_eq!(
        bodies[0],
        json!({ "rid": rid, "text": "a", "final": false, "attributes": { "tenant": "t" } })
    );
    assert_eq!((&bodies[1]["text"], &bodies[1]["final"]), (&json!("ab"), &json!(true)));
    let answer = |body: Value| Ok(Response { status: 200, body: body.to_string().into_bytes() });
    assert_eq!(plugin.answer(&calls[0], answer(json!({ "action": "allow" }))), release(1));
    let block = json!({ "action": "block", "reason": "secret" });
    assert_eq!(plugin.answer(&calls[1], answer(block)), finish("", "secret"));
}

#[test]
fn the_service_has_four_windows_of_a_request_at_most_and_further_text_waits() {
    let mut plugin = plugin(r#"{"endpoint": "m", "window": 1, "overlap": 0}"#);
    plugin.open(1);
    for at in 0..6 {
        plugin.process(&[row("a", at)]);
    }
    let calls = plugin.calls();
    assert_eq!(calls.len(), 4);
    assert_eq!(plugin.answer(&calls[0], flagged(false)), release(1));
    plugin.process(&[row("b", 5)]);
    assert_eq!(input(&plugin.calls()[0]), "aab");
}

#[test]
fn a_wrong_setting_is_named() {
    for (settings, pointer) in [
        (r#"{"endpoint": ""}"#, "/endpoint"),
        (r#"{"endpoint": "m", "window": 0}"#, "/window"),
        (r#"{"endpoint": "m", "overlap": 100001}"#, "/overlap"),
        (r#"{"endpoint": "m", "format": "webhook", "model": "x"}"#, "/model"),
    ] {
        let tokens = vec![Some(b"a".to_vec())];
        let error = Harness::<Moderate>::with_tokens(settings, tokens).err().unwrap();
        assert!(error.message().starts_with(pointer), "{error:?}");
    }
}

#[test]
fn the_service_sees_the_end_of_the_prompt_if_it_is_asked_for_and_known() {
    let body = |settings: &str, knows: bool| {
        let mut plugin = plugin(settings);
        if knows {
            plugin.set_asked(1, "{}", &ids("what is ab"));
        }
        plugin.open(1);
        plugin.process(&[row("abcd", 0)]);
        serde_json::from_slice::<Value>(&plugin.calls().remove(0).body).unwrap()
    };
    let webhook = r#"{"endpoint": "m", "window": 4, "format": "webhook", "prompt": 5}"#;
    assert_eq!(body(webhook, true)["prompt"], "is ab");
    assert_eq!(body(webhook, false).get("prompt"), None);
    let openai = r#"{"endpoint": "m", "window": 4, "prompt": 100}"#;
    assert_eq!(body(openai, true)["input"], json!(["what is ab", "abcd"]));
    assert_eq!(body(SMALL, true)["input"], "abcd");
    let refused =
        Harness::<Moderate>::with_tokens(r#"{"endpoint": "m", "prompt": 100001}"#, Vec::new()).err();
    assert!(format!("{refused:?}").contains("100001, must be at most 100000"), "{refused:?}");
}
