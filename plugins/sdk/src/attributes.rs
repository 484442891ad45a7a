//! Conditions on the attributes of requests.

use std::cell::OnceCell;

use serde_json::Value;

use crate::{ConfigureError, RequestId, attributes, bad_setting};

/// A rule's condition: a request has this attribute with this value.
#[derive(Clone, Debug, PartialEq)]
pub struct AttributeIs {
    name: String,
    value: Value,
}

impl AttributeIs {
    /// Creates the condition from the settings `attribute` (the name) and `equals` (the value, `true` by
    /// default). `None` if the rule names no attribute.
    ///
    /// # Errors
    /// If `equals` is given without an attribute. The error's pointer is relative to the rule.
    pub fn of(attribute: Option<&str>, equals: Option<&Value>) -> Result<Option<Self>, ConfigureError> {
        match (attribute, equals) {
            (None, Some(_)) => Err(bad_setting("/equals", "needs an attribute to compare with")),
            (None, None) => Ok(None),
            (Some(name), equals) => {
                let value = equals.cloned().unwrap_or(Value::Bool(true));
                Ok(Some(Self { name: name.to_owned(), value }))
            }
        }
    }

    /// Whether the condition is met by these attributes.
    #[must_use]
    pub fn holds(&self, attributes: &Attributes) -> bool {
        attributes.get(&self.name) == Some(&self.value)
    }
}

/// A request's attributes, read from the host at the first use.
#[derive(Debug)]
pub struct Attributes {
    request: RequestId,
    json: OnceCell<Value>,
}

impl Attributes {
    /// The attributes of an open request.
    #[must_use]
    pub fn of(request: RequestId) -> Self {
        Self { request, json: OnceCell::new() }
    }

    /// The value of one attribute.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.json().get(name)
    }

    /// The value at a JSON pointer (`/user/tenant`) as text: a string as it is, a number or a boolean as JSON
    /// has it. `None` for any other value, and if there is none.
    #[must_use]
    pub fn text(&self, pointer: &str) -> Option<String> {
        match self.json().pointer(pointer)? {
            Value::String(text) => Some(text.clone()),
            value @ (Value::Number(_) | Value::Bool(_)) => Some(value.to_string()),
            _ => None,
        }
    }

    fn json(&self) -> &Value {
        let read = || attributes(self.request).and_then(|json| serde_json::from_str(&json).ok());
        self.json.get_or_init(|| read().unwrap_or_default())
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
    fn a_rule_compares_one_attribute_of_a_request() {
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
        assert!(!is_true.holds(&Attributes::of(2)), "has no attributes");
        host.set_attributes(3, "no JSON");
        assert!(!is_true.holds(&Attributes::of(3)));
    }

    #[test]
    fn an_attribute_is_read_as_text_by_its_pointer() {
        let mut host = Harness::<Nothing>::new("{}").unwrap();
        host.set_attributes(1, r#"{"user": {"id": 7, "name": "a", "tags": []}, "a/b": true}"#);
        let attributes = Attributes::of(1);
        let text = |pointer| attributes.text(pointer);
        assert_eq!((text("/user/id").as_deref(), text("/user/name").as_deref()), (Some("7"), Some("a")));
        assert_eq!((text("/a~1b").as_deref(), text("/user/tags"), text("/none")), (Some("true"), None, None));
        assert_eq!(Attributes::of(2).text("/user"), None);
    }

    #[test]
    fn equals_without_an_attribute_is_refused_with_its_pointer() {
        assert_eq!(AttributeIs::of(None, None), Ok(None));
        let refused = AttributeIs::of(None, Some(&Value::Null)).unwrap_err().within("/rules/2");
        assert_eq!(refused.message(), "/rules/2/equals: needs an attribute to compare with");
    }
}
