//! Converts values to JSON, within a bound of values and depth.

use crate::pickle::{Node, NodeId, Tree};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value as Json, json};

use crate::bounds::{MAX_SHOWN, MAX_SHOWN_DEPTH};
use crate::pack::{self, PackValue};
use crate::tensor::{self, Tensor};
use crate::value::RawValue;

/// The treatment of a pickle inside msgpack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrapped {
    /// Shows the `PickleWrapper` with its bytes.
    Keep,
    /// Shows the pickle's content, as for a pickled frame.
    Open,
}

/// A struct that is an array in msgpack: its name and its fields' names.
#[derive(Clone, Copy)]
pub(crate) struct ArrayStruct {
    name: &'static str,
    fields: &'static [&'static str],
    /// Whether the array begins with the struct's name.
    tagged: bool,
    /// The number of lists around the struct.
    lists: usize,
}

impl ArrayStruct {
    pub(crate) fn of_field(field: &str) -> Option<ArrayStruct> {
        let of = |name, fields, tagged, lists| Some(ArrayStruct { name, fields, tagged, lists });
        match field {
            "weight_versions" => of("WeightVersionSpan", &["version", "start", "end"], false, 2),
            "beam_search_output" => {
                of("BeamSearchOutput", &["rids", "http_worker_ipcs", "sequences"], true, 1)
            }
            "output_token_sampling_mask" => {
                of("SamplingMaskChunk", &["lengths", "token_ids", "logprobs"], false, 1)
            }
            "time_stats" | "customized_info" => of("PickleWrapper", &["data"], true, 0),
            _ => None,
        }
    }
}

/// The remaining budget of output: one per value, and the weight of values that may repeat.
pub(crate) struct JsonConverter {
    left: usize,
}

impl JsonConverter {
    /// A converter of the values of a frame of so many bytes.
    pub(crate) fn new(bytes: usize) -> JsonConverter {
        JsonConverter { left: MAX_SHOWN * bytes }
    }

    /// Takes the bytes of an array from the budget. Returns false if the budget is used up.
    pub(crate) fn takes(&mut self, bytes: usize) -> bool {
        self.left = self.left.saturating_sub(1 + bytes);
        self.left > 0
    }

    /// Takes one value from the budget. Returns false if the budget or the depth is used up.
    fn one_more(&mut self, value: RawValue<'_>, depth: usize) -> bool {
        self.left = self.left.saturating_sub(1 + value.weight());
        self.left > 0 && depth < MAX_SHOWN_DEPTH
    }

    pub(crate) fn packed(&mut self, bytes: &[u8], inside: Option<ArrayStruct>, depth: usize) -> Json {
        if !self.one_more(RawValue::Packed(bytes), depth) {
            return cut();
        }
        match pack::item(bytes) {
            None | Some(PackValue::Nil) => Json::Null,
            Some(PackValue::Bool(bool)) => bool.into(),
            Some(PackValue::Int(int)) => int.into(),
            Some(PackValue::Big(int)) => int.into(),
            Some(PackValue::Float(value)) => float(value),
            Some(PackValue::Str(text)) => String::from_utf8_lossy(text).into(),
            Some(PackValue::Bin(bytes)) => bin(bytes),
            Some(PackValue::Ext(..)) => match pack::id_items(bytes) {
                Some(_) => id_array(RawValue::Packed(bytes)),
                None => ext(bytes),
            },
            Some(PackValue::Array(..)) if pack::id_items(bytes).is_some() => {
                id_array(RawValue::Packed(bytes))
            }
            Some(PackValue::Array(len, body)) => match inside {
                Some(it) if it.lists == 0 && len == (it.fields.len() + usize::from(it.tagged)) as u64 => {
                    let values = pack::items(body, len).skip(usize::from(it.tagged));
                    let mut fields = Map::new();
                    fields.insert("__struct__".into(), it.name.into());
                    for (name, value) in it.fields.iter().zip(values) {
                        fields.insert((*name).into(), self.packed(value, None, depth + 1));
                    }
                    Json::Object(fields)
                }
                _ => {
                    let inside =
                        inside.filter(|it| it.lists > 0).map(|it| ArrayStruct { lists: it.lists - 1, ..it });
                    pack::items(body, len).map(|item| self.packed(item, inside, depth + 1)).collect()
                }
            },
            Some(PackValue::Map(len, body)) => {
                let mut values = pack::items(body, 2 * len);
                let mut map = Map::new();
                while let (Some(key), Some(value)) = (values.next(), values.next()) {
                    map.insert(text(self.packed(key, None, depth + 1)), self.packed(value, None, depth + 1));
                }
                Json::Object(map)
            }
        }
    }

