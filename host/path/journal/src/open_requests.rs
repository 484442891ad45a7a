//! Requests of a writer. Counts are updated as outcomes arrive, in slots, so that a row costs a few
//! nanoseconds.

use std::collections::VecDeque;

use crate::format::cut;
use crate::outcome::{Outcome, row_effects};
use crate::position::{FrameNo, RequestNo};
use crate::record::RequestEntry;
use crate::request::{JournalRequest, OperatorAbort, RequestInfo, RequestState};

/// Counts that every row of a request updates: one cache line.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct RowCounts {
    /// 0 if the slot is free.
    number: u64,
    rows: u64,
    received: u64,
    forwarded: u64,
    last_frame: u64,
    last_unix_ns: u64,
    /// Set if the request was idle for too long. A row resets it.
    abandoned: bool,
}

/// Details that few rows update.
#[derive(Debug)]
struct RequestDetails {
    /// Totals without the counts.
    entry: RequestEntry,
    /// First frame that retention must keep while the request lives.
    needs_from: FrameNo,
    /// Rows before the current segment.
    rows_before: u64,
    /// Whether the request's record is in the current segment.
    is_record_here: bool,
}

/// Requests that are open, and requests that ended in the current segment.
#[derive(Debug, Default)]
pub(crate) struct OpenRequests {
    counts: Vec<RowCounts>,
    details: Vec<RequestDetails>,
    free: Vec<u32>,
    /// Open requests by `needs_from`, oldest first. Closed requests are removed when they reach the front.
    order: VecDeque<JournalRequest>,
    ended: Vec<RequestEntry>,
    /// Bytes of the rids of open requests.
    rid_bytes: usize,
}

impl OpenRequests {
    pub fn live(&self) -> usize {
        self.counts.len() - self.free.len()
    }

    /// The memory of the open requests in bytes, but for texts that few have.
    pub fn memory(&self) -> usize {
        let slots = self.counts.capacity() * size_of::<RowCounts>();
        let details = self.details.capacity() * size_of::<RequestDetails>();
        slots + details + self.order.capacity() * size_of::<JournalRequest>() + self.rid_bytes
    }

    pub fn ended(&self) -> usize {
        self.ended.len()
    }

    /// Opens a request. `needs_from` is the first frame that may hold a row of it.
    pub fn open(&mut self, number: RequestNo, rid: &str, needs_from: FrameNo) -> JournalRequest {
        self.insert(RequestInfo::new(number, rid.into()), needs_from)
    }

    /// Reopens a request of an earlier run. Call in order of first frames, before `open`.
    pub fn resume(&mut self, info: RequestInfo, unfinished: Option<FrameNo>) -> JournalRequest {
        // Not later than what `open` gets, so that the order holds.
        let needs_from = unfinished.map_or(info.begins(), |first| first.min(info.begins()));
        self.insert(info, needs_from)
    }

    fn insert(&mut self, info: RequestInfo, needs_from: FrameNo) -> JournalRequest {
        let counts = RowCounts {
            number: info.number.0,
            rows: info.rows,
            received: info.received,
            forwarded: info.forwarded,
            last_frame: info.last_frame.0,
            last_unix_ns: info.last_unix_ns,
            abandoned: false,
        };
        let request_number = info.number;
        self.rid_bytes += info.rid.len();
        let rows_before = info.rows;
        let entry = RequestEntry { info, closed: false, here: false };
        let details = RequestDetails { entry, needs_from, rows_before, is_record_here: false };
        let slot = match self.free.pop() {
            Some(slot) => {
                self.counts[slot as usize] = counts;
                self.details[slot as usize] = details;
                slot
            }
            None => {
                self.counts.push(counts);
                self.details.push(details);
                (self.counts.len() - 1) as u32
            }
        };
        let request = JournalRequest { number: request_number, slot };
        self.push_order(request);
        request
    }

