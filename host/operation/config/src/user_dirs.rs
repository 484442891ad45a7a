//! The directories of a user's files, by the XDG base directory specification.

use rustix::fs::{Access, access};
use std::path::{Path, PathBuf};

/// The directory of files that may be lost, such as compiled plugins: `$XDG_CACHE_HOME/afterbay`. `None` without a HOME.
#[must_use]
pub fn cache() -> Option<PathBuf> {
    base("XDG_CACHE_HOME", ".cache")
}

/// The directory of files that outlive a restart, such as a journal: `$XDG_STATE_HOME/afterbay`.
#[must_use]
pub fn state() -> Option<PathBuf> {
    base("XDG_STATE_HOME", ".local/state")
}

/// The journal of `afterbay sglang`, and of the reference configuration: [`state`]`/journal`.
#[must_use]
pub fn journal() -> Option<PathBuf> {
    Some(state()?.join("journal"))
}

/// Sockets: `$XDG_RUNTIME_DIR/afterbay`. Where that variable is unset, or names another user's directory (`su` keeps it),
/// `run` in [`state`].
#[must_use]
pub fn runtime() -> Option<PathBuf> {
    let own = |dir: &Path| access(dir, Access::WRITE_OK | Access::EXEC_OK).is_ok();
    match variable("XDG_RUNTIME_DIR").filter(|dir| own(dir)) {
        Some(dir) => Some(dir.join("afterbay")),
        None => Some(state()?.join("run")),
    }
}

fn base(name: &str, below_home: &str) -> Option<PathBuf> {
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(below_home));
    Some(variable(name).or_else(home)?.join("afterbay"))
}

/// The specification has a relative path count as unset.
fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).map(PathBuf::from).filter(|dir| dir.is_absolute())
}
