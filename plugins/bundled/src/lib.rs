//! The bundled plugins as components (`component = "builtin:NAME"` in a configuration), and the contract in
//! C.
//!
//! This crate's build script builds them from `plugins/NAME` into the binary, which needs no other file. A
//! member of the plugins' workspace is bundled if its `Cargo.toml` has `[package.metadata.afterbay]`, with
//! these keys, each optional:
//!
//! - `engines`: the engines that the plugin serves, all if absent,
//! - `grant` and `limits`, as in `[[stream.plugin]]`: the plugin's own defaults,
//! - `listed`: false for a plugin that is of no use to an operator.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

/// A bundled plugin.
#[derive(Debug)]
pub struct Bundled {
    /// The name after `builtin:`.
    pub name: &'static str,
    /// The plugin's purpose, in one sentence.
    pub description: &'static str,
    /// False for a plugin that `afterbay plugin ls` leaves out.
    pub is_listed: bool,
    /// The plugin's engines, and its own defaults for `grant` and `limits` of a configuration, in TOML.
    pub defaults: &'static str,
    /// The bytes of the component.
    pub component: &'static [u8],
}

static BUNDLED: &[Bundled] = include!(concat!(env!("OUT_DIR"), "/bundled.rs"));

static C_BINDINGS: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/c_bindings.rs"));

/// The contract in C: name and text of a header and of the glue code to the component model.
#[must_use]
pub fn c_bindings() -> &'static [(&'static str, &'static str)] {
    C_BINDINGS
}

/// Every bundled plugin, in the order of their names.
#[must_use]
pub fn all() -> &'static [Bundled] {
    BUNDLED
}

/// The bundled plugin of this name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Bundled> {
    BUNDLED.iter().find(|bundled| bundled.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bundled_plugin_is_a_component_with_a_description_of_one_line() {
        assert!(all().iter().filter(|plugin| plugin.is_listed).count() >= 3);
        for plugin in all() {
            assert!(plugin.component.starts_with(b"\0asm\x0d\0\x01\0"), "{} is no component", plugin.name);
        }
        for plugin in all().iter().filter(|plugin| plugin.is_listed) {
            let is_a_sentence = plugin.description.ends_with('.') && !plugin.description.contains('\n');
            assert!(
                is_a_sentence && plugin.description.len() <= 110,
                "{}: {:?}",
                plugin.name,
                plugin.description
            );
        }
        assert!(find("delta").is_none());
        assert!(!find("floor").unwrap().is_listed);
    }
}
