//! The values of one store, in memory and within their bounds.

use crate::store::bounds::{BYTES_MAX, KEY_BYTES_MAX, KEYS_MAX, LISTED_MAX, VALUE_BYTES_MAX};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

/// The reason why a value is not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The key is empty or longer than [`KEY_BYTES_MAX`].
    #[error("the key is empty or longer than {KEY_BYTES_MAX} bytes")]
    BadKey,
    /// The value is longer than [`VALUE_BYTES_MAX`], or the store is full.
    #[error(
        "the value is longer than {VALUE_BYTES_MAX} bytes, or the store has {KEYS_MAX} keys or {BYTES_MAX} bytes"
    )]
    Full,
    /// The value is not a number.
    #[error("the value is not a number")]
    NotANumber,
}

/// A value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    /// A value that `increment` made.
    Number(i64),
    /// A value that `set` made.
    Bytes(Arc<[u8]>),
}

impl Value {
    pub(crate) fn len(&self) -> usize {
        match self {
            Value::Number(_) => size_of::<i64>(),
            Value::Bytes(bytes) => bytes.len(),
        }
    }
}

/// Keys and values. A clone shares the texts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Values {
    by_key: BTreeMap<Arc<str>, Value>,
    bytes: usize,
}

impl Values {
    pub(crate) fn keys(&self) -> usize {
        self.by_key.len()
    }

    /// The bytes of all keys and values.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.by_key.iter().map(|(key, value)| (&**key, value))
    }

    pub(crate) fn get(&self, key: &str) -> Option<&Value> {
        self.by_key.get(key)
    }

    /// The number of a key. 0 if the key does not exist.
    pub(crate) fn number(&self, key: &str) -> Result<i64, StoreError> {
        match self.by_key.get(key) {
            None => Ok(0),
            Some(Value::Number(number)) => Ok(*number),
            Some(Value::Bytes(_)) => Err(StoreError::NotANumber),
        }
    }

    /// Checks whether the store has room for this value.
    pub(crate) fn check(&self, key: &str, value_bytes: usize) -> Result<(), StoreError> {
        if key.is_empty() || key.len() > KEY_BYTES_MAX {
            return Err(StoreError::BadKey);
        }
        let (keys, bytes) = match self.by_key.get(key) {
            Some(before) => (self.keys(), self.bytes - before.len() + value_bytes),
            None => (self.keys() + 1, self.bytes + key.len() + value_bytes),
        };
        let is_full = value_bytes > VALUE_BYTES_MAX || keys > KEYS_MAX || bytes > BYTES_MAX;
        if is_full { Err(StoreError::Full) } else { Ok(()) }
    }

    /// Stores a value without a check of the bounds.
    pub(crate) fn put(&mut self, key: &str, value: Value) {
        self.bytes += value.len();
        if let Some(before) = self.by_key.get_mut(key) {
            self.bytes -= before.len();
            *before = value;
        } else {
            self.bytes += key.len();
            self.by_key.insert(key.into(), value);
        }
    }

    /// Adds to a number without a check of the bounds. The sum stops at the smallest and the largest number.
    pub(crate) fn add(&mut self, key: &str, delta: i64) -> i64 {
        if let Some(Value::Number(number)) = self.by_key.get_mut(key) {
            *number = number.saturating_add(delta);
            return *number;
        }
        self.put(key, Value::Number(delta));
        delta
    }

    /// Removes a key. Returns whether it existed.
    pub(crate) fn remove(&mut self, key: &str) -> bool {
        let removed = self.by_key.remove(key);
        if let Some(value) = &removed {
            self.bytes -= key.len() + value.len();
        }
        removed.is_some()
    }

    /// The keys with this prefix after `after`, ascending, at most [`LISTED_MAX`].
    pub(crate) fn list(&self, prefix: &str, after: Option<&str>) -> Vec<String> {
        let from = match after {
            Some(after) if after >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix),
        };
        let keys = self.by_key.range::<str, _>((from, Bound::Unbounded)).map(|(key, _)| &**key);
        keys.take_while(|key| key.starts_with(prefix)).take(LISTED_MAX).map(str::to_owned).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(length: usize) -> Value {
        Value::Bytes(vec![0; length].into())
    }

    #[test]
    fn keys_and_values_are_bounded_and_a_removed_one_makes_room() {
        let mut values = Values::default();
        assert_eq!(values.check("", 1), Err(StoreError::BadKey));
        assert_eq!(values.check(&"k".repeat(257), 1), Err(StoreError::BadKey));
        assert_eq!(values.check(&"k".repeat(256), VALUE_BYTES_MAX), Ok(()));
        assert_eq!(values.check("k", VALUE_BYTES_MAX + 1), Err(StoreError::Full));
        for number in 0..KEYS_MAX {
            let key = format!("{number:05}");
            assert_eq!(values.check(&key, 8), Ok(()));
            values.add(&key, 1);
        }
        assert_eq!((values.keys(), values.bytes()), (KEYS_MAX, KEYS_MAX * 13));
        assert_eq!(values.check("another", 8), Err(StoreError::Full));
        assert_eq!(values.check("00000", 8), Ok(()), "an existing key");
        assert!(values.remove("00000") && !values.remove("00000"));
        assert_eq!(values.check("another", 8), Ok(()));
    }

    #[test]
    fn all_bytes_together_are_bounded() {
        let mut values = Values::default();
        for number in 0..63 {
            values.put(&format!("{number:02}"), bytes(VALUE_BYTES_MAX));
        }
        assert_eq!(values.bytes(), 63 * (2 + VALUE_BYTES_MAX));
        let left = BYTES_MAX - values.bytes();
        assert_eq!(values.check("z", left - 1), Ok(()));
        assert_eq!(values.check("z", left), Err(StoreError::Full));
        values.put("00", bytes(0));
        assert_eq!(values.check("z", left), Ok(()));
    }

    #[test]
    fn a_number_stops_at_its_largest_value() {
        let mut values = Values::default();
        assert_eq!(values.add("a", i64::MAX), i64::MAX);
        assert_eq!(values.add("a", 5), i64::MAX);
        values.put("b", bytes(8));
        assert_eq!((values.number("a"), values.number("c")), (Ok(i64::MAX), Ok(0)));
        assert_eq!(values.number("b"), Err(StoreError::NotANumber));
    }

    #[test]
    fn keys_are_listed_in_order_by_prefix_and_in_pages() {
        let mut values = Values::default();
        for number in 0..1500 {
            values.add(&format!("t/{number:04}"), 1);
        }
        values.add("s", 1);
        values.add("u", 1);
        let first = values.list("t/", None);
        assert_eq!((first.len(), first[0].as_str(), first[999].as_str()), (1000, "t/0000", "t/0999"));
        let second = values.list("t/", Some("t/0999"));
        assert_eq!((second.len(), second[0].as_str()), (500, "t/1000"));
        assert_eq!(values.list("t/", Some("a")).len(), 1000, "before the prefix");
        assert_eq!(values.list("t/", Some("u")), [""; 0], "after the prefix");
        assert_eq!(values.list("", Some("t/1498")), ["t/1499", "u"]);
    }
}
