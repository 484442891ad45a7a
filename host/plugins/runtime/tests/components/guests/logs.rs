//! A plugin that logs more than its limit.

use std::time::Duration;

use afterbay_runtime::{Level, Limits};

use super::*;

#[test]
fn lines_are_cut_and_counted_and_keyed_by_request() {
    let mut plugin = start("logs", r#"{"lines": 150}"#);
    assert!(!plugin.has_log());
    plugin.process(&batch_of(&[7])).unwrap();
    assert!(plugin.has_log());
    let lines = plugin.drain_log();
    assert_eq!(lines.len(), 100);
    assert_eq!((lines[0].level, lines[0].request, lines[0].message.len()), (Level::Warn, None, 4096));
    assert_eq!((lines[1].level, lines[1].request), (Level::Debug, Some(7)));
    assert_eq!(lines[99].message, "line 99");
}

/// The price of 40 MB is 40 ms on every machine.
#[test]
fn a_call_that_logs_forty_megabytes_ends_at_its_deadline() {
    let deadline = Duration::from_millis(20);
    let limits = Limits { deadline, ..Limits::default() };
    let component = host().load("logs", &guest("logs"), limits).unwrap();
    for settings in [r#"{"lines": 1, "bytes": 40000000}"#, r#"{"lines": 40, "bytes": 1000000}"#] {
        let fault = component.instantiate(settings).unwrap().process(&batch_of(&[7])).unwrap_err();
        assert_eq!(fault.cause, FaultCause::Deadline { limit: deadline }, "{settings}");
    }
}
