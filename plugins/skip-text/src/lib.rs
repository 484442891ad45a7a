//! Lets single requests bypass the detokenizer, for clients that want only token ids.
//!
//! Rules on the rid, the front end and the request's attributes select the requests, at a request's
//! first row.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

use afterbay_plugin::{
    AttributeIs, Attributes, Batch, Columns, ConfigureError, Opened, Plugin, RequestId, RequestIs, Requests,
    Verdicts,
};
use schemars::JsonSchema;
use serde::Deserialize;

/// The attribute that selects a request if the settings have no rules.
const ATTRIBUTE: &str = "skip_text";

/// The settings.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// A request that matches any of these rules bypasses the detokenizer. Without rules, requests with the
    /// attribute `skip_text` set to `true` do.
    #[serde(default)]
    rules: Vec<Rule>,
}

/// A rule. A request matches if all given fields match.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Rule {
    /// The request's rid starts with this text.
    rid_prefix: Option<String>,
    /// This front end waits for the request.
    front_end: Option<String>,
    /// The request has the attribute of this name.
    attribute: Option<String>,
    /// The value of the attribute; `true` by default.
    equals: Option<serde_json::Value>,
}

/// A validated rule.
struct Condition {
    request: RequestIs,
    attribute: Option<AttributeIs>,
}

impl Condition {
    fn new(rule: Rule) -> Result<Self, ConfigureError> {
        let Rule { rid_prefix, front_end, attribute, equals } = rule;
        let attribute = AttributeIs::of(attribute.as_deref(), equals.as_ref())?;
        Ok(Self { request: RequestIs { rid_prefix, front_end, ..RequestIs::default() }, attribute })
    }

    fn fits(&self, request: &Opened, attributes: &Attributes) -> bool {
        self.request.fits(request)
            && self.attribute.as_ref().is_none_or(|attribute| attribute.holds(attributes))
    }
}

/// The plugin that lets requests bypass the detokenizer.
pub struct SkipText {
    rules: Vec<Condition>,
    /// Selected requests without a row so far.
    selected: Requests<()>,
}

impl Plugin for SkipText {
    type Settings = Settings;
    const COLUMNS: Columns = Columns::empty();

    fn new(Settings { mut rules }: Settings) -> Result<Self, ConfigureError> {
        if rules.is_empty() {
            rules.push(Rule { attribute: Some(ATTRIBUTE.to_owned()), ..Rule::default() });
        }
        let check =
            |(index, rule)| Condition::new(rule).map_err(|error| error.within(&format!("/rules/{index}")));
        let rules = rules.into_iter().enumerate().map(check).collect::<Result<_, _>>()?;
        Ok(Self { rules, selected: Requests::new() })
    }

    fn opened(&mut self, request: &Opened) {
        // The first row of a resumed request has already decided.
        if request.resumed {
            return;
        }
        let attributes = Attributes::of(request.request);
        if self.rules.iter().any(|rule| rule.fits(request, &attributes)) {
            self.selected.insert(request.request, ());
        }
    }

    fn process(&mut self, batch: &Batch<'_>, verdicts: &mut Verdicts) {
        if self.selected.is_empty() {
            return;
        }
        for row in batch {
            if self.selected.remove(row.request()).is_some() {
                verdicts.skip_text(row);
            }
        }
    }

    fn closed(&mut self, request: RequestId) {
        self.selected.remove(request);
    }
}

afterbay_plugin::export!(SkipText);

#[cfg(test)]
mod tests {
    use afterbay_plugin::testing::{Harness, TestRow};
    use afterbay_plugin::{Action, Verdict};

    use super::*;

    fn skipped(row: u32) -> Verdict {
        Verdict { row, action: Action::SkipText }
    }

    fn opened(request: RequestId, rid: &str, worker: &str) -> Opened {
        Opened {
            request,
            rid: rid.to_owned(),
            front_end: worker.to_owned(),
            sink: String::new(),
            arrived_ms: 0,
            prompt_tokens: 1,
            received_tokens: 0,
            resumed: false,
        }
    }

    #[test]
    fn the_first_row_of_a_matching_request_gets_a_verdict_and_later_rows_get_none() {
        let settings =
            r#"{"rules": [{"rid_prefix": "ids-"}, {"front_end": "ipc:///w1", "rid_prefix": "b"}]}"#;
        let mut plugin = Harness::<SkipText>::new(settings).unwrap();
        plugin.open_as(opened(1, "ids-1", ""));
        plugin.open_as(opened(2, "a", "ipc:///w1"));
        plugin.open_as(opened(3, "b", "ipc:///w1"));
        let rows = [TestRow::new(2), TestRow::new(1), TestRow::new(3)];
        assert_eq!(plugin.process(&rows), [skipped(1), skipped(2)]);
        assert_eq!(plugin.process(&rows), []);
    }

    #[test]
    fn without_rules_the_attribute_decides() {
        let mut plugin = Harness::<SkipText>::new("{}").unwrap();
        plugin.set_attributes(1, r#"{"skip_text": true}"#);
        plugin.set_attributes(2, r#"{"skip_text": false}"#);
        (1..=3).for_each(|request| plugin.open(request));
        let rows = [TestRow::new(1), TestRow::new(2), TestRow::new(3)];
        assert_eq!(plugin.process(&rows), [skipped(0)]);
    }

    #[test]
    fn a_rule_compares_an_attribute_with_a_value() {
        let settings = r#"{"rules": [{"attribute": "wants", "equals": ["ids"]}]}"#;
        let mut plugin = Harness::<SkipText>::new(settings).unwrap();
        plugin.set_attributes(1, r#"{"wants": ["ids"]}"#);
        plugin.set_attributes(2, r#"{"wants": ["text"]}"#);
        (1..=2).for_each(|request| plugin.open(request));
        assert_eq!(plugin.process(&[TestRow::new(1), TestRow::new(2)]), [skipped(0)]);
    }

    #[test]
    fn a_resumed_request_gets_no_verdict() {
        let mut plugin = Harness::<SkipText>::new(r#"{"rules": [{}]}"#).unwrap();
        plugin.open_as(Opened { resumed: true, ..opened(1, "a", "") });
        assert_eq!(plugin.process(&[TestRow::new(1)]), []);
    }

    #[test]
    fn equals_without_an_attribute_is_refused_with_its_pointer() {
        let error = Harness::<SkipText>::new(r#"{"rules": [{"equals": 1}]}"#).err().unwrap();
        assert_eq!(error.message(), "/rules/0/equals: needs an attribute to compare with");
        assert!(Harness::<SkipText>::new(r#"{"rules": [{"prefix": "a"}]}"#).is_err());
    }
}
