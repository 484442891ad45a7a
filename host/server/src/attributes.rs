//! Request attributes, which operators set by rid before or during a request, for plugins that are granted `request`.
//!
//! A stream asks for the attributes when a request begins, and is notified when they change. Attributes set by rid override
//! those of the configuration's rules.

use afterbay_config as config;
use afterbay_http::ClientAddress;
use afterbay_journal::JournaledAttributes;
use afterbay_stream::{AttributesOf, StreamHandle};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// One caller's requests that have not begun may use 1/2 of the rids and bytes, so that one caller cannot exclude the others.
const CALLER_PART: usize = 2;
/// Most bytes of one request's attributes, as JSON.
const BYTES_MAX: usize = config::bounds::ATTRIBUTES_BYTES_MAX;
/// Most bytes of a body, which may contain white space.
pub(crate) const BODY_BYTES_MAX: usize = 4 * BYTES_MAX;
/// Most rids with attributes. A further one is refused until others expire or are deleted.
const RIDS_MAX: usize = 65_536;
/// Most bytes of all attributes, as JSON.
const ALL_BYTES_MAX: usize = 64 << 20;
/// The longest rid, as in the journal.
const RID_BYTES_MAX: usize = 4096;
/// The attribute with the name of the engine's model, unless the operator sets another value.
const MODEL: &str = "model";
/// Lifetime of attributes for a request that has not begun. A live request keeps its attributes.
const KEEP: Duration = Duration::from_secs(600);

/// The attributes of a process. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Attributes(Arc<Mutex<Store>>);

/// The caller that sets attributes: a user of this host, or another host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Caller {
    /// A user of this host, over the Unix socket.
    User(u32),
    /// A host, over TCP.
    Host(IpAddr),
}

impl From<ClientAddress> for Caller {
    fn from(peer: ClientAddress) -> Caller {
        match peer {
            ClientAddress::Unix { uid } => Caller::User(uid),
            // All loopback addresses are this host.
            ClientAddress::Tcp(address) if address.ip().is_loopback() => {
                Caller::Host(Ipv4Addr::LOCALHOST.into())
            }
            ClientAddress::Tcp(address) => Caller::Host(address.ip()),
        }
    }
}

#[derive(Default)]
struct Store {
    by_rid: HashMap<String, Entry>,
    /// The room that all entries use.
    all: Usage,
    /// The room that each caller uses for requests that have not begun.
    callers: HashMap<Caller, Usage>,
    /// The running streams, by name.
    streams: HashMap<String, StreamHandle>,
    /// The rules of the configuration's streams, by name.
    rules: HashMap<String, StreamRules>,
}

/// The attributes of a stream's requests that nobody has set by rid.
#[derive(Clone, Default)]
struct StreamRules {
    rules: Arc<[config::AttributeRule]>,
    /// The model that the engine's connector named.
    model: Option<Arc<str>>,
}

/// The room that entries use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Usage {
    rids: usize,
    bytes: usize,
}

struct Entry {
    attributes: Map<String, Value>,
    bytes: usize,
    set: Instant,
    /// The caller that set the attributes; `None` once the request has begun.
    awaited_by: Option<Caller>,
}

impl Entry {
    fn stands(&self) -> bool {
        self.set.elapsed() < KEEP
    }
}

/// The attributes of one rid, as they go over to the next process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct HandedAttributes {
    rid: String,
    attributes: Map<String, Value>,
    age_ms: u64,
    awaited_by: Option<Caller>,
}

/// The attributes set for a rid, as the admin address shows them.
#[derive(Debug, Serialize)]
pub(crate) struct AttributesView {
    rid: String,
    attributes: Map<String, Value>,
    /// Seconds until the attributes expire, if the request does not begin.
    expires_in_s: u64,
}

