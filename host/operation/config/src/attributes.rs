//! Checks `[[stream.attribute]]`.

use crate::check::Check;
use crate::checked::{AttributeRule, Pattern, Rids};
use crate::{bounds, written};
use serde_json::Map;

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
        let Some(set) = &written.set else {
            let names_attributes = matches!(&rids, Rids::Pattern(pattern) if pattern.names_attributes());
            // A pattern or a table that cannot be read is reported already.
            let is_read = written.pattern.is_none() || matches!(rids, Rids::Pattern(_));
            if !written.has_set && is_read && !names_attributes {
                self.source
                    .report(&written.location, "must have set, or a pattern with a named group".to_owned());
            }
            return Some(AttributeRule { rids, set: Map::new() });
        };
        let bytes = serde_json::to_string(&set.value).map_or(0, |json| json.len());
        self.most(bytes, bounds::ATTRIBUTES_BYTES_MAX, "bytes as JSON", Some(&set.location));
        Some(AttributeRule { rids, set: set.value.clone() })
    }
}
