//! The sinks of a stream by what they take: which of them reads a request, and which one a plugin means.

use super::{Reader, Target};
use afterbay_config::Takes;

/// Places of sinks in the order of the path.
#[derive(Default)]
pub(super) struct RoutingTable {
    /// The sinks that share the requests.
    pub(super) readers: Vec<u32>,
    /// The sinks of single tokenizers, by their `http_worker_ipc`.
    pub(super) workers: Vec<(String, u32)>,
    /// The sink past the detokenizer.
    pub(super) skipped: Option<u32>,
    /// The sinks that plugins name.
    routed: Vec<(String, u32)>,
}

impl RoutingTable {
    pub(super) fn new(sinks: &[Target]) -> RoutingTable {
        let mut table = RoutingTable::default();
        for (place, sink) in (0..).zip(sinks) {
            match sink.takes {
                Takes::Share => table.readers.push(place),
                Takes::Worker => table.workers.extend(sink.worker.clone().map(|worker| (worker, place))),
                Takes::Skipped => table.skipped = Some(place),
                Takes::Routed => table.routed.push((sink.name.to_string(), place)),
            }
        }
        table
    }

    /// The reader of a request with this key.
    pub(super) fn reader(&self, key: impl FnOnce() -> u32) -> u32 {
        match self.readers[..] {
            [] => 0,
            [only] => only,
            ref readers => readers[key() as usize % readers.len()],
        }
    }

    /// The reader of a request; `None` where it depends on the request's key and the key is not known.
    pub(super) fn reader_if_known(&self, of: &Reader) -> Option<u32> {
        match (&self.readers[..], of.key) {
            (_, Some(key)) => Some(self.worker(|| Some(&of.worker)).unwrap_or_else(|| self.reader(|| key))),
            ([only], None) if self.workers.is_empty() => Some(*only),
            (_, None) => None,
        }
    }

    /// The sink of the tokenizer with this `http_worker_ipc`. Does not call `name` where no tokenizer has a sink.
    pub(super) fn worker<'n>(&self, name: impl FnOnce() -> Option<&'n str>) -> Option<u32> {
        if self.workers.is_empty() {
            return None;
        }
        let name = name()?;
        Some(self.workers.iter().find(|(known, _)| known == name)?.1)
    }

    /// The sink of kind "routed" with this name.
    pub(super) fn routed(&self, name: &str) -> Option<u32> {
        Some(self.routed.iter().find(|(known, _)| known == name)?.1)
    }
}
