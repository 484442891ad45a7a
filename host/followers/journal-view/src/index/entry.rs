//! One request of the index, in few bytes.

use super::Key;
use crate::legs::Totals;
use afterbay_journal::FrameNo;
use afterbay_journal::RequestNo;
use afterbay_journal::reader::{Erasure, OperatorAbort, RequestInfo, RequestState};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// Most different names of plugins and finish reasons. Further ones are [`OTHER`].
const NAMES_MAX: u16 = 10_000;
/// The name of plugins and finish reasons past [`NAMES_MAX`].
const OTHER: &str = "(other)";

/// The names of plugins and finish reasons, each stored once.
#[derive(Default)]
pub(super) struct Names {
    numbers: HashMap<Arc<str>, u16>,
    names: Vec<Arc<str>>,
}

impl Names {
    fn number(&mut self, name: &str) -> u16 {
        let name = if self.names.len() >= usize::from(NAMES_MAX) && !self.numbers.contains_key(name) {
            OTHER
        } else {
            name
        };
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        // At most NAMES_MAX + 1.
        let number = self.names.len() as u16;
        let name: Arc<str> = name.into();
        self.names.push(name.clone());
        self.numbers.insert(name, number);
        number
    }

    fn name(&self, number: u16) -> &str {
        self.names.get(usize::from(number)).map_or("", |name| name)
    }
}

/// A request without what its key says.
pub(super) struct Entry {
    pub(super) rid: Box<str>,
    finish: u16,
    state: RequestState,
    ended_early: bool,
    gaps: u32,
    rows: u64,
    received: u64,
    forwarded: u64,
    dropped: u64,
    replaced: u64,
    first_frame: u64,
    last_frame: u64,
    last_unix_ns: u64,
    completion_tokens: Option<u64>,
    erased: Option<Erasure>,
    plugins: Box<[u16]>,
}

impl Entry {
    pub(super) fn new(info: &RequestInfo, plugins: &BTreeSet<String>, names: &mut Names) -> Entry {
        Entry {
            rid: info.rid.as_str().into(),
            finish: names.number(&info.finish),
            state: info.state,
            ended_early: info.ended_early,
            gaps: info.gaps,
            rows: info.rows,
            received: info.received,
            forwarded: info.forwarded,
            dropped: info.dropped,
            replaced: info.replaced,
            first_frame: info.first_frame.0,
            last_frame: info.last_frame.0,
            last_unix_ns: info.last_unix_ns,
            completion_tokens: info.completion_tokens,
            erased: info.erased,
            plugins: plugins.iter().map(|plugin| names.number(plugin)).collect(),
        }
    }

    /// Marks the request as erased.
    pub(super) fn erase(&mut self, erasure: Erasure) {
        self.erased = Some(erasure);
    }

    /// Adds plugins, and takes the totals over unless they are `older`.
    pub(super) fn update(
        &mut self,
        info: &RequestInfo,
        plugins: &BTreeSet<String>,
        is_older: bool,
        names: &mut Names,
    ) {
        let mut acted = self.plugins.to_vec();
        acted.extend(plugins.iter().map(|plugin| names.number(plugin)));
        acted.sort_unstable();
        acted.dedup();
        let rid = std::mem::take(&mut self.rid);
        let erased = info.erased.or(self.erased);
        if !is_older {
            *self = Entry::new(info, &BTreeSet::new(), names);
        }
        self.erased = erased;
        (self.rid, self.plugins) = (rid, acted.into());
    }
}

/// An entry with its key, as totals.
pub(super) struct Indexed<'a> {
    pub(super) key: Key,
    pub(super) info: RequestInfo,
    entry: &'a Entry,
    names: &'a Names,
}

impl<'a> Indexed<'a> {
    pub(super) fn new(key: Key, entry: &'a Entry, names: &'a Names) -> Indexed<'a> {
        let info = RequestInfo {
            number: RequestNo(key.2),
            rid: entry.rid.to_string(),
            state: entry.state,
            rows: entry.rows,
            received: entry.received,
            forwarded: entry.forwarded,
            dropped: entry.dropped,
            replaced: entry.replaced,
            gaps: entry.gaps,
            ended_early: entry.ended_early,
            ending: OperatorAbort::No,
            first_frame: FrameNo(entry.first_frame),
            last_frame: FrameNo(entry.last_frame),
            first_unix_ns: key.0,
            last_unix_ns: entry.last_unix_ns,
            finish: names.name(entry.finish).to_owned(),
            completion_tokens: entry.completion_tokens,
            attributes: Vec::new(),
            erased: entry.erased,
        };
        Indexed { key, info, entry, names }
    }

    /// The names of the plugins that acted on rows of the request.
    pub(super) fn plugins(&self) -> impl Iterator<Item = &'a str> {
        let (entry, names) = (self.entry, self.names);
        entry.plugins.iter().map(|plugin| names.name(*plugin))
    }
}

impl Totals for Indexed<'_> {
    fn info(&self) -> &RequestInfo {
        &self.info
    }
}
