//! Everything that a plugin gets, as it arrives.

use afterbay_runtime::limits::{OPEN_REQUESTS_MAX, SETTINGS_BYTES_MAX};
use afterbay_runtime::{Action, FinishKind, StartError, TopColumns};

use super::*;

fn messages(plugin: &mut Plugin) -> Vec<(Option<u64>, String)> {
    plugin.drain_log().into_iter().map(|line| (line.request, line.message)).collect()
}

#[test]
fn a_request_is_opened_with_all_its_attributes() {
    let mut plugin = start("reports", "{}");
    let requests = [
        Opened {
            request: 3,
            rid: "a-rid",
            front_end: "ipc:///w0",
            sink: "reader",
            arrived_ms: 0,
            prompt_tokens: 12,
            received_tokens: 0,
            resumed: false,
        },
        Opened {
            request: u64::MAX,
            rid: "ünï",
            front_end: "",
            sink: "",
            arrived_ms: 0,
            prompt_tokens: 0,
            received_tokens: 7,
            resumed: true,
        },
    ];
    plugin.open(&requests).unwrap();
    plugin.close(&[3]).unwrap();
    let expected = [
        (Some(3), "opened a-rid \"ipc:///w0\" \"reader\" 12 0 false".to_owned()),
        (Some(u64::MAX), "opened ünï \"\" \"\" 0 7 true".to_owned()),
        (Some(3), "closed".to_owned()),
    ];
    assert_eq!(messages(&mut plugin), expected);
}

#[test]
fn every_column_arrives_row_by_row() {
    let mut plugin = start("reports", "{}");
    let columns = Columns {
        time_ms: 0,
        requests: &[4, 9],
        output_ids: &[1, -2, 3],
        output_ends: &[2, 3],
        completion_tokens: &[2, u64::MAX],
        finished: &[FinishKind::Running, FinishKind::Length],
        texts: Some(&["héé", ""]),
        waiting: Some(&[3, 0]),
        logprobs: Some(&[-0.5, -1.25, f32::NAN]),
        top_logprobs: Some(TopColumns { ids: &[1, 8], logprobs: &[-0.5, -2.0], ends: &[2, 2, 2] }),
        cached_tokens: Some(&[16, 0]),
        reasoning_tokens: Some(&[1, 0]),
        drafted_tokens: Some(&[9, 0]),
        accepted_tokens: Some(&[5, u64::MAX]),
        weight_versions: Some(&["w2", ""]),
    };
    let verdicts = plugin.process(&columns).unwrap();
    let said: Vec<&str> = verdicts
        .iter()
        .map(|verdict| match &verdict.action {
            Action::Drop(said) => said.as_str(),
            other => panic!("{other:?}"),
        })
        .collect();
    let whole = [
        r#"Row { index: 0, request: 4, ids: [1, -2], text: Some("héé"), logprobs: [-0.5, -1.25], top_logprobs: [[(1, -0.5), (8, -2.0)], []], weight_version: Some("w2"), completion_tokens: Some(2), finish: Some(FinishKind::Running), waiting: Some(3), cached_tokens: Some(16), reasoning_tokens: Some(1), drafted_tokens: Some(9), accepted_tokens: Some(5) }"#,
        r#"Row { index: 1, request: 9, ids: [3], text: Some(""), logprobs: [], top_logprobs: [[]], weight_version: None, completion_tokens: Some(18446744073709551615), finish: Some(FinishKind::Length), waiting: Some(0), cached_tokens: Some(0), reasoning_tokens: Some(0), drafted_tokens: Some(0), accepted_tokens: Some(18446744073709551615) }"#,
    ];
    // The reason of a drop is cut. The columns that it has no room for follow in a batch without the others.
    assert_eq!(said, whole.map(|row| &row[..row.floor_char_boundary(256)]));
    let columns = Columns {
        requests: &[4],
        output_ends: &[0],
        cached_tokens: Some(&[16]),
        reasoning_tokens: Some(&[1]),
        drafted_tokens: Some(&[9]),
        accepted_tokens: Some(&[5]),
        ..Columns::default()
    };
    let Action::Drop(said) = &plugin.process(&columns).unwrap()[0].action else { panic!("no drop") };
    assert!(said.contains("cached_tokens: Some(16), reasoning_tokens: Some(1)"), "{said}");
}

#[test]
fn a_missing_column_is_none() {
    let mut plugin = start("reports", "{}");
    let columns = Columns { requests: &[4], output_ends: &[0], ..Columns::default() };
    let verdicts = plugin.process(&columns).unwrap();
    assert_eq!(verdicts[0].action, Action::Drop(
            "Row { index: 0, request: 4, ids: [], text: None, logprobs: [], top_logprobs: [], weight_version: None, completion_tokens: None, finish: None, waiting: None, cached_tokens: None, reasoning_tokens: None, drafted_tokens: None, accepted_tokens: None }"
                .into()
        ));
}

#[test]
fn more_requests_than_fit_a_call_are_opened_in_several() {
    let mut plugin = start("reports", "{}");
    let requests: Vec<Opened<'_>> = (0..OPEN_REQUESTS_MAX as u64 * 2 + 1).map(opened).collect();
    plugin.open(&requests).unwrap();
    let lines = messages(&mut plugin);
    assert_eq!((lines.len(), lines[99].0), (100, Some(99)), "the rest is over the log's rate");
}

#[test]
fn refused_settings_are_reported_in_the_plugins_words() {
    let error = load("reports").instantiate(r#"{"refuse": "not on a Friday"}"#).unwrap_err();
    assert_eq!(error.to_string(), "plugin \"reports\": refuses its settings: not on a Friday");
}

#[test]
fn settings_that_are_not_json_or_too_long_do_not_reach_the_plugin() {
    let component = load("reports");
    let refuse = |settings: &str| match component.instantiate(settings) {
        Err(StartError::BadSettings { message, .. }) => message,
        other => panic!("{other:?}"),
    };
    assert!(refuse("{").starts_with("are not JSON: "));
    let long = format!("\"{}\"", "x".repeat(SETTINGS_BYTES_MAX));
    assert_eq!(refuse(&long), "have 1048578 bytes, at most 1048576 are allowed");
}
