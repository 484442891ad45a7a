//! Checks `[[stream.attribute]]`: attributes of requests, for plugins.

use std::str::FromStr;

use crate::check::Check;
use crate::{bounds, written};

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

impl Check<'_> {
    pub(crate) fn attributes(&self, written: &[written::AttributeRule]) -> Vec<AttributeRule> {
        self.most(
            written.len(),
            bounds::ATTRIBUTE_RULES_MAX,
            "rules",
            written.last().map(|rule| &rule.location),
        );
        written.iter().filter_map(|rule| self.attribute_rule(rule)).collect()
    }

    fn attribute_rule(&self, written: &written::AttributeRule) -> Option<AttributeRule> {
        let rids = match (&written.prefix, &written.pattern) {
            (Some(prefix), None) => Rids::Prefix(prefix.value.clone()),
            (None, Some(pattern)) => match pattern.value.parse::<Pattern>() {
                Ok(pattern) => Rids::Pattern(pattern),
                Err(error) => {
                    // The last line of the error is its reason. The lines before it draw an arrow.
                    let why = error.to_string();
                    let why = why.lines().last().unwrap_or_default().trim_start_matches("error: ");
                    self.source.report(
                        &pattern.location,
                        format!("{:?} is not a regular expression: {why}", pattern.value),
                    );
                    Rids::All
                }
            },
            (None, None) => Rids::All,
            (Some(_), Some(pattern)) => {
                self.source.report(&pattern.location, "a rule has either a prefix or a pattern");
                Rids::All
            }
        };
        let set = written.set.as_ref()?;
        let bytes = serde_json::to_string(&set.value).map_or(0, |json| json.len());
        self.most(bytes, bounds::ATTRIBUTES_BYTES_MAX, "bytes as JSON", Some(&set.location));
        Some(AttributeRule { rids, set: set.value.clone() })
    }
}
