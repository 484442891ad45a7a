//! The lock file of new Rust projects: the versions of the workspace `plugins`, with which the SDK and the bundled plugins are
//! tested.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use afterbay_kit::{Language, project};
use std::path::Path;
use std::process::Command;

const TEMPLATE: &str = "templates/rust/Cargo.lock.template";
const BLESS: &str = "AFTERBAY_BLESS=1 cargo test -p afterbay-kit --test lock";

/// Writes a new project with this lock file.
fn write(dir: &Path, name: &str, lock: Option<&str>) {
    for file in project(Language::Rust, name, &[]).unwrap() {
        let path = dir.join(&file.path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let contents = lock.filter(|_| file.path == "Cargo.lock").unwrap_or(&file.contents);
        std::fs::write(path, contents).unwrap();
    }
}

/// Runs cargo's resolver, which writes the lock file again if it does not fit. The workspace's build has fetched every package.
fn resolve(dir: &Path, options: &[&str]) -> Result<(), String> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["metadata", "--offline", "--format-version", "1", "--filter-platform", "wasm32-wasip2"]);
    let ran = cargo.args(options).current_dir(dir).output().unwrap();
    if ran.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&ran.stderr).into_owned()) }
}

#[test]
fn the_lock_file_of_a_new_project_has_the_versions_of_the_sdks_workspace() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let dir = tempfile::tempdir().unwrap();
    // cargo keeps the versions of a lock file that fit and removes the packages that nothing needs.
    write(dir.path(), "name-to-fill-in", Some(&std::fs::read_to_string(here.join("../Cargo.lock")).unwrap()));
    resolve(dir.path(), &[]).unwrap();
    let lock = std::fs::read_to_string(dir.path().join("Cargo.lock")).unwrap();
    let current = lock.replace("name-to-fill-in", "{{name}}");
    let file = here.join(TEMPLATE);
    if std::env::var_os("AFTERBAY_BLESS").is_some() {
        return std::fs::write(file, current).unwrap();
    }
    let is_current = std::fs::read_to_string(&file).unwrap() == current;
    assert!(is_current, "{TEMPLATE} is not of the present plugins/Cargo.lock; write it again: {BLESS}");
}

#[test]
fn cargo_accepts_the_lock_file_of_a_new_project_and_leaves_it_as_it_is() {
    for name in ["a", "my-own", "zz"] {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), name, None);
        let lock = || std::fs::read_to_string(dir.path().join("Cargo.lock")).unwrap();
        let before = lock();
        resolve(dir.path(), &["--locked"]).unwrap();
        resolve(dir.path(), &[]).unwrap();
        assert_eq!(lock(), before, "{name}");
    }
}
