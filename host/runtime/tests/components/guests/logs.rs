//! A plugin that logs more than it may.

use afterbay_runtime::Level;

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
