//! A batch's fields as JSON, for people and for tests. Values that JSON cannot express become maps whose key begins
//! with two underscores (`__struct__`, `__object__`, `__array__`, `__bytes__`, `__tensor__`, …).

use serde_json::Value as Json;

use crate::batch::Batch;
use crate::frame::Barrier;
use crate::json_values::Wrapped;

impl Batch {
    /// Returns the decoded fields by name, and the class as `__struct__`.
    pub fn to_json(&self, wrapped: Wrapped) -> Json {
        self.of_engine().to_json(wrapped)
    }
}

impl Barrier {
    /// Returns the decoded fields of a batch without rows. Other barriers are not decoded.
    pub fn to_json(&self, wrapped: Wrapped) -> Option<Json> {
        self.columns.as_ref().filter(|_| !self.hides_rows()).map(|batch| batch.to_json(wrapped))
    }
}
