//! The questions to the service, and its answers.

use afterbay_plugin::RequestId;
use afterbay_plugin::call::Response;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::request::Judgement;

/// The form of questions and answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// The moderation endpoint of the OpenAI API.
    #[default]
    Openai,
    /// A webhook of one's own.
    Webhook,
}

/// The service, as the settings describe it.
pub struct Service {
    pub format: Format,
    pub model: Option<String>,
    pub categories: Vec<String>,
}

/// A question about a window of a request's text.
pub struct Question<'a> {
    pub request: RequestId,
    pub rid: &'a str,
    /// The end of the prompt.
    pub prompt: Option<&'a str>,
    pub text: &'a str,
    /// Whether the request ends with this text.
    pub is_final: bool,
}

impl Service {
    /// The body of a question.
    pub fn body(&self, question: &Question<'_>) -> Vec<u8> {
        let Question { request, rid, prompt, text, is_final } = question;
        let mut body = match self.format {
            Format::Openai => match prompt {
                Some(prompt) => json!({ "input": [prompt, text] }),
                None => json!({ "input": text }),
            },
            Format::Webhook => json!({ "rid": rid, "text": text, "final": is_final }),
        };
        if let (Format::Webhook, Some(prompt)) = (self.format, prompt) {
            body["prompt"] = json!(prompt);
        }
        match (self.format, &self.model) {
            (Format::Openai, Some(model)) => body["model"] = json!(model),
            (Format::Openai, None) => {}
            (Format::Webhook, _) => {
                let attributes = afterbay_plugin::attributes(*request);
                if let Some(Ok(attributes)) = attributes.map(|json| serde_json::from_str::<Value>(&json)) {
                    body["attributes"] = attributes;
                }
            }
        }
        body.to_string().into_bytes()
    }

    /// The judgement of an answer. `None` if the answer is none.
    pub fn judgement(&self, response: &Response) -> Option<Judgement> {
        if !(200..300).contains(&response.status) {
            return None;
        }
        let answer: Value = serde_json::from_slice(&response.body).ok()?;
        let (is_blocked, reason) = match self.format {
            Format::Openai => {
                let results = answer["results"].as_array().filter(|results| !results.is_empty())?;
                let mut is_blocked = false;
                for result in results {
                    is_blocked |= self.is_flagged(result)?;
                }
                (is_blocked, None)
            }
            Format::Webhook => match answer["action"].as_str()? {
                "allow" => (false, None),
                "block" => (true, answer["reason"].as_str().map(str::to_owned)),
                _ => return None,
            },
        };
        Some(if is_blocked { Judgement::Blocked(reason) } else { Judgement::Allowed })
    }

    fn is_flagged(&self, result: &Value) -> Option<bool> {
        if self.categories.is_empty() {
            return result["flagged"].as_bool();
        }
        let mut is_flagged = false;
        for category in &self.categories {
            is_flagged |= result["categories"][category].as_bool()?;
        }
        Some(is_flagged)
    }
}
