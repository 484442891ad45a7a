//! An index of the newest requests of a journal, for pages and searches while the journal is written.
//!
//! [`Follower`] reads the journal, newest segment first, and [`RequestIndex`] has the requests. Bounds: [`REQUESTS_MAX`]
//! requests and [`RID_BYTES_MAX`] bytes of rids; the oldest requests leave. A request takes about 300 bytes with its rid.

mod entry;
mod follower;

pub use follower::Follower;

use crate::json;
use crate::legs::{self, Known, Request};
use afterbay_journal::RequestNo;
use afterbay_journal::reader::{Erasure, RequestChange, RequestState};
use entry::{Entry, Indexed, Names};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};
use std::str::FromStr;

/// Most requests.
pub const REQUESTS_MAX: usize = 100_000;
/// Most bytes of rids.
pub const RID_BYTES_MAX: usize = 64 << 20;
/// Most requests of a page.
pub const PAGE_MAX: usize = 1000;
/// Requests with the same rid that are looked at for the second leg of one of them.
const LEGS_LOOKED_AT: usize = 16;

/// The place of a request in the order of the index: the time of its first row, the number of its stream, its own number.
type Key = (u64, u16, u64);

/// The newest requests.
pub struct RequestIndex {
    requests_max: usize,
    rid_bytes_max: usize,
    streams: Vec<IndexedStream>,
    entries: BTreeMap<Key, Entry>,
    /// Requests by the hash of their rid.
    by_rid: BTreeSet<(u64, Key)>,
    hasher: RandomState,
    names: Names,
    rid_bytes: usize,
    /// Requests that the index ever had.
    known: u64,
    /// Whether the index has every request that fits its bounds.
    is_complete: bool,
}

struct IndexedStream {
    name: String,
    /// The streams that this one is after.
    after: Vec<String>,
}

/// A search. All conditions must hold.
#[derive(Clone, Debug, Default)]
pub struct Search {
    /// The request has a leg on this stream.
    pub stream: Option<String>,
    /// The rid begins with this text.
    pub rid_prefix: Option<String>,
    /// The whole request is in this state.
    pub state: Option<RequestState>,
    /// The sender gave this finish reason on a leg.
    pub finish: Option<String>,
    /// This plugin acted on a row of a leg.
    pub plugin: Option<String>,
    /// Only requests after this one, in the order of the page.
    pub after: Option<Cursor>,
    /// Most requests of the page, at most [`PAGE_MAX`].
    pub limit: usize,
}

/// The last request of a page. `Display` and `FromStr` give its text for a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor {
    first_unix_ns: u64,
    request: u64,
    stream: String,
}

/// A page of requests, newest first.
#[derive(Debug)]
pub struct Page {
    /// The fields of `afterbay journal ls --json`, and `plugins`.
    pub requests: Vec<Value>,
    /// The next page; `None` on the last.
    pub next: Option<Cursor>,
    /// Requests that the index ever had.
    pub known: u64,
    /// Requests that the index has.
    pub kept: usize,
    /// Whether the index has every request that fits its bounds.
    pub is_complete: bool,
}

impl Default for RequestIndex {
    fn default() -> RequestIndex {
        RequestIndex::with_bounds(REQUESTS_MAX, RID_BYTES_MAX)
    }
}

impl RequestIndex {
    fn with_bounds(requests_max: usize, rid_bytes_max: usize) -> RequestIndex {
        RequestIndex {
            requests_max,
            rid_bytes_max,
            streams: Vec::new(),
            entries: BTreeMap::new(),
            by_rid: BTreeSet::new(),
            hasher: RandomState::new(),
            names: Names::default(),
            rid_bytes: 0,
            known: 0,
            is_complete: false,
        }
    }

    /// The number of a stream.
    fn stream(&mut self, name: &str, after: &[String]) -> u16 {
        let at = match self.streams.iter().position(|known| known.name == name) {
            Some(at) => {
                self.streams[at].after = after.to_vec();
                at
            }
            None => {
                self.streams.push(IndexedStream { name: name.to_owned(), after: after.to_vec() });
                self.streams.len() - 1
            }
        };
        u16::try_from(at).unwrap_or(u16::MAX)
    }

