//! An index of the newest requests of a journal, for pages and searches while the journal is written.
//!
//! [`Follower`] reads the journal, newest segment first, and [`RequestIndex`] has the requests. Bounds: [`REQUESTS_MAX`]
//! requests and [`TEXT_BYTES_MAX`] bytes of their texts; the oldest requests leave. A request takes about 500 bytes with its rid and its attributes.

mod follower;

pub use follower::Follower;

use crate::json;
use crate::legs::{self, Known, Request, Totals};
use afterbay_journal::RequestNo;
use afterbay_journal::reader::{Erasure, RequestChange, RequestInfo, RequestState};
use serde_json::Value;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;

/// Most requests.
pub const REQUESTS_MAX: usize = 100_000;
/// Most bytes of rids, attributes, finish reasons and names of plugins.
pub const TEXT_BYTES_MAX: usize = 64 << 20;
/// Most requests of a page.
pub const PAGE_MAX: usize = 1000;

/// The place of a request in the order of the index: the time of its record or its first row, the number of its stream, its own number.
type Key = (u64, u16, u64);

/// The newest requests.
pub struct RequestIndex {
    requests_max: usize,
    text_bytes_max: usize,
    streams: Vec<IndexedStream>,
    requests: BTreeMap<Key, Indexed>,
    text_bytes: usize,
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

#[derive(Default)]
struct Indexed {
    key: Key,
    info: RequestInfo,
    /// The plugins that acted on rows of the request.
    plugins: Vec<String>,
}

impl Indexed {
    fn text_bytes(&self) -> usize {
        let plugins: usize = self.plugins.iter().map(String::len).sum();
        let attributes = self.info.attributes.iter().map(|(name, value)| name.len() + value.len());
        self.info.rid.len() + self.info.finish.len() + plugins + attributes.sum::<usize>()
    }
}

impl Totals for &Indexed {
    fn info(&self) -> &RequestInfo {
        &self.info
    }
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
    /// A leg has the attribute of each of these names, with the value.
    pub attributes: Vec<(String, String)>,
    /// The request has a row at or after this time, Unix nanoseconds.
    pub since_unix_ns: Option<u64>,
    /// The first row of the request is before this time, Unix nanoseconds.
    pub until_unix_ns: Option<u64>,
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
        RequestIndex::with_bounds(REQUESTS_MAX, TEXT_BYTES_MAX)
    }
}

impl RequestIndex {
    fn with_bounds(requests_max: usize, text_bytes_max: usize) -> RequestIndex {
        let (streams, requests) = (Vec::new(), BTreeMap::new());
        let (text_bytes, known, is_complete) = (0, 0, false);
        RequestIndex { requests_max, text_bytes_max, streams, requests, text_bytes, known, is_complete }
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
        let key = (change.request.begins_unix_ns(), stream, change.request.number.0);
        let is_new = !self.requests.contains_key(&key);
        let indexed = self.requests.entry(key).or_default();
        self.text_bytes -= indexed.text_bytes();
        let erased = change.request.erased.or(indexed.info.erased);
        if is_new || !is_older {
            indexed.key = key;
            indexed.info = change.request.clone();
        }
        indexed.info.erased = erased;
        for plugin in &change.plugins {
            if !indexed.plugins.contains(plugin) {
                indexed.plugins.push(plugin.clone());
            }
        }
        self.text_bytes += indexed.text_bytes();
        self.known += u64::from(is_new);
        let mut is_kept = true;
        while self.requests.len() > self.requests_max || self.text_bytes > self.text_bytes_max {
            let Some((oldest, indexed)) = self.requests.pop_first() else { break };
            self.text_bytes -= indexed.text_bytes();
            is_kept &= oldest != key;
        }
        is_kept
    }

    /// Marks requests of a stream as erased. The index holds no text of them.
    pub fn erase(&mut self, stream: &str, requests: &[RequestNo], erasure: Erasure) {
        for ((_, at, number), indexed) in &mut self.requests {
            let is_of = |known: &IndexedStream| known.name == stream;
            if self.streams.get(usize::from(*at)).is_some_and(is_of) && requests.contains(&RequestNo(*number))
            {
                indexed.info.erased = Some(erasure);
            }
        }
    }

    /// A page of a search.
    pub fn page(&self, search: &Search) -> Page {
        let of_stream = |stream: &IndexedStream| (stream.name.clone(), stream.after.clone(), Vec::new());
        let mut known: Known<&Indexed> = self.streams.iter().map(of_stream).collect();
        let prefix = search.rid_prefix.as_deref().unwrap_or_default();
        for ((_, at, _), indexed) in &self.requests {
            if indexed.info.rid.starts_with(prefix)
                && let Some((.., of_stream)) = known.get_mut(usize::from(*at))
            {
                of_stream.push(indexed);
            }
        }
        let before = search.after.as_ref().map_or((u64::MAX, u16::MAX, u64::MAX), |cursor| {
            let stream = self.streams.iter().position(|stream| stream.name == cursor.stream);
            let stream = stream.and_then(|at| u16::try_from(at).ok()).unwrap_or(0);
            (cursor.first_unix_ns, stream, cursor.request)
        });
        let mut requests = legs::join(known);
        requests.retain(|request| request.first().of.key < before && matches(request, search));
        requests.sort_unstable_by_key(|request| Reverse(request.first().of.key));
        let limit = search.limit.min(PAGE_MAX);
        let is_last = requests.len() <= limit;
        requests.truncate(limit);
        let last = requests.last().map(Request::first).filter(|_| !is_last);
        let next = last.map(|last| {
            let (first_unix_ns, _, request) = last.of.key;
            Cursor { first_unix_ns, request, stream: last.stream.clone() }
        });
        let requests = requests.iter().map(json).collect();
        let (known, kept, is_complete) = (self.known, self.requests.len(), self.is_complete);
        Page { requests, next, known, kept, is_complete }
    }
}

fn matches(request: &Request<&Indexed>, search: &Search) -> bool {
    let any = |is_it: &dyn Fn(&legs::Leg<&Indexed>) -> bool| request.0.iter().any(is_it);
    search.state.is_none_or(|state| request.state() == state)
        && search.since_unix_ns.is_none_or(|since| request.last_unix_ns() >= since)
        && search.until_unix_ns.is_none_or(|until| request.first().of.info.first_unix_ns < until)
        && search.stream.as_ref().is_none_or(|stream| any(&|leg| leg.stream == *stream))
        && search.finish.as_ref().is_none_or(|finish| any(&|leg| leg.of.info.finish == *finish))
        && search.plugin.as_ref().is_none_or(|plugin| any(&|leg| leg.of.plugins.contains(plugin)))
        && search.attributes.iter().all(|attribute| any(&|leg| leg.of.info.attributes.contains(attribute)))
}

fn json(request: &Request<&Indexed>) -> Value {
    let mut whole = json::whole(request);
    let plugins: BTreeSet<&str> = request.0.iter().flat_map(|leg| &leg.of.plugins).map(|it| &**it).collect();
    whole["plugins"] = plugins.into_iter().collect();
    whole
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
