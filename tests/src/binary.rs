//! The `afterbay` binary of the tests' own profile, rebuilt when a source is newer.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::SystemTime;

use crate::repository;

pub(crate) fn environment(command: &mut Command) {
    let tmp = target_dir().join("tmp");
    // All tests share the compiled plugins, and the next run finds them.
    command.env("XDG_CACHE_HOME", tmp.join("cache")).env("XDG_STATE_HOME", tmp.join("state"));
    command.env_remove("AFTERBAY_CONFIG").env_remove("AFTERBAY_LOG").env("NO_COLOR", "1");
}

/// Cargo's target directory.
pub fn target_dir() -> PathBuf {
    profile_dir().parent().unwrap().to_owned()
}

/// `target/debug` for tests, `target/release` for benches.
fn profile_dir() -> PathBuf {
    let mut dir = std::env::current_exe().unwrap();
    dir.pop();
    if dir.ends_with("deps") {
        dir.pop();
    }
    dir
}

/// The binary of the same profile. `cargo test --workspace` builds it; before a single test it may be stale.
pub(crate) fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        let binary = profile_dir().join("afterbay");
        // `afterbay run` starts the second one.
        if !is_fresh(&binary) || !is_fresh(&binary.with_file_name("afterbay-follow")) {
            build();
        }
        binary
    })
}

fn build() {
    let profile = profile_dir();
    let profile = match profile.file_name().and_then(OsStr::to_str) {
        Some("debug") => "dev",
        name => name.unwrap(),
    };
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    // Cargo sets these for this test. Build scripts that read them would run again, and the crates behind them be built again.
    let is_of_test = |name: &OsString| {
        let name = name.to_string_lossy();
        name == "OUT_DIR" || name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")
    };
    for name in std::env::vars_os().map(|(name, _)| name).filter(is_of_test) {
        build.env_remove(name);
    }
    build.args(["build", "--quiet", "--package", "afterbay", "--package", "afterbay-follow"]);
    build.args(["--profile", profile, "--target-dir"]);
    let built = build.arg(target_dir()).current_dir(repository()).status().unwrap();
    assert!(built.success(), "{build:?}");
}

/// Whether the binary is newer than all possible sources. Cargo's own list of sources exists only for a binary that was built by name,
/// and `cargo test` builds tests.
fn is_fresh(binary: &Path) -> bool {
    fn is_older(path: &Path, built: SystemTime) -> bool {
        if path.is_dir() {
            let entries = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
            // Tests and build output are no sources of the binary.
            let left_out = ["tests", "target", "__pycache__"].map(OsStr::new);
            let mut entries = entries.filter(|path| !left_out.contains(&path.file_name().unwrap()));
            return entries.all(|path| is_older(&path, built));
        }
        std::fs::metadata(path).and_then(|file| file.modified()).is_ok_and(|changed| changed <= built)
    }
    let Ok(built) = std::fs::metadata(binary).and_then(|file| file.modified()) else { return false };
    let sources = ["Cargo.toml", "Cargo.lock", "host", "plugins", "wit"];
    sources.iter().all(|source| is_older(&repository().join(source), built))
}
