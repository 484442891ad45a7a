//! Verdicts that send rows to another destination.

use afterbay_runtime::{Action, Verdict};

use super::*;

#[test]
fn rows_are_routed_by_name_and_skip_the_detokenizer() {
    let mut plugin = start("routes", "{}");
    let opened = |request, rid| Opened { rid, ..opened(request) };
    plugin.open(&[opened(1, "a-TO-other"), opened(2, "b-skip"), opened(3, "c")]).unwrap();
    assert_eq!(
        plugin.process(&batch_of(&[3, 2, 1])).unwrap(),
        [
            Verdict { row: 1, action: Action::SkipText },
            Verdict { row: 2, action: Action::Route("other".into()) },
        ]
    );
}
