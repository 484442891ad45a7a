//! The plugin against the SDK's stand-in of the host.

use afterbay_plugin::testing::{Harness, Metric, TestRow};
use afterbay_plugin::{Action, Ending, FinishReason, Opened, Replacement, RequestId, TokenId, Verdict};
use serde_json::json;

use crate::Budget;
use crate::windows::TENANTS_MAX;

const HOUR: u64 = 3_600_000;
const NOW: u64 = 500_000 * HOUR;

fn start(settings: &str) -> Harness<Budget> {
    let mut host = Harness::<Budget>::new(settings).unwrap();
    host.set_time_ms(NOW);
    host
}

fn open(host: &mut Harness<Budget>, request: RequestId, tenant: &str) {
    host.set_attributes(request, &json!({ "tenant": tenant }).to_string());
    host.open(request);
}

fn row(request: RequestId, tokens: usize) -> TestRow {
    TestRow::new(request).ids((0..tokens as TokenId).collect::<Vec<_>>())
}

/// A request that ends with this many of its row's tokens; `None` for all.
fn ends(row: u32, kept: Option<usize>) -> Verdict {
    let replacement = kept.map(|kept| Replacement { ids: (0..kept as TokenId).collect(), text: None });
    Verdict { row, action: Action::Finish(Ending { reason: FinishReason::Length, replacement }) }
}