    pub(crate) fn node(&mut self, tree: &Tree, id: NodeId, depth: usize) -> Json {
        if !self.one_more(RawValue::Tree(tree, id), depth) {
            return cut();
        }
        match tree.node(id) {
            Node::None => Json::Null,
            Node::Bool(bool) => bool.into(),
            Node::Int(int) => int.into(),
            Node::BigInt(bytes) => json!({"__int__": STANDARD.encode(bytes)}),
            Node::Float(value) => float(value),
            Node::Str(text) => text.into(),
            Node::Surrogates(bytes) => String::from_utf8_lossy(bytes).into(),
            Node::Bytes(bytes) | Node::ByteArray(bytes) => bin(bytes),
            Node::List(items) | Node::Tuple(items) | Node::Set(items) | Node::FrozenSet(items) => {
                items.iter().map(|&item| self.node(tree, item, depth + 1)).collect()
            }
            Node::Dict(pairs) => {
                let mut map = Map::new();
                for (key, value) in pairs {
                    map.insert(text(self.node(tree, key, depth + 1)), self.node(tree, value, depth + 1));
                }
                Json::Object(map)
            }
            Node::Global { module, name } => json!({"__global__": format!("{module}.{name}")}),
            Node::Reduce { .. } if tree.ids_len(id).is_some() => id_array(RawValue::Tree(tree, id)),
            Node::Reduce { .. } | Node::NewObj { .. } | Node::NewObjEx { .. } => self.object(tree, id, depth),
            Node::Build { .. } => self.object(tree, id, depth),
            Node::Append { object, items } | Node::SetItems { object, items } => {
                let (object, items) = (self.node(tree, object, depth + 1), self.node(tree, items, depth + 1));
                json!({"__object__": object, "items": items})
            }
        }
    }

    /// Shows the fields of SGLang's messages and structs beside `__struct__`, and the state of other objects.
    fn object(&mut self, tree: &Tree, id: NodeId, depth: usize) -> Json {
        let Some(object) = tree.object(id) else { return json!({"__object__": null}) };
        if let Some(tensor) = tensor::read(tree, id) {
            return json!({
                "__tensor__": format!("torch.{}", tensor.dtype),
                "shape": tensor.shape,
                "b64": STANDARD.encode(tensor.bytes),
            });
        }
        let name = format!("{}.{}", object.module, object.name);
        let is_struct = object.module.ends_with(".io_struct") || matches!(tree.node(id), Node::Reduce { .. });
        match (object.fields.map(|fields| self.node(tree, fields, depth + 1)), tree.node(id)) {
            (Some(Json::Object(mut fields)), _) if is_struct => {
                fields.insert("__struct__".into(), object.name.into());
                Json::Object(fields)
            }
            (Some(state), _) => json!({"__object__": name, "state": state}),
            (None, Node::Build { state, .. }) => {
                json!({"__object__": name, "state": self.node(tree, state, depth + 1)})
            }
            (None, Node::Reduce { args, .. } | Node::NewObj { args, .. } | Node::NewObjEx { args, .. }) => {
                json!({"__object__": name, "args": self.node(tree, args, depth + 1)})
            }
            _ => json!({"__object__": name}),
        }
    }
}

fn cut() -> Json {
    json!({"__cut__": true})
}

fn bin(bytes: &[u8]) -> Json {
    json!({"__bytes__": STANDARD.encode(bytes)})
}

/// A float. JSON has no infinities and no NaN.
fn float(value: f64) -> Json {
    if value.is_finite() { value.into() } else { json!({"__float__": value.to_string()}) }
}

/// A map's key as text. A container is not converter as a key: quoting it would double its length with each map around it.
fn text(key: Json) -> String {
    match key {
        Json::String(text) => text,
        Json::Array(_) | Json::Object(_) => "__cut__".into(),
        other => other.to_string(),
    }
}

fn id_array(value: RawValue<'_>) -> Json {
    let mut ids = Vec::new();
    value.ids(&mut ids);
    json!({"__array__": "q", "v": ids})
}

/// A tensor or an ndarray.
fn ext(bytes: &[u8]) -> Json {
    let Some(PackValue::Ext(code, payload)) = pack::item(bytes) else { return Json::Null };
    let name = match code {
        2 => "__tensor__",
        3 => "__ndarray__",
        _ => return json!({"__ext__": code, "b64": STANDARD.encode(payload)}),
    };
    match tensor::of_ext(payload) {
        Some(Tensor { dtype, shape, bytes }) => {
            let dtype = if code == 2 { format!("torch.{dtype}") } else { dtype.into_owned() };
            json!({name: dtype, "shape": shape, "b64": STANDARD.encode(bytes)})
        }
        None => json!({"__ext__": code, "b64": STANDARD.encode(payload)}),
    }
}
