//! What the operator may set.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::GrammarText;

/// The most rules.
pub const RULES_MAX: usize = 64;
/// The most grammars of requests that may be kept.
pub const GRAMMARS_MAX: u32 = 64;

/// Checks requests' outputs against grammars.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// What the output of a request must be that no rule is for. Without it, only requests of a rule are checked.
    pub grammar: Option<GrammarText>,
    /// The attribute in which a request may bring a grammar of its own, which is then in the place of all others: an object as
    /// `grammar` is, of at most 4 KiB. Without this, requests bring none.
    pub grammar_attribute: Option<String>,
    /// So many grammars that requests have brought are kept compiled.
    #[serde(default = "grammars_max")]
    #[schemars(range(min = 1, max = 64))]
    pub grammars_max: u32,
    /// Which requests are checked otherwise, and how: the first that a request matches. At most 64.
    #[serde(default)]
    pub rules: Vec<Rule>,
    /// What becomes of a request at the first token that the grammar does not allow, or in a loop of whitespace.
    #[serde(default)]
    pub on_violation: OnViolation,
    /// What becomes of a request that ends before the grammar is complete.
    #[serde(default)]
    pub on_early_end: OnEarlyEnd,
    /// So many bytes of whitespace in a row are allowed, also where the grammar allows more; 0: any number.
    #[serde(default = "whitespace_max")]
    pub whitespace_max: u32,
    /// The grammar is of what comes after this text (`</think>`); what comes before may be anything.
    pub begins_after: Option<String>,
    /// So many tokens are kept for all requests under way, some 100 bytes each: a request past it is checked no further.
    #[serde(default = "tokens_max")]
    pub tokens_max: u64,
    /// So much is done in a call: a token counts 1, a lexeme that it completes 2 or more, a request's beginning some 10. What
    /// is over waits for its request's next row. 512 take 0.5 to 1 ms.
    #[serde(default = "work_per_call")]
    #[schemars(range(min = 1))]
    pub work_per_call: u32,
}

/// Requests that are checked otherwise. What it does not say is as for the others.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// It is for requests whose rid begins so.
    pub rid_prefix: Option<String>,
    /// It is for requests whose rid has a match of this regular expression; `^` and `$` are its ends.
    pub rid_pattern: Option<String>,
    /// It is for requests that have this attribute: its name.
    pub attribute: Option<String>,
    /// The attribute is this; without it, `true`.
    pub equals: Option<serde_json::Value>,
    /// What their output must be; none: they are not checked.
    pub grammar: Option<GrammarText>,
    /// As for the others.
    pub on_violation: Option<OnViolation>,
    /// As for the others.
    pub on_early_end: Option<OnEarlyEnd>,
    /// As for the others.
    pub whitespace_max: Option<u32>,
    /// As for the others; empty: the grammar is of all of the output.
    pub begins_after: Option<String>,
}

fn grammars_max() -> u32 {
    16
}

fn whitespace_max() -> u32 {
    256
}

fn tokens_max() -> u64 {
    262_144
}

fn work_per_call() -> u32 {
    512
}

/// What becomes of a request at a violation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnViolation {
    /// It goes on; the log and the journal have it.
    #[default]
    Report,
    /// It ends with this row: its reader sees a stop.
    Finish,
    /// It ends with this row: its reader sees an abort.
    Abort,
}

/// What becomes of a request that ends too early.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnEarlyEnd {
    /// It ends as it would; the log and the journal have it.
    #[default]
    Report,
    /// Its reader sees an abort.
    Abort,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(settings: &str) -> Result<Settings, serde_json::Error> {
        serde_json::from_str(settings)
    }

    #[test]
    fn a_grammar_is_all_that_must_be_set() {
        let settings = read(r#"{"grammar": {"regex": "a+"}}"#).unwrap();
        assert_eq!(settings.grammar, Some(GrammarText::Regex("a+".into())));
        assert_eq!((settings.on_violation, settings.on_early_end), (OnViolation::Report, OnEarlyEnd::Report));
        assert_eq!((settings.whitespace_max, settings.tokens_max), (256, 262_144));
        assert!(settings.rules.is_empty() && settings.begins_after.is_none());
    }

    #[test]
    fn two_grammars_and_unknown_words_are_refused() {
        for wrong in [
            r#"{"grammar": {}}"#,
            r#"{"grammar": {"regex": "a", "lark": "start: \"a\""}}"#,
            r#"{"grammar": {"xml": "a"}}"#,
            r#"{"grammar": {"regex": "a"}, "on_violation": "drop"}"#,
            r#"{"grammar": {"regex": "a"}, "on_early_end": "finish"}"#,
            r#"{"grammar": {"regex": "a"}, "whitespace_max": -1}"#,
            r#"{"grammar": {"regex": "a"}, "whitespace": 1}"#,
            r#"{"rules": [{"prefix": "a"}]}"#,
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
