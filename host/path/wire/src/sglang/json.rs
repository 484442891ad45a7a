//! The columns of a message of SGLang as JSON, by their names.

use serde_json::{Map, Value as Json};

use super::batch::Columns;
use crate::json_values::Wrapped;
use crate::json_values::{ArrayStruct, JsonConverter};
use crate::value::RawValue;

/// The fields by name, and the class as `__struct__`.
pub(super) fn to_json(columns: &Columns, wrapped: Wrapped) -> Json {
    let mut converter = JsonConverter::new(columns.frame.len());
    let mut fields = Map::new();
    fields.insert("__struct__".into(), columns.layout.kind.class().into());
    for (at, field) in columns.layout.fields.iter().enumerate() {
        let tree = if wrapped == Wrapped::Open { columns.wrapped_tree(at).ok().flatten() } else { None };
        let json = match (tree, columns.raw(at)) {
            (Some(tree), _) => converter.node(tree, tree.root(), 0),
            (None, RawValue::Packed(bytes)) => converter.packed(bytes, ArrayStruct::of_field(&field.name), 0),
            (None, RawValue::Tree(tree, id)) => converter.node(tree, id, 0),
        };
        fields.insert(field.name.to_string(), json);
    }
    Json::Object(fields)
}
