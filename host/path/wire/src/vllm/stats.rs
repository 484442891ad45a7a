//! Joins the statistics of several steps: what happened in each step is added, a state is the last one.

use super::fields::{STATS, STATS_INSIDE, Stat, StatJoin};
use super::frame::map_value;
use crate::bounds::MAX_FIELDS;
use crate::pack::{self, PackValue};

/// The deepest map in a map that is added key by key. A deeper one is taken from the last step.
const DEPTH_MAX: usize = 8;

/// A value that is a sum so far.
enum Sum<'a> {
    /// As msgpack: a text, nil, or a value that is not added.
    Raw(&'a [u8]),
    Flag(bool),
    Int(i64),
    Float(f64),
    /// Arrays to be concatenated: the number of items of each, and the items.
    Lists(Vec<(u64, &'a [u8])>),
    Numbers(Vec<Sum<'a>>),
    Map(Vec<(&'a [u8], Sum<'a>)>),
}

/// Writes the statistics of several steps, in order, each a map or nil, as one.
pub(super) fn write_joined(out: &mut Vec<u8>, steps: &[&[u8]]) {
    let mut joined = Sum::Raw(&[0xc0]);
    for step in steps.iter().filter(|step| step[0] != 0xc0) {
        joined = join_maps(joined, step, &Rules { stats: STATS, usual: StatJoin::Latest, types: None }, 0);
    }
    joined.write(out);
}

/// How the values of a map are joined.
struct Rules<'a> {
    /// The keys with a rule of their own.
    stats: &'static [Stat],
    /// The rule of all other keys.
    usual: StatJoin,
    /// The map from a key to its type, which a KV connector sends beside its data. The values of a gauge are states.
    types: Option<&'a [u8]>,
}

impl Rules<'_> {
    fn of(&self, key: &[u8]) -> StatJoin {
        let name = pack::str_bytes(key).unwrap_or_default();
        if let Some(types) = self.types {
            let of_key = std::str::from_utf8(name).ok().and_then(|name| map_value(types, name));
            if of_key.and_then(pack::str_bytes) == Some(b"gauge") {
                return StatJoin::LatestEach;
            }
        }
        self.stats.iter().find(|stat| stat.name.as_bytes() == name).map_or(self.usual, |stat| stat.join)
    }
}

/// Adds a map to the sum. Keys keep the order in which they occurred first.
fn join_maps<'a>(sum: Sum<'a>, map: &'a [u8], rules: &Rules<'a>, depth: usize) -> Sum<'a> {
    let (len, body) = match pack::item(map) {
        Some(PackValue::Map(len, body)) if len <= MAX_FIELDS as u64 => (len, body),
        _ => return Sum::Raw(map),
    };
    let mut entries = if let Sum::Map(entries) = sum { entries } else { Vec::new() };
    let mut values = pack::items(body, 2 * len);
    let mut place = 0;
    while let (Some(key), Some(value)) = (values.next(), values.next()) {
        // The maps of two steps usually have the same keys in the same order.
        let is_at = |at: usize| entries.get(at).is_some_and(|(it, _)| *it == key);
        let at = if is_at(place) { Some(place) } else { (0..entries.len()).find(|at| is_at(*at)) };
        // Different keys in each of many steps would take more and more time.
        if at.is_none() && entries.len() >= MAX_FIELDS {
            continue;
        }
        let at = at.unwrap_or_else(|| {
            entries.push((key, Sum::Raw(&[0xc0])));
            entries.len() - 1
        });
        let before = std::mem::replace(&mut entries[at].1, Sum::Raw(value));
        match rules.of(key) {
            StatJoin::Latest => (),
            StatJoin::LatestEach if depth < DEPTH_MAX => {
                let latest = Rules { stats: &[], usual: StatJoin::Latest, types: None };
                entries[at].1 = join_maps(before, value, &latest, depth + 1);
            }
            StatJoin::LatestEach => (),
            // The data of a KV connector, whose types stand beside them.
            StatJoin::Add if pack::str_bytes(key) == Some(b"data") && depth < DEPTH_MAX => {
                let rules = Rules { types: map_value(map, "types"), ..ADDED };
                entries[at].1 = add(before, value, &rules, depth);
            }
            StatJoin::Add => entries[at].1 = add(before, value, &ADDED, depth),
            StatJoin::AddEach => entries[at].1 = add_each(before, value, depth),
        }
        place = at + 1;
    }
    Sum::Map(entries)
}

/// The rules inside a map that is added.
const ADDED: Rules<'static> = Rules { stats: STATS_INSIDE, usual: StatJoin::Add, types: None };

