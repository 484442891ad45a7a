//! Why a plugin cannot be used as it is configured.

use crate::abi::{BadSetting, ConfigureError};

/// A setting that is wrong: `pointer` is where it stands, as a JSON pointer (`/rules/0/prefix`), `message` what is wrong with
/// it, with the value and the limit. (Where no place is to be named, a message alone will do: `Err("…".into())`.)
#[must_use]
pub fn bad_setting(pointer: impl Into<String>, message: impl Into<String>) -> ConfigureError {
    ConfigureError::Setting(BadSetting { pointer: pointer.into(), message: message.into() })
}

/// Something that these settings need is not there: a tokenizer, a vocabulary.
#[must_use]
pub fn missing(what: impl Into<String>) -> ConfigureError {
    ConfigureError::Missing(what.into())
}

impl ConfigureError {
    /// The same, where the setting stands within another: its place, as a JSON pointer.
    #[must_use]
    pub fn within(self, pointer: &str) -> Self {
        match self {
            Self::Setting(BadSetting { pointer: inner, message }) => {
                bad_setting(format!("{pointer}{inner}"), message)
            }
            Self::Missing(what) => Self::Missing(what),
        }
    }

    /// As the operator is shown it.
    #[must_use]
    pub fn message(&self) -> String {
        match self {
            Self::Setting(BadSetting { pointer, message }) if pointer.is_empty() => message.clone(),
            Self::Setting(BadSetting { pointer, message }) => format!("{pointer}: {message}"),
            Self::Missing(what) => what.clone(),
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

/// What serde says, and where.
pub(crate) fn of_settings(error: serde_path_to_error::Error<serde_json::Error>) -> ConfigureError {
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
    fn a_wrong_setting_is_named_by_its_place() {
        let refuse = |text: &str| {
            let mut json = serde_json::Deserializer::from_str(text);
            let read = serde_path_to_error::deserialize::<_, std::collections::BTreeMap<String, Vec<Rule>>>(
                &mut json,
            );
            match of_settings(read.unwrap_err()) {
                ConfigureError::Setting(BadSetting { pointer, message }) => (pointer, message),
                ConfigureError::Missing(what) => panic!("{what}"),
            }
        };
        let (pointer, message) = refuse(r#"{"rules": [{"prefix": "a"}, {"prefix": 7}]}"#);
        assert_eq!(pointer, "/rules/1/prefix");
        assert!(message.contains("invalid type: integer `7`"), "{message}");
        assert_eq!(refuse(r#"{"a/b": [{"prefx": "a"}]}"#).0, "/a~1b/0/prefx");
    }
}
