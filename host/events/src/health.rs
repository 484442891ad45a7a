//! What keeps this process from being ready, by key: `/readyz` lists it, metrics count it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

/// The conditions of the process. Clones share them; set and cleared on change, never for every frame.
/// Keys are made of a few words and the config's names, which bounds them.
#[derive(Clone, Debug, Default)]
pub struct Health(Arc<Mutex<BTreeMap<String, Condition>>>);

/// One thing that is wrong now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// What, in words: `journal of "decode-0": no space left on device`.
    pub text: String,
    /// Since when.
    pub since: SystemTime,
}

impl Health {
    /// `key` (like `journal:decode-0`) is wrong since `now`. Set again, its text is renewed and its beginning kept.
    pub fn set(&self, key: &str, text: impl Into<String>, now: SystemTime) {
        let mut conditions = self.lock();
        let since = conditions.get(key).map_or(now, |condition| condition.since);
        conditions.insert(key.to_owned(), Condition { text: text.into(), since });
    }

    /// `key` is well again. True where it was not.
    pub fn clear(&self, key: &str) -> bool {
        self.lock().remove(key).is_some()
    }

    /// A stream is no more, and nothing of it is wrong: keys like `journal:NAME`, `plugin:NAME:…` and `sink:NAME/…`.
    pub fn clear_stream(&self, stream: &str) {
        self.lock().retain(|key, _| key.split([':', '/']).nth(1) != Some(stream));
    }

    /// Nothing is wrong.
    pub fn is_ready(&self) -> bool {
        self.lock().is_empty()
    }

    /// All that is wrong, by key.
    pub fn conditions(&self) -> Vec<(String, Condition)> {
        self.lock().iter().map(|(key, condition)| (key.clone(), condition.clone())).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Condition>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
