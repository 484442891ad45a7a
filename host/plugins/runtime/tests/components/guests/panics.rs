//! Panics, and the life of a plugin after a fault.

use afterbay_runtime::{Call, Level, StartError};

use super::*;

#[test]
fn a_panic_is_a_trap_that_has_its_text_and_its_place() {
    for call in ["open", "process", "close"] {
        let mut plugin = start("panics", &format!(r#"{{"in": "{call}"}}"#));
        let fault = provoke(&mut plugin, call);
        assert_eq!(trap_message(&fault), "panicked: the lake is dry");
        assert!(
            fault.to_string().contains("trapped: examples/panics.rs:3 in panics::Misbehaves::"),
            "{fault}"
        );
        let lines = plugin.drain_log();
        assert_eq!((lines.len(), lines[0].level), (1, Level::Error), "{lines:?}");
    }
}

#[test]
fn a_dead_instance_fails_every_call_and_a_new_one_works() {
    let mut plugin = start("panics", r#"{"in": "process"}"#);
    provoke(&mut plugin, "process");
    assert!(!plugin.is_alive());
    assert_eq!(provoke(&mut plugin, "process").cause, FaultCause::Dead);
    let mut fresh = plugin.component().instantiate(r#"{"in": "close"}"#).unwrap();
    assert_eq!(fresh.open(&[opened(1)]), Ok(()));
    assert_eq!(fresh.process(&batch_of(&[1])), Ok(vec![]));
}

#[test]
fn a_panic_in_configure_is_reported_at_the_start() {
    let error = load("panics").instantiate(r#"{"in": "configure"}"#).unwrap_err();
    let StartError::Fault(fault) = &error else { panic!("{error}") };
    assert_eq!(fault.call, Call::Configure);
    assert!(trap_message(fault).contains("the lake is dry"));
}

#[test]
fn a_batch_without_rows_does_not_reach_the_guest() {
    let mut plugin = start("panics", r#"{"in": "process"}"#);
    assert_eq!(plugin.process(&batch_of(&[])), Ok(vec![]));
    assert!(plugin.is_alive());
}

/// More instances than the pool has at once, so a leaked one would show, and constant memory. Other tests run
/// at the same time, so the round with the least growth counts: a leak would be in every round.
#[test]
fn a_thousand_faults_in_a_row_leave_nothing_behind() {
    let component = load("panics");
    let growth_of_a_round = || {
        let before = memory_kib();
        for _ in 0..250 {
            let mut plugin = component.instantiate(r#"{"in": "process"}"#).unwrap();
            provoke(&mut plugin, "process");
        }
        memory_kib().saturating_sub(before)
    };
    let growths: Vec<u64> = (0..5).map(|_| growth_of_a_round()).collect();
    assert!(
        growths.iter().any(|&growth| growth < 1 << 10),
        "grew by {growths:?} KiB in rounds of 250 faults"
    );
}

fn memory_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}
