//! Lets requests skip the detokenizer, whose clients want token ids only.
//!
//! Which ones, by rules on the rid, the tokenizer worker and the request's attributes, is settled at a request's first row.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

use afterbay_plugin::{
    AttributeIs, Attributes, Batch, Columns, ConfigureError, Opened, Plugin, RequestId, RequestIs, Requests,
    Verdicts,
};
use schemars::JsonSchema;
use serde::Deserialize;

/// The attribute that a request without rules is asked for.
const ATTRIBUTE: &str = "skip_detokenization";

/// Which requests skip the detokenizer.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// A request that fits any of these skips it. Without a rule: those with the attribute `skip_detokenization` true.
    #[serde(default)]
    rules: Vec<Rule>,
}

/// A request fits that fits all that is said here.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Rule {
    /// Its rid begins so.
    rid_prefix: Option<String>,
    /// Its output is for this tokenizer worker (`http_worker_ipc`).
    http_worker_ipc: Option<String>,
    /// It has this attribute: its name.
    attribute: Option<String>,
    /// The attribute is this; without it, `true`.
    equals: Option<serde_json::Value>,
}

/// A rule that was checked.
struct Condition {
    request: RequestIs,
    attribute: Option<AttributeIs>,
}

impl Condition {
    fn new(rule: Rule) -> Result<Self, ConfigureError> {
        let Rule { rid_prefix, http_worker_ipc, attribute, equals } = rule;
        let attribute = AttributeIs::of(attribute.as_deref(), equals.as_ref())?;
        Ok(Self { request: RequestIs { rid_prefix, http_worker_ipc, ..RequestIs::default() }, attribute })
    }

    fn fits(&self, request: &Opened, attributes: &Attributes) -> bool {
        self.request.fits(request)
            && self.attribute.as_ref().is_none_or(|attribute| attribute.holds(attributes))
    }
}

/// The plugin.
pub struct SkipDetokenization {
    rules: Vec<Condition>,
    /// Those that skip it and have had no row yet.
    begun: Requests<()>,
}

impl Plugin for SkipDetokenization {
    type Settings = Settings;
    const COLUMNS: Columns = Columns::empty();

    fn new(Settings { mut rules }: Settings) -> Result<Self, ConfigureError> {
        if rules.is_empty() {
            rules.push(Rule { attribute: Some(ATTRIBUTE.to_owned()), ..Rule::default() });
        }
        let rule = |(at, rule)| Condition::new(rule).map_err(|wrong| wrong.within(&format!("/rules/{at}")));
        let rules = rules.into_iter().enumerate().map(rule).collect::<Result<_, _>>()?;
        Ok(Self { rules, begun: Requests::new() })
    }

    fn opened(&mut self, request: &Opened) {
        // One that was there before went its way with its first row.
        if request.resumed {
            return;
        }
        let attributes = Attributes::of(request.request);
        if self.rules.iter().any(|rule| rule.fits(request, &attributes)) {
            self.begun.insert(request.request, ());
        }
    }

    fn process(&mut self, batch: &Batch<'_>, verdicts: &mut Verdicts) {
        if self.begun.is_empty() {
            return;
        }
        for row in batch {
            if self.begun.remove(row.request()).is_some() {
                verdicts.skip_detokenization(row);
            }
        }
    }

    fn closed(&mut self, request: RequestId) {
        self.begun.remove(request);
    }
}

afterbay_plugin::export!(SkipDetokenization);

#[cfg(test)]
mod tests {
    use afterbay_plugin::testing::{Harness, TestRow};
    use afterbay_plugin::{Action, Verdict};

    use super::*;

    fn skipped(row: u32) -> Verdict {
        Verdict { row, action: Action::SkipDetokenization }
    }

    fn opened(request: RequestId, rid: &str, worker: &str) -> Opened {
        Opened {
            request,
            rid: rid.to_owned(),
            http_worker_ipc: worker.to_owned(),
            sink: String::new(),
            prompt_tokens: 1,
            received_tokens: 0,
            resumed: false,
        }
    }

    #[test]
    fn the_first_row_of_a_request_that_fits_a_rule_skips_it_and_no_later_one_is_named() {
        let settings =
            r#"{"rules": [{"rid_prefix": "ids-"}, {"http_worker_ipc": "ipc:///w1", "rid_prefix": "b"}]}"#;
        let mut plugin = Harness::<SkipDetokenization>::new(settings).unwrap();
        plugin.open_as(opened(1, "ids-1", ""));
        plugin.open_as(opened(2, "a", "ipc:///w1"));
        plugin.open_as(opened(3, "b", "ipc:///w1"));
        let rows = [TestRow::new(2), TestRow::new(1), TestRow::new(3)];
        assert_eq!(plugin.process(&rows), [skipped(1), skipped(2)]);
        assert_eq!(plugin.process(&rows), []);
    }

    #[test]
    fn without_rules_the_attribute_says_so() {
        let mut plugin = Harness::<SkipDetokenization>::new("{}").unwrap();
        plugin.set_attributes(1, r#"{"skip_detokenization": true}"#);
        plugin.set_attributes(2, r#"{"skip_detokenization": false}"#);
        (1..=3).for_each(|request| plugin.open(request));
        let rows = [TestRow::new(1), TestRow::new(2), TestRow::new(3)];
        assert_eq!(plugin.process(&rows), [skipped(0)]);
    }

    #[test]
    fn an_attribute_may_have_to_equal_something() {
        let settings = r#"{"rules": [{"attribute": "wants", "equals": ["ids"]}]}"#;
        let mut plugin = Harness::<SkipDetokenization>::new(settings).unwrap();
        plugin.set_attributes(1, r#"{"wants": ["ids"]}"#);
        plugin.set_attributes(2, r#"{"wants": ["text"]}"#);
        (1..=2).for_each(|request| plugin.open(request));
        assert_eq!(plugin.process(&[TestRow::new(1), TestRow::new(2)]), [skipped(0)]);
    }

    #[test]
    fn a_request_that_was_there_before_goes_on_as_it_went() {
        let mut plugin = Harness::<SkipDetokenization>::new(r#"{"rules": [{}]}"#).unwrap();
        plugin.open_as(Opened { resumed: true, ..opened(1, "a", "") });
        assert_eq!(plugin.process(&[TestRow::new(1)]), []);
    }

    #[test]
    fn a_rule_that_compares_nothing_is_refused_by_its_place() {
        let error = Harness::<SkipDetokenization>::new(r#"{"rules": [{"equals": 1}]}"#).err().unwrap();
        assert_eq!(error.message(), "/rules/0/equals: there is no attribute that could equal it");
        assert!(Harness::<SkipDetokenization>::new(r#"{"rules": [{"prefix": "a"}]}"#).is_err());
    }
}
