//! The bundled plugins as components (`component = "builtin:NAME"` in a configuration), and the contract in
//! C.
//!
//! This crate's build script builds them from `plugins/NAME` into the binary, which needs no other file.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

static BUNDLED: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/bundled.rs"));

static C_BINDINGS: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/c_bindings.rs"));

/// The contract in C: name and text of a header and of the glue code to the component model.
#[must_use]
pub fn c_bindings() -> &'static [(&'static str, &'static str)] {
    C_BINDINGS
}

/// The bytes of a bundled plugin's component.
#[must_use]
pub fn component(name: &str) -> Option<&'static [u8]> {
    BUNDLED.iter().find(|(bundled, _)| *bundled == name).map(|(_, bytes)| *bytes)
}

/// The grants that a bundled plugin needs, as in `grant` of a configuration.
#[must_use]
pub fn grants(name: &str) -> &'static [&'static str] {
    match name {
        "grammar-check" => &["log", "metrics", "tokenizer", "request"],
        "skip-detokenization" => &["log", "request"],
        _ => &["log", "metrics"],
    }
}

/// The names of the bundled plugins.
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
