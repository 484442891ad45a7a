//! Request attributes, which operators set by an id before or during a request, for plugins that are granted `request`.
//!
//! The id is the engine's rid or the client's id in it ([`config::Engine::ids`]). A stream asks for the attributes when a request
//! begins, and is notified when they change. Attributes set by an id override those of the configuration's rules, and these override
//! those that the engine gives.

use crate::mutex::lock;
use crate::refusal::Refusal;
use afterbay_config as config;
use afterbay_events::Events;
use afterbay_events::event::AttributesUnclaimed;
use afterbay_http::ClientAddress;
use afterbay_journal::JournaledAttributes;
use afterbay_stream::{AttributesOf, StreamHandle};
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

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
/// Time between two searches for attributes that have expired.
const EXPIRE_EVERY: Duration = Duration::from_secs(10);
/// Most requests that an answer names.
const NAMED_MAX: usize = 16;
/// Time for a stream to answer.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// The attributes of a process. Clones share them. A request that begins takes the lock only while an operator sets attributes by
/// an id.
#[derive(Clone, Default)]
pub(crate) struct Attributes(Arc<Shared>);

#[derive(Default)]
struct Shared {
    store: Mutex<Store>,
    /// Whether the store may have attributes of a request.
    has_any: AtomicBool,
}

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
    by_id: HashMap<String, Entry>,
    /// The room that all entries use.
    all: Usage,
    /// The room that each caller uses for requests that have not begun.
    callers: HashMap<Caller, Usage>,
    /// The running streams, by name.
    streams: HashMap<String, StreamHandle>,
    /// The rules of the configuration's streams, by name. Each has a lock of its own.
    rules: HashMap<String, Arc<Mutex<StreamRules>>>,
}

/// The attributes of a stream's requests that nobody has set by an id.
#[derive(Clone, Default)]
struct StreamRules {
    engine: config::Engine,
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
    /// The caller that set the attributes; `None` once a request has begun.
    awaited_by: Option<Caller>,
    /// The rids of the first requests that have the attributes.
    applied_to: Vec<String>,
}

impl Entry {
    fn stands(&self) -> bool {
        self.set.elapsed() < KEEP
    }

    fn applies_to(&mut self, rid: &str) {
        if self.applied_to.len() < NAMED_MAX && !self.applied_to.iter().any(|known| known == rid) {
            self.applied_to.push(rid.to_owned());
        }
    }
}

/// The attributes of one id, as they go over to the next process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct HandedEntry {
    rid: String,
    attributes: Map<String, Value>,
    age_ms: u64,
    awaited_by: Option<Caller>,
    applied_to: Vec<String>,
}

/// The attributes set for an id, as the admin address shows them.
#[derive(Debug, Serialize)]
pub(crate) struct AttributesView {
    rid: String,
    attributes: Map<String, Value>,
    /// The rids of the requests that have the attributes, at most 16. Empty: no request with this id has begun.
    applied_to: Vec<String>,
    /// Seconds until the attributes expire, if the request does not begin.
    expires_in_s: u64,
}

fn unknown(rid: &str) -> Refusal {
    Refusal::not_found("unknown", format!("no attributes are set for {rid:?}, or they have expired"))
}

