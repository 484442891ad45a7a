//! Qwen3-Coder's form of a call: `<function=NAME><parameter=KEY>VALUE</parameter></function>`.

use serde_json::{Map, Value};

use super::{BLOCK_BYTES_MAX, Block, NAME_BYTES_MAX, Step, Stepped, ToolsOf, invalid, step};

impl Block {
    pub(super) fn xml(&mut self, tools: ToolsOf<'_>) -> Stepped {
        match self.step {
            Step::XmlName => match self.name_until(&[">"])? {
                Some(_) => step(Step::XmlParameter),
                None => Ok(None),
            },
            Step::XmlParameter => match self.next_byte() {
                None => Ok(None),
                Some(_) => match (self.literal("<parameter="), self.literal("</function>")) {
                    (Some(true), _) => step(Step::XmlKey),
                    (_, Some(true)) => {
                        let arguments = self.xml_arguments(tools);
                        self.check(tools, &arguments)?;
                        step(Step::HermesEnd)
                    }
                    (Some(false), Some(false)) => invalid("has text between its parameters"),
                    _ => Ok(None),
                },
            },
            Step::XmlKey => match self.until(&[">"], NAME_BYTES_MAX)? {
                Some((key, _)) => {
                    self.key = key;
                    step(Step::XmlValue)
                }
                None => Ok(None),
            },
            _ => {
                // Like SGLang's parser, which takes the first of these as the end.
                let ends = ["</parameter>", "<parameter=", "</function>"];
                let Some((value, end)) = self.until(&ends, BLOCK_BYTES_MAX)? else { return Ok(None) };
                if end > 0 {
                    self.at -= ends[end].len();
                }
                let value = value.strip_prefix('\n').unwrap_or(&value);
                let value = value.strip_suffix('\n').unwrap_or(value).to_owned();
                self.parameters.push((std::mem::take(&mut self.key), value));
                step(Step::XmlParameter)
            }
        }
    }

    /// The parameters of the XML form as JSON. A value is a string where the schema allows only strings, and
    /// JSON or a Python literal otherwise.
    fn xml_arguments(&mut self, tools: ToolsOf<'_>) -> Value {
        let (mut arguments, list) = (Map::new(), tools());
        for (key, text) in std::mem::take(&mut self.parameters) {
            let (string, other) = list.parameter(&self.name, &key);
            let json = match text.trim() {
                "True" => Some(Value::Bool(true)),
                "False" => Some(Value::Bool(false)),
                "None" => Some(Value::Null),
                text if text.eq_ignore_ascii_case("null") => Some(Value::Null),
                text => serde_json::from_str(text).ok(),
            };
            let value = match (string, other, json) {
                (_, true, Some(json)) if !(string && json.is_string()) => json,
                (true, false, Some(Value::Null)) if text.eq_ignore_ascii_case("null") => Value::Null,
                _ => Value::String(text),
            };
            arguments.insert(key, value);
        }
        Value::Object(arguments)
    }
}
