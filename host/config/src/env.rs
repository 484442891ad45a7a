//! What a config is checked against besides its own text, given by the caller so that a test can own it.

use std::path::Path;

/// The world around a config file.
#[derive(Clone, Copy)]
pub struct Env<'a> {
    /// Looks up `${NAME}`.
    pub var: &'a dyn Fn(&str) -> Option<String>,
    /// Whether the sockets' names must stand in the file.
    pub names: Names,
    /// The plugins in the binary.
    pub builtins: &'a [&'a str],
    /// What is wrong with a reference to a registry, `oci://…`.
    pub reference: &'a dyn Fn(&str) -> Result<(), String>,
    /// Why there can be no tokenizer at a path.
    pub tokenizer: &'a dyn Fn(&Path) -> Result<(), String>,
    /// The engine versions whose layout is in the binary.
    pub layouts: &'a [&'a str],
}

/// Where the names of the reader's sockets come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Names {
    /// `connect` is required in each sink.
    FromConfig,
    /// A rendezvous file gives them: `connect` may be absent.
    FromRendezvous,
}

impl<'a> Env<'a> {
    /// This process's environment variables; a variable that is not UTF-8 counts as unset.
    pub fn of_process(
        names: Names,
        builtins: &'a [&'a str],
        reference: &'a dyn Fn(&str) -> Result<(), String>,
        tokenizer: &'a dyn Fn(&Path) -> Result<(), String>,
        layouts: &'a [&'a str],
    ) -> Env<'a> {
        Env { var: &|name| std::env::var(name).ok(), names, builtins, reference, tokenizer, layouts }
    }
}