impl Attributes {
    fn lock(&self) -> MutexGuard<'_, Store> {
        lock(&self.0.store)
    }

    /// Changes what is set.
    fn change<T>(&self, change: impl FnOnce(&mut Store) -> T) -> T {
        let store = &mut *self.lock();
        let changed = change(store);
        let has_any = !store.by_id.is_empty();
        self.0.has_any.store(has_any, Ordering::Release);
        changed
    }

    /// Returns what was set for a request that begins.
    fn set_for(&self, engine: config::Engine, rid: &str) -> Option<Map<String, Value>> {
        if self.0.has_any.load(Ordering::Acquire) { self.lock().begun(engine, rid) } else { None }
    }

    /// The rules of a stream.
    fn rules_of(&self, stream: &str) -> Arc<Mutex<StreamRules>> {
        self.lock().rules.entry(stream.to_owned()).or_default().clone()
    }

    /// Adds a running stream, which is notified of changes.
    pub(crate) fn add(&self, stream: &str, handle: StreamHandle) {
        self.lock().streams.insert(stream.to_owned(), handle);
    }

    /// Follows the rules of the configuration, for the journal.
    pub(crate) fn follow(&self, config: &config::Config) {
        let of_streams = &mut self.lock().rules;
        of_streams.retain(|name, _| config.streams.iter().any(|stream| stream.name.as_str() == name));
        for stream in &config.streams {
            let mut rules = lock(of_streams.entry(stream.name.to_string()).or_default());
            (rules.engine, rules.rules) = (stream.engine, stream.attributes.as_slice().into());
        }
    }

    /// Sets the model that the requests of a stream have by default.
    pub(crate) fn set_model(&self, stream: &str, model: Option<&str>) {
        lock(&self.rules_of(stream)).model = model.map(Into::into);
    }

    /// Forgets a stream that has ended.
    pub(crate) fn remove(&self, stream: &str) {
        self.lock().streams.remove(stream);
    }

    /// Forgets every stream, after all have ended.
    pub(crate) fn clear(&self) {
        self.lock().streams.clear();
    }

    /// Sets the attributes of an id, and replaces those that were set before. Requests that have begun get them by
    /// [`Attributes::apply`].
    pub(crate) fn set(
        &self,
        caller: Caller,
        rid: &str,
        attributes: Map<String, Value>,
    ) -> Result<(), Refusal> {
        match rid.len() {
            0 => return Err(Refusal::bad_request("rid", "the rid is empty")),
            bytes if bytes > RID_BYTES_MAX => {
                let why = format!("the rid has {bytes} bytes, at most {RID_BYTES_MAX} are allowed");
                return Err(Refusal::bad_request("rid", why));
            }
            _ => {}
        }
        let bytes = serde_json::to_string(&attributes).map_or(usize::MAX, |json| json.len());
        if bytes > BYTES_MAX {
            let why = format!(
                "the attributes of {rid:?} have {bytes} bytes as JSON, at most {BYTES_MAX} are allowed"
            );
            return Err(Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", why));
        }
        self.change(|store| {
            if let Some(refused) = store.refuses(caller, rid, bytes) {
                return Err(refused);
            }
            let before = store.take(rid);
            let applied_to = before.map_or_else(Vec::new, |before| before.applied_to);
            let awaited_by = applied_to.is_empty().then_some(caller);
            store.put(rid, Entry { attributes, bytes, set: Instant::now(), awaited_by, applied_to });
            Ok(())
        })
    }

    /// Gives the live requests with this id the attributes that are set, and returns what is set. Waits for the streams, at most 2 s
    /// for each.
    pub(crate) async fn apply(&self, id: &str) -> Result<AttributesView, Refusal> {
        let streams: Vec<StreamHandle> = self.lock().streams.values().cloned().collect();
        let asked = streams.iter().map(|stream| {
            let (reply, answer) = oneshot::channel();
            // The send fails if nobody waits any more.
            stream.attributes_changed(id, move || _ = reply.send(()));
            answer
        });
        for answer in asked.collect::<Vec<_>>() {
            // A stream that does not answer in time obeys the command later.
            let _answered = tokio::time::timeout(ANSWER_MAX, answer).await;
        }
        self.get(id)
    }

    /// Forgets attributes that have expired, and reports those that no request got, until the task is dropped.
    pub(crate) async fn run(self, events: Events) {
        loop {
            tokio::time::sleep(EXPIRE_EVERY).await;
            for rid in self.change(Store::expire) {
                events.publish(AttributesUnclaimed { rid, seconds: KEEP.as_secs() });
            }
        }
    }

    /// The attributes that were set for an id, without those of the configuration's rules.
    pub(crate) fn get(&self, rid: &str) -> Result<AttributesView, Refusal> {
        let store = self.lock();
        let entry = store.by_id.get(rid).ok_or_else(|| unknown(rid))?;
        let left = KEEP.checked_sub(entry.set.elapsed()).ok_or_else(|| unknown(rid))?;
        let (attributes, applied_to) = (entry.attributes.clone(), entry.applied_to.clone());
        Ok(AttributesView { rid: rid.to_owned(), attributes, applied_to, expires_in_s: left.as_secs() })
    }

    /// Deletes the attributes of an id.
    pub(crate) fn forget(&self, rid: &str) -> Result<(), Refusal> {
        self.change(|store| match store.take(rid) {
            Some(entry) if entry.stands() => {
                store.streams.values().for_each(|stream| stream.attributes_changed(rid, || {}));
                Ok(())
            }
            _ => Err(unknown(rid)),
        })
    }

    /// The attributes that stand, for the next process.
    pub(crate) fn hand_over(&self) -> Vec<HandedEntry> {
        let store = self.lock();
        let standing = store.by_id.iter().filter(|(_, entry)| entry.stands());
        let handed = standing.map(|(rid, entry)| HandedEntry {
            rid: rid.clone(),
            attributes: entry.attributes.clone(),
            age_ms: u64::try_from(entry.set.elapsed().as_millis()).unwrap_or(u64::MAX),
            awaited_by: entry.awaited_by,
            applied_to: entry.applied_to.clone(),
        });
        handed.collect()
    }

    /// Takes the attributes of the process before. Those past a bound of this version are left out.
    pub(crate) fn take_over(&self, handed: Vec<HandedEntry>) {
        self.change(|store| store.take_over(handed));
    }

    /// A function that returns a rid's attributes, for a stream with these rules.
    pub(crate) fn of(&self, stream: &config::Stream) -> AttributesOf {
        let (attributes, engine, rules) = (self.clone(), stream.engine, stream.attributes.clone());
        Box::new(move |rid, of_engine| {
            let set = attributes.set_for(engine, rid);
            Some(Value::Object(merged(engine, &rules, rid, of_engine, set)?).to_string().into())
        })
    }

    /// A function that returns the attributes that the journal keeps for a rid: texts, numbers and booleans, and the model.
    pub(crate) fn journaled(&self, stream: &str) -> JournaledAttributes {
        let (attributes, rules) = (self.clone(), self.rules_of(stream));
        Box::new(move |rid, of_engine| attributes.texts(&rules, rid, of_engine))
    }

    /// The attributes that the journal keeps for a request of a stream.
    pub(crate) fn of_request(
        &self,
        stream: &str,
        rid: &str,
        of_engine: &[(String, String)],
    ) -> Vec<(String, String)> {
        self.texts(&self.rules_of(stream), rid, of_engine)
    }

    fn texts(
        &self,
        rules: &Mutex<StreamRules>,
        rid: &str,
        of_engine: &[(String, String)],
    ) -> Vec<(String, String)> {
        let StreamRules { engine, rules, model } = lock(rules).clone();
        let set = self.set_for(engine, rid);
        let all = merged(engine, &rules, rid, of_engine, set).unwrap_or_default();
        let has_model = all.contains_key(MODEL);
        let mut kept: Vec<(String, String)> = all.into_iter().filter_map(text_of).collect();
        if let Some(model) = model.filter(|_| !has_model) {
            kept.push((MODEL.to_owned(), model.to_string()));
        }
        kept
    }
}

