//! A disk whose syncs hang or fail when a test says so: a preloaded library replaces libc's `fsync` and `fdatasync`.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use crate::binary::target_dir;
use crate::repository;
use crate::sandbox::Sandbox;

/// The gate in front of one process's syncs.
pub struct SyncGate {
    hold: PathBuf,
    fail: PathBuf,
}

impl SyncGate {
    /// An open gate: syncs work.
    pub fn new(sandbox: &Sandbox) -> SyncGate {
        SyncGate { hold: sandbox.path("hold-sync"), fail: sandbox.path("fail-sync") }
    }

    /// Makes syncs hang from now on.
    pub fn hold(&self) {
        std::fs::write(&self.hold, "").unwrap();
    }

    /// Makes syncs fail from now on.
    pub fn fail(&self) {
        std::fs::write(&self.fail, "").unwrap();
    }

    /// Lets syncs work again.
    pub fn open(&self) {
        for file in [&self.hold, &self.fail] {
            if file.exists() {
                std::fs::remove_file(file).unwrap();
            }
        }
    }

    pub(crate) fn put_before(&self, command: &mut Command) {
        command.env("LD_PRELOAD", library());
        command.env("AFTERBAY_TEST_HOLD_SYNC", &self.hold).env("AFTERBAY_TEST_FAIL_SYNC", &self.fail);
    }
}

fn library() -> &'static PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let tmp = target_dir().join("tmp");
        std::fs::create_dir_all(&tmp).unwrap();
        // One library per process: another process may be using its own.
        let library = tmp.join(format!("sync-gate-{}.so", std::process::id()));
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .arg(&library)
            .arg(repository().join("tests/src/sync_gate.c"))
            .status();
        assert!(built.expect("cc, which rustc links with").success(), "sync_gate.c does not build");
        library
    })
}
