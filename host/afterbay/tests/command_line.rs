//! What the command line answers before anything is started. (That this test is here also makes `cargo test --workspace` build the
//! binary, with the features of that very build; the black-box tests in `tests` use it.)
#![allow(clippy::unwrap_used)]

use std::process::{Command, Output};

fn afterbay(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_afterbay")).args(args).env_remove("AFTERBAY_CONFIG").output().unwrap()
}

#[test]
fn a_mistake_on_the_command_line_exits_64_and_says_what_it_is() {
    for args in [&["runn"][..], &["run", "--no-such-flag"], &["run"], &["journal", "replay", "r", "--to", "http://x"]] {
        let output = afterbay(args);
        assert_eq!(output.status.code(), Some(64), "{args:?}");
        assert!(!output.stderr.is_empty(), "{args:?}");
        assert!(output.stdout.is_empty(), "{args:?}");
    }
}

#[test]
fn the_reference_configuration_is_one_that_check_takes() {
    let reference = afterbay(&["check", "--reference"]);
    assert!(reference.status.success());
    let dir = tempfile::tempdir().unwrap();
    // Its names are those of a machine with /run/afterbay: here they are this test's.
    let text = String::from_utf8(reference.stdout).unwrap();
    let here = text.replace("/run/afterbay", &dir.path().display().to_string());
    let here = here.replace("/var/lib/afterbay", &dir.path().join("journal").display().to_string());
    let file = dir.path().join("afterbay.toml");
    std::fs::write(&file, here).unwrap();
    let check = afterbay(&["check", "--config", file.to_str().unwrap()]);
    assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stderr));
}
