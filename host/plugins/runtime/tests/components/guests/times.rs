//! An instance that sets a timer for each request.

use afterbay_runtime::RequestAction;

use super::*;

#[test]
fn a_timer_is_due_once_at_its_time_and_not_after_the_end_of_its_request() {
    let mut plugin = start("times", r#"{"after_ms": 50}"#);
    let at = |request, arrived_ms| Opened { arrived_ms, ..opened(request) };
    plugin.open(&[at(1, 1000), at(2, 1010), at(3, 1020)]).unwrap();
    assert_eq!(plugin.next_timer_ms(), Some(1050));
    assert!(plugin.due(1049).unwrap().is_empty());
    let ended = |plugin: &mut Plugin, time_ms| -> Vec<u64> {
        let verdicts = plugin.due(time_ms).unwrap();
        let finishes =
            |verdict: &&afterbay_runtime::RequestVerdict| matches!(verdict.action, RequestAction::Finish(_));
        assert!(verdicts.iter().all(|verdict| finishes(&verdict)));
        verdicts.iter().map(|verdict| verdict.request).collect()
    };
    assert_eq!(ended(&mut plugin, 1060), [1, 2]);
    assert_eq!(ended(&mut plugin, 1060), [0; 0]);
    plugin.forget(3);
    assert_eq!(plugin.next_timer_ms(), None);
}
