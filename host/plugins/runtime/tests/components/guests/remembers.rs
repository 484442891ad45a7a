//! Calls beside rows: attributes, signals and state.

use std::sync::Arc;

use afterbay_runtime::signals::{Load, Queue, Sink, SinkState, Snapshot};
use afterbay_runtime::{Grants, LoadError, StateError};

use super::*;

fn start() -> Plugin {
    let grants = Grants { signals: true, request: true, ..Grants::default() };
    host().load("remembers", &guest("remembers"), granted(grants)).unwrap().instantiate("{}").unwrap()
}

fn messages(plugin: &mut Plugin) -> Vec<String> {
    plugin.drain_log().into_iter().map(|line| line.message).collect()
}

#[test]
fn calls_that_need_a_grant_are_refused_without_it_by_name() {
    let error = host().load("remembers", &guest("remembers"), limits()).unwrap_err();
    let LoadError::NotGranted { interfaces, .. } = error else { panic!("{error}") };
    assert_eq!(interfaces, ["signals", "request"]);
}

#[test]
fn attributes_are_those_set_last_until_they_are_removed() {
    let mut plugin = start();
    plugin.set_attributes(1, Some(Arc::from(r#"{"tenant":"a"}"#)));
    plugin.open(&[opened(1), opened(2)]).unwrap();
    plugin.set_attributes(1, Some(Arc::from(r#"{"tenant":"b"}"#)));
    plugin.changed(&[1]).unwrap();
    plugin.set_attributes(1, None);
    plugin.changed(&[1]).unwrap();
    assert_eq!(
        messages(&mut plugin),
        [
            r#"opened with 0 rows, worker "", attributes {"tenant":"a"}"#,
            r#"opened with 0 rows, worker "", attributes none"#,
            r#"changed to {"tenant":"b"}"#,
            "changed to none",
        ]
    );
}

#[test]
fn signals_are_those_set_last() {
    let mut plugin = start();
    plugin.pressure().unwrap();
    let queue = Queue { frames: 4, rows: 900, bytes: 7, oldest_age_ms: 5 };
    let sink = Sink {
        name: "reader".into(),
        state: SinkState::Behind,
        backlog: queue,
        backlog_tokens: 1000,
        lag_frames: Some(2),
    };
    let scheduler = Load { age_ms: 1, stale: false, running: Some(17), waiting: None, kv_cache_usage: None };
    plugin.set_signals(Snapshot {
        ingress: queue,
        sinks: vec![sink],
        live_requests: 9,
        scheduler: Some(scheduler),
    });
    plugin.pressure().unwrap();
    assert_eq!(
        messages(&mut plugin),
        ["live 0, sinks [], running None", "live 9, sinks [reader SinkState::Behind 900], running Some(17)",]
    );
}

#[test]
fn the_next_instance_continues_with_the_exported_state() {
    let mut before = start();
    before.open(&[opened(1)]).unwrap();
    before.process(&batch_of(&[1])).unwrap();
    before.process(&batch_of(&[1])).unwrap();
    let state = before.export_state().unwrap().unwrap();
    let mut after = start();
    assert_eq!(after.import_state("0.1.0", &state).unwrap(), Some(Ok(())));
    after.open(&[opened(1)]).unwrap();
    assert_eq!(messages(&mut after), [r#"opened with 2 rows, worker "", attributes none"#]);
}

#[test]
fn an_unknown_state_is_refused_and_the_instance_lives() {
    let mut plugin = start();
    assert_eq!(plugin.import_state("9.9.9", &[]).unwrap(), Some(Err(StateError::UnknownVersion)));
    assert_eq!(plugin.import_state("0.1.0", &[1]).unwrap(), Some(Err(StateError::Corrupt)));
    plugin.process(&batch_of(&[1])).unwrap();
}

#[test]
fn a_plugin_that_did_not_ask_for_these_calls_is_not_called() {
    let mut plugin = crate::start("nothing", "{}");
    plugin.pressure().unwrap();
    plugin.changed(&[1]).unwrap();
    assert_eq!(plugin.export_state().unwrap(), None);
    assert_eq!(plugin.import_state("0.1.0", &[1]).unwrap(), None);
}
