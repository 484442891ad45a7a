//! Tools of the black-box tests: the real `afterbay` binary between peers that the test drives.
//!
//! The peers use no code of Afterbay's pipeline. They speak ZMTP themselves, so that a test controls each byte on a socket and the time
//! of each read. `afterbay_sim` provides loads and readers that check themselves. Each wait here ends after [`PATIENCE`] with a panic
//! that names what was awaited.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod admin;
pub mod afterbay;
pub mod binary;
pub mod browser;
pub mod clients;
pub mod commands;
pub mod components;
pub mod frames;
pub mod fuzz;
pub mod holds;
pub mod mutate;
pub mod nats;
pub mod peers;
pub mod sandbox;
pub mod sync_gate;

pub use afterbay::Afterbay;
pub use commands::CommandOutput;
pub use frames::{SynthRequest, batch, fixtures, load, vllm_fixtures};
pub use peers::{Input, Reader, Sender};
pub use sandbox::{Config, Sandbox};

use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The longest wait before a test fails. It is long enough for a machine that is busy with a build.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// Calls `look` until it returns a value. Panics with `what` after [`PATIENCE`].
#[track_caller]
pub fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "did not happen in {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Waits until `is_so` returns true. Panics with `what` after [`PATIENCE`].
#[track_caller]
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    wait_for(what, || is_so().then_some(()));
}

/// The number of trials of a test: `AFTERBAY_TEST_TRIALS`, or else `usual`.
pub fn trials(usual: u64) -> u64 {
    std::env::var("AFTERBAY_TEST_TRIALS").map_or(usual, |trials| trials.parse().unwrap())
}

/// The root of the repository.
pub fn repository() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}