/// The reason why attributes were not set, shown or deleted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AttributesError {
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
    #[error(
        "{rids} requests of this caller that have not begun have attributes of {bytes} bytes, at most {} and {} are allowed; \
         each stands for {} s",
        RIDS_MAX / CALLER_PART,
        ALL_BYTES_MAX / CALLER_PART,
        KEEP.as_secs()
    )]
    CallerFull { rids: usize, bytes: usize },
    #[error("no attributes are set for {rid:?}, or they have expired")]
    Unknown { rid: String },
}

impl Attributes {
    fn lock(&self) -> MutexGuard<'_, Store> {
        // No code panics with a half-written value.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a running stream, which is notified of changes.
    pub(crate) fn add(&self, stream: &str, handle: StreamHandle) {
        self.lock().streams.insert(stream.to_owned(), handle);
    }

    /// Follows the rules of the configuration, for the journal.
    pub(crate) fn follow(&self, config: &config::Config) {
        let mut store = self.lock();
        let mut before = std::mem::take(&mut store.rules);
        let rules = config.streams.iter().map(|stream| {
            let StreamRules { model, .. } = before.remove(stream.name.as_str()).unwrap_or_default();
            (stream.name.to_string(), StreamRules { rules: stream.attributes.as_slice().into(), model })
        });
        store.rules = rules.collect();
    }

    /// Sets the model that the requests of a stream have by default.
    pub(crate) fn set_model(&self, stream: &str, model: Option<&str>) {
        self.lock().rules.entry(stream.to_owned()).or_default().model = model.map(Into::into);
    }

    /// Forgets a stream that has ended.
    pub(crate) fn remove(&self, stream: &str) {
        self.lock().streams.remove(stream);
    }

    /// Forgets every stream, after all have ended.
    pub(crate) fn clear(&self) {
        self.lock().streams.clear();
    }

    /// Sets a rid's attributes, and replaces those that were set before.
    pub(crate) fn set(
        &self,
        caller: Caller,
        rid: &str,
        attributes: Map<String, Value>,
    ) -> Result<AttributesView, AttributesError> {
        match rid.len() {
            0 => return Err(AttributesError::Empty),
            bytes if bytes > RID_BYTES_MAX => return Err(AttributesError::LongRid { bytes }),
            _ => {}
        }
        let bytes = serde_json::to_string(&attributes).map_or(usize::MAX, |json| json.len());
        if bytes > BYTES_MAX {
            return Err(AttributesError::TooLarge { rid: rid.to_owned(), bytes });
        }
        let mut store = self.lock();
        if store.refuses(caller, rid, bytes).is_some() {
            store.expire();
            if let Some(refused) = store.refuses(caller, rid, bytes) {
                return Err(refused);
            }
        }
        let has_begun = store.by_rid.get(rid).is_some_and(|before| before.awaited_by.is_none());
        let awaited_by = (!has_begun).then_some(caller);
        store.put(rid, Entry { attributes: attributes.clone(), bytes, set: Instant::now(), awaited_by });
        store.notify(rid);
        Ok(AttributesView { rid: rid.to_owned(), attributes, expires_in_s: KEEP.as_secs() })
    }

    /// The attributes that were set for a rid, without those of the configuration's rules.
    pub(crate) fn get(&self, rid: &str) -> Option<AttributesView> {
        let store = self.lock();
        let entry = store.by_rid.get(rid)?;
        let left = KEEP.checked_sub(entry.set.elapsed())?;
        let attributes = entry.attributes.clone();
        Some(AttributesView { rid: rid.to_owned(), attributes, expires_in_s: left.as_secs() })
    }

    /// A member of the attributes of a request: the one that was set for its rid, or the one of these rules.
    pub(crate) fn member(&self, rid: &str, rules: &[config::AttributeRule], name: &str) -> Option<Value> {
        let set = {
            let store = self.lock();
            let entry = store.by_rid.get(rid).filter(|entry| entry.stands() || entry.awaited_by.is_none());
            entry.and_then(|entry| entry.attributes.get(name).cloned())
        };
        let ruled = || rules.iter().rfind(|rule| rule.set.contains_key(name) && rule.is_of(rid));
        set.or_else(|| ruled()?.set.get(name).cloned())
    }

