//! Mistakes of an author, and the lines that a fault names.

use super::*;

/// The line of the guest with this mark.
fn line_of(mark: &str) -> usize {
    let source = include_str!("../../../../../../tests/guests/examples/crashes.rs");
    let mark = format!("// mistake: {mark}");
    source.lines().position(|line| line.ends_with(&mark)).unwrap() + 1
}

fn fault(by: &str) -> String {
    let mut plugin = start("crashes", &format!(r#"{{"by": "{by}"}}"#));
    plugin.open(&[opened(1)]).unwrap();
    let batch = Columns { requests: &[1], output_ids: &[5], output_ends: &[1], ..Columns::default() };
    plugin.process(&batch).unwrap_err().to_string()
}

#[test]
fn a_fault_names_the_authors_line_and_function_and_those_that_called_it() {
    let called = format!("\n  examples/crashes.rs:{} in crashes::Crashes::process", line_of("called"));
    for (by, text) in [
        ("index", "panicked: index out of bounds: the len is 1 but the index is 7"),
        ("divide", "panicked: attempt to divide by zero"),
        ("unwrap", "panicked: called `Option::unwrap()` on a `None` value"),
        ("library", "panicked: assertion failed: step != 0"),
    ] {
        let fault = fault(by);
        let place = format!("process trapped: examples/crashes.rs:{} in crashes::crash: {text}", line_of(by));
        assert!(fault.contains(&place), "{place}\n{fault}");
        assert!(fault.contains(&called), "{called}\n{fault}");
        assert_eq!(
            fault.matches(&format!("crashes.rs:{}", line_of(by))).count(),
            1,
            "the place stands there once: {fault}"
        );
    }
}

#[test]
fn a_fault_in_an_inlined_function_names_its_own_line_first() {
    let fault = fault("inline");
    let [inner, outer] = ["inline", "outside"].map(line_of);
    assert!(
        fault.contains(&format!("trapped: examples/crashes.rs:{inner} in crashes::inlined: panicked: ")),
        "{fault}"
    );
    assert!(fault.contains(&format!("\n  examples/crashes.rs:{outer} in crashes::crash")), "{fault}");
}
