//! The environment in which a config is checked. The caller provides it, so that tests can provide their own.

use std::path::Path;

/// The environment of a config file.
#[derive(Clone, Copy)]
pub struct Env<'a> {
    /// Looks up `${NAME}`.
    pub var: &'a dyn Fn(&str) -> Option<String>,
    /// The source of the readers' endpoints.
    pub names: Names,
    /// The plugins in the binary.
    pub builtins: &'a [Builtin<'a>],
    /// Checks a registry reference, `oci://…`.
    pub reference: &'a dyn Fn(&str) -> Result<(), String>,
    /// Checks that a path holds a tokenizer.
    pub tokenizer: &'a dyn Fn(&Path) -> Result<(), String>,
}

/// A plugin in the binary.
#[derive(Clone, Copy, Debug)]
pub struct Builtin<'a> {
    /// The name after `builtin:`.
    pub name: &'a str,
    /// The plugin's own defaults, in TOML. See [`PluginDefaults::parse`](crate::PluginDefaults::parse).
    pub defaults: &'a str,
}

/// The source of the readers' endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Names {
    /// The config file: each sink needs a `connect`.
    FromConfig,
    /// A rendezvous file: `connect` may be absent.
    FromRendezvous,
}

impl Env<'static> {
    /// The environment without variables and without plugins in the binary. It accepts every reference to a registry
    /// and every path of a tokenizer.
    pub const EMPTY: Env<'static> = Env {
        var: &|_| None,
        names: Names::FromConfig,
        builtins: &[],
        reference: &|_| Ok(()),
        tokenizer: &|_| Ok(()),
    };
}

impl<'a> Env<'a> {
    /// The environment variables of this process. A variable that is not UTF-8 counts as unset.
    pub fn of_process(
        names: Names,
        builtins: &'a [Builtin<'a>],
        reference: &'a dyn Fn(&str) -> Result<(), String>,
        tokenizer: &'a dyn Fn(&Path) -> Result<(), String>,
    ) -> Env<'a> {
        Env { var: &|name| std::env::var(name).ok(), names, builtins, reference, tokenizer }
    }
}
