//! The fields of a frame as JSON, by vLLM's names. Fields that no known version has are named by their position.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value as Json, json};

use super::arrays::Array;
use super::fields::OUTPUTS;
use super::layout::CLASS;
use super::outputs::Outputs;
use crate::json_values::JsonConverter;
use crate::pack::{self, PackValue};

/// The fields by name, and the class as `__struct__`.
pub(super) fn to_json(outputs: &Outputs) -> Json {
    let converter = &mut JsonConverter::new(outputs.frame().len());
    let mut shown = Map::new();
    shown.insert("__struct__".into(), CLASS.into());
    for (at, name) in outputs.layout.wire.iter().zip(&outputs.layout.names) {
        let value = outputs.value(*at);
        let json = match (*at, pack::item(value)) {
            (OUTPUTS, Some(PackValue::Array(len, body))) => {
                pack::items(body, len).map(|row| row_to_json(converter, outputs, row)).collect()
            }
            _ => converter.packed(value, None, 0),
        };
        shown.insert(name.to_string(), json);
    }
    Json::Object(shown)
}

fn row_to_json(converter: &mut JsonConverter, outputs: &Outputs, row: &[u8]) -> Json {
    let layout = outputs.row_layout.as_ref();
    let fields = match (layout, pack::item(row)) {
        (Some(layout), Some(PackValue::Array(len, body))) if len == layout.wire.len() as u64 => {
            Some((layout, pack::items(body, len)))
        }
        _ => None,
    };
    let Some((layout, values)) = fields else { return converter.packed(row, None, 1) };
    let mut shown = Map::new();
    for ((at, name), value) in layout.wire.iter().zip(&layout.names).zip(values) {
        let json = match layout.row_field(*at).filter(|field| field.has_arrays()) {
            Some(_) => arrays_to_json(converter, outputs, value, 2),
            None => converter.packed(value, None, 2),
        };
        shown.insert(name.to_string(), json);
    }
    Json::Object(shown)
}

/// Shows an array with the data that is in it or in the part that it names.
fn arrays_to_json(converter: &mut JsonConverter, outputs: &Outputs, value: &[u8], depth: usize) -> Json {
    if let Some(array) = Array::read(Some(outputs), value) {
        // Several arrays may name one part.
        if !converter.takes(array.data.len()) {
            return converter.packed(value, None, depth);
        }
        let is_numpy = array.dtype().starts_with(['<', '>', '|', '=']);
        let key = if is_numpy { "__ndarray__" } else { "__tensor__" };
        return json!({key: array.dtype(), "shape": array.shape, "b64": STANDARD.encode(array.data)});
    }
    match pack::item(value) {
        Some(PackValue::Array(len, body)) if depth < 4 => {
            pack::items(body, len).map(|value| arrays_to_json(converter, outputs, value, depth + 1)).collect()
        }
        _ => converter.packed(value, None, depth),
    }
}
