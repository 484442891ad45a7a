//! Imports with an effect outside of the instance: the store, calls, labels and the health mark.

use std::sync::Arc;

use afterbay_runtime::{
    Action, Answer, CallError, Ending, FinishReason, Grants, RequestAction, Response, Store, Unsent,
};

use super::*;
use crate::store::MemoryStore;

fn started(store: &Arc<MemoryStore>) -> Plugin {
    let grants = Grants {
        metrics: Some(Arc::new(())),
        health: true,
        store: Some(store.clone()),
        call: true,
        ..Grants::default()
    };
    host().load("effects", &guest("effects"), granted(grants)).unwrap().instantiate("{}").unwrap()
}

fn answer<'a>(call: u64, request: u64, outcome: Result<Response<'a>, CallError<'a>>) -> Answer<'a> {
    Answer { call, request, outcome }
}

#[test]
fn an_instance_on_the_path_changes_its_store_and_makes_calls() {
    let store = Arc::new(MemoryStore::default());
    let mut plugin = started(&store);
    plugin.set_effects(true);
    let batch = Columns { time_ms: 17, ..batch_of(&[4, 5, 6]) };
    let verdicts = plugin.process(&batch).unwrap();
    let length = Ending { reason: FinishReason::Length, replacement: None };
    assert_eq!(verdicts[0].action, Action::Hold(100));
    assert_eq!(verdicts[2].action, Action::Finish(length));
    assert_eq!(store.increment("rows", 0), Ok(3));
    let calls = plugin.drain_calls();
    assert_eq!((calls.len(), calls[1].call, calls[1].request, &calls[1].endpoint[..]), (3, 2, 5, "service"));
    let body = String::from_utf8(calls[1].body.clone().unwrap()).unwrap();
    assert_eq!(body, r#"2 at 17, Ok(()), ["row/1", "row/2"], Some([2, 0, 0, 0, 0, 0, 0, 0])"#);
    assert!(!plugin.has_calls());

    let response = |status| Ok(Response { status, body: b"no" });
    let verdicts = plugin.answered(&[answer(1, 4, response(200)), answer(2, 5, response(403))]).unwrap();
    assert_eq!(verdicts[0].action, RequestAction::Release(1));
    let RequestAction::Finish(ending) = &verdicts[1].action else { panic!("{verdicts:?}") };
    assert_eq!(ending.reason, FinishReason::Abort("refused".into()));
    assert_eq!(ending.replacement.as_ref().unwrap().text.as_deref(), Some("no"));
    assert!(!plugin.take_health_change());
    assert_eq!(plugin.answered(&[answer(3, 6, Err(CallError::TimedOut))]).unwrap(), []);
    assert!(plugin.take_health_change() && !plugin.take_health_change());
    assert!(plugin.not_ready().unwrap().contains("TimedOut"));
    assert_eq!(store.get("row/1"), None);
}

#[test]
fn an_instance_off_the_path_changes_nothing_and_its_calls_are_not_sent() {
    let store = Arc::new(MemoryStore::default());
    store.increment("rows", 7).unwrap();
    let mut plugin = started(&store);
    plugin.process(&batch_of(&[4])).unwrap();
    assert_eq!((store.increment("rows", 0), store.keys("", None, 9)), (Ok(7), vec!["rows".to_owned()]));
    assert_eq!(plugin.drain_calls()[0].body, Err(Unsent::NotOnPath));
}

#[test]
fn a_component_without_these_grants_is_refused_by_name() {
    let error = host().load("mine", &guest("effects"), limits()).unwrap_err().to_string();
    assert_eq!(
        error,
        "plugin \"mine\": wants metrics, health, store, call, which it is not granted: add it to grant"
    );
}
