//! The limits on the work of a call and on stored tokens.

use super::*;

#[test]
fn work_beyond_the_limit_of_a_call_waits_for_the_next_row_of_the_request() {
    let mut check =
        check(r#"{"grammar": {"lark": "start: /a*/"}, "on_violation": "finish", "work_per_call": 10}"#);
    for request in 1..4 {
        check.open(&opened(request, 0));
    }
    let mut call = |rows: [(&str, FinishKind); 3]| {
        check.begin_batch();
        let row = |(request, (text, finish)): (u64, (&str, FinishKind))| {
            check.row(request, &WORDS.ids(text), finish).map(|judged| (request, judged.reason))
        };
        let found: Vec<_> = (1..).zip(rows).filter_map(row).collect();
        check.end_batch();
        found
    };
    let running = |texts: [&'static str; 3]| texts.map(|text| (text, FinishKind::Running));
    // The first request uses the whole limit, so that x is not checked yet.
    assert_eq!(call(running(["aaa", "a", "aax"])), []);
    let x = format!("token 3 (id {}, \"x\"): not allowed by the grammar", i64::from(b'x'));
    let mut found = vec![];
    for _ in 0..5 {
        found.extend(call(running(["", "", "a"])));
    }
    assert_eq!(found, [(3, x)]);
    // Last rows have an additional limit.
    let last = [("aaa", FinishKind::Length), ("ab", FinishKind::Length), ("x", FinishKind::Length)];
    let found = call(last);
    assert_eq!(found.len(), 1);
    assert!(found[0].1.starts_with("token 3 (id 98"), "{found:?}");
}

#[test]
fn a_last_row_beyond_its_limit_and_a_token_beyond_tokens_max_are_reported() {
    let mut check = check(r#"{"grammar": {"lark": "start: /a*/"}, "work_per_call": 6, "tokens_max": 50}"#);
    for request in 1..5 {
        check.open(&opened(request, 0));
    }
    let (forty, fifty) = (WORDS.ids(&"a".repeat(40)), WORDS.ids(&"a".repeat(50)));
    let tokens_checked = |judged: &Judgement, why: &str| {
        let rest = judged.reason.strip_prefix("no longer checked after ").unwrap();
        let (after, why_not) = rest.split_once(" tokens: ").unwrap();
        assert_eq!((judged.kind, judged.action, why_not), (FindingKind::NotChecked, RowAction::Report, why));
        after.parse::<usize>().unwrap()
    };
    check.begin_batch();
    let judged = check.row(1, &forty, FinishKind::Length).unwrap();
    assert!((1..40).contains(&tokens_checked(&judged, "too much work at once")), "{judged:?}");
    check.end_batch();
    check.begin_batch();
    assert_eq!(check.row(2, &fifty, FinishKind::Running), None, "the first request is freed");
    let judged = check.row(2, &WORDS.ids("a"), FinishKind::Running).unwrap();
    assert!(tokens_checked(&judged, "50 tokens are stored, the limit") < 50, "{judged:?}");
    assert!(
        check.row(3, &WORDS.ids("a"), FinishKind::Running).is_some(),
        "the second request is not freed yet"
    );
    check.end_batch();
    assert_eq!(check.row(4, &fifty, FinishKind::Running), None);
}

#[test]
fn with_too_many_waiting_tokens_only_requests_with_a_backlog_lose_their_check() {
    let mut check =
        check(r#"{"grammar": {"lark": "start: /a*/"}, "on_violation": "finish", "work_per_call": 20}"#);
    let requests = 1..=40;
    requests.clone().for_each(|request| check.open(&opened(request, 0)));
    let (many, mut given_up) = (WORDS.ids(&"a".repeat(100)), vec![]);
    for _ in 0..30 {
        check.begin_batch();
        for request in requests.clone() {
            // The first request has one token in each row.
            let ids = if request == 1 { &many[..1] } else { &many };
            given_up.extend(check.row(request, ids, FinishKind::Running).map(|judged| (request, judged)));
        }
        check.end_batch();
    }
    assert!(given_up.len() > 10, "{}", given_up.len());
    for (request, judged) in &given_up {
        assert!(*request > 1 && judged.reason.ends_with(": too much work at once"), "{request} {judged:?}");
    }
    check.begin_batch();
    let judged = check.row(1, &WORDS.ids("x"), FinishKind::Running).unwrap();
    assert!(judged.reason.starts_with("token 31 "), "{judged:?}");
}

#[test]
fn a_request_is_checked_up_to_the_limit_of_its_tokens() {
    let mut check = check(r#"{"grammar": {"lark": "start: /a*/"}, "work_per_call": 100000}"#);
    check.open(&opened(1, 0));
    let most = vec![TokenId::from(b'a'); REQUEST_TOKENS_MAX as usize];
    assert_eq!(check.row(1, &most, FinishKind::Running), None);
    let judged = check.row(1, &[TokenId::from(b'a')], FinishKind::Running).unwrap();
    assert_eq!(judged.reason, "no longer checked after 16384 tokens: the limit is 16384");
}

#[test]
fn a_value_whose_check_takes_too_long_is_no_match_and_no_violation() {
    let vocabulary = vocabulary();
    let many = |count: usize| {
        let items: Vec<String> = (0..count).map(|item| item.to_string()).collect();
        WORDS.ids(&format!("[{}]", items.join(",")))
    };
    for (count, expected) in [
        (5_000, Ok(())),
        (33_000, Err(Finding::GaveUp { why: "its JSON has over 32,768 values".to_owned() })),
    ] {
        let schema = GrammarText::JsonSchema(r#"{"uniqueItems": true}"#.into());
        assert_eq!(matcher(&schema).end(&vocabulary, &many(count), FinishKind::Length), expected);
    }
    let pattern = GrammarText::JsonSchema(r#"{"pattern": "^(?!a)(b|b)*\\1$"}"#.into());
    let found = whole(&pattern, &WORDS.ids(&format!("\"{}c\"", "b".repeat(40))), FinishKind::Length);
    assert!(matches!(found, Err(Finding::GaveUp { .. })), "{found:?}");
}
