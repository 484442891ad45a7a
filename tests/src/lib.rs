//! What the black-box tests share: the real `afterbay` binary between peers that the test drives itself.
//!
//! Owns no code of Afterbay's path: the peers speak ZMTP with a few lines of their own, so that a test decides to the
//! byte what goes over a socket and when it is read. For loads and readers that check themselves there is `afterbay_sim`.
//! Everything here panics with what it waited for; nothing waits longer than [`PATIENCE`].
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod admin;
pub mod afterbay;
pub mod components;
pub mod frames;
pub mod fuzz;
pub mod peers;
pub mod stage;
pub mod sync_gate;

pub use afterbay::{Afterbay, Done, afterbay};
pub use frames::{Request, batch, fixtures, load};
pub use peers::{Input, Reader, Sender};
pub use stage::{Config, Stage};

use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How long anything may take before the test fails. Far more than it needs, for a machine that is busy with a build.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Looks until there is an answer; panics with `what` where there is none in time.
#[track_caller]
pub fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "not in {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Waits until it is so.
#[track_caller]
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    wait_for(what, || is_so().then_some(()));
}

/// How often a test is to try what it tries: as `AFTERBAY_TEST_TRIALS` says, or this.
pub fn trials(usual: u64) -> u64 {
    std::env::var("AFTERBAY_TEST_TRIALS").map_or(usual, |trials| trials.parse().unwrap())
}

/// The repository.
pub fn repository() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}
