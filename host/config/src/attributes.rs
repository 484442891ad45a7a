//! `[[stream.attribute]]`, from written to checked.

use crate::check::Check;
use crate::checked::{AttributeRule, Rids};
use crate::{bounds, written};

impl Check<'_> {
    pub(crate) fn attributes(&self, written: &[written::AttributeRule]) -> Vec<AttributeRule> {
        self.most(
            written.len(),
            bounds::ATTRIBUTE_RULES_MAX,
            "rules",
            written.last().map(|rule| &rule.place),
        );
        written.iter().filter_map(|rule| self.attribute_rule(rule)).collect()
    }

    fn attribute_rule(&self, written: &written::AttributeRule) -> Option<AttributeRule> {
        let rids = match (&written.prefix, &written.pattern) {
            (Some(prefix), None) => Rids::Prefix(prefix.value.clone()),
            (None, Some(pattern)) => {
                if let Err(error) = regex::Regex::new(&pattern.value) {
                    // The last line says what is wrong; those before draw an arrow to it.
                    let why = error.to_string();
                    let why = why.lines().last().unwrap_or_default().trim_start_matches("error: ");
                    self.source
                        .tell(&pattern.place, format!("{:?} is no regular expression: {why}", pattern.value));
                }
                Rids::Pattern(pattern.value.clone())
            }
            (None, None) => Rids::All,
            (Some(_), Some(pattern)) => {
                self.source.tell(&pattern.place, "a rule has either a prefix or a pattern");
                Rids::All
            }
        };
        let set = written.set.as_ref()?;
        let bytes = serde_json::to_string(&set.value).map_or(0, |json| json.len());
        self.most(bytes, bounds::ATTRIBUTES_BYTES_MAX, "bytes as JSON", Some(&set.place));
        Some(AttributeRule { rids, set: set.value.clone() })
    }
}
