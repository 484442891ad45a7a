//! The one reading of a stream for all its clients: the requests that its newest segment knows, the places of their rows, and what leaves
//! of the watched ones.
//!
//! The follower's thread reads on, and so does whoever needs the journal as it is now. Everything that was read is in the index or in an
//! earlier segment, and everything after it comes to the watches: both change under one lock.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use afterbay_journal::reader::{
    RequestFilter, RequestInfo, RequestRecord, RequestState, SegmentRequests, StreamReader,
};
use afterbay_journal::{FrameNo, Outcome, Position, ReadError, RequestNo, SegmentId};
use afterbay_journal_view::sent_rows::SentReader;
use afterbay_wire::Layouts;

use super::index::SegmentIndex;
use super::pages::{Extent, Places, Waiting};
use super::reading::ReadingError;
use super::watch::{Watch, Watches};
use crate::consumer::{OpenSegment, Progress, RECORDS_AT_ONCE, read_on};

/// Memory of the index of a stream's newest segment, and as much for earlier ones together: of these the longest unused are forgotten
/// first, and made again when they are needed. If one segment alone needs more, each page of its rows scans it.
pub(super) const INDEX_BYTES_MAX: usize = 32 << 20;

/// A stream that clients read.
pub struct ReadStream {
    reader: StreamReader,
    watches: Arc<Watches>,
    index_bytes_max: usize,
    newest: Mutex<Newest>,
    /// Indexes of earlier segments, the longest unused first.
    earlier: Mutex<VecDeque<Arc<SegmentIndex>>>,
    /// Held while the index of an earlier segment is made: others may wait for the same one.
    scanning: Mutex<()>,
    /// Readers who wait for a page, at most one for each connection.
    waiting: Mutex<VecDeque<Waiting>>,
}

/// No request has this number.
const NOBODY: u64 = 0;

/// The newest segment, as far as it was read.
#[derive(Default)]
struct Newest {
    segment: Option<SegmentRequests>,
    index: SegmentIndex,
    /// Whether the index would take too much memory.
    is_over: bool,
    /// The last frame whose outcome was read.
    last: FrameNo,
    /// Whether everything was read that the journal had at some time.
    is_whole: bool,
}

impl ReadStream {
    pub(super) fn new(reader: StreamReader, watches: Arc<Watches>, index_bytes_max: usize) -> ReadStream {
        let (newest, earlier, scanning) = (Mutex::default(), Mutex::default(), Mutex::default());
        let waiting = Mutex::default();
        ReadStream { reader, watches, index_bytes_max, newest, earlier, scanning, waiting }
    }

    pub(super) fn reader(&self) -> &StreamReader {
        &self.reader
    }

    /// Reads some records, and gives what left to those who read it. Returns whether there is more.
    pub(super) fn advance(&self) -> Result<bool, ReadError> {
        let mut newest = self.lock();
        let advanced = self.read(&mut newest);
        if advanced.is_err() {
            // Something may have been read and not given.
            *newest = Newest::default();
        }
        advanced
    }

    /// Reads everything that the journal has now.
    pub(super) fn advance_to_end(&self) -> Result<(), ReadError> {
        while self.advance()? {}
        Ok(())
    }

