//! A plugin's store, as the runtime calls it.

use afterbay_plugin_services::store;
use afterbay_runtime::{Store, StoreError};
use std::sync::Arc;

/// One stream's side of a plugin's store.
pub struct PluginStore(store::StoreWriter);

impl PluginStore {
    /// The side of the stream of this name.
    #[must_use]
    pub fn new(store: &Arc<store::Store>, stream: &str) -> PluginStore {
        PluginStore(store.writer(stream))
    }

    /// An empty store without a file, for a plugin under test.
    #[must_use]
    pub fn in_memory() -> PluginStore {
        PluginStore::new(&Arc::new(store::Store::in_memory()), "")
    }
}

impl Default for PluginStore {
    /// [`PluginStore::in_memory`].
    fn default() -> PluginStore {
        PluginStore::in_memory()
    }
}

fn error(error: store::StoreError) -> StoreError {
    match error {
        store::StoreError::BadKey => StoreError::BadKey,
        store::StoreError::Full => StoreError::Full,
        store::StoreError::NotANumber => StoreError::NotANumber,
    }
}

impl Store for PluginStore {
    fn get(&self, key: &str) -> Option<Vec<u8>> {
        self.0.get(key)
    }

    fn set(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        self.0.set(key, value).map_err(error)
    }

    fn delete(&self, key: &str) {
        self.0.delete(key);
    }

    fn increment(&self, key: &str, delta: i64) -> Result<i64, StoreError> {
        self.0.increment(key, delta).map_err(error)
    }

    fn keys(&self, prefix: &str, after: Option<&str>, count: usize) -> Vec<String> {
        let mut keys = self.0.list_keys(prefix, after);
        keys.truncate(count);
        keys
    }

    fn begin_batch(&self, batch: u64, is_repeated: bool) {
        self.0.begin(batch, is_repeated);
    }

    fn end_batch(&self) {
        self.0.commit();
    }
}
