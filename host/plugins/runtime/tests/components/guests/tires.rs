//! An instance that faults at its second batch.

use afterbay_runtime::{Action, Verdict};

use super::*;

#[test]
fn a_new_instance_judges_the_batch_on_which_the_one_before_faulted() {
    let mut plugin = start("tires", "{}");
    let note = |said: &str| vec![Verdict { row: 0, action: Action::Annotate(said.to_owned()) }];
    let columns =
        Columns { completion_tokens: &[2], output_ids: &[5, 6], output_ends: &[2], ..batch_of(&[3]) };
    plugin.open(&[opened(3)]).unwrap();
    assert_eq!(plugin.process(&columns).unwrap(), note("all false"));
    let fault = plugin.process(&columns).unwrap_err();
    assert!(trap_message(&fault).contains("tired"), "{fault}");
    let mut fresh = plugin.component().instantiate("{}").unwrap();
    fresh.open(&[Opened { received_tokens: 2, resumed: true, ..opened(3) }]).unwrap();
    let columns = Columns { completion_tokens: &[4], ..columns };
    assert_eq!(fresh.process(&columns).unwrap(), note("all true"));
}