    fn push_order(&mut self, request: JournalRequest) {
        if self.order.len() > 2 * self.live() + 1024 {
            self.order.retain(|each| self.counts[each.slot as usize].number == each.number.0);
        }
        self.order.push_back(request);
    }

    /// Counts the rows of an outcome. Skips rows of closed requests.
    pub fn count(&mut self, outcome: &Outcome<'_, JournalRequest>) {
        let (frame, received_unix_ns) = (outcome.frame.0, outcome.received_unix_ns);
        if outcome.is_record() {
            outcome
                .requests
                .iter()
                .for_each(|request| self.note_record(*request, outcome.frame, received_unix_ns));
            return;
        }
        for (request, &tokens) in outcome.requests.iter().zip(outcome.tokens.iter()) {
            let Some(counts) = self.counts.get_mut(request.slot as usize) else { continue };
            if counts.number != request.number.0 {
                continue;
            }
            let first = counts.rows == 0;
            counts.rows += 1;
            counts.received += u64::from(tokens);
            counts.forwarded += u64::from(tokens);
            counts.last_frame = counts.last_frame.max(frame);
            counts.last_unix_ns = counts.last_unix_ns.max(received_unix_ns);
            if first || counts.abandoned {
                self.first_row(*request, first, outcome.frame, received_unix_ns);
            }
        }
        for effect in row_effects(&outcome.actions) {
            let Some(&tokens) = outcome.tokens.get(effect.row as usize) else { continue };
            let tokens = u64::from(tokens);
            let Some((counts, info)) = self.open_row(outcome, effect.row) else { continue };
            counts.forwarded = effect.forwarded(counts.forwarded, tokens);
            effect.count(tokens, info);
        }
        for gap in outcome.gaps.iter() {
            let Some((_, info)) = self.open_row(outcome, gap.row) else { continue };
            info.gaps += 1;
        }
        for finished in outcome.finished.iter() {
            let Some((_, info)) = self.open_row(outcome, finished.row) else { continue };
            info.state = RequestState::Finished;
            info.finish = cut(&finished.reason).to_owned();
            info.completion_tokens = finished.completion_tokens;
        }
    }

    /// Notes the record of a request.
    fn note_record(&mut self, request: JournalRequest, frame: FrameNo, received_unix_ns: u64) {
        let Some((counts, info)) = self.get_mut(request) else { return };
        counts.last_frame = counts.last_frame.max(frame.0);
        counts.last_unix_ns = counts.last_unix_ns.max(received_unix_ns);
        info.rows = counts.rows;
        info.note_record(frame, received_unix_ns);
        self.details[request.slot as usize].is_record_here = true;
    }

    /// Handles the first row of a request, and the first row after it was abandoned.
    #[cold]
    fn first_row(&mut self, request: JournalRequest, first: bool, frame: FrameNo, received_unix_ns: u64) {
        let details = &mut self.details[request.slot as usize];
        if first {
            let info = &mut details.entry.info;
            (info.first_frame, info.first_unix_ns) = (frame, received_unix_ns);
        }
        if std::mem::take(&mut self.counts[request.slot as usize].abandoned) {
            (details.entry.info.state, details.needs_from) = (RequestState::Live, frame);
            self.push_order(request);
        }
    }

    fn open_row(
        &mut self,
        outcome: &Outcome<'_, JournalRequest>,
        row: u32,
    ) -> Option<(&mut RowCounts, &mut RequestInfo)> {
        self.get_mut(*outcome.requests.get(row as usize)?)
    }

    /// Returns `None` if the request was closed.
    fn get_mut(&mut self, request: JournalRequest) -> Option<(&mut RowCounts, &mut RequestInfo)> {
        let counts = self.counts.get_mut(request.slot as usize)?;
        (counts.number == request.number.0)
            .then(|| (counts, &mut self.details[request.slot as usize].entry.info))
    }

    /// Sets the progress of an operator's abort. Returns false if the request was closed.
    pub fn set_operator_abort(&mut self, request: JournalRequest, ending: OperatorAbort) -> bool {
        self.get_mut(request).map(|(_, info)| info.ending = ending).is_some()
    }