    fn read(&self, newest: &mut Newest) -> Result<bool, ReadError> {
        let Newest { segment, index, is_over, last, is_whole } = newest;
        let mut watched = None;
        let (mut outcomes, mut closed) = (Vec::new(), Vec::new());
        let open = (StreamReader::segment_changes as OpenSegment, false);
        let progress = read_on(&self.reader, segment, open, &mut |record| {
            let watched: &HashMap<u64, Arc<Watch>> =
                watched.get_or_insert_with(|| self.watches.of_stream(self.reader.name()));
            match &record {
                RequestRecord::Outcome(outcome, _) => {
                    *last = outcome.frame.max(*last);
                    if outcome.requests.iter().any(|request| watched.contains_key(&request.0)) {
                        outcomes.push(((*outcome).clone(), index.received(outcome.frame)));
                    }
                }
                RequestRecord::Closed(info, _) => closed.extend(watched.get(&info.number.0).cloned()),
                _ => {}
            }
            index.apply(&record, is_over.then_some(NOBODY));
        })?;
        if !*is_over && index.bytes() > self.index_bytes_max {
            *is_over = true;
            index.forget_rows();
        }
        self.give(&watched.unwrap_or_default(), &outcomes)?;
        closed.iter().for_each(|watch| watch.end());
        match progress {
            Progress::Begun { is_first } => {
                *is_whole = false;
                let begun = segment.as_ref().map(SegmentRequests::id).unwrap_or_default();
                let ended = std::mem::replace(index, SegmentIndex::new(begun));
                if !is_first && !std::mem::take(is_over) {
                    self.remember(ended);
                }
                if is_first {
                    *last = FrameNo(begun.first.0.saturating_sub(1));
                    // Whoever reads a request already reads the journal up to here.
                    self.watches.miss(self.reader.name(), *last);
                }
                Ok(true)
            }
            Progress::More => Ok(true),
            Progress::End => {
                let was_whole = std::mem::replace(is_whole, true);
                if let Some(segment) = segment.as_ref().filter(|_| !was_whole) {
                    // Others have ended before it, maybe unseen.
                    let watched = self.watches.of_stream(self.reader.name());
                    let ended =
                        watched.iter().filter(|(number, _)| segment.request(RequestNo(**number)).is_none());
                    ended.for_each(|(_, watch)| watch.end());
                }
                Ok(false)
            }
        }
    }

