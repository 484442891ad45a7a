//! The languages of plugin projects.

/// The language of a plugin project.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    /// Rust, built by cargo with the SDK.
    Rust,
    /// C, built by a wasi-sdk's clang or by zig.
    C,
    /// JavaScript, built by `componentize-qjs` (QuickJS).
    JavaScript,
    /// Python, built by `componentize-py` (CPython).
    Python,
}

impl Language {
    /// All languages.
    pub const ALL: [Language; 4] = [Language::Rust, Language::C, Language::JavaScript, Language::Python];

    /// The deadline of a call that suits plugins in this language, as the configuration spells it. It is the
    /// value that `afterbay plugin bench` proposes for the template at batches of 1,024 rows.
    #[must_use]
    pub fn deadline(self) -> &'static str {
        match self {
            Language::Rust | Language::C => "2ms",
            Language::JavaScript | Language::Python => "50ms",
        }
    }

    /// The name in `--lang` and of the directory of templates.
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
