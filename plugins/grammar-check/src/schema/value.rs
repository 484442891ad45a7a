//! Values as a schema compares them: 1 equals 1.0, and the members of an object have no order.

use std::hash::{DefaultHasher, Hash, Hasher};

use serde_json::Value;

use super::Types;
use super::decimal::Decimal;
use crate::literal::{Notation, literal};

/// Reads a value. A surrogate without its pair becomes U+FFFD.
pub(super) fn read(text: &[u8]) -> Option<Value> {
    serde_json::from_slice(text).ok().or_else(|| {
        let text = std::str::from_utf8(text).ok()?;
        let (value, length) = literal(text, Notation::Json).ok()?;
        (length == text.trim_ascii_end().len()).then_some(value)
    })
}

/// The type of a value: one bit. In draft 4, only a number without a point or an exponent is an integer.
pub(super) fn types_of(value: &Value, is_draft_4: bool) -> Types {
    match value {
        Value::Null => Types::NULL,
        Value::Bool(_) => Types::BOOLEAN,
        Value::Number(number) => {
            let text = number.as_str();
            let is_integer = match (text.split_once('.'), text.contains(['e', 'E'])) {
                (None, false) => true,
                _ if is_draft_4 => false,
                (Some((_, fraction)), false) => fraction.bytes().all(|digit| digit == b'0'),
                (_, true) => Decimal::read(text).is_integer(),
            };
            if is_integer { Types::INTEGER } else { Types::FRACTION }
        }
        Value::String(_) => Types::STRING,
        Value::Array(_) => Types::ARRAY,
        Value::Object(_) => Types::OBJECT,
    }
}

pub(super) fn equal(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => {
            one == other || Decimal::read(one.as_str()) == Decimal::read(other.as_str())
        }
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| equal(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            let has = |(name, value): (&String, &Value)| other.get(name).is_some_and(|it| equal(value, it));
            one.len() == other.len() && one.iter().all(has)
        }
        _ => one == other,
    }
}

/// A hash that equal values share. `steps` counts the work.
pub(super) fn hash(value: &Value, steps: &mut usize) -> u64 {
    *steps += 1;
    let mut hasher = DefaultHasher::new();
    std::mem::discriminant(value).hash(&mut hasher);
    match value {
        Value::Null => {}
        Value::Bool(is_true) => is_true.hash(&mut hasher),
        Value::Number(number) => Decimal::read(number.as_str()).hash(&mut hasher),
        Value::String(text) => {
            *steps += text.len() / 64;
            text.hash(&mut hasher);
        }
        Value::Array(items) => items.iter().for_each(|item| hash(item, steps).hash(&mut hasher)),
        Value::Object(members) => {
            let sum = members.iter().fold(0_u64, |sum, (name, value)| {
                let mut member = DefaultHasher::new();
                (name, hash(value, steps)).hash(&mut member);
                sum.wrapping_add(member.finish())
            });
            sum.hash(&mut hasher);
        }
    }
    hasher.finish()
}

/// Values that are found by their hash.
#[derive(Debug)]
pub(super) struct Values(Vec<(u64, Value)>);

impl Values {
    pub(super) fn new(values: impl Iterator<Item = Value>) -> Self {
        let mut all: Vec<_> = values.map(|value| (hash(&value, &mut 0), value)).collect();
        all.sort_by_key(|(hash, _)| *hash);
        Values(all)
    }

    pub(super) fn has(&self, value: &Value, steps: &mut usize) -> bool {
        // A text is compared faster than it is hashed.
        if value.is_string() && self.0.len() <= 8 {
            return self.0.iter().any(|(_, other)| other == value);
        }
        let hash = hash(value, steps);
        let from = self.0.partition_point(|(other, _)| *other < hash);
        self.0[from..].iter().take_while(|(other, _)| *other == hash).any(|(_, other)| equal(other, value))
    }

    pub(super) fn types(&self, is_draft_4: bool) -> Types {
        self.0.iter().map(|(_, value)| types_of(value, is_draft_4)).fold(Types::NONE, Types::with)
    }
}

/// Whether two items are equal.
pub(super) fn has_equal(items: &[Value], steps: &mut usize) -> bool {
    let mut all: Vec<(u64, &Value)> = items.iter().map(|item| (hash(item, steps), item)).collect();
    all.sort_unstable_by_key(|(hash, _)| *hash);
    all.windows(2).any(|pair| pair[0].0 == pair[1].0 && equal(pair[0].1, pair[1].1))
}
