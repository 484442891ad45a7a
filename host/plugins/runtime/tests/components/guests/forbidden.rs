//! Imports that are not granted, and the few WASI imports that are.

use afterbay_runtime::{Action, Level};

use super::*;

fn what_comes_of(deed: &str) -> Result<String, Fault> {
    let mut plugin = start("forbidden", &format!(r#"{{"do": "{deed}"}}"#));
    let verdicts = plugin.process(&batch_of(&[1]))?;
    match &verdicts[0].action {
        Action::Drop(said) => Ok(said.clone()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_call_without_a_grant_traps_and_names_the_interface() {
    for (deed, interface) in [
        ("date", "wasi:clocks/wall-clock"),
        ("exit", "wasi:cli/exit"),
        ("sleep", "wasi:clocks/monotonic-clock"),
    ] {
        let fault = what_comes_of(deed).unwrap_err();
        let message = trap_message(&fault);
        assert!(message.contains(interface), "{deed}: {message}");
        assert!(message.contains("is not granted"), "{deed}: {message}");
    }
}

#[test]
fn printed_text_is_a_line_of_the_log() {
    for (deed, line) in [("print", "out"), ("print error", "err")] {
        let mut plugin = start("forbidden", &format!(r#"{{"do": "{deed}"}}"#));
        assert_eq!(plugin.process(&batch_of(&[1])).unwrap().len(), 1, "{deed}");
        let lines = plugin.drain_log();
        assert_eq!(lines.len(), 1, "{deed}: {lines:?}");
        assert_eq!((lines[0].level, lines[0].message.as_str()), (Level::Warn, line));
    }
}

#[test]
fn text_printed_before_a_trap_explains_the_trap() {
    let fault = what_comes_of("print and abort").unwrap_err();
    let message = trap_message(&fault);
    assert!(message.ends_with("; it said: the shore is wet\nTraceback:\n  the lake is dry"), "{message}");
}

#[test]
fn the_clock_stands_still() {
    assert_eq!(what_comes_of("clock").unwrap(), "0ns");
}

#[test]
fn the_environment_is_empty() {
    assert_eq!(what_comes_of("environment").unwrap(), "[]");
    assert_eq!(what_comes_of("arguments").unwrap(), "[]");
}

#[test]
fn a_guest_has_no_directory_and_so_no_file() {
    let said = what_comes_of("file").unwrap();
    assert!(said.starts_with("Err("), "{said}");
}

#[test]
fn a_hash_map_has_the_same_order_in_every_instance() {
    let order = what_comes_of("map").unwrap();
    assert_ne!(order, format!("{:?}", (0..32).collect::<Vec<_>>()));
    assert_eq!(what_comes_of("map").unwrap(), order);
}

#[test]
fn a_stack_overflow_is_a_trap() {
    let fault = what_comes_of("deep stack").unwrap_err();
    // A Rust guest also has a stack in its own memory. Either may overflow first.
    let ends = ["call stack exhausted", "out of bounds memory access"];
    assert!(ends.iter().any(|end| trap_message(&fault).contains(end)), "{fault}");
}
