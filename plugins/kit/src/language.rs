//! The languages that a project may be written in.

/// A plugin's language.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    /// By cargo, with the SDK.
    Rust,
    /// By clang for wasm32-wasi, or zig.
    C,
    /// By `componentize-qjs`: QuickJS.
    JavaScript,
    /// By `componentize-py`: CPython.
    Python,
}

impl Language {
    /// All of them.
    pub const ALL: [Language; 4] = [Language::Rust, Language::C, Language::JavaScript, Language::Python];

    /// A deadline of one call that fits plugins in the language, as a configuration has it: what `plugin bench` proposes for the
    /// template at batches of 1,024 rows.
    #[must_use]
    pub fn deadline(self) -> &'static str {
        match self {
            Language::Rust | Language::C => "2ms",
            Language::JavaScript | Language::Python => "50ms",
        }
    }

    /// As `--lang` has it; also the directory of its templates.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Language::Rust => "rust",
            Language::C => "c",
            Language::JavaScript => "js",
            Language::Python => "python",
        }
    }
}