    /// Deletes a rid's attributes.
    pub(crate) fn forget(&self, rid: &str) -> Result<(), AttributesError> {
        let mut store = self.lock();
        match store.take(rid) {
            Some(entry) if entry.stands() => {
                store.notify(rid);
                Ok(())
            }
            _ => Err(AttributesError::Unknown { rid: rid.to_owned() }),
        }
    }

    /// The attributes that stand, for the next process.
    pub(crate) fn hand_over(&self) -> Vec<HandedAttributes> {
        let store = self.lock();
        let standing = store.by_rid.iter().filter(|(_, entry)| entry.stands());
        let handed = standing.map(|(rid, entry)| HandedAttributes {
            rid: rid.clone(),
            attributes: entry.attributes.clone(),
            age_ms: u64::try_from(entry.set.elapsed().as_millis()).unwrap_or(u64::MAX),
            awaited_by: entry.awaited_by,
        });
        handed.collect()
    }

    /// Takes the attributes of the process before. Those past a bound of this version are left out.
    pub(crate) fn take_over(&self, handed: Vec<HandedAttributes>) {
        let mut store = self.lock();
        for HandedAttributes { rid, attributes, age_ms, awaited_by } in handed {
            let bytes = serde_json::to_string(&attributes).map_or(usize::MAX, |json| json.len());
            let set = Instant::now().checked_sub(Duration::from_millis(age_ms));
            let is_sound = (1..=RID_BYTES_MAX).contains(&rid.len()) && bytes <= BYTES_MAX;
            let sum = Usage { rids: store.all.rids + 1, bytes: store.all.bytes.saturating_add(bytes) };
            if let Some(set) = set
                && is_sound
                && sum.rids <= RIDS_MAX
                && sum.bytes <= ALL_BYTES_MAX
            {
                store.put(&rid, Entry { attributes, bytes, set, awaited_by });
            }
        }
    }

    /// A function that returns a rid's attributes, for a stream with these rules.
    pub(crate) fn of(&self, rules: &[config::AttributeRule]) -> AttributesOf {
        let (attributes, rules) = (self.clone(), rules.to_vec());
        Box::new(move |rid| {
            let mut store = attributes.lock();
            let set = store.begun(rid);
            drop(store);
            Some(Value::Object(merged(&rules, rid, set)?).to_string().into())
        })
    }

    /// A function that returns a rid's attributes for the rules that the configuration has now for a stream.
    pub(crate) fn of_stream(&self, stream: &str) -> AttributesOf {
        let (attributes, stream) = (self.clone(), stream.to_owned());
        Box::new(move |rid| {
            let (rules, set) = attributes.lock().rules_and_set(&stream, rid);
            Some(Value::Object(merged(&rules.rules, rid, set)?).to_string().into())
        })
    }

    /// A function that returns the attributes that the journal keeps for a rid: texts, numbers and booleans, and the model.
    pub(crate) fn journaled(&self, stream: &str) -> JournaledAttributes {
        let (attributes, stream) = (self.clone(), stream.to_owned());
        Box::new(move |rid| {
            let (StreamRules { rules, model }, set) = attributes.lock().rules_and_set(&stream, rid);
            let all = merged(&rules, rid, set).unwrap_or_default();
            let has_model = all.contains_key(MODEL);
            let mut kept: Vec<(String, String)> = all.into_iter().filter_map(text_of).collect();
            if let Some(model) = model.filter(|_| !has_model) {
                kept.push((MODEL.to_owned(), model.to_string()));
            }
            kept
        })
    }
}

/// The attributes of a rid: those that were set for it, over those of the rules.
fn merged(
    rules: &[config::AttributeRule],
    rid: &str,
    set: Option<Map<String, Value>>,
) -> Option<Map<String, Value>> {
    let ruled = rules.iter().filter(|rule| rule.is_of(rid)).map(|rule| rule.set.clone());
    ruled.chain(set).reduce(|mut below, above| {
        below.extend(above);
        below
    })
}