    /// Adds a request, or replaces its totals unless they come from an older segment. Returns false if the request is too old
    /// for the bounds.
    fn apply(&mut self, stream: u16, change: &RequestChange, is_older: bool) -> bool {
        let info = &change.request;
        let key = (info.first_unix_ns, stream, info.number.0);
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.update(info, &change.plugins, is_older, &mut self.names);
            return true;
        }
        let entry = Entry::new(info, &change.plugins, &mut self.names);
        self.rid_bytes += entry.rid.len();
        self.by_rid.insert((self.hasher.hash_one(&*entry.rid), key));
        self.entries.insert(key, entry);
        self.known += 1;
        let mut is_kept = true;
        while self.entries.len() > self.requests_max || self.rid_bytes > self.rid_bytes_max {
            let Some((oldest, entry)) = self.entries.pop_first() else { break };
            self.rid_bytes -= entry.rid.len();
            self.by_rid.remove(&(self.hasher.hash_one(&*entry.rid), oldest));
            is_kept &= oldest != key;
        }
        is_kept
    }

    /// Marks requests of a stream as erased. The index holds no text of them.
    pub fn erase(&mut self, stream: &str, rid: &str, requests: &[RequestNo], erasure: Erasure) {
        let Some(at) = self.streams.iter().position(|known| known.name == stream) else { return };
        let hash = self.hasher.hash_one(rid);
        let of_rid = self.by_rid.range((hash, (0, 0, 0))..=(hash, (u64::MAX, u16::MAX, u64::MAX)));
        for (_, key) in of_rid {
            if usize::from(key.1) == at
                && requests.contains(&RequestNo(key.2))
                && let Some(entry) = self.entries.get_mut(key)
            {
                entry.erase(erasure);
            }
        }
    }

    /// A page of a search.
    pub fn page(&self, search: &Search) -> Page {
        let limit = search.limit.min(PAGE_MAX);
        let from = search.after.as_ref().map_or((u64::MAX, u16::MAX, u64::MAX), |cursor| {
            let stream = self.streams.iter().position(|stream| stream.name == cursor.stream);
            let stream = stream.and_then(|at| u16::try_from(at).ok()).unwrap_or(0);
            (cursor.first_unix_ns, stream, cursor.request)
        });
        let (mut requests, mut next) = (Vec::new(), None);
        let mut last = None;
        let prefix = search.rid_prefix.as_deref().unwrap_or_default();
        for (key, entry) in self.entries.range(..from).rev() {
            if !entry.rid.starts_with(prefix) {
                continue;
            }
            let Some(request) = self.request(*key, entry).filter(|request| self.matches(request, search))
            else {
                continue;
            };
            if requests.len() == limit {
                next = last.map(|(first_unix_ns, stream, request)| Cursor {
                    first_unix_ns,
                    request,
                    stream: self.stream_name(stream).to_owned(),
                });
                break;
            }
            requests.push(self.json(&request));
            last = Some(*key);
        }
        let (known, kept, is_complete) = (self.known, self.entries.len(), self.is_complete);
        Page { requests, next, known, kept, is_complete }
    }

    fn stream_name(&self, stream: u16) -> &str {
        self.streams.get(usize::from(stream)).map_or("", |stream| &stream.name)
    }

    fn is_second(&self, stream: u16) -> bool {
        self.streams.get(usize::from(stream)).is_some_and(|stream| !stream.after.is_empty())
    }

    /// The request whose first leg is this entry; `None` if the entry is the second leg of another.
    fn request<'a>(&'a self, key: Key, entry: &'a Entry) -> Option<Request<Indexed<'a>>> {
        let known = self.around(key, entry);
        if known.len() == 1 {
            let leg = legs::Leg {
                stream: self.stream_name(key.1).to_owned(),
                instance: None,
                of: Indexed::new(key, entry, &self.names),
            };
            return Some(Request(vec![leg]));
        }
        let mut by_stream: Known<Indexed<'a>> = Vec::new();
        for (key, entry) in known {
            let Some(stream) = self.streams.get(usize::from(key.1)) else { continue };
            let indexed = Indexed::new(key, entry, &self.names);
            match by_stream.iter_mut().find(|(name, ..)| *name == stream.name) {
                Some((.., of)) => of.push(indexed),
                None => by_stream.push((stream.name.clone(), stream.after.clone(), vec![indexed])),
            }
        }
        legs::join(by_stream).into_iter().find(|request| request.first().of.key == key)
    }

    /// The entries that may be legs of one request with this one: from the first leg that began last until the next first leg.
    fn around<'a>(&'a self, key: Key, entry: &'a Entry) -> Vec<(Key, &'a Entry)> {
        let mut around = vec![(key, entry)];
        let hash = self.hasher.hash_one(&*entry.rid);
        let of_rid = |(_, key): &(u64, Key)| {
            let entry = self.entries.get(key).filter(|other| other.rid == entry.rid)?;
            Some((*key, entry))
        };
        if self.is_second(key.1) {
            for found in self.by_rid.range((hash, (0, 0, 0))..(hash, key)).rev().take(LEGS_LOOKED_AT) {
                let Some((key, entry)) = of_rid(found) else { continue };
                around.push((key, entry));
                if !self.is_second(key.1) {
                    break;
                }
            }
        }
        let later = self.by_rid.range((hash, key)..=(hash, (u64::MAX, u16::MAX, u64::MAX))).skip(1);
        let later =
            later.take(LEGS_LOOKED_AT).filter_map(of_rid).take_while(|(key, _)| self.is_second(key.1));
        around.extend(later);
        around
    }

    fn matches(&self, request: &Request<Indexed<'_>>, search: &Search) -> bool {
        let any = |is_it: &dyn Fn(&legs::Leg<Indexed<'_>>) -> bool| request.0.iter().any(is_it);
        search.state.is_none_or(|state| request.state() == state)
            && search.stream.as_ref().is_none_or(|stream| any(&|leg| leg.stream == *stream))
            && search.finish.as_ref().is_none_or(|finish| any(&|leg| leg.of.info.finish == *finish))
            && search.plugin.as_ref().is_none_or(|plugin| any(&|leg| leg.of.plugins().any(|it| it == plugin)))
    }

    fn json(&self, request: &Request<Indexed<'_>>) -> Value {
        let mut whole = json::whole(request);
        let plugins: BTreeSet<&str> = request.0.iter().flat_map(|leg| leg.of.plugins()).collect();
        whole["plugins"] = plugins.into_iter().collect();
        whole
    }
}

impl std::fmt::Display for Cursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Cursor { first_unix_ns, request, stream } = self;
        write!(f, "{first_unix_ns}.{request}.{stream}")
    }
}

impl FromStr for Cursor {
    type Err = ();

    fn from_str(text: &str) -> Result<Cursor, ()> {
        let mut parts = text.splitn(3, '.');
        let mut number = || parts.next()?.parse().ok();
        let (first_unix_ns, request) = number().zip(number()).ok_or(())?;
        let stream = parts.next().ok_or(())?.to_owned();
        Ok(Cursor { first_unix_ns, request, stream })
    }
}

#[cfg(test)]
mod tests;
