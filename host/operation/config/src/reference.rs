//! The reference config, with the directories of the user.

use std::path::Path;

use crate::keys::REFERENCE;

/// The directory of sockets in the keys' examples.
const RUNTIME: &str = "/run/afterbay";
/// The directory of files that outlive a restart, in the keys' examples.
const STATE: &str = "/var/lib/afterbay";

/// The reference config: every key with its meaning, and its default or an example.
///
/// The text is a valid config. A key that may be absent is written `#key = value`; a line that begins with `#` and a space is
/// prose. The text stays valid if all `#key` lines are enabled. Its sockets are in `runtime`, its journal is in `state`.
pub fn reference(runtime: &Path, state: &Path) -> String {
    REFERENCE.replace(RUNTIME, &in_a_string(runtime)).replace(STATE, &in_a_string(state))
}

/// A path as text inside a TOML string.
fn in_a_string(path: &Path) -> String {
    path.to_string_lossy().replace('\\', "\\\\").replace('"', "\\\"").replace("${", "$${")
}
