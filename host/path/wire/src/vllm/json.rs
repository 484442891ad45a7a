//! The fields of a frame as JSON, by vLLM's names. Fields that no known version has are named by their position.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value as Json, json};

use super::arrays::Array;
use super::fields::{self, FRAME, OUTPUTS};
use super::outputs::{CLASS, Outputs};
use crate::json_values::JsonConverter;
use crate::pack::{self, PackValue};

/// The fields by name, and the class as `__struct__`.
pub(super) fn to_json(outputs: &Outputs) -> Json {
    let converter = &mut JsonConverter::new(outputs.frame().len());
    let known = FRAME.iter().enumerate().take(outputs.elements() as usize);
    let mut shown = Map::new();
    shown.insert("__struct__".into(), CLASS.into());
    for (at, field) in known {
        let value = outputs.field(at);
        let json = match (at, pack::item(value)) {
            (OUTPUTS, Some(PackValue::Array(len, body))) => {
                pack::items(body, len).map(|row| row_to_json(converter, outputs, row)).collect()
            }
            _ => converter.packed(value, None, 0),
        };
        shown.insert(field.name.into(), json);
    }
    let unknown = pack::items(outputs.tail(), outputs.elements().saturating_sub(FRAME.len() as u64));
    for (at, value) in (FRAME.len()..).zip(unknown) {
        shown.insert(at.to_string(), converter.packed(value, None, 0));
    }
    Json::Object(shown)
}

fn row_to_json(converter: &mut JsonConverter, outputs: &Outputs, row: &[u8]) -> Json {
    let fields = match pack::item(row) {
        Some(PackValue::Array(len, body)) => fields::of_row(len).map(|known| (known, pack::items(body, len))),
        _ => None,
    };
    let Some((known, values)) = fields else { return converter.packed(row, None, 1) };
    let mut shown = Map::new();
    for (at, value) in values.enumerate() {
        let field = known.get(at);
        let json = match field.filter(|field| field.has_arrays()) {
            Some(_) => arrays_to_json(converter, outputs, value, 2),
            None => converter.packed(value, None, 2),
        };
        shown.insert(field.map_or_else(|| at.to_string(), |field| field.name.to_owned()), json);
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
