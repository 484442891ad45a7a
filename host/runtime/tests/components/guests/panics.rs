//! Panics, and what comes after a fault.

use afterbay_runtime::{Call, Level, StartError};

use super::*;

#[test]
fn a_panic_is_a_trap_that_has_its_text_and_its_place() {
    for call in ["open", "process", "close"] {
        let mut plugin = start("panics", &format!(r#"{{"in": "{call}"}}"#));
        let fault = provoke(&mut plugin, call);
        let message = trap_message(&fault);
        assert!(message.contains("panicked at examples/panics.rs:3:"), "{message}");
        assert!(message.ends_with(": the lake is dry"), "{message}");
        let lines = plugin.drain_log();
        assert_eq!((lines.len(), lines[0].level), (1, Level::Error), "{lines:?}");
    }
}

#[test]
fn a_dead_instance_says_so_and_a_fresh_one_works() {
    let mut plugin = start("panics", r#"{"in": "process"}"#);
    provoke(&mut plugin, "process");
    assert!(!plugin.is_alive());
    assert_eq!(provoke(&mut plugin, "process").kind, FaultKind::Dead);
    let mut fresh = plugin.component().instantiate(r#"{"in": "close"}"#).unwrap();
    assert_eq!(fresh.open(&[opened(1)]), Ok(()));
    assert_eq!(fresh.process(&batch_of(&[1])), Ok(vec![]));
}

#[test]
fn a_panic_over_the_settings_is_told_at_the_start() {
    let error = load("panics").instantiate(r#"{"in": "configure"}"#).unwrap_err();
    let StartError::Fault(fault) = &error else { panic!("{error}") };
    assert_eq!(fault.call, Call::Configure);
    assert!(trap_message(fault).contains("the lake is dry"));
}

#[test]
fn a_batch_without_rows_is_not_shown() {
    let mut plugin = start("panics", r#"{"in": "process"}"#);
    assert_eq!(plugin.process(&batch_of(&[])), Ok(vec![]));
    assert!(plugin.is_alive());
}

/// More than there is room for at once, so one that stayed would be found out; and the memory stays flat. Other tests run
/// beside this one, so the flattest of some rounds is what counts: a leak is in each of them.
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
