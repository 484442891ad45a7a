//! The reference config, made from the keys.

use crate::keys::{Need, SECTIONS, Section};
use std::fmt::Write;
use std::path::Path;

/// The directory of sockets in the keys' examples.
const RUNTIME: &str = "/run/afterbay";
/// The directory of files that outlive a restart, in the keys' examples.
const STATE: &str = "/var/lib/afterbay";

/// The reference config: every key with its meaning, and its default or an example.
///
/// The text is a valid config. A key that may be absent is written `#key = value`; a line that begins with `#` and a space is
/// prose. The text stays valid if all `#key` lines are enabled. Its sockets are in `runtime`, its journal is in `state`.
pub fn reference(runtime: &Path, state: &Path) -> String {
    let mut out = String::from(
        "# Afterbay's configuration: every key. A line that begins with # and no space is optional: it shows the default, or an\n\
         # example if the comment says so.\n\
         # A size is a number of bytes or has a unit (\"64MiB\", \"20GB\"). A duration has a unit (\"50ms\", \"1h30m\").\n\
         # ${NAME} in a string is the environment variable NAME, which must be set; $${ is a plain ${.\n\
         # Relative paths start at the directory of this file.\n",
    );
    for section in &SECTIONS {
        write(section, &mut out);
    }
    out.replace(RUNTIME, &in_a_string(runtime)).replace(STATE, &in_a_string(state))
}

fn write(section: &Section, out: &mut String) {
    let Some(key) = section.key() else { return };
    let off = if key.need == Need::Required { "" } else { "#" };
    out.push('\n');
    comment(out, "", key.doc);
    // Writing to a String cannot fail.
    let _ = writeln!(out, "{off}{}", section.header);
    for key in section.table.keys.iter().filter(|key| !key.example.is_empty()) {
        comment(out, "", key.doc);
        if key.need == Need::Mentioned {
            comment(out, "", &format!("{} = {}", key.name, key.example));
            continue;
        }
        if key.need == Need::Optional {
            comment(out, "", "No default. An example:");
        }
        for inner in key.inner.iter().flat_map(|inner| inner.keys) {
            comment(out, &format!("  {}: ", inner.name), inner.doc);
        }
        let off = if matches!(key.need, Need::Required | Need::Name) { off } else { "#" };
        let _ = writeln!(out, "{off}{} = {}", key.name, key.example);
    }
}

/// A path as text inside a TOML string.
fn in_a_string(path: &Path) -> String {
    path.to_string_lossy().replace('\\', "\\\\").replace('"', "\\\"").replace("${", "$${")
}

fn comment(out: &mut String, label: &str, text: &str) {
    for line in text.lines() {
        let _ = writeln!(out, "# {label}{line}");
    }
}
