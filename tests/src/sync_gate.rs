//! A disk whose syncs a test holds back or lets fail: a library that stands before libc's `fsync` and `fdatasync`.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use crate::afterbay::target_dir;
use crate::repository;
use crate::stage::Stage;

/// The gate of one process.
pub struct SyncGate {
    hold: PathBuf,
    fail: PathBuf,
}

impl SyncGate {
    /// Open: syncs work.
    pub fn new(stage: &Stage) -> SyncGate {
        SyncGate { hold: stage.path("hold-sync"), fail: stage.path("fail-sync") }
    }

    /// From now on a sync does not come back.
    pub fn hold(&self) {
        std::fs::write(&self.hold, "").unwrap();
    }

    /// From now on a sync fails.
    pub fn fail(&self) {
        std::fs::write(&self.fail, "").unwrap();
    }

    /// Syncs work again.
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
        // Of this process only: another may be using its own.
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
