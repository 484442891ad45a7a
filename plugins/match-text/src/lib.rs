//! Finds words, patterns and presets in the text of requests, and finishes the request, drops the rest of its
//! text, or masks the match.
//!
//! All patterns are one automaton, which reads each byte once and knows the earliest start of every text that may
//! still become a match. Only this text waits. The text may be serialized as JSON: its escapes are read as their
//! characters, too.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod automaton;
mod escapes;
mod patterns;
mod plugin;
mod presets;
mod prompts;
mod scan;
mod settings;
mod words;

pub use automaton::{CANDIDATES_MAX, STATES_MAX};
pub use patterns::{MATCH_BYTES_MAX, PATTERN_BYTES_MAX, SETTINGS_PATTERNS_MAX};
pub use plugin::MatchText;
pub use presets::Preset;
pub use prompts::PROMPT_BYTES_MAX;
pub use settings::{MASK_BYTES_MAX, MatchAction, Settings};
pub use words::{ALL_WORDS_BYTES_MAX, WORD_BYTES_MAX, WORDS_MAX};

#[cfg(test)]
mod tests;
