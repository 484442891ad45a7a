//! The directories of a user's files, by the XDG base directory specification.

use rustix::fs::{Access, access};
use std::path::{Path, PathBuf};

/// The directory of files that may be lost, such as compiled plugins: `$XDG_CACHE_HOME/afterbay`. `None` without a HOME.
pub(crate) fn cache() -> Option<PathBuf> {
    base("XDG_CACHE_HOME", ".cache")
}

/// The directory of files that outlive a restart, such as a journal: `$XDG_STATE_HOME/afterbay`.
pub(crate) fn state() -> Option<PathBuf> {
    base("XDG_STATE_HOME", ".local/state")
}

/// Sockets: `$XDG_RUNTIME_DIR/afterbay`. Where that variable is unset, or names another user's directory (`su` keeps it),
/// `run` in [`state`].
pub(crate) fn runtime() -> Option<PathBuf> {
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
