//! The settings of the plugin.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::presets::Preset;

/// The most bytes of `mask`.
pub const MASK_BYTES_MAX: usize = 64;

/// Looks for words, patterns and presets in the text of each request. At least one of the three is needed.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Words and phrases, at most 10,000, each of 1 to 128 bytes.
    #[serde(default)]
    pub words: Vec<String>,
    /// Regular expressions (the syntax of Rust's `regex`), at most 32, each of at most 4,096 bytes. None may match the
    /// empty text.
    #[serde(default)]
    pub patterns: Vec<String>,
    /// Well-known kinds of text.
    #[serde(default)]
    pub presets: Vec<Preset>,
    /// The action at a match.
    #[serde(default)]
    pub action: MatchAction,
    /// Whether a match passes if its exact text stands in the request's prompt.
    #[serde(default)]
    pub allow_from_prompt: bool,
    /// The text that replaces a match, at most 64 bytes.
    #[serde(default = "mask")]
    pub mask: String,
    /// Whether the words match only as whole words.
    #[serde(default = "whole_words")]
    pub whole_words: bool,
    /// Whether upper and lower case differ in the words.
    #[serde(default)]
    pub case_sensitive: bool,
}

/// The action at a match.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MatchAction {
    /// The text of `mask` replaces the match.
    #[default]
    Mask,
    /// The request ends before the match. Its reader sees a stop.
    Finish,
    /// The rest of the request's text is dropped, from the match on. The request goes on without text.
    Drop,
}

fn mask() -> String {
    "[masked]".to_owned()
}

fn whole_words() -> bool {
    true
}
