//! What is made in the plugins' workspace: the contract as C, and the bundled plugins, as components: what `component = "builtin:NAME"` in a config names.
//!
//! Built from `plugins/NAME` by this crate's build script, so that they need nothing else on the disk.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

static BUNDLED: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/bundled.rs"));

static C_BINDINGS: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/c_bindings.rs"));

/// The contract as C, by file: a header, and what goes between it and the component model.
#[must_use]
pub fn c_bindings() -> &'static [(&'static str, &'static str)] {
    C_BINDINGS
}

/// The bytes of a bundled component.
#[must_use]
pub fn component(name: &str) -> Option<&'static [u8]> {
    BUNDLED.iter().find(|(bundled, _)| *bundled == name).map(|(_, bytes)| *bytes)
}

/// What a bundled plugin is to be granted, as `grant` of a config has it.
#[must_use]
pub fn grants(name: &str) -> &'static [&'static str] {
    match name {
        "grammar-check" => &["log", "metrics", "tokenizer", "request"],
        "skip-detokenization" => &["log", "request"],
        _ => &["log", "metrics"],
    }
}

/// The names of the bundled components.
pub fn names() -> impl Iterator<Item = &'static str> {
    BUNDLED.iter().map(|(name, _)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bundled_plugin_is_a_component() {
        assert_eq!(
            names().collect::<Vec<_>>(),
            ["delta-to-cumulative", "floor", "grammar-check", "skip-detokenization"]
        );
        for name in names() {
            let bytes = component(name).unwrap();
            assert!(bytes.starts_with(b"\0asm\x0d\0\x01\0"), "{name} is no component");
        }
        assert_eq!(component("delta"), None);
    }
}
