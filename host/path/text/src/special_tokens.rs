//! The special tokens that a `tokenizer_config.json` or a `special_tokens_map.json` names, by the rules of
//! `transformers` (`PreTrainedTokenizerBase.__init__`, 5.x).

use hashbrown::HashSet;
use serde_json::Value;

/// Special tokens by their text.
#[derive(Debug, Default)]
pub(crate) struct SpecialTokens {
    /// All special tokens.
    pub special: HashSet<String, foldhash::fast::RandomState>,
    /// The tokens that end a text: `eos_token`.
    pub ends: HashSet<String, foldhash::fast::RandomState>,
}

impl SpecialTokens {
    /// Adds the tokens that one of these files names.
    pub fn add(&mut self, file: &Value) {
        let Value::Object(fields) = file else { return };
        for (key, value) in fields {
            match key.as_str() {
                // A list of tokens, or a table of tokens with names of their own.
                "additional_special_tokens" | "extra_special_tokens" | "model_specific_special_tokens" => {
                    let tokens: Box<dyn Iterator<Item = &Value>> = match value {
                        Value::Array(tokens) => Box::new(tokens.iter()),
                        Value::Object(tokens) => Box::new(tokens.values()),
                        _ => continue,
                    };
                    self.special.extend(tokens.filter_map(text).map(str::to_owned));
                }
                "added_tokens_decoder" => {
                    let tokens = value.as_object().into_iter().flat_map(|tokens| tokens.values());
                    let special =
                        tokens.filter(|token| token.get("special").and_then(Value::as_bool) == Some(true));
                    self.special.extend(special.filter_map(text).map(str::to_owned));
                }
                key if key.ends_with("_token") => {
                    let Some(text) = text(value) else { continue };
                    if key == "eos_token" {
                        self.ends.insert(text.to_owned());
                    }
                    self.special.insert(text.to_owned());
                }
                _ => {}
            }
        }
    }
}

/// The text of a token: the value itself, or `content` of a table.
fn text(token: &Value) -> Option<&str> {
    token.as_str().or_else(|| token.get("content")?.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn tokens_are_named_as_text_as_tables_in_lists_and_under_names_of_their_own() {
        let mut named = SpecialTokens::default();
        named.add(&json!({
            "eos_token": {"content": "</s>"}, "bos_token": "<s>", "pad_token": null, "image_token": "<img>",
            "additional_special_tokens": ["<a>", {"content": "<b>"}],
            "extra_special_tokens": {"sound": "<c>"},
            "added_tokens_decoder": {"5": {"content": "<d>", "special": true}, "6": {"content": "<think>", "special": false}},
            "chat_template": "</think>", "add_bos_token": true, "tokenizer_class": "X",
        }));
        let mut special: Vec<&str> = named.special.iter().map(String::as_str).collect();
        special.sort_unstable();
        assert_eq!(special, ["</s>", "<a>", "<b>", "<c>", "<d>", "<img>", "<s>"]);
        assert_eq!(named.ends.iter().collect::<Vec<_>>(), ["</s>"]);
    }
}
