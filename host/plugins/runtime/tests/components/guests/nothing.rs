//! A plugin without verdicts.

use afterbay_runtime::{ColumnSet, Digest, IdShape, Limits};

use super::*;

#[test]
fn no_verdict_is_an_empty_answer() {
    let mut plugin = start("nothing", "{}");
    let requests: Vec<u64> = (0..1024).collect();
    let ids: Vec<i64> = (0..1024).collect();
    let ends: Vec<u32> = (1..=1024).collect();
    let columns = Columns { requests: &requests, output_ids: &ids, output_ends: &ends, ..Columns::default() };
    for _ in 0..100 {
        assert_eq!(plugin.process(&columns), Ok(vec![]));
    }
    assert!(plugin.is_alive() && plugin.memory_bytes() > 0);
}

#[test]
fn a_component_says_what_it_is() {
    let component = load("nothing");
    let description = component.description();
    assert_eq!((description.name.as_str(), description.version.as_str()), ("guests", "0.1.0"));
    assert_eq!(description.writes, IdShape::Delta);
    assert_eq!(description.columns, ColumnSet::OUTPUT_IDS);
    assert_eq!(component.digest(), Digest::of(&guest("nothing")));
}

#[test]
fn a_first_call_is_within_the_usual_deadline() {
    let component = host().load("nothing", &guest("nothing"), Limits::default()).unwrap();
    for _ in 0..50 {
        let mut plugin = component.instantiate("{}").unwrap();
        assert_eq!(plugin.open(&[opened(1)]), Ok(()));
        assert_eq!(plugin.process(&batch_of(&[1])), Ok(vec![]));
    }
}