    /// Gives the rows of these outcomes to those who read their requests.
    fn give(
        &self,
        watched: &HashMap<u64, Arc<Watch>>,
        outcomes: &[(Outcome<'static>, Option<Position>)],
    ) -> Result<(), ReadError> {
        if outcomes.is_empty() {
            return Ok(());
        }
        let mut reader = SentReader::new(&self.reader, Layouts::of_text(&self.reader.layout()?));
        for (outcome, received) in outcomes {
            let found = match received {
                Some(_) => None,
                None => self.reader.position(outcome.frame)?,
            };
            let rid_of = |number: u64| watched.get(&number).map(|watch| &*watch.rid);
            for (row, sent) in reader.outcome(outcome, received.as_ref().or(found.as_ref()), rid_of)? {
                let number = outcome.requests.get(row).map(|request| request.0);
                if let Some(watch) = number.and_then(|number| watched.get(&number)) {
                    watch.push(sent);
                }
            }
        }
        Ok(())
    }

    /// The newest segment, read to its end.
    fn whole(&self) -> Result<MutexGuard<'_, Newest>, ReadError> {
        loop {
            let newest = self.lock();
            if newest.is_whole {
                return Ok(newest);
            }
            drop(newest);
            self.advance_to_end()?;
        }
    }

    /// The requests with such a rid that are in the newest segment: all that are open, and those that ended in it.
    pub(super) fn newest(&self, takes: &dyn Fn(&str) -> bool) -> Result<Vec<RequestInfo>, ReadError> {
        let newest = self.whole()?;
        let known = newest.segment.iter().flat_map(SegmentRequests::requests);
        Ok(known.filter(|info| takes(&info.rid)).cloned().collect())
    }

    /// The requests that ended in earlier segments.
    pub(super) fn ended_before(&self, filter: RequestFilter) -> Result<Vec<RequestInfo>, ReadError> {
        let ended_before = self.lock().segment.as_ref().map(SegmentRequests::id);
        self.reader.requests(RequestFilter { ended_before, ..filter })?.collect()
    }

    /// Lets a reader wait for a page: somebody must call [`ReadStream::answer_some`] once for each.
    pub(super) fn wait(&self, waiting: Waiting) {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push_back(waiting);
    }

    /// Takes the reader who has waited longest, and whose client is still there.
    pub(super) fn next_waiting(&self) -> Option<Waiting> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let next = waiting.pop_front()?;
            if !next.answer.is_closed() {
                return Some(next);
            }
        }
    }

    /// Finds the rows of a page.
    pub(super) fn extent(&self, waiting: &Waiting) -> Result<Extent, ReadingError> {
        let mut places = Places::new(waiting);
        let mut request = waiting.request.clone();
        let number = request.number.0;
        let mut next = None;
        loop {
            let newest = self.whole()?;
            // `None`: retention has removed everything.
            let segment = newest.segment.as_ref().ok_or(ReadingError::Unknown)?;
            let listed = self.reader.segments()?;
            let known = segment.request(request.number);
            let is_here = known.is_some();
            request = known.cloned().unwrap_or(request);
            let has_ended = !is_here || request.state != RequestState::Live || request.ended_early;
            let (id, through) = (segment.id(), newest.last);
            let from = *next.get_or_insert_with(|| {
                if !request.is_seen() {
                    return id;
                }
                let first = FrameNo(waiting.behind.0 + 1).max(request.first_frame);
                let before = listed.partition_point(|id| id.first <= first).saturating_sub(1);
                listed.get(before).copied().unwrap_or(id)
            });
            if from >= id && !newest.is_over {
                let is_full = places.add(&newest.index);
                return Ok(Extent { places, is_full, through, has_ended });
            }
            drop(newest);
            // The last frame of a request that has ended meanwhile is not known. An outcome may be in a later segment than its frame.
            let is_known = is_here || request.state != RequestState::Live;
            let last = if is_known { request.last_frame } else { FrameNo(u64::MAX) };
            let behind_last = listed.partition_point(|id| id.first <= last) + 1;
            for segment in listed.iter().take(behind_last).filter(|it| (from..id).contains(it)) {
                let Some(index) = self.earlier(*segment, number)? else { continue };
                if places.add(&index) {
                    return Ok(Extent { places, is_full: true, through, has_ended });
                }
            }
            if from >= id {
                let scanned = self.scan(id, Some(number))?;
                let is_full = scanned.is_some_and(|index| places.add(&index));
                return Ok(Extent { places, is_full, through, has_ended });
            }
            next = Some(id);
        }
    }

    /// The index of an earlier segment, at least of one request. `None`: retention has removed the segment.
    fn earlier(&self, segment: SegmentId, request: u64) -> Result<Option<Arc<SegmentIndex>>, ReadError> {
        if let Some(known) = self.known(segment) {
            return Ok(Some(known));
        }
        let _scanning = self.scanning.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = self.known(segment) {
            return Ok(Some(known));
        }
        let Some(index) = self.scan(segment, None)? else { return Ok(None) };
        if index.bytes() > self.index_bytes_max {
            return Ok(self.scan(segment, Some(request))?.map(Arc::new));
        }
        Ok(Some(self.remember(index)))
    }

    fn known(&self, segment: SegmentId) -> Option<Arc<SegmentIndex>> {
        let mut earlier = self.earlier.lock().unwrap_or_else(PoisonError::into_inner);
        let at = earlier.iter().position(|index| index.segment == segment)?;
        let index = earlier.remove(at)?;
        earlier.push_back(index.clone());
        Some(index)
    }

    fn remember(&self, mut index: SegmentIndex) -> Arc<SegmentIndex> {
        index.end();
        let index = Arc::new(index);
        let mut earlier = self.earlier.lock().unwrap_or_else(PoisonError::into_inner);
        earlier.push_back(index.clone());
        while earlier.iter().map(|index| index.bytes()).sum::<usize>() > self.index_bytes_max {
            earlier.pop_front();
        }
        index
    }

    /// Makes the index of a segment, of one request or of all, until it takes too much memory.
    fn scan(&self, segment: SegmentId, only: Option<u64>) -> Result<Option<SegmentIndex>, ReadError> {
        let Some(mut records) = self.reader.segment_requests(segment)? else { return Ok(None) };
        let mut index = SegmentIndex::new(segment);
        while records.read_records(RECORDS_AT_ONCE, &mut |record| index.apply(&record, only))?
            && (only.is_some() || index.bytes() <= self.index_bytes_max)
        {}
        Ok(Some(index))
    }

    /// Forgets what was read, as a failure does.
    #[cfg(test)]
    pub(super) fn forget(&self) {
        *self.lock() = Newest::default();
    }

    fn lock(&self) -> MutexGuard<'_, Newest> {
        // Whatever a panic left is read again.
        self.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
