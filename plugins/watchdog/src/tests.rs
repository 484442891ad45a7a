//! The plugin against the SDK's stand-in of the host.

use afterbay_plugin::testing::{Harness, Metric, TestRow};
use afterbay_plugin::{Ending, Failure, FinishReason, Opened, RequestAction, RequestId, RequestVerdict};
use serde_json::json;

use crate::Watchdog;

const NOW: u64 = 1_800_000_000_000;

fn start(settings: &str) -> Harness<Watchdog> {
    let mut host = Harness::<Watchdog>::new(settings).unwrap();
    host.set_time_ms(NOW);
    host
}

fn ends(request: RequestId, reason: FinishReason) -> RequestVerdict {
    let action = RequestAction::Finish(Ending { reason, replacement: None });
    RequestVerdict { request, action }
}

fn error(request: RequestId, message: &str) -> RequestVerdict {
    ends(request, FinishReason::Error(Failure { status: 504, message: message.to_owned() }))
}

/// The verdicts at this many seconds after the start.
fn at(host: &mut Harness<Watchdog>, seconds: u64) -> Vec<RequestVerdict> {
    host.set_time_ms(NOW + seconds * 1000);
    host.due()
}

fn row(host: &mut Harness<Watchdog>, seconds: u64, request: RequestId) {
    host.set_time_ms(NOW + seconds * 1000);
    assert_eq!(host.process(&[TestRow::new(request).ids([7])]), []);
}

#[test]
fn a_request_without_a_first_token_ends_with_an_error_when_its_time_is_up() {
    let mut host = start(r#"{"first_token": "30s"}"#);
    host.open(1);
    host.open(2);
    row(&mut host, 29, 2);
    assert_eq!(at(&mut host, 29), []);
    assert_eq!(at(&mut host, 30), [error(1, "afterbay: no first token in 30 s")]);
    assert_eq!(at(&mut host, 3000), [], "request 2 has its first token, and no other limit holds");
    let ended = host.metric_with("watchdog_requests_ended", &[("limit", "first_token")]);
    assert_eq!(ended, Some(Metric::Counter(1)));
}

#[test]
fn each_row_gives_a_request_the_time_to_the_next_one() {
    let mut host = start(r#"{"first_token": "60s", "token": "10s", "end": "length"}"#);
    host.open(1);
    row(&mut host, 5, 1);
    for seconds in [14, 23, 32, 33] {
        assert_eq!(at(&mut host, seconds), [], "{seconds}");
        row(&mut host, seconds, 1);
    }
    assert_eq!(at(&mut host, 42), []);
    assert_eq!(at(&mut host, 43), [ends(1, FinishReason::Length)]);
}

#[test]
fn a_request_that_gets_tokens_ends_at_the_limit_of_the_whole() {
    let mut host = start(r#"{"token": "10s", "total": "25s", "status": 503}"#);
    host.open(1);
    for seconds in [1, 9, 18, 24] {
        row(&mut host, seconds, 1);
        assert_eq!(at(&mut host, seconds), []);
    }
    let reason = Failure { status: 503, message: "afterbay: no end in 25 s".into() };
    assert_eq!(at(&mut host, 25), [ends(1, FinishReason::Error(reason))]);
}

#[test]
fn the_first_rule_that_matches_replaces_all_limits() {
    let settings = json!({"first_token": "30s", "total": "60s", "rules": [
        {"attribute": "lora", "equals": "slow", "first_token": "90s"},
        {"attribute": "batch"},
    ]});
    let mut host = start(&settings.to_string());
    for (request, attributes) in [(1, r#"{"lora": "slow"}"#), (2, r#"{"batch": true}"#), (3, "{}")] {
        host.set_attributes(request, attributes);
        host.open(request);
    }
    assert_eq!(at(&mut host, 30), [error(3, "afterbay: no first token in 30 s")]);
    assert_eq!(at(&mut host, 89), []);
    assert_eq!(at(&mut host, 90), [error(1, "afterbay: no first token in 90 s")]);
    // Its attributes change: it has the general limits now, and they have passed.
    host.set_attributes(2, "{}");
    assert_eq!(at(&mut host, 91), [error(2, "afterbay: no first token in 30 s")]);
}

#[test]
fn an_instance_that_takes_over_waits_for_the_next_row_anew() {
    let mut host = start(r#"{"token": "10s"}"#);
    host.open_as(Opened {
        request: 1,
        rid: "r".into(),
        front_end: String::new(),
        sink: String::new(),
        arrived_ms: NOW,
        prompt_tokens: 3,
        received_tokens: 20,
        resumed: true,
    });
    assert_eq!(at(&mut host, 60), [], "the time of its last row is not known");
    assert_eq!(at(&mut host, 69), []);
    assert_eq!(at(&mut host, 70), [error(1, "afterbay: no further token in 10 s")]);
}

#[test]
fn settings_without_a_limit_or_with_a_status_that_is_no_error_are_refused() {
    for (settings, words) in [
        ("{}", "no limit is set"),
        (r#"{"total": "1s", "status": 200}"#, "is 200, must be 400 to 599"),
        (r#"{"total": "1"}"#, "is no length"),
        (r#"{"totl": "1s"}"#, "unknown field"),
    ] {
        let error = format!("{:?}", Harness::<Watchdog>::new(settings).err().unwrap());
        assert!(error.contains(words), "{settings}: {error}");
    }
}