/// Adds a value to the sum, a map by these rules. A nil adds nothing; values of different types are the last one.
fn add<'a>(sum: Sum<'a>, value: &'a [u8], rules: &Rules<'a>, depth: usize) -> Sum<'a> {
    let Some(item) = pack::item(value) else { return sum };
    match (sum, item) {
        (sum, PackValue::Nil) => sum,
        (Sum::Flag(one), PackValue::Bool(other)) => Sum::Flag(one | other),
        (_, PackValue::Bool(flag)) => Sum::Flag(flag),
        (Sum::Int(one), PackValue::Int(other)) => Sum::Int(one.saturating_add(other)),
        (Sum::Float(one), PackValue::Int(other)) => Sum::Float(one + other as f64),
        (_, PackValue::Int(other)) => Sum::Int(other),
        (Sum::Int(one), PackValue::Float(other)) => Sum::Float(one as f64 + other),
        (Sum::Float(one), PackValue::Float(other)) => Sum::Float(one + other),
        (_, PackValue::Float(other)) => Sum::Float(other),
        (sum, PackValue::Array(len, body)) => {
            let mut lists = if let Sum::Lists(lists) = sum { lists } else { Vec::new() };
            lists.push((len, body));
            Sum::Lists(lists)
        }
        (sum, PackValue::Map(..)) if depth < DEPTH_MAX => join_maps(sum, value, rules, depth + 1),
        _ => Sum::Raw(value),
    }
}

/// Adds an array of numbers to the sum, place by place.
fn add_each<'a>(sum: Sum<'a>, value: &'a [u8], depth: usize) -> Sum<'a> {
    let (len, body) = match pack::item(value) {
        Some(PackValue::Array(len, body)) if len <= MAX_FIELDS as u64 => (len, body),
        Some(PackValue::Nil) => return sum,
        _ => return Sum::Raw(value),
    };
    let mut numbers = if let Sum::Numbers(numbers) = sum { numbers } else { Vec::new() };
    for (at, value) in pack::items(body, len).enumerate() {
        if at == numbers.len() {
            numbers.push(Sum::Int(0));
        }
        numbers[at] = add(std::mem::replace(&mut numbers[at], Sum::Int(0)), value, &ADDED, depth);
    }
    Sum::Numbers(numbers)
}

impl Sum<'_> {
    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Sum::Raw(bytes) => out.extend_from_slice(bytes),
            Sum::Flag(flag) => out.push(0xc2 + u8::from(*flag)),
            Sum::Int(value) => pack::write::int(out, *value),
            Sum::Float(value) => pack::write::float(out, *value),
            Sum::Lists(lists) => {
                pack::write::array(out, lists.iter().map(|(len, _)| *len as usize).sum());
                lists.iter().for_each(|(_, items)| out.extend_from_slice(items));
            }
            Sum::Numbers(numbers) => {
                pack::write::array(out, numbers.len());
                numbers.iter().for_each(|number| number.write(out));
            }
            Sum::Map(entries) => {
                pack::write::map(out, entries.len());
                for (key, value) in entries {
                    out.extend_from_slice(key);
                    value.write(out);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn write(out: &mut Vec<u8>, value: &Value) {
        match value {
            Value::Object(map) => {
                pack::write::map(out, map.len());
                for (key, value) in map {
                    pack::write::str(out, key);
                    write(out, value);
                }
            }
            Value::String(text) => pack::write::str(out, text),
            value => pack::write::int(out, value.as_i64().unwrap()),
        }
    }

    fn packed(value: &Value) -> Vec<u8> {
        let mut out = Vec::new();
        write(&mut out, value);
        out
    }

    #[test]
    fn gauges_of_a_kv_connector_are_states_and_its_counters_are_added() {
        let types = json!({"vllm:loads": "counter", "vllm:used": "gauge"});
        let one = |data: Value| json!({"data": data, "types": types.clone()});
        let steps = [
            one(json!({"vllm:loads": {"gpu": 2}, "vllm:used": {"gpu": 7}})),
            one(json!({"vllm:loads": {"gpu": 3}, "vllm:used": {"gpu": 5, "tier": 1}})),
        ];
        let joined = one(json!({"vllm:loads": {"gpu": 5}, "vllm:used": {"gpu": 5, "tier": 1}}));
        // The second is of several connectors, by name.
        for of in [|stats: &Value| stats.clone(), |stats: &Value| json!({"Offloading": stats})] {
            let frame = |stats: &Value| packed(&json!({"kv_connector_stats": of(stats)}));
            let mut out = Vec::new();
            write_joined(&mut out, &[&frame(&steps[0]), &frame(&steps[1])]);
            assert_eq!(out, frame(&joined));
        }
    }
}
