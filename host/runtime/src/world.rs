//! The check that a component is a plugin of this host's world. It lists all differences in words.

use wasmtime::Engine;
use wasmtime::component::Component;

use crate::grants::{Grants, INTERFACES};
use crate::version::ContractVersion;

/// The interfaces that a plugin exports.
const EXPORT: &str = "afterbay:plugin/plugin";
/// The interfaces that this host provides. `types` has no functions and comes with the others.
const PACKAGE: &str = "afterbay:plugin";
/// The WASI packages that a guest's libc links whether it uses them or not. A call of an interface that is not provided
/// traps.
const LINKED: [&str; 6] =
    ["wasi:cli", "wasi:clocks", "wasi:filesystem", "wasi:io", "wasi:random", "wasi:sockets"];
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

/// The version of the contract that a component is of, or all reasons why it is not of this host's world.
pub(crate) fn version(engine: &Engine, component: &Component) -> Result<ContractVersion, Vec<String>> {
    let world = component.component_type();
    let exports: Vec<&str> = world.exports(engine).map(|(name, _)| name).collect();
    let imports: Vec<&str> = world.imports(engine).map(|(name, _)| name).collect();
    check(&exports, &imports)
}

fn check(exports: &[&str], imports: &[&str]) -> Result<ContractVersion, Vec<String>> {
    let exported = exported_version(exports);
    let mut differences: Vec<String> = exported.as_ref().err().cloned().into_iter().collect();
    differences
        .extend(imports.iter().filter_map(|name| foreign_import(name, exported.as_ref().ok().copied())));
    match exported {
        Ok(version) if differences.is_empty() => Ok(version),
        _ => Err(differences),
    }
}

/// The versions that this host runs, for people: `1.0.0 and 0.1.0`.
fn versions() -> String {
    ContractVersion::ALL.map(ContractVersion::number).join(" and ")
}

fn exported_version(exports: &[&str]) -> Result<ContractVersion, String> {
    let ours = exports.iter().map(|name| split(name)).find(|(interface, _)| *interface == EXPORT);
    match ours {
        Some((_, number)) => ContractVersion::of(number)
            .ok_or_else(|| format!("exports {EXPORT}@{number}, this host runs {}", versions())),
        None if exports.is_empty() => {
            Err(format!("exports nothing, a plugin exports {EXPORT}@{}", ContractVersion::ALL[0]))
        }
        None => Err(format!(
            "exports {}, a plugin exports {EXPORT}@{}",
            exports.join(", "),
            ContractVersion::ALL[0]
        )),
    }
}

/// The reason why a component that exports this version of the plugin must not import the interface.
fn foreign_import(name: &str, exported: Option<ContractVersion>) -> Option<String> {
    let (interface, number) = split(name);
    let package = interface.split('/').next().unwrap_or(interface);
    if own(interface).is_some_and(|own| own == "types" || INTERFACES.contains(&own)) {
        return match (ContractVersion::of(number), exported) {
            (None, _) => Some(format!("imports {name}, this host runs {}", versions())),
            (Some(imported), Some(exported)) if imported != exported => {
                Some(format!("imports {name}, and exports version {exported}: a component has one version"))
            }
            _ => None,
        };
    }
    if LINKED.contains(&package) {
        return (!is_wasi_0_2(number)).then(|| format!("imports {name}, this host knows WASI 0.2"));
    }
    if package.starts_with("wasi:") {
        return Some(format!("imports {name}, which is never granted"));
    }
    Some(format!("imports {name}, which this host does not have"))
}

fn is_wasi_0_2(number: &str) -> bool {
    number.strip_prefix("0.2.").is_some_and(|patch| patch.parse::<u32>().is_ok())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_component_of_each_version_is_accepted() {
        for version in ContractVersion::ALL {
            let names = ["types", "log", "metrics"].map(|name| format!("afterbay:plugin/{name}@{version}"));
            let imports: Vec<&str> =
                names.iter().map(String::as_str).chain(["wasi:io/streams@0.2.6"]).collect();
            assert_eq!(check(&[&format!("afterbay:plugin/plugin@{version}")], &imports), Ok(version));
        }
    }

    #[test]
    fn differences_are_listed_in_words() {
        let export = ["afterbay:plugin/plugin@1.0.0"];
        let differences = |exports: &[&str], imports: &[&str]| check(exports, imports).unwrap_err();
        assert_eq!(
            differences(&["afterbay:plugin/plugin@1.2.0"], &["afterbay:plugin/log@1.2.0"]),
            [
                "exports afterbay:plugin/plugin@1.2.0, this host runs 1.0.0 and 0.1.0",
                "imports afterbay:plugin/log@1.2.0, this host runs 1.0.0 and 0.1.0",
            ]
        );
        assert_eq!(
            differences(&["wasi:cli/run@0.2.6"], &[]),
            ["exports wasi:cli/run@0.2.6, a plugin exports afterbay:plugin/plugin@1.0.0"]
        );
        assert_eq!(differences(&[], &[]), ["exports nothing, a plugin exports afterbay:plugin/plugin@1.0.0"]);
        assert_eq!(
            differences(&export, &["afterbay:plugin/log@0.1.0"]),
            ["imports afterbay:plugin/log@0.1.0, and exports version 1.0.0: a component has one version"]
        );
        assert_eq!(
            differences(&export, &["wasi:http/outgoing-handler@0.2.6", "afterbay:plugin/files@1.0.0"]),
            [
                "imports wasi:http/outgoing-handler@0.2.6, which is never granted",
                "imports afterbay:plugin/files@1.0.0, which this host does not have",
            ]
        );
        assert_eq!(
            differences(&export, &["wasi:io/streams@0.3.0"]),
            ["imports wasi:io/streams@0.3.0, this host knows WASI 0.2"]
        );
    }
}
