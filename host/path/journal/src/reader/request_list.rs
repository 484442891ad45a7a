//! Lists requests from summaries. Scans a segment without a summary, skipping the bytes of frames.

use std::collections::{BTreeSet, HashSet};

use super::{RequestFilter, RequestInfo, SegmentFiles, SegmentFold, StreamReader};
use crate::error::ReadError;
use crate::record::RequestEntry;
use crate::rid::stored_rid;

/// Requests in order of the segment they ended in, then by number; open requests come last. Reads each
/// segment when it is reached.
pub struct RequestList {
    fold: SegmentFold,
    filter: RequestFilter,
    ready: std::vec::IntoIter<RequestInfo>,
    /// Requests that ended in the last segment. Without a summary there, the next segment may list them
    /// again.
    before: HashSet<u64>,
    failed: bool,
}

impl RequestList {
    pub(super) fn new(segments: SegmentFiles, filter: RequestFilter) -> Result<RequestList, ReadError> {
        let mut fold = SegmentFold::new(segments)?;
        if let Some(since) = filter.since_unix_ns.max(filter.ended_since_unix_ns) {
            fold.only_since(since)?;
        }
        if let Some(rids) = &filter.rids {
            fold.only_rids(rids.clone());
        }
        if let Some(before) = filter.ended_before {
            fold.only_before(before);
        }
        Ok(RequestList { fold, filter, ready: Vec::new().into_iter(), before: HashSet::new(), failed: false })
    }

    /// Collects the requests that ended in the segment just read, and after the last segment the open ones.
    fn list(&mut self) {
        let last = !self.fold.has_next() && self.filter.ended_before.is_none();
        let listed =
            |entry: &&RequestEntry| (entry.closed || last) && !self.before.contains(&entry.info.number.0);
        let entries = self.fold.state.requests.iter();
        let takes = |entry: &&RequestEntry| self.filter.takes(&entry.info);
        let mut matching: Vec<&RequestEntry> = entries.clone().filter(listed).filter(takes).collect();
        matching.sort_by_key(|entry| !entry.closed);
        self.ready = matching.into_iter().map(|entry| entry.info.clone()).collect::<Vec<_>>().into_iter();
        self.before = entries.filter(|entry| entry.closed).map(|entry| entry.info.number.0).collect();
    }
}

impl Iterator for RequestList {
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

pub(super) fn whole_rid(stream: &StreamReader, rid: &str) -> Result<Option<String>, ReadError> {
    let rid = &*stored_rid(rid.as_bytes());
    if has_rid(stream, rid)? {
        return Ok(Some(rid.to_owned()));
    }
    let filter = RequestFilter { rid_prefix: Some(rid.to_owned()), ..RequestFilter::default() };
    let mut found: BTreeSet<String> = BTreeSet::new();
    for request in stream.requests(filter)? {
        found.insert(request?.rid);
    }
    let (count, mut found) = (found.len(), found.into_iter());
    match (found.next(), found.next()) {
        (Some(first), Some(second)) => {
            Err(ReadError::AmbiguousRid { rid: rid.to_owned(), count, first, second })
        }
        (only, _) => Ok(only),
    }
}

/// Whether a request has this stored rid.
fn has_rid(stream: &StreamReader, rid: &str) -> Result<bool, ReadError> {
    let filter = RequestFilter { rids: Some(HashSet::from([rid.to_owned()])), ..RequestFilter::default() };
    stream.requests(filter)?.next().transpose().map(|found| found.is_some())
}

impl RequestFilter {
    /// Whether a request matches.
    pub fn takes(&self, info: &RequestInfo) -> bool {
        self.rid_prefix.as_ref().is_none_or(|prefix| info.rid.starts_with(prefix))
            && self.rids.as_ref().is_none_or(|rids| rids.contains(&info.rid))
            && self.attributes.iter().all(|attribute| info.attributes.contains(attribute))
            && self.state.is_none_or(|state| info.state == state)
            && self.finish.as_ref().is_none_or(|finish| info.finish == *finish)
            && self.since_unix_ns.is_none_or(|since| info.last_unix_ns >= since)
            && self.until_unix_ns.is_none_or(|until| info.first_unix_ns < until)
    }
}