/// The attributes of a rid: those that were set for an id of it, over those of the rules, over the engine's own.
fn merged(
    engine: config::Engine,
    rules: &[config::AttributeRule],
    rid: &str,
    of_engine: &[(String, String)],
    set: Option<Map<String, Value>>,
) -> Option<Map<String, Value>> {
    let of_engine = of_engine.iter().map(|(name, value)| (name.clone(), Value::from(&**value)));
    let of_engine = Some(Map::from_iter(of_engine)).filter(|of_engine| !of_engine.is_empty());
    let ruled = rules.iter().filter_map(|rule| rule.of(engine, rid));
    of_engine.into_iter().chain(ruled).chain(set).reduce(|mut below, above| {
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

/// The refusal for want of room in this part of the store.
fn full(Usage { rids, bytes }: Usage, of: &str, part: usize) -> Refusal {
    let (rids_max, bytes_max, seconds) = (RIDS_MAX / part, ALL_BYTES_MAX / part, KEEP.as_secs());
    let why = format!(
        "{rids} rids{of} have attributes of {bytes} bytes, at most {rids_max} and {bytes_max} are allowed; each stands for {seconds} s"
    );
    Refusal::new(StatusCode::INSUFFICIENT_STORAGE, "full", why)
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
    fn refuses(&self, caller: Caller, rid: &str, bytes: usize) -> Option<Refusal> {
        let before = self.by_id.get(rid);
        let with = |sum: Usage, before: Option<&Entry>| Usage {
            rids: sum.rids + usize::from(before.is_none()),
            bytes: sum.bytes - before.map_or(0, |entry| entry.bytes) + bytes,
        };
        let is_full =
            |sum: Usage, part: usize| sum.rids > RIDS_MAX / part || sum.bytes > ALL_BYTES_MAX / part;
        if is_full(with(self.all, before), 1) {
            return Some(full(self.all, "", 1));
        }
        if before.is_some_and(|before| before.awaited_by.is_none()) {
            return None;
        }
        let own = self.callers.get(&caller).copied().unwrap_or_default();
        let before = before.filter(|before| before.awaited_by == Some(caller));
        is_full(with(own, before), CALLER_PART)
            .then(|| full(own, " of requests of this caller that have not begun", CALLER_PART))
    }

    fn put(&mut self, rid: &str, entry: Entry) {
        self.take(rid);
        self.all.add(entry.bytes);
        if let Some(caller) = entry.awaited_by {
            self.callers.entry(caller).or_default().add(entry.bytes);
        }
        self.by_id.insert(rid.to_owned(), entry);
    }

    fn take(&mut self, rid: &str) -> Option<Entry> {
        let entry = self.by_id.remove(rid)?;
        self.all.remove(entry.bytes);
        if let Some(caller) = entry.awaited_by {
            self.no_longer_awaited(caller, entry.bytes);
        }
        Some(entry)
    }

    /// Returns the attributes for a request that begins, by the id that was set and is next to its rid.
    fn begun(&mut self, engine: config::Engine, rid: &str) -> Option<Map<String, Value>> {
        let is_set = |id: &&str| self.by_id.get(*id).is_some_and(Entry::stands);
        let id = engine.ids(rid).find(is_set)?;
        self.applied(id, rid);
        self.by_id.get(id).map(|entry| entry.attributes.clone())
    }

    /// Notes that a request has the attributes of an id. They no longer count against their caller.
    fn applied(&mut self, id: &str, rid: &str) {
        let Some(entry) = self.by_id.get_mut(id) else { return };
        entry.applies_to(rid);
        let bytes = entry.bytes;
        if let Some(caller) = entry.awaited_by.take() {
            self.no_longer_awaited(caller, bytes);
        }
    }

    /// Takes the attributes of the process before.
    fn take_over(&mut self, handed: Vec<HandedEntry>) {
        for HandedEntry { rid, attributes, age_ms, awaited_by, mut applied_to } in handed {
            applied_to.truncate(NAMED_MAX);
            let bytes = serde_json::to_string(&attributes).map_or(usize::MAX, |json| json.len());
            let set = Instant::now().checked_sub(Duration::from_millis(age_ms));
            let is_sound = (1..=RID_BYTES_MAX).contains(&rid.len()) && bytes <= BYTES_MAX;
            let sum = Usage { rids: self.all.rids + 1, bytes: self.all.bytes.saturating_add(bytes) };
            if let Some(set) = set
                && is_sound
                && sum.rids <= RIDS_MAX
                && sum.bytes <= ALL_BYTES_MAX
            {
                self.put(&rid, Entry { attributes, bytes, set, awaited_by, applied_to });
            }
        }
    }

    fn no_longer_awaited(&mut self, caller: Caller, bytes: usize) {
        if let Some(own) = self.callers.get_mut(&caller) {
            own.remove(bytes);
            if own.rids == 0 {
                self.callers.remove(&caller);
            }
        }
    }

    /// Forgets what has expired. Returns the ids with which no request began.
    fn expire(&mut self) -> Vec<String> {
        let expired = self.by_id.iter().filter(|(_, entry)| !entry.stands());
        let expired: Vec<String> = expired.map(|(id, _)| id.clone()).collect();
        let is_unclaimed = |id: &String| self.take(id).is_some_and(|entry| entry.applied_to.is_empty());
        expired.into_iter().filter(is_unclaimed).collect()
    }
}

#[cfg(test)]
mod tests;
