//! Rules over requests' attributes: which requests a setting is for.

use std::cell::OnceCell;

use serde_json::Value;

use crate::{ConfigureError, RequestId, attributes, bad_setting};

/// A rule's condition: a request has an attribute, and it is this.
#[derive(Clone, Debug, PartialEq)]
pub struct AttributeIs {
    name: String,
    value: Value,
}

impl AttributeIs {
    /// Of a rule with the settings `attribute`, the name, and `equals`, without which it must be `true`. None where the rule
    /// names no attribute.
    ///
    /// # Errors
    /// There is something that it is to equal, and no attribute. The place is within the rule.
    pub fn of(attribute: Option<&str>, equals: Option<&Value>) -> Result<Option<Self>, ConfigureError> {
        match (attribute, equals) {
            (None, Some(_)) => Err(bad_setting("/equals", "there is no attribute that could equal it")),
            (None, None) => Ok(None),
            (Some(name), equals) => {
                let value = equals.cloned().unwrap_or(Value::Bool(true));
                Ok(Some(Self { name: name.to_owned(), value }))
            }
        }
    }

    /// Whether it is so of this request.
    #[must_use]
    pub fn holds(&self, attributes: &Attributes) -> bool {
        attributes.get(&self.name) == Some(&self.value)
    }
}

/// A request's attributes. The host is asked for them when the first is looked at, and not where none is.
#[derive(Debug)]
pub struct Attributes {
    request: RequestId,
    read: OnceCell<Value>,
}

impl Attributes {
    /// Those of an open request.
    #[must_use]
    pub fn of(request: RequestId) -> Self {
        Self { request, read: OnceCell::new() }
    }

    /// One of them.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Value> {
        let read = || attributes(self.request).and_then(|json| serde_json::from_str(&json).ok());
        self.read.get_or_init(|| read().unwrap_or_default()).get(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Harness;
    use crate::{Batch, Columns, NoSettings, Plugin, Verdicts};

    struct Nothing;

    impl Plugin for Nothing {
        type Settings = NoSettings;
        const COLUMNS: Columns = Columns::empty();

        fn new(_: NoSettings) -> Result<Self, ConfigureError> {
            Ok(Self)
        }

        fn process(&mut self, _: &Batch<'_>, _: &mut Verdicts) {}
    }

    #[test]
    fn a_request_has_the_attribute_of_a_rule_or_not() {
        let mut host = Harness::<Nothing>::new("{}").unwrap();
        host.set_attributes(1, r#"{"tenant": "a", "ids": true, "list": [1]}"#);
        let of_first = Attributes::of(1);
        let holds = |name: &str, equals: Option<Value>| {
            AttributeIs::of(Some(name), equals.as_ref()).unwrap().unwrap().holds(&of_first)
        };
        assert!(
            holds("tenant", Some("a".into())) && holds("ids", None) && holds("list", Some(vec![1].into()))
        );
        assert!(!holds("tenant", Some("b".into())) && !holds("tenant", None) && !holds("other", None));
        let is_true = AttributeIs::of(Some("ids"), None).unwrap().unwrap();
        assert!(!is_true.holds(&Attributes::of(2)), "nobody has set any");
        host.set_attributes(3, "no JSON");
        assert!(!is_true.holds(&Attributes::of(3)));
    }

    #[test]
    fn a_rule_that_compares_nothing_is_refused_by_its_place_and_one_that_names_nothing_is_none() {
        assert_eq!(AttributeIs::of(None, None), Ok(None));
        let refused = AttributeIs::of(None, Some(&Value::Null)).unwrap_err().within("/rules/2");
        assert_eq!(refused.message(), "/rules/2/equals: there is no attribute that could equal it");
    }
}