/// An attribute as the journal stores it; `None` for a list, an object or null.
fn text_of((name, value): (String, Value)) -> Option<(String, String)> {
    let text = match value {
        Value::String(text) => text,
        Value::Number(number) => number.to_string(),
        Value::Bool(is) => is.to_string(),
        Value::Null | Value::Array(_) | Value::Object(_) => return None,
    };
    Some((name, text))
}

impl Usage {
    fn add(&mut self, bytes: usize) {
        (self.rids, self.bytes) = (self.rids + 1, self.bytes + bytes);
    }

    fn remove(&mut self, bytes: usize) {
        (self.rids, self.bytes) = (self.rids - 1, self.bytes - bytes);
    }
}

impl Store {
    /// The error if there is no room for a rid with this many bytes.
    fn refuses(&self, caller: Caller, rid: &str, bytes: usize) -> Option<AttributesError> {
        let before = self.by_rid.get(rid);
        let with = |sum: Usage, before: Option<&Entry>| Usage {
            rids: sum.rids + usize::from(before.is_none()),
            bytes: sum.bytes - before.map_or(0, |entry| entry.bytes) + bytes,
        };
        let is_full =
            |sum: Usage, part: usize| sum.rids > RIDS_MAX / part || sum.bytes > ALL_BYTES_MAX / part;
        if is_full(with(self.all, before), 1) {
            return Some(AttributesError::Full { rids: self.all.rids, bytes: self.all.bytes });
        }
        if before.is_some_and(|before| before.awaited_by.is_none()) {
            return None;
        }
        let own = self.callers.get(&caller).copied().unwrap_or_default();
        let before = before.filter(|before| before.awaited_by == Some(caller));
        is_full(with(own, before), CALLER_PART)
            .then_some(AttributesError::CallerFull { rids: own.rids, bytes: own.bytes })
    }

    fn put(&mut self, rid: &str, entry: Entry) {
        self.take(rid);
        self.all.add(entry.bytes);
        if let Some(caller) = entry.awaited_by {
            self.callers.entry(caller).or_default().add(entry.bytes);
        }
        self.by_rid.insert(rid.to_owned(), entry);
    }

    fn take(&mut self, rid: &str) -> Option<Entry> {
        let entry = self.by_rid.remove(rid)?;
        self.all.remove(entry.bytes);
        if let Some(caller) = entry.awaited_by {
            self.no_longer_awaited(caller, entry.bytes);
        }
        Some(entry)
    }

    /// Returns the attributes for a request that begins. They no longer count against their caller.
    fn begun(&mut self, rid: &str) -> Option<Map<String, Value>> {
        let entry = self.by_rid.get_mut(rid).filter(|entry| entry.stands())?;
        let (attributes, bytes) = (entry.attributes.clone(), entry.bytes);
        if let Some(caller) = entry.awaited_by.take() {
            self.no_longer_awaited(caller, bytes);
        }
        Some(attributes)
    }

    fn rules_and_set(&mut self, stream: &str, rid: &str) -> (StreamRules, Option<Map<String, Value>>) {
        (self.rules.get(stream).cloned().unwrap_or_default(), self.begun(rid))
    }

    fn no_longer_awaited(&mut self, caller: Caller, bytes: usize) {
        if let Some(own) = self.callers.get_mut(&caller) {
            own.remove(bytes);
            if own.rids == 0 {
                self.callers.remove(&caller);
            }
        }
    }

    fn expire(&mut self) {
        let expired = self.by_rid.iter().filter(|(_, entry)| !entry.stands());
        let expired: Vec<String> = expired.map(|(rid, _)| rid.clone()).collect();
        expired.iter().for_each(|rid| _ = self.take(rid));
    }

    fn notify(&self, rid: &str) {
        self.streams.values().for_each(|stream| stream.attributes_changed(rid));
    }
}

#[cfg(test)]
mod tests;
