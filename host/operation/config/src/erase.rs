//! Checks `[[journal.erase]]`.

use std::time::Duration;

use crate::check::{Check, value};
use crate::checked::EraseRule;
use crate::location::Located;
use crate::units::Time;
use crate::{bounds, written};

impl Check<'_> {
    pub(crate) fn erase_rules(
        &self,
        written: &[written::EraseRule],
        retain_age: Option<Duration>,
    ) -> Vec<EraseRule> {
        self.most(written.len(), bounds::ERASE_RULES_MAX, "rules", written.last().map(|rule| &rule.location));
        let mut rules: Vec<EraseRule> = Vec::new();
        for rule in written {
            let attribute = match (&rule.attribute, &rule.value) {
                (Some(name), Some(value)) => {
                    for Located { value, location, .. } in [name, value] {
                        if value.len() > bounds::ERASE_TEXT_BYTES_MAX {
                            let max = bounds::ERASE_TEXT_BYTES_MAX;
                            let why = format!("has {} bytes, the journal keeps at most {max}", value.len());
                            self.source.report(location, why);
                        }
                    }
                    Some((name.value.clone(), value.value.clone()))
                }
                (None, None) => None,
                (Some(Located { location, .. }), None) => {
                    self.source.report(location, "a rule with an attribute needs its value");
                    continue;
                }
                (None, Some(Located { location, .. })) => {
                    self.source.report(location, "a rule with a value needs its attribute");
                    continue;
                }
            };
            if rules.iter().any(|earlier| earlier.attribute.is_none() || earlier.attribute == attribute) {
                self.source.report(&rule.location, "an earlier rule selects all requests of this rule");
            }
            let Some(after) = value(&rule.after) else {
                continue;
            };
            if let (Some(age), Some(Located { location, .. })) = (retain_age, &rule.after)
                && after >= age
            {
                let why = format!(
                    "is {}, must be less than retain.age = {}, after which the segments are removed",
                    Time(after),
                    Time(age)
                );
                self.source.report(location, why);
            }
            rules.push(EraseRule { attribute, after });
        }
        rules
    }
}
