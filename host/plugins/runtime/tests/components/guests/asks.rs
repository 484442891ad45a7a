//! Calls of an instance that is not on the path.

use afterbay_runtime::{Action, Grants, Unsent, Verdict};

use super::*;

#[test]
fn calls_off_the_path_have_bodies_only_for_a_caller_that_compares_them() {
    let terms = granted(Grants { call: true, ..Grants::default() });
    let mut plugin = host().load("asks", &guest("asks"), terms).unwrap().instantiate("{}").unwrap();
    plugin.open(&[opened(4)]).unwrap();
    let columns = Columns { requests: &[4], output_ids: &[7], output_ends: &[1], ..Columns::default() };
    for keeps_calls in [false, true] {
        plugin.set_keeps_calls(keeps_calls);
        let verdicts = plugin.process(&columns).unwrap();
        assert_eq!(verdicts, [Verdict { row: 0, action: Action::Hold(600_000) }]);
        let calls = plugin.drain_calls();
        let body = if keeps_calls { Ok(b"[7]".to_vec()) } else { Err(Unsent::NotOnPath) };
        assert_eq!((calls.len(), calls[0].request, &calls[0].body), (1, 4, &body));
    }
}
