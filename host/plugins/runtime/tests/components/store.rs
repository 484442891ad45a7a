//! A store of a plugin in memory.

use std::collections::BTreeMap;
use std::sync::Mutex;

use afterbay_runtime::{Store, StoreError};

enum Value {
    Bytes(Vec<u8>),
    Number(i64),
}

#[derive(Default)]
pub struct MemoryStore(Mutex<BTreeMap<String, Value>>);

impl Store for MemoryStore {
    fn get(&self, key: &str) -> Option<Vec<u8>> {
        Some(match self.0.lock().unwrap().get(key)? {
            Value::Bytes(bytes) => bytes.clone(),
            Value::Number(number) => number.to_le_bytes().to_vec(),
        })
    }

    fn set(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        self.0.lock().unwrap().insert(key.to_owned(), Value::Bytes(value.to_vec()));
        Ok(())
    }

    fn delete(&self, key: &str) {
        self.0.lock().unwrap().remove(key);
    }

    fn increment(&self, key: &str, delta: i64) -> Result<i64, StoreError> {
        let mut values = self.0.lock().unwrap();
        match values.entry(key.to_owned()).or_insert(Value::Number(0)) {
            Value::Bytes(_) => Err(StoreError::NotANumber),
            Value::Number(number) => {
                *number += delta;
                Ok(*number)
            }
        }
    }

    fn keys(&self, prefix: &str, after: Option<&str>, count: usize) -> Vec<String> {
        let values = self.0.lock().unwrap();
        let keys = values.keys().filter(|key| key.starts_with(prefix));
        keys.filter(|key| after.is_none_or(|after| key.as_str() > after)).take(count).cloned().collect()
    }
}
