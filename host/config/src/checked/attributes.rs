//! The rules that give attributes to requests, for plugins.

use std::str::FromStr;

/// A rule that gives attributes to some requests.
#[derive(Clone, Debug, PartialEq)]
pub struct AttributeRule {
    /// The requests.
    pub rids: Rids,
    /// The attributes, as JSON.
    pub set: serde_json::Map<String, serde_json::Value>,
}

/// A set of requests, by their rid.
#[derive(Clone, Debug, PartialEq)]
pub enum Rids {
    /// Every request.
    All,
    /// Requests whose rid begins with this text.
    Prefix(String),
    /// Requests whose rid this expression matches anywhere.
    Pattern(Pattern),
}

/// A regular expression of the `regex` crate. Two are equal if their texts are.
#[derive(Clone, Debug)]
pub struct Pattern(regex::Regex);

impl FromStr for Pattern {
    type Err = regex::Error;

    fn from_str(text: &str) -> Result<Pattern, regex::Error> {
        regex::Regex::new(text).map(Pattern)
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Pattern) -> bool {
        self.0.as_str() == other.0.as_str()
    }
}

impl AttributeRule {
    /// Whether this rule applies to the request `rid`.
    pub fn is_of(&self, rid: &str) -> bool {
        match &self.rids {
            Rids::All => true,
            Rids::Prefix(prefix) => rid.starts_with(prefix),
            Rids::Pattern(Pattern(pattern)) => pattern.is_match(rid),
        }
    }
}
