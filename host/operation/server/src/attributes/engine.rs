//! The attributes that engines give their newest requests, as the name of a LoRA adapter. The connector sends them on the scheduler's
//! own connection, before the request's first row.

use serde_json::{Map, Value};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Most rids with attributes. The oldest one goes.
const RIDS_MAX: usize = 65_536;
/// Most bytes of all rids and attributes. The oldest ones go.
const BYTES_MAX: usize = 16 << 20;

/// Attributes by rid, whatever the stream: a request has the same rid on both of its legs.
#[derive(Default)]
pub(super) struct EngineAttributes {
    by_rid: HashMap<Arc<str>, Map<String, Value>>,
    /// The rids, the oldest first.
    order: VecDeque<Arc<str>>,
    bytes: usize,
}

impl EngineAttributes {
    /// Adds attributes of a request. Those of the same name are replaced.
    pub(super) fn add(&mut self, rid: &str, attributes: Map<String, Value>) {
        let bytes = bytes_of(&attributes);
        if bytes > super::BYTES_MAX {
            return;
        }
        if let Some(before) = self.by_rid.get_mut(rid) {
            self.bytes -= bytes_of(before);
            before.extend(attributes);
            if bytes_of(before) > super::BYTES_MAX {
                before.clear();
            }
            self.bytes += bytes_of(before);
        } else {
            let rid: Arc<str> = rid.into();
            self.bytes += rid.len() + bytes;
            self.by_rid.insert(rid.clone(), attributes);
            self.order.push_back(rid);
        }
        while self.order.len() > RIDS_MAX || self.bytes > BYTES_MAX {
            let Some(oldest) = self.order.pop_front() else { return };
            let removed = self.by_rid.remove(&oldest);
            self.bytes -= oldest.len() + removed.as_ref().map_or(0, bytes_of);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_rid.is_empty()
    }

    pub(super) fn of(&self, rid: &str) -> Option<Map<String, Value>> {
        self.by_rid.get(rid).cloned()
    }

    /// All rids and their attributes, the oldest first.
    pub(super) fn all(&self) -> Vec<(String, Map<String, Value>)> {
        let all = self.order.iter().filter_map(|rid| Some((rid.to_string(), self.by_rid.get(rid)?.clone())));
        all.collect()
    }
}

fn bytes_of(attributes: &Map<String, Value>) -> usize {
    serde_json::to_string(attributes).map_or(usize::MAX, |json| json.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lora(name: &str) -> Map<String, Value> {
        Map::from_iter([("lora".to_owned(), name.into())])
    }

    #[test]
    fn the_newest_requests_keep_their_attributes() {
        let mut attributes = EngineAttributes::default();
        for rid in 0..=RIDS_MAX {
            attributes.add(&rid.to_string(), lora("sql"));
        }
        assert_eq!((attributes.of("0"), attributes.of("1")), (None, Some(lora("sql"))));
        assert_eq!(attributes.all().len(), RIDS_MAX);
    }

    #[test]
    fn many_bytes_push_the_oldest_out_and_the_sum_is_kept() {
        let mut attributes = EngineAttributes::default();
        let long = "x".repeat(4 << 10);
        for rid in 0..5000 {
            attributes.add(&rid.to_string(), lora(&long));
            attributes.add(&rid.to_string(), lora(&long));
        }
        let all = attributes.all();
        let bytes: usize = all.iter().map(|(rid, attributes)| rid.len() + bytes_of(attributes)).sum();
        assert_eq!(attributes.bytes, bytes);
        assert!(bytes <= BYTES_MAX && bytes > BYTES_MAX - (5 << 10), "{bytes}");
        assert_eq!(attributes.of("0"), None);
    }

    #[test]
    fn attributes_of_one_rid_are_added_to_those_before() {
        let mut attributes = EngineAttributes::default();
        attributes.add("a", lora("sql"));
        attributes.add("a", Map::from_iter([("session".to_owned(), true.into())]));
        attributes.add("a", lora("qa"));
        let all = attributes.of("a").unwrap();
        assert_eq!(Value::Object(all).to_string(), r#"{"lora":"qa","session":true}"#);
    }
}
