//! How much is done in a call, and kept.

use super::*;

#[test]
fn what_is_over_a_calls_measure_waits_for_the_requests_next_row_and_is_found_there() {
    let mut check = check(r#"{"grammar": {"regex": "a*"}, "on_violation": "finish", "work_per_call": 10}"#);
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
    // The first takes what there is, and x is not looked at.
    assert_eq!(call(running(["aaa", "a", "aax"])), []);
    let x = format!("token 3 (id {}, \"x\"): not allowed by the grammar", i64::from(b'x'));
    let mut found = vec![];
    for _ in 0..5 {
        found.extend(call(running(["", "", "a"])));
    }
    assert_eq!(found, [(3, x)]);
    // Last rows have a measure of their own.
    let last = [("aaa", FinishKind::Length), ("ab", FinishKind::Length), ("x", FinishKind::Length)];
    let found = call(last);
    assert_eq!(found.len(), 1);
    assert!(found[0].1.starts_with("token 3 (id 98"), "{found:?}");
}

#[test]
fn a_last_row_that_is_over_its_measure_too_and_a_token_that_is_over_the_limit_of_all_are_told() {
    let mut check = check(r#"{"grammar": {"regex": "a*"}, "work_per_call": 4, "tokens_max": 50}"#);
    for request in 1..5 {
        check.open(&opened(request, 0));
    }
    let (forty, fifty) = (WORDS.ids(&"a".repeat(40)), WORDS.ids(&"a".repeat(50)));
    let is_told = |judged: &Judgement, why: &str| {
        let said = judged.reason.strip_prefix("not checked any further after ").unwrap();
        let (after, why_not) = said.split_once(" tokens: ").unwrap();
        assert_eq!((judged.kind, judged.action, why_not), (Kind::GivenUp, Action::Report, why));
        after.parse::<usize>().unwrap()
    };
    check.begin_batch();
    let judged = check.row(1, &forty, FinishKind::Length).unwrap();
    assert!((1..40).contains(&is_told(&judged, "too much at once")), "{judged:?}");
    check.end_batch();
    check.begin_batch();
    assert_eq!(check.row(2, &fifty, FinishKind::Running), None, "the first is forgotten");
    let judged = check.row(2, &WORDS.ids("a"), FinishKind::Running).unwrap();
    assert!(is_told(&judged, "50 tokens are kept already, the limit") < 50, "{judged:?}");
    assert!(check.row(3, &WORDS.ids("a"), FinishKind::Running).is_some(), "the second is not, yet");
    check.end_batch();
    assert_eq!(check.row(4, &fifty, FinishKind::Running), None);
}

#[test]
fn of_more_than_may_wait_those_that_are_behind_are_given_up_and_the_others_go_on() {
    let mut check = check(r#"{"grammar": {"regex": "a*"}, "on_violation": "finish", "work_per_call": 20}"#);
    let requests = 1..=40;
    requests.clone().for_each(|request| check.open(&opened(request, 0)));
    let (many, mut given_up) = (WORDS.ids(&"a".repeat(100)), vec![]);
    for _ in 0..30 {
        check.begin_batch();
        for request in requests.clone() {
            // The first has one token a row.
            let ids = if request == 1 { &many[..1] } else { &many };
            given_up.extend(check.row(request, ids, FinishKind::Running).map(|judged| (request, judged)));
        }
        check.end_batch();
    }
    assert!(given_up.len() > 10, "{}", given_up.len());
    for (request, judged) in &given_up {
        assert!(*request > 1 && judged.reason.ends_with(": too much at once"), "{request} {judged:?}");
    }
    check.begin_batch();
    let judged = check.row(1, &WORDS.ids("x"), FinishKind::Running).unwrap();
    assert!(judged.reason.starts_with("token 31 "), "{judged:?}");
}

#[test]
fn a_request_is_checked_as_far_as_its_text_can_be_forgotten_in_one_call() {
    let mut check = check(r#"{"grammar": {"regex": "a*"}, "work_per_call": 100000}"#);
    check.open(&opened(1, 0));
    let most = vec![TokenId::from(b'a'); REQUEST_TOKENS_MAX as usize];
    assert_eq!(check.row(1, &most, FinishKind::Running), None);
    let judged = check.row(1, &[TokenId::from(b'a')], FinishKind::Running).unwrap();
    assert_eq!(judged.reason, "not checked any further after 16384 tokens: the limit is 16384");
}
