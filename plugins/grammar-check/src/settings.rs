//! What the operator may set.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::GrammarText;

/// Checks each request's output against one grammar.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// What an output must be, from its first token to its last.
    pub grammar: GrammarSetting,
    /// What becomes of a request at the first token that the grammar does not allow, or in a loop of whitespace.
    #[serde(default)]
    pub on_violation: OnViolation,
    /// What becomes of a request that ends before the grammar is complete.
    #[serde(default)]
    pub on_early_end: OnEarlyEnd,
    /// So many bytes of whitespace in a row are allowed, also where the grammar allows more; 0: any number.
    #[serde(default = "whitespace_max")]
    pub whitespace_max: u32,
}

fn whitespace_max() -> u32 {
    256
}

/// The grammar: one of these.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum GrammarSetting {
    /// A JSON schema, as JSON text: the order of its properties counts.
    JsonSchema(String),
    /// The path of a file that holds a JSON schema.
    JsonSchemaFile(String),
    /// A regular expression (Rust's syntax) that the whole output matches.
    Regex(String),
    /// A grammar in llguidance's dialect of Lark.
    Lark(String),
}

/// What becomes of a request at a violation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnViolation {
    /// It goes on; the log has it.
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
    /// It ends as it would; the log has it.
    #[default]
    Report,
    /// Its reader sees an abort.
    Abort,
}

impl GrammarSetting {
    /// The grammar itself; `read` has the files.
    ///
    /// # Errors
    /// The file cannot be read: what `read` says, under the setting's name.
    pub fn text(&self, read: impl FnOnce(&str) -> Result<String, String>) -> Result<GrammarText, String> {
        Ok(match self {
            GrammarSetting::JsonSchema(schema) => GrammarText::JsonSchema(schema.clone()),
            GrammarSetting::JsonSchemaFile(path) => GrammarText::JsonSchema(
                read(path).map_err(|error| format!("grammar.json_schema_file: {path}: {error}"))?,
            ),
            GrammarSetting::Regex(regex) => GrammarText::Regex(regex.clone()),
            GrammarSetting::Lark(lark) => GrammarText::Lark(lark.clone()),
        })
    }
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
        assert!(matches!(settings.grammar, GrammarSetting::Regex(regex) if regex == "a+"));
        assert_eq!((settings.on_violation, settings.on_early_end), (OnViolation::Report, OnEarlyEnd::Report));
        assert_eq!(settings.whitespace_max, 256);
    }

    #[test]
    fn no_grammar_two_of_them_and_unknown_words_are_refused() {
        for wrong in [
            "{}",
            r#"{"grammar": {}}"#,
            r#"{"grammar": {"regex": "a", "lark": "start: \"a\""}}"#,
            r#"{"grammar": {"xml": "a"}}"#,
            r#"{"grammar": {"regex": "a"}, "on_violation": "drop"}"#,
            r#"{"grammar": {"regex": "a"}, "on_early_end": "finish"}"#,
            r#"{"grammar": {"regex": "a"}, "whitespace_max": -1}"#,
            r#"{"grammar": {"regex": "a"}, "whitespace": 1}"#,
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_file_that_cannot_be_read_is_named_with_its_setting() {
        let file = GrammarSetting::JsonSchemaFile("a.json".into());
        assert_eq!(
            file.text(|_| Err("no such file".into())).unwrap_err(),
            "grammar.json_schema_file: a.json: no such file"
        );
        let text = file.text(|path| Ok(format!("\"{path}\""))).unwrap();
        assert_eq!(text, GrammarText::JsonSchema("\"a.json\"".into()));
    }
}
