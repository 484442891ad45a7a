//! Lists requests out of the summaries; a segment without one is gone through, without its frames' bytes.

use std::collections::HashSet;

use super::{Filter, RequestInfo, SegmentFiles, SegmentFold};
use crate::error::ReadError;
use crate::record::RequestEntry;

/// Requests by the segment they ended in (those of one segment by number), those still open last. A segment is read
/// when it is reached.
pub struct Requests {
    fold: SegmentFold,
    filter: Filter,
    ready: std::vec::IntoIter<RequestInfo>,
    /// SegmentEnd in the last segment: where that one had no summary, the next may list them again.
    before: HashSet<u64>,
    failed: bool,
}

impl Requests {
    pub(super) fn new(segments: SegmentFiles, filter: Filter) -> Result<Requests, ReadError> {
        let fold = SegmentFold::new(segments)?;
        Ok(Requests { fold, filter, ready: Vec::new().into_iter(), before: HashSet::new(), failed: false })
    }

    /// Those that are listed with the segment just read: what ended in it, and at the last what is open.
    fn list(&mut self) {
        let last = !self.fold.has_next();
        let listed =
            |entry: &&RequestEntry| (entry.closed || last) && !self.before.contains(&entry.info.number.0);
        let entries = self.fold.state.requests.values();
        let takes = |entry: &&RequestEntry| self.filter.takes(&entry.info);
        let mut matching: Vec<&RequestEntry> = entries.clone().filter(listed).filter(takes).collect();
        matching.sort_by_key(|entry| !entry.closed);
        self.ready = matching.into_iter().map(|entry| entry.info.clone()).collect::<Vec<_>>().into_iter();
        self.before = entries.filter(|entry| entry.closed).map(|entry| entry.info.number.0).collect();
    }
}

impl Iterator for Requests {
    type Item = Result<RequestInfo, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(info) = self.ready.next() {
                return Some(Ok(info));
            }
            if self.failed {
                return None;
            }
            match self.fold.next_segment() {
                Ok(Some(_)) => self.list(),
                Ok(None) => return None,
                Err(error) => {
                    self.failed = true;
                    return Some(Err(error));
                }
            }
        }
    }
}

impl Filter {
    /// Whether a request matches.
    pub fn takes(&self, info: &RequestInfo) -> bool {
        self.rid_prefix.as_ref().is_none_or(|prefix| info.rid.starts_with(prefix))
            && self.state.is_none_or(|state| info.state == state)
            && self.since_unix_ns.is_none_or(|since| info.last_unix_ns >= since)
            && self.until_unix_ns.is_none_or(|until| info.first_unix_ns < until)
    }
}
