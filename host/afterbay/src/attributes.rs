//! What operators say of requests beside their output: attributes, for plugins that are granted `request`.
//!
//! Owns those that were set by rid, before or during the request, and their bounds; the configuration's rules come below
//! them. A stream asks when a request begins, and is told when one is set anew.

use afterbay_config as config;
use afterbay_stream::{AttributesOf, Control};
use serde::Serialize;
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The attributes of one request, as JSON.
const BYTES_MAX: usize = config::bounds::ATTRIBUTES_BYTES_MAX;
/// A body with white space in it may be longer.
pub(crate) const BODY_BYTES_MAX: usize = 4 * BYTES_MAX;
/// Rids that have some; a further one is refused until others expire or are taken back.
const RIDS_MAX: usize = 65_536;
/// Bytes of all of them, as JSON.
const ALL_BYTES_MAX: usize = 64 << 20;
/// The longest rid, which is the journal's.
const RID_BYTES_MAX: usize = 4096;
/// After so long without being set, a request that begins is not told of them. One that is live keeps them.
const KEEP: Duration = Duration::from_secs(600);

/// The attributes of a process. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Attributes(Arc<Mutex<Known>>);

#[derive(Default)]
struct Known {
    by_rid: HashMap<String, Entry>,
    /// Of all that is set.
    bytes: usize,
    /// By name.
    streams: HashMap<String, Control>,
}

struct Entry {
    attributes: Map<String, Value>,
    bytes: usize,
    set: Instant,
}

impl Entry {
    fn stands(&self) -> bool {
        self.set.elapsed() < KEEP
    }
}

/// What is set for a rid.
#[derive(Debug, Serialize)]
pub(crate) struct Set {
    rid: String,
    attributes: Map<String, Value>,
    /// How long they stand for a request that is yet to begin.
    expires_in_s: u64,
}

/// Why nothing was set or taken back.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotSet {
    #[error("the rid is empty")]
    Empty,
    #[error("the rid has {bytes} bytes, at most {RID_BYTES_MAX} are allowed")]
    LongRid { bytes: usize },
    #[error("the attributes of {rid:?} have {bytes} bytes as JSON, at most {BYTES_MAX} are allowed")]
    TooLarge { rid: String, bytes: usize },
    #[error(
        "{rids} rids have attributes of {bytes} bytes, at most {RIDS_MAX} and {ALL_BYTES_MAX} are allowed; each stands for {} s",
        KEEP.as_secs()
    )]
    Full { rids: usize, bytes: usize },
    #[error("no attributes are set for {rid:?}, or they have expired")]
    Unknown { rid: String },
}

impl Attributes {
    fn lock(&self) -> MutexGuard<'_, Known> {
        // Whoever panicked with it left whole values.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A stream that is to be told of changes.
    pub(crate) fn add(&self, stream: &str, control: Control) {
        self.lock().streams.insert(stream.to_owned(), control);
    }

    /// A stream has ended.
    pub(crate) fn remove(&self, stream: &str) {
        self.lock().streams.remove(stream);
    }

    /// The streams have ended.
    pub(crate) fn clear(&self) {
        self.lock().streams.clear();
    }

    /// Sets a rid's attributes, instead of those that were set before.
    pub(crate) fn set(&self, rid: &str, attributes: Map<String, Value>) -> Result<Set, NotSet> {
        match rid.len() {
            0 => return Err(NotSet::Empty),
            bytes if bytes > RID_BYTES_MAX => return Err(NotSet::LongRid { bytes }),
            _ => {}
        }
        let bytes = serde_json::to_string(&attributes).map_or(usize::MAX, |json| json.len());
        if bytes > BYTES_MAX {
            return Err(NotSet::TooLarge { rid: rid.to_owned(), bytes });
        }
        let mut known = self.lock();
        if !known.has_room(rid, bytes) {
            known.expire();
            if !known.has_room(rid, bytes) {
                return Err(NotSet::Full { rids: known.by_rid.len(), bytes: known.bytes });
            }
        }
        known.put(rid, Entry { attributes: attributes.clone(), bytes, set: Instant::now() });
        known.tell(rid);
        Ok(Set { rid: rid.to_owned(), attributes, expires_in_s: KEEP.as_secs() })
    }

    /// What is set for a rid, without the configuration's rules.
    pub(crate) fn get(&self, rid: &str) -> Option<Set> {
        let known = self.lock();
        let entry = known.by_rid.get(rid)?;
        let left = KEEP.checked_sub(entry.set.elapsed())?;
        let attributes = entry.attributes.clone();
        Some(Set { rid: rid.to_owned(), attributes, expires_in_s: left.as_secs() })
    }

    /// Takes a rid's attributes back.
    pub(crate) fn forget(&self, rid: &str) -> Result<(), NotSet> {
        let mut known = self.lock();
        match known.take(rid) {
            Some(entry) if entry.stands() => {
                known.tell(rid);
                Ok(())
            }
            _ => Err(NotSet::Unknown { rid: rid.to_owned() }),
        }
    }

