//! The version of this binary in words: the commit, and what the binary reads and runs.

use afterbay_runtime::CONTRACT;
use std::sync::LazyLock;

/// The text of `afterbay --version`.
pub(crate) static LONG: LazyLock<String> = LazyLock::new(|| {
    format!(
        "{}\ncommit:   {}\ntarget:   {} {}\nplugins:  afterbay:plugin@{CONTRACT}\nformats:  {}",
        env!("CARGO_PKG_VERSION"),
        afterbay_server::COMMIT.unwrap_or("unknown"),
        std::env::consts::ARCH,
        std::env::consts::OS,
        afterbay_server::formats(),
    )
});