fn left(host: &Harness<Budget>, tenant: &str) -> Option<f64> {
    match host.metric_with("budget_tokens_left", &[("tenant", tenant)])? {
        Metric::Gauge(left) => Some(left),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_request_ends_with_exactly_its_last_token() {
    let mut host = start(r#"{"request_tokens": 5}"#);
    host.open(1);
    host.open(2);
    host.open(3);
    assert_eq!(host.process(&[row(1, 3), row(2, 4), row(3, 5)]), [ends(2, None)]);
    assert_eq!(host.process(&[row(1, 4), row(2, 1)]), [ends(0, Some(2)), ends(1, None)]);
    assert_eq!(host.metric_with("budget_requests_ended", &[("by", "request")]), Some(Metric::Counter(3)));
}

#[test]
fn the_requests_of_a_tenant_share_its_tokens_and_end_at_the_last_one() {
    let mut host = start(r#"{"tokens": 10, "tenants": {"big": 1000, "none": 0}, "window": "1h"}"#);
    for (request, tenant) in [(1, "a"), (2, "a"), (3, "big"), (4, "b"), (5, "none")] {
        open(&mut host, request, tenant);
    }
    let rows = [row(1, 4), row(2, 4), row(3, 50), row(4, 4), row(5, 1)];
    assert_eq!(host.process(&rows), [ends(4, Some(0))]);
    assert_eq!(
        (left(&host, "a"), left(&host, "big"), left(&host, "none")),
        (Some(2.0), Some(950.0), Some(0.0))
    );
    // 2 tokens are left for both.
    let rows = [row(1, 1), row(2, 3), row(3, 50), row(4, 4)];
    assert_eq!(host.process(&rows), [ends(0, None), ends(1, Some(1))]);
    assert_eq!(left(&host, "a"), Some(0.0));
    open(&mut host, 6, "a");
    assert_eq!(host.process(&[row(6, 1)]), [ends(0, Some(0))], "a new request ends at its first row");
    host.close(1);
    host.close(2);
    host.close(6);
    open(&mut host, 7, "a");
    assert_eq!(host.process(&[row(7, 2)]), [ends(0, Some(0))]);
}

#[test]
fn a_tenant_has_its_whole_budget_in_the_next_window_and_old_numbers_are_removed() {
    let mut host = start(r#"{"tokens": 10, "window": "1h"}"#);
    open(&mut host, 1, "a");
    open(&mut host, 2, "b");
    assert_eq!(host.process(&[row(1, 9), row(2, 3)]), []);
    host.set_time_ms(NOW + HOUR - 1);
    assert_eq!(host.process(&[row(1, 1)]), [ends(0, None)]);
    host.close(1);
    open(&mut host, 3, "a");
    host.set_time_ms(NOW + HOUR);
    assert_eq!(host.process(&[row(3, 9)]), []);
    assert_eq!((left(&host, "a"), left(&host, "b")), (Some(1.0), None), "b has no row in this window");
    let window_end = (NOW + 2 * HOUR) as f64 / 1000.0;
    assert_eq!(host.metric("budget_window_end_seconds"), Some(Metric::Gauge(window_end)));
    let first = format!("{NOW:013}/a");
    assert!(host.stored(&first).is_some(), "a slower stream may still count for the last window");
    host.set_time_ms(NOW + HOUR + 60_000);
    host.process(&[row(3, 0)]);
    assert_eq!(host.stored(&first), None);
    assert_eq!(host.stored(&format!("{:013}/a", NOW + HOUR)), Some(9_i64.to_le_bytes().to_vec()));
}

#[test]
fn numbers_of_a_wrong_clock_are_removed_once_the_clock_is_right() {
    let mut host = start(r#"{"tokens": 10, "window": "1h"}"#);
    open(&mut host, 1, "a");
    host.set_time_ms(NOW + 1000 * HOUR);
    host.process(&[row(1, 5)]);
    host.set_time_ms(NOW);
    assert_eq!(host.process(&[row(1, 5)]), []);
    host.process(&[row(1, 0)]);
    host.process(&[row(1, 0)]);
    assert_eq!(host.stored(&format!("{:013}/a", NOW + 1000 * HOUR)), None);
    assert!(host.stored(&format!("{NOW:013}/a")).is_some());
}

#[test]
fn a_short_step_back_of_the_clock_gives_no_tokens_twice() {
    let mut host = start(r#"{"tokens": 10, "window": "1h"}"#);
    open(&mut host, 1, "a");
    host.process(&[row(1, 6)]);
    host.set_time_ms(NOW - 1);
    assert_eq!(host.process(&[row(1, 6)]), [ends(0, Some(4))]);
}

#[test]
fn budgets_survive_a_restart_and_a_change_of_the_settings() {
    let mut host = start(r#"{"tokens": 10, "request_tokens": 8}"#);
    open(&mut host, 1, "a");
    host.process(&[row(1, 6)]);
    host.restart(r#"{"tokens": 20, "request_tokens": 8}"#).unwrap();
    let request = Opened {
        request: 1,
        rid: "r".into(),
        front_end: String::new(),
        sink: String::new(),
        arrived_ms: 0,
        prompt_tokens: 0,
        received_tokens: 6,
        resumed: true,
    };
    host.open_as(request);
    assert_eq!(host.process(&[row(1, 5)]), [ends(0, Some(2))], "8 of the request");
    open(&mut host, 2, "a");
    open(&mut host, 3, "a");
    assert_eq!(host.process(&[row(2, 7), row(3, 7)]), [ends(0, None), ends(1, Some(5))]);
}

#[test]
fn requests_without_a_tenant_share_one_budget_and_the_tenant_may_change() {
    let mut host = start(r#"{"tokens": 10, "tenant": "/user/tenant"}"#);
    host.open(1);
    host.set_attributes(2, r#"{"user": {"tenant": 7}}"#);
    host.open(2);
    assert_eq!(host.process(&[row(1, 6), row(2, 6)]), []);
    assert_eq!(left(&host, "7"), Some(4.0));
    host.open(3);
    assert_eq!(host.process(&[row(3, 6)]), [ends(0, Some(4))]);
    host.set_attributes(1, r#"{"user": {"tenant": "7"}}"#);
    assert_eq!(host.process(&[row(1, 5)]), [ends(0, Some(4))]);
}

#[test]
fn without_a_common_budget_only_named_tenants_are_limited() {
    let mut host = start(r#"{"tenants": {"a": 3}}"#);
    open(&mut host, 1, "a");
    open(&mut host, 2, "b");
    assert_eq!(host.process(&[row(1, 3), row(2, 1000)]), [ends(0, None)]);
}

#[test]
fn tenants_past_the_bound_and_with_long_names_share_one_budget() {
    let mut host = start(r#"{"tokens": 10, "tenants": {"named": 10}}"#);
    host.set_stored_number(&format!("{:013}#", NOW / (24 * HOUR) * (24 * HOUR)), TENANTS_MAX - 1);
    for (request, tenant) in [(1, "a"), (2, "b"), (3, "c"), (4, &*"d".repeat(129)), (5, "named")] {
        open(&mut host, request, tenant);
    }
    let rows = [row(1, 6), row(2, 6), row(3, 6), row(4, 6), row(5, 6)];
    assert_eq!(host.process(&rows), [ends(2, Some(4)), ends(3, Some(0))], "a has the last place");
}

#[test]
fn after_the_detokenizer_the_count_decides_and_rows_stay_whole() {
    let mut host = start(r#"{"tokens": 10}"#);
    open(&mut host, 1, "a");
    open(&mut host, 2, "a");
    let text = |request, count| TestRow::new(request).text("abc").completion_tokens(count);
    assert_eq!(host.process(&[text(1, 6), text(2, 2)]), []);
    assert_eq!(host.process(&[text(1, 9)]), [ends(0, None)]);
    let replacement = Some(Replacement { ids: Vec::new(), text: Some(String::new()) });
    let action = Action::Finish(Ending { reason: FinishReason::Length, replacement });
    assert_eq!(host.process(&[text(2, 3)]), [Verdict { row: 0, action }]);
}

const RESERVE: &str = r#"{"tokens": 10, "reserve": true}"#;

fn open_with_limit(host: &mut Harness<Budget>, request: RequestId, tenant: &str, limit: u64) {
    host.set_asked(request, &json!({ "sampling": { "max_tokens": limit } }).to_string(), &[]);
    open(host, request, tenant);
}

#[test]
fn a_request_that_may_need_more_than_its_tenant_has_ends_at_its_first_row() {
    let mut host = start(RESERVE);
    open_with_limit(&mut host, 1, "a", 6);
    open_with_limit(&mut host, 2, "a", 5);
    open_with_limit(&mut host, 3, "a", 4);
    open_with_limit(&mut host, 4, "b", 10);
    let rows = [row(1, 2), row(2, 1), row(3, 1), row(4, 1)];
    assert_eq!(host.process(&rows), [ends(1, Some(0))], "6 are reserved, and 4 are left for request 3");
    assert_eq!(host.metric_with("budget_requests_ended", &[("by", "reserve")]), Some(Metric::Counter(1)));
    assert_eq!(left(&host, "a"), Some(7.0), "only received tokens are used");
    // Request 1 ends with 2 of its 6 tokens: 4 are free again.
    host.close(1);
    host.close(2);
    open_with_limit(&mut host, 5, "a", 5);
    open_with_limit(&mut host, 6, "a", 4);
    assert_eq!(host.process(&[row(5, 1), row(6, 1)]), [ends(0, Some(0))]);
    assert_eq!(host.process(&[row(3, 3), row(6, 2)]), []);
    let key = format!("{:013}/a", NOW / (24 * HOUR) * (24 * HOUR));
    assert_eq!(host.stored(&key), Some(9_i64.to_le_bytes().to_vec()), "refused requests use nothing");
}

#[test]
fn a_request_without_a_limit_of_its_own_reserves_nothing_and_one_with_more_than_may_be_reserves_that() {
    let mut host = start(r#"{"tokens": 10, "request_tokens": 4, "reserve": true}"#);
    open(&mut host, 1, "a");
    open_with_limit(&mut host, 2, "a", 4096);
    open_with_limit(&mut host, 3, "a", 4096);
    assert_eq!(
        host.process(&[row(1, 3), row(2, 1), row(3, 1)]),
        [ends(2, Some(0))],
        "3 are left of 10 - 3 - 4"
    );
}

#[test]
fn a_reservation_follows_the_request_to_another_tenant_and_another_instance() {
    let mut host = start(RESERVE);
    open_with_limit(&mut host, 1, "a", 6);
    assert_eq!(host.process(&[row(1, 1)]), []);
    host.set_attributes(1, r#"{"tenant": "b"}"#);
    open_with_limit(&mut host, 2, "a", 9);
    open_with_limit(&mut host, 3, "b", 6);
    assert_eq!(host.process(&[row(2, 1), row(3, 1)]), [ends(1, Some(0))]);
    host.restart(RESERVE).unwrap();
    let resumed = |request, received_tokens| Opened {
        request,
        rid: "r".into(),
        front_end: String::new(),
        sink: String::new(),
        arrived_ms: 0,
        prompt_tokens: 0,
        received_tokens,
        resumed: true,
    };
    host.open_as(resumed(1, 1));
    host.open_as(resumed(2, 1));
    open_with_limit(&mut host, 4, "b", 5);
    open_with_limit(&mut host, 5, "b", 1);
    assert_eq!(host.process(&[row(1, 5), row(2, 7), row(4, 1), row(5, 1)]), [ends(3, Some(0))]);
}

#[test]
fn bad_settings_are_named_with_value_and_limit() {
    let message = |settings: &str| Harness::<Budget>::new(settings).err().unwrap().message();
    assert_eq!(message("{}"), "no budget is set: set request_tokens, tokens or tenants");
    assert_eq!(message(r#"{"request_tokens": 1, "reserve": true}"#), "/reserve: needs tokens or tenants");
    assert_eq!(message(r#"{"request_tokens": 0}"#), "/request_tokens: is 0, must be 1 to 9007199254740992");
    assert_eq!(
        message(r#"{"tokens": 1, "tenant": "a"}"#),
        "/tenant: is \"a\", must be a JSON pointer such as \"/tenant\""
    );
    assert!(message(r#"{"tokens": 1, "window": "1w"}"#).starts_with("/window: \"1w\" is no length"));
    let long = format!(r#"{{"tenants": {{"{}": 1}}}}"#, "x".repeat(129));
    assert!(message(&long).ends_with("the name has 129 bytes, at most 128 are allowed"));
    assert_eq!(
        message(r#"{"tenants": {"a/b": 9007199254740993}}"#),
        "/tenants/a~1b: is 9007199254740993, must be 0 to 9007199254740992"
    );
}