    /// Says what attributes a rid has in a stream with these rules.
    pub(crate) fn of(&self, rules: &[config::AttributeRule]) -> AttributesOf {
        let (attributes, rules) = (self.clone(), rules.to_vec());
        Box::new(move |rid| {
            let known = attributes.lock();
            let set = known.by_rid.get(rid).filter(|entry| entry.stands());
            let set = set.map(|entry| entry.attributes.clone());
            drop(known);
            let ruled = rules.iter().filter(|rule| rule.is_of(rid)).map(|rule| rule.set.clone());
            let merged = ruled.chain(set).reduce(|mut below, above| {
                below.extend(above);
                below
            })?;
            Some(Value::Object(merged).to_string().into())
        })
    }
}

impl Known {
    fn has_room(&self, rid: &str, bytes: usize) -> bool {
        let before = self.by_rid.get(rid);
        let rids = self.by_rid.len() + usize::from(before.is_none());
        rids <= RIDS_MAX && self.bytes - before.map_or(0, |entry| entry.bytes) + bytes <= ALL_BYTES_MAX
    }

    fn put(&mut self, rid: &str, entry: Entry) {
        self.take(rid);
        self.bytes += entry.bytes;
        self.by_rid.insert(rid.to_owned(), entry);
    }

    fn take(&mut self, rid: &str) -> Option<Entry> {
        let entry = self.by_rid.remove(rid)?;
        self.bytes -= entry.bytes;
        Some(entry)
    }

    fn expire(&mut self) {
        self.by_rid.retain(|_, entry| entry.stands());
        self.bytes = self.by_rid.values().map(|entry| entry.bytes).sum();
    }

    fn tell(&self, rid: &str) {
        self.streams.values().for_each(|stream| stream.attributes_changed(rid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn object(value: Value) -> Map<String, Value> {
        let Value::Object(object) = value else { panic!("{value}") };
        object
    }

    fn rule(rids: config::Rids, set: Value) -> config::AttributeRule {
        config::AttributeRule { rids, set: object(set) }
    }

    #[test]
    fn later_rules_override_earlier_ones_and_what_is_set_for_the_rid_overrides_all() {
        let attributes = Attributes::default();
        let rules = [
            rule(config::Rids::All, json!({"tenant": "any", "tier": 1})),
            rule(config::Rids::Prefix("batch-".into()), json!({"tenant": "batch"})),
            rule(config::Rids::Pattern("-eu-[0-9]+$".parse().unwrap()), json!({"region": "eu"})),
        ];
        let of = attributes.of(&rules);
        let of = |rid| serde_json::from_str::<Value>(&of(rid).unwrap()).unwrap();
        assert_eq!(of("a"), json!({"tenant": "any", "tier": 1}));
        assert_eq!(of("batch-eu-7"), json!({"tenant": "batch", "tier": 1, "region": "eu"}));
        attributes.set("batch-eu-7", object(json!({"tenant": "mine", "grammar": {"regex": "a+"}}))).unwrap();
        assert_eq!(
            of("batch-eu-7"),
            json!({"tenant": "mine", "tier": 1, "region": "eu", "grammar": {"regex": "a+"}})
        );
        attributes.forget("batch-eu-7").unwrap();
        assert_eq!(of("batch-eu-7")["tenant"], "batch");
    }

    #[test]
    fn a_stream_without_rules_knows_nothing_of_a_rid_that_nobody_has_set() {
        assert_eq!(Attributes::default().of(&[])("a"), None);
    }

    #[test]
    fn what_is_too_large_is_refused_with_its_size_and_the_limit() {
        let attributes = Attributes::default();
        let fits = "x".repeat(BYTES_MAX - r#"{"a":""}"#.len());
        attributes.set("a", object(json!({"a": fits}))).unwrap();
        let error = attributes.set("b", object(json!({"a": format!("{fits}x")}))).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the attributes of \"b\" have 16385 bytes as JSON, at most 16384 are allowed"
        );
        assert!(attributes.get("b").is_none());
        assert!(attributes.set("", Map::new()).unwrap_err().to_string().contains("empty"));
        assert!(
            attributes.set(&"r".repeat(4097), Map::new()).unwrap_err().to_string().contains("4097 bytes")
        );
    }

    #[test]
    fn one_rid_more_than_there_may_be_is_refused_and_one_that_is_known_is_not() {
        let attributes = Attributes::default();
        for rid in 0..RIDS_MAX {
            attributes.set(&rid.to_string(), Map::new()).unwrap();
        }
        assert!(
            attributes
                .set("one more", Map::new())
                .unwrap_err()
                .to_string()
                .starts_with("65536 rids have attributes of 131072 bytes")
        );
        attributes.set("7", object(json!({"a": 1}))).unwrap();
        attributes.forget("8").unwrap();
        attributes.set("one more", Map::new()).unwrap();
    }

    #[test]
    fn all_attributes_together_are_bounded_too() {
        let attributes = Attributes::default();
        let large = object(json!({"a": "x".repeat(BYTES_MAX - 8)}));
        for rid in 0..ALL_BYTES_MAX / BYTES_MAX {
            attributes.set(&rid.to_string(), large.clone()).unwrap();
        }
        assert!(matches!(attributes.set("one more", large.clone()), Err(NotSet::Full { .. })));
        attributes.set("0", large.clone()).unwrap();
        attributes.forget("0").unwrap();
        attributes.set("one more", large).unwrap();
    }
}
