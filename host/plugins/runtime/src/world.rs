//! The check that a component is a plugin of this host's world. It lists all differences in words.

use wasmtime::Engine;
use wasmtime::component::Component;

use crate::grants::INTERFACES;

/// The version of the contract that this host runs: that of `wit/transform.wit`.
pub const CONTRACT: &str = "0.2.0";
/// The interfaces that a plugin exports.
const EXPORT: &str = "afterbay:plugin/plugin";
/// The interfaces that this host provides.
const PACKAGE: &str = "afterbay:plugin";
/// The interfaces that every plugin has. `types` has no functions.
const UNGRANTED: [&str; 2] = ["types", "timer"];
/// The WASI packages that a guest's libc links whether it uses them or not. A call of an interface that is not provided
/// traps.
const LINKED: [&str; 6] =
    ["wasi:cli", "wasi:clocks", "wasi:filesystem", "wasi:io", "wasi:random", "wasi:sockets"];
/// All reasons why a component is not of this host's world.
pub(crate) fn check(engine: &Engine, component: &Component) -> Result<(), Vec<String>> {
    let world = component.component_type();
    let exports: Vec<&str> = world.exports(engine).map(|(name, _)| name).collect();
    let imports: Vec<&str> = world.imports(engine).map(|(name, _)| name).collect();
    let differences = differences(&exports, &imports);
    if differences.is_empty() { Ok(()) } else { Err(differences) }
}

fn differences(exports: &[&str], imports: &[&str]) -> Vec<String> {
    let wanted = format!("{EXPORT}@{CONTRACT}");
    let found = if exports.is_empty() { "nothing".to_owned() } else { exports.join(", ") };
    let export =
        (!exports.contains(&&*wanted)).then(|| format!("exports {found}, a plugin exports {wanted}"));
    export.into_iter().chain(imports.iter().filter_map(|name| foreign_import(name))).collect()
}

/// The reason why a plugin must not import the interface.
fn foreign_import(name: &str) -> Option<String> {
    let (interface, number) = split(name);
    let package = interface.split('/').next().unwrap_or(interface);
    if own(interface).is_some_and(|own| UNGRANTED.contains(&own) || INTERFACES.contains(&own)) {
        return (number != CONTRACT).then(|| format!("imports {name}, this host runs {CONTRACT}"));
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

/// The interfaces that must be granted to a component.
pub(crate) fn wanted(engine: &Engine, component: &Component) -> Vec<&'static str> {
    let world = component.component_type();
    let imports: Vec<&str> = world.imports(engine).filter_map(|(name, _)| own(split(name).0)).collect();
    INTERFACES.into_iter().filter(|name| imports.contains(name)).collect()
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
    fn a_component_of_this_version_is_accepted() {
        let names = ["types", "log", "metrics"].map(|name| format!("afterbay:plugin/{name}@{CONTRACT}"));
        let imports: Vec<&str> = names.iter().map(String::as_str).chain(["wasi:io/streams@0.2.6"]).collect();
        assert!(differences(&[&format!("afterbay:plugin/plugin@{CONTRACT}")], &imports).is_empty());
    }

    #[test]
    fn differences_are_listed_in_words() {
        assert_eq!(
            differences(&["afterbay:plugin/plugin@1.2.0"], &["afterbay:plugin/log@1.2.0"]),
            [
                "exports afterbay:plugin/plugin@1.2.0, a plugin exports afterbay:plugin/plugin@0.2.0",
                "imports afterbay:plugin/log@1.2.0, this host runs 0.2.0",
            ]
        );
        assert_eq!(differences(&[], &[]), ["exports nothing, a plugin exports afterbay:plugin/plugin@0.2.0"]);
        let imports =
            ["wasi:http/outgoing-handler@0.2.6", "afterbay:plugin/files@0.2.0", "wasi:io/streams@0.3.0"];
        assert_eq!(
            differences(&["afterbay:plugin/plugin@0.2.0"], &imports),
            [
                "imports wasi:http/outgoing-handler@0.2.6, which is never granted",
                "imports afterbay:plugin/files@0.2.0, which this host does not have",
                "imports wasi:io/streams@0.3.0, this host knows WASI 0.2",
            ]
        );
    }
}
