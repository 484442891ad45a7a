//! A batch's fields as JSON, for people and for tests. Values that JSON cannot express become maps whose key begins
//! with two underscores (`__struct__`, `__object__`, `__array__`, `__bytes__`, `__tensor__`, …).

use serde_json::{Map, Value as Json};

use crate::batch::Batch;
use crate::decode::Barrier;
use crate::json_values::{ArrayStruct, JsonConverter};
use crate::value::RawValue;
use crate::vllm;

/// The treatment of a pickle inside msgpack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrapped {
    /// Shows the `PickleWrapper` with its bytes.
    Keep,
    /// Shows the pickle's content, as for a pickled frame.
    Open,
}

impl Batch {
    /// Returns the decoded fields by name, and the class as `__struct__`.
    pub fn to_json(&self, wrapped: Wrapped) -> Json {
        let mut converter = JsonConverter::new(self.bytes.len());
        if let Some(outputs) = self.outputs() {
            return vllm::to_json(&mut converter, outputs);
        }
        let mut fields = Map::new();
        fields.insert("__struct__".into(), self.kind().class().into());
        for (at, field) in self.layout.fields.iter().enumerate() {
            let tree = if wrapped == Wrapped::Open { self.wrapped_tree(at).ok().flatten() } else { None };
            let json = match (tree, self.raw(at)) {
                (Some(tree), _) => converter.node(tree, tree.root(), 0),
                (None, RawValue::Packed(bytes)) => {
                    converter.packed(bytes, ArrayStruct::of_field(&field.name), 0)
                }
                (None, RawValue::Tree(tree, id)) => converter.node(tree, id, 0),
            };
            fields.insert(field.name.to_string(), json);
        }
        Json::Object(fields)
    }
}

impl Barrier {
    /// Returns the decoded fields of a batch without rows. Other barriers are not decoded.
    pub fn to_json(&self, wrapped: Wrapped) -> Option<Json> {
        self.columns.as_ref().filter(|_| !self.hides_rows()).map(|batch| batch.to_json(wrapped))
    }
}
