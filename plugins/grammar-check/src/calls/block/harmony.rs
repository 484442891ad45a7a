//! Harmony, the format of gpt-oss: a message is a call if its header has a recipient that is a function.

use serde_json::{Map, Value};

use super::{Block, Next, Step, Stepped, ToolsOf, invalid, step};

/// The most bytes of harmony's header of a message.
const HEADER_BYTES_MAX: usize = 256;
/// Tools that harmony's models have besides functions.
const BUILT_IN: [&str; 4] = ["assistant", "browser", "container", "python"];

impl Block {
    pub(super) fn harmony(&mut self, tools: ToolsOf<'_>) -> Stepped {
        match self.step {
            Step::HarmonyHeader { first } => {
                if first && !begins_like_a_header(&self.text) {
                    return Ok(Some(Next::NoCall));
                }
                let before = self.text.len();
                let Ok(Some((header, _))) = self.until(&["<|message|>"], HEADER_BYTES_MAX) else {
                    return Ok((before > HEADER_BYTES_MAX).then_some(Next::NoCall));
                };
                match recipient(header.as_bytes()) {
                    None => Ok(Some(Next::NoCall)),
                    Some(name) => {
                        self.name = name;
                        step(Step::Harmony)
                    }
                }
            }
            Step::Harmony => match self.next_byte() {
                None => Ok(None),
                Some(b'{') => step(Step::HarmonyJson),
                Some(_) => match self.literal("<|call|>") {
                    Some(true) => {
                        self.check(tools, &Value::Object(Map::new()))?;
                        Ok(Some(Next::Ended))
                    }
                    Some(false) => invalid(format!("{}: the arguments are no JSON", self.name)),
                    None => Ok(None),
                },
            },
            Step::HarmonyJson => match self.arguments(tools)? {
                Some(()) => step(Step::HarmonyEnd),
                None => Ok(None),
            },
            _ => {
                if self.next_byte().is_none() {
                    return Ok(None);
                }
                let ends = ["<|call|>", "<|end|>", "<|return|>"].map(|marker| self.literal(marker));
                match ends {
                    _ if ends.contains(&Some(true)) => Ok(Some(Next::Ended)),
                    _ if ends.contains(&None) => Ok(None),
                    _ => invalid("has text behind its arguments"),
                }
            }
        }
    }
}

/// Whether an output of harmony may begin like this.
fn begins_like_a_header(text: &[u8]) -> bool {
    let text = text.trim_ascii_start();
    let begins = |marker: &[u8]| text.starts_with(marker) || marker.starts_with(text);
    begins(b"<|channel|>") || begins(b"<|start|>") || begins(b"to=")
}

/// The function to which the header of a message is addressed.
pub(super) fn recipient(header: &[u8]) -> Option<String> {
    let header = String::from_utf8_lossy(header);
    let (_, after) = header.split_once("to=")?;
    let name = after.split(|char: char| char.is_whitespace() || char == '<').next()?;
    let first = name.split('.').next().unwrap_or_default();
    if name.is_empty() || BUILT_IN.contains(&first) {
        return None;
    }
    Some(name.strip_prefix("functions.").unwrap_or(name).to_owned())
}
