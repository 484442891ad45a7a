//! The version of the binary. Because of this test, `cargo test --workspace` builds the binary with the features of the same build.
//! The black-box tests in `tests` use that binary and cover the rest of the command line.
#![allow(clippy::unwrap_used)]

#[test]
fn the_version_is_that_of_the_package() {
    let output =
        std::process::Command::new(env!("CARGO_BIN_EXE_afterbay")).arg("--version").output().unwrap();
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        format!("afterbay {}\n", env!("CARGO_PKG_VERSION"))
    );
}
