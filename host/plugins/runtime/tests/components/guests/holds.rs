//! Verdicts that hold rows.

use afterbay_runtime::{Action, Replacement, Verdict};

use super::*;

#[test]
fn holds_and_releases_arrive_as_given_and_held_rows_are_shown() {
    let mut plugin = start("holds", r#"{"millis": 250, "logs": true}"#);
    plugin.open(&[opened(1), opened(2), opened(3), opened(4)]).unwrap();
    let columns = Columns {
        requests: &[1, 2, 3, 4],
        output_ids: &[101, 102, 103, 107],
        output_ends: &[1, 2, 3, 4],
        waiting: Some(&[0, 4, 1, 2]),
        ..Columns::default()
    };
    let verdicts = plugin.process(&columns).unwrap();
    let release_as = Action::ReleaseAs(Replacement { ids: vec![7], text: None });
    let expected = [Action::Hold(250), Action::Release, release_as, Action::ReleaseAndHold(250)];
    assert_eq!(
        verdicts,
        (0..).zip(expected).map(|(row, action)| Verdict { row, action }).collect::<Vec<_>>()
    );
    let lines: Vec<String> = plugin.drain_log().into_iter().map(|line| line.message).collect();
    assert_eq!(
        lines,
        ["shown [101], 0 wait", "shown [102], 4 wait", "shown [103], 1 wait", "shown [107], 2 wait"]
    );
}