    /// Sets the attributes of a request. Returns its totals if the attributes are new and the request open.
    pub fn set_attributes(
        &mut self,
        request: JournalRequest,
        attributes: Vec<(String, String)>,
    ) -> Option<&RequestInfo> {
        let (_, info) = self.get_mut(request)?;
        let is_new = info.attributes != attributes;
        info.attributes = attributes;
        is_new.then_some(info)
    }

    /// Closes a request and returns its final state, or `None` if it was closed before. `finish` is the finish
    /// reason if no row brought one, else empty. With `remember`, the summary lists the request.
    pub fn close(&mut self, request: JournalRequest, finish: &str, remember: bool) -> Option<RequestState> {
        let slot = request.slot as usize;
        if self.counts.get(slot)?.number != request.number.0 {
            return None;
        }
        let (counts, details) = (&self.counts[slot], &mut self.details[slot]);
        OpenRequests::settle(counts, details);
        let none = RequestEntry { info: RequestInfo::default(), closed: false, here: false };
        let mut entry = std::mem::replace(&mut details.entry, none);
        entry.closed = true;
        self.rid_bytes -= entry.info.rid.len();
        let info = &mut entry.info;
        if info.finish.is_empty() && !finish.is_empty() {
            (info.state, info.finish) = (RequestState::Finished, cut(finish).to_owned());
        } else if info.state == RequestState::Live {
            info.state = RequestState::Abandoned;
        }
        let state = info.state;
        if remember {
            self.ended.push(entry);
        }
        self.counts[slot] = RowCounts::default();
        self.free.push(request.slot);
        Some(state)
    }

    /// Abandons requests without a row since `idle_before`, and requests numbered below `oldest`.
    pub fn abandon(&mut self, idle_before: u64, oldest: u64) {
        for (counts, details) in self.counts.iter_mut().zip(&mut self.details) {
            let idle = counts.last_unix_ns > 0 && counts.last_unix_ns < idle_before || counts.number < oldest;
            if counts.number != 0 && idle && details.entry.info.state == RequestState::Live {
                (counts.abandoned, details.entry.info.state) = (true, RequestState::Abandoned);
            }
        }
    }

    /// First frame that an open request needs.
    pub fn first_frame_needed(&mut self) -> Option<FrameNo> {
        while let Some(first) = self.order.front() {
            let slot = first.slot as usize;
            if self.counts[slot].number == first.number.0 && !self.counts[slot].abandoned {
                return Some(self.details[slot].needs_from);
            }
            self.order.pop_front();
        }
        None
    }

    /// Copies the counts of a slot into its totals.
    fn settle(counts: &RowCounts, details: &mut RequestDetails) {
        let is_record_here = details.is_record_here;
        let RequestEntry { info, here, .. } = &mut details.entry;
        (info.rows, info.received, info.forwarded) = (counts.rows, counts.received, counts.forwarded);
        (info.last_frame, info.last_unix_ns) = (FrameNo(counts.last_frame), counts.last_unix_ns);
        *here = is_record_here || counts.rows > details.rows_before;
    }

    /// Requests that a new segment lists: open requests, and closed requests that no earlier summary lists.
    pub fn carried(&mut self) -> impl Iterator<Item = &RequestEntry> {
        self.counts.iter().zip(&mut self.details).for_each(|(counts, of)| OpenRequests::settle(counts, of));
        let slots = self.counts.iter().zip(&self.details).filter(|(counts, _)| counts.number != 0);
        slots.map(|(_, details)| &details.entry).chain(&self.ended)
    }

    /// Entries of the summary of the segment that ends here.
    pub fn summarize(&mut self) -> Vec<RequestEntry> {
        let entries = self.carried().cloned().collect();
        self.ended.clear();
        for (counts, details) in self.counts.iter().zip(&mut self.details) {
            (details.rows_before, details.is_record_here) = (counts.rows, false);
        }
        entries
    }
}
