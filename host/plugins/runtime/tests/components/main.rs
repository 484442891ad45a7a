//! The plugin host with real components: every guest of `tests/guests`, the example of `examples`, the cache, the watch.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod cache;
mod cost;
mod example;
mod guests;
mod store;
mod versions;
mod watch;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use afterbay_runtime::{Component, Grants, Host, HostOptions, Limits, Plugin, Terms};

/// One host for all tests of a process, as in Afterbay. The next process and the black-box tests use its compiled code
/// (`tests/src/afterbay.rs`).
fn host() -> &'static Host {
    static HOST: OnceLock<Host> = OnceLock::new();
    HOST.get_or_init(|| {
        let cache_dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cache/afterbay/compiled");
        Host::new(HostOptions { cache_dir: Some(cache_dir), ..HostOptions::default() }).unwrap()
    })
}

/// The bytes of a guest of `tests/guests`, built once per process, and only after a change.
fn guest(name: &str) -> Vec<u8> {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let built = BUILT.get_or_init(|| build("tests/guests"));
    std::fs::read(built.join("examples").join(file_name(name))).unwrap()
}

fn build(workspace: &str) -> PathBuf {
    let target_dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("guests");
    afterbay_plugin_build::build(&repository().join(workspace), &target_dir).unwrap()
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

fn file_name(name: &str) -> String {
    format!("{}.wasm", name.replace('-', "_"))
}

/// The default limits, with a longer deadline, since the machine that runs the tests may be slow and busy.
fn limits() -> Limits {
    Limits { deadline: Duration::from_secs(10), ..Limits::default() }
}

/// The default limits with these grants.
fn granted(grants: Grants) -> Terms {
    Terms { limits: limits(), grants, digest: None, allowed: None }
}

fn load(name: &str) -> Component {
    host().load(name, &guest(name), limits()).unwrap()
}

fn start(name: &str, settings: &str) -> Plugin {
    load(name).instantiate(settings).unwrap()
}
