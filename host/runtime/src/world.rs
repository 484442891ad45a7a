//! The check that a component is a plugin of this host's world. It lists all differences in words.

use wasmtime::Engine;
use wasmtime::component::Component;

use crate::grants::{Grants, INTERFACES};

/// The version of `afterbay:plugin` in `wit/`.
const VERSION: &str = "0.1.0";
/// The interfaces that a plugin exports.
const EXPORT: &str = "afterbay:plugin/plugin";
/// The interfaces that this host provides. `types` has no functions and comes with the others.
const PACKAGE: &str = "afterbay:plugin";
/// The WASI packages that a guest's libc links whether it uses them or not. A call of an interface that is not provided
/// traps.
const LINKED: [&str; 6] =
    ["wasi:cli", "wasi:clocks", "wasi:filesystem", "wasi:io", "wasi:random", "wasi:sockets"];
const WASI_VERSION: &str = "0.2.0";
/// The WASI interfaces that `guest.rs` provides, the same for every guest.
const GIVEN_TO_ALL: [&str; 11] = [
    "wasi:cli/environment",
    "wasi:cli/stderr",
    "wasi:cli/stdout",
    "wasi:cli/terminal-stderr",
    "wasi:cli/terminal-stdout",
    "wasi:clocks/monotonic-clock",
    "wasi:filesystem/preopens",
    "wasi:io/poll",
    "wasi:io/streams",
    "wasi:random/insecure-seed",
    "wasi:random/random",
];

/// All reasons why a component is not of this world. Empty if it is.
pub(crate) fn differences(engine: &Engine, component: &Component) -> Vec<String> {
    let world = component.component_type();
    let exports: Vec<&str> = world.exports(engine).map(|(name, _)| name).collect();
    let mut found: Vec<String> = missing_export(&exports).into_iter().collect();
    found.extend(world.imports(engine).filter_map(|(name, _)| foreign_import(name)));
    found
}

fn missing_export(exports: &[&str]) -> Option<String> {
    let ours = exports.iter().map(|name| split(name)).find(|(interface, _)| *interface == EXPORT);
    match ours {
        Some((_, version)) if compatible(version, VERSION) => None,
        Some((_, version)) => Some(format!("exports {EXPORT}@{version}, this host has {VERSION}")),
        None if exports.is_empty() => Some(format!("exports nothing, a plugin exports {EXPORT}@{VERSION}")),
        None => Some(format!("exports {}, a plugin exports {EXPORT}@{VERSION}", exports.join(", "))),
    }
}

fn foreign_import(name: &str) -> Option<String> {
    let (interface, version) = split(name);
    let package = interface.split('/').next().unwrap_or(interface);
    if own(interface).is_some_and(|own| own == "types" || INTERFACES.contains(&own)) {
        return (!compatible(version, VERSION)).then(|| format!("imports {name}, this host has {VERSION}"));
    }
    if LINKED.contains(&package) {
        return (!compatible(version, WASI_VERSION))
            .then(|| format!("imports {name}, this host knows WASI 0.2"));
    }
    if package.starts_with("wasi:") {
        return Some(format!("imports {name}, which is never granted"));
    }
    Some(format!("imports {name}, which this host does not have"))
}

/// The interfaces that a component imports without a grant.
pub(crate) fn not_granted(engine: &Engine, component: &Component, grants: &Grants) -> Vec<&'static str> {
    let world = component.component_type();
    let imports: Vec<&str> = world.imports(engine).filter_map(|(name, _)| own(split(name).0)).collect();
    INTERFACES.into_iter().filter(|name| imports.contains(name) && !grants.has(name)).collect()
}

/// An interface that a component imports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Import {
    /// The component's name for it, with its version: `wasi:io/streams@0.2.6`.
    pub name: String,
    /// The result of a call.
    pub given: Given,
}

/// The host's answer to an import.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Given {
    /// An interface of `afterbay:plugin` that must be granted, by this name.
    Granted(&'static str),
    /// An interface with types only, or one that answers the same to everyone.
    Always,
    /// An interface that is linked. A call of it traps.
    Traps,
}

/// All imports of a component of this world, by name.
pub(crate) fn imports(engine: &Engine, component: &Component) -> Vec<Import> {
    let world = component.component_type();
    let mut imports: Vec<Import> = world
        .imports(engine)
        .map(|(name, _)| {
            let interface = split(name).0;
            let granted = own(interface).and_then(|own| INTERFACES.into_iter().find(|it| *it == own));
            let given = match granted {
                Some(name) => Given::Granted(name),
                None if own(interface).is_some() || GIVEN_TO_ALL.contains(&interface) => Given::Always,
                None => Given::Traps,
            };
            Import { name: name.to_owned(), given }
        })
        .collect();
    imports.sort_by(|a, b| a.name.cmp(&b.name));
    imports
}

/// The name of one of this package's interfaces.
fn own(interface: &str) -> Option<&str> {
    interface.strip_prefix(PACKAGE)?.strip_prefix('/')
}

/// `a:b/c@1.2.3` as (`a:b/c`, `1.2.3`).
fn split(name: &str) -> (&str, &str) {
    name.split_once('@').unwrap_or((name, "no version"))
}

/// The rule of WIT and semver: below 1.0 the minor version must be equal, from 1.0 on the major version.
fn compatible(theirs: &str, ours: &str) -> bool {
    fn track(version: &str) -> Option<&str> {
        let major_end = version.find('.')?;
        if &version[..major_end] != "0" {
            return Some(&version[..major_end]);
        }
        let minor_end = version[major_end + 1..].find('.')? + major_end + 1;
        Some(&version[..minor_end])
    }
    !theirs.contains(['-', '+']) && track(theirs).is_some() && track(theirs) == track(ours)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patch_release_is_the_same_world_and_a_minor_one_below_1_0_is_not() {
        assert!(compatible("0.1.7", "0.1.0"));
        assert!(!compatible("0.2.0", "0.1.0"));
        assert!(!compatible("0.10.0", "0.1.0"));
        assert!(compatible("1.7.0", "1.2.3"));
        assert!(!compatible("2.0.0", "1.2.3"));
        assert!(!compatible("0.1.0-rc1", "0.1.0"));
        assert!(!compatible("no version", "0.1.0"));
    }

    #[test]
    fn differences_are_listed_in_words() {
        assert_eq!(missing_export(&["afterbay:plugin/plugin@0.1.0"]), None);
        assert_eq!(
            missing_export(&["afterbay:plugin/plugin@0.2.0"]).as_deref(),
            Some("exports afterbay:plugin/plugin@0.2.0, this host has 0.1.0")
        );
        assert_eq!(
            missing_export(&["wasi:cli/run@0.2.6"]).as_deref(),
            Some("exports wasi:cli/run@0.2.6, a plugin exports afterbay:plugin/plugin@0.1.0")
        );
        assert_eq!(
            foreign_import("wasi:http/outgoing-handler@0.2.6").as_deref(),
            Some("imports wasi:http/outgoing-handler@0.2.6, which is never granted")
        );
        assert_eq!(
            foreign_import("afterbay:plugin/files@0.1.0").as_deref(),
            Some("imports afterbay:plugin/files@0.1.0, which this host does not have")
        );
        assert_eq!(foreign_import("wasi:io/streams@0.2.6"), None);
        assert_eq!(
            foreign_import("wasi:io/streams@0.3.0").as_deref(),
            Some("imports wasi:io/streams@0.3.0, this host knows WASI 0.2")
        );
    }
}
