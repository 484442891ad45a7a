//! Errors about a plugin's settings.

use crate::abi::{BadSetting, ConfigureError};

/// An invalid setting. `pointer` is its JSON pointer (`/rules/0/prefix`). `message` states the problem, the
/// value and the limit. For the settings as a whole a message alone is enough: `Err("…".into())`.
#[must_use]
pub fn bad_setting(pointer: impl Into<String>, message: impl Into<String>) -> ConfigureError {
    ConfigureError::Setting(BadSetting { pointer: pointer.into(), message: message.into() })
}

/// The error for something that the settings require and that is missing, such as a tokenizer.
#[must_use]
pub fn missing(message: impl Into<String>) -> ConfigureError {
    ConfigureError::Missing(message.into())
}

impl ConfigureError {
    /// Prefixes the pointer of the setting by the pointer of the value that contains it.
    #[must_use]
    pub fn within(self, pointer: &str) -> Self {
        match self {
            Self::Setting(BadSetting { pointer: inner, message }) => {
                bad_setting(format!("{pointer}{inner}"), message)
            }
            missing @ Self::Missing(_) => missing,
        }
    }

    /// The message that the operator sees.
    #[must_use]
    pub fn message(&self) -> String {
        match self {
            Self::Setting(BadSetting { pointer, message }) if pointer.is_empty() => message.clone(),
            Self::Setting(BadSetting { pointer, message }) => format!("{pointer}: {message}"),
            Self::Missing(message) => message.clone(),
        }
    }
}

impl From<String> for ConfigureError {
    fn from(message: String) -> Self {
        bad_setting("", message)
    }
}

impl From<&str> for ConfigureError {
    fn from(message: &str) -> Self {
        bad_setting("", message)
    }
}

/// Converts an error of serde, with the pointer of the setting.
pub(crate) fn from_serde(error: serde_path_to_error::Error<serde_json::Error>) -> ConfigureError {
    use serde_path_to_error::Segment;
    let mut pointer = String::new();
    for segment in error.path() {
        match segment {
            Segment::Seq { index } => pointer.push_str(&format!("/{index}")),
            Segment::Map { key } | Segment::Enum { variant: key } => {
                pointer.push('/');
                pointer.push_str(&key.replace('~', "~0").replace('/', "~1"));
            }
            Segment::Unknown => {}
        }
    }
    bad_setting(pointer, error.inner().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Rule {
        #[expect(dead_code, reason = "only read")]
        prefix: String,
    }

    #[test]
    fn an_invalid_setting_is_named_by_its_pointer() {
        let refuse = |text: &str| {
            let mut json = serde_json::Deserializer::from_str(text);
            let read = serde_path_to_error::deserialize::<_, std::collections::BTreeMap<String, Vec<Rule>>>(
                &mut json,
            );
            match from_serde(read.unwrap_err()) {
                ConfigureError::Setting(BadSetting { pointer, message }) => (pointer, message),
                ConfigureError::Missing(message) => panic!("{message}"),
            }
        };
        let (pointer, message) = refuse(r#"{"rules": [{"prefix": "a"}, {"prefix": 7}]}"#);
        assert_eq!(pointer, "/rules/1/prefix");
        assert!(message.contains("invalid type: integer `7`"), "{message}");
        assert_eq!(refuse(r#"{"a/b": [{"prefx": "a"}]}"#).0, "/a~1b/0/prefx");
    }
}
