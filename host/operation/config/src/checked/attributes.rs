//! The rules that give attributes to requests, for plugins.

use afterbay_types::Engine;
use serde_json::{Map, Value};
use std::str::FromStr;

/// A rule that gives attributes to some requests.
#[derive(Clone, Debug, PartialEq)]
pub struct AttributeRule {
    /// The requests.
    pub rids: Rids,
    /// The attributes, as JSON. A named group of the pattern is one more.
    pub set: Map<String, Value>,
}

/// A set of requests, by their ids.
#[derive(Clone, Debug, PartialEq)]
pub enum Rids {
    /// Every request.
    All,
    /// Requests with an id ([`Engine::ids`]) that begins with this text.
    Prefix(String),
    /// Requests with an id that this expression matches anywhere.
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

impl Pattern {
    /// Whether a part of the pattern has a name, and so becomes an attribute.
    pub(crate) fn names_attributes(&self) -> bool {
        self.0.capture_names().flatten().next().is_some()
    }
}

impl AttributeRule {
    /// The attributes that this rule gives to the request `rid` of this engine; `None` if the rule is not for the request. The id
    /// that the client chose is looked at first, and the engine's rid last.
    pub fn of(&self, engine: Engine, rid: &str) -> Option<Map<String, Value>> {
        match &self.rids {
            Rids::All => Some(self.set.clone()),
            Rids::Prefix(prefix) => {
                engine.ids(rid).any(|id| id.starts_with(prefix.as_str())).then(|| self.set.clone())
            }
            Rids::Pattern(Pattern(pattern)) => {
                let found = engine.ids(rid).rev().find_map(|id| pattern.captures(id))?;
                let named = pattern.capture_names().flatten();
                let named =
                    named.filter_map(|name| Some((name.to_owned(), found.name(name)?.as_str().into())));
                Some(self.set.clone().into_iter().chain(named).collect())
            }
        }
    }
}
