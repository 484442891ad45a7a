//! That this test is here makes `cargo test --workspace` build the binary, with the features of that very build; the black-box tests
//! in `tests`, which hold everything else about the command line, use it.
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
