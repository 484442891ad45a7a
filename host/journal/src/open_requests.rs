//! The requests of a writer: counts kept as outcomes come, in slots, so that a row costs a few nanoseconds.

use std::collections::VecDeque;

use crate::bounds::RID_BYTES_MAX;
use crate::error::RequestError;
use crate::outcome::{Outcome, row_effects};
use crate::position::{FrameNo, RequestNo};
use crate::record::{RequestEntry, RequestEntryRef};
use crate::request::{Ending, Request, RequestInfo, State};

/// What every row of a request touches: one cache line.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Counts {
    /// 0: the slot is free.
    number: u64,
    rows: u64,
    received: u64,
    forwarded: u64,
    last_frame: u64,
    last_unix_ns: u64,
    /// Idle for too long; a row brings it back.
    abandoned: bool,
}

/// The rest.
#[derive(Debug)]
struct Rest {
    /// What is not in the counts.
    info: RequestInfo,
    /// No segment that holds this frame or a later one may be removed while the request lives.
    keeps: FrameNo,
    /// Rows before the segment that is being written.
    rows_before: u64,
}

/// All requests that are open, and those that ended in the segment that is being written.
#[derive(Debug, Default)]
pub(crate) struct OpenRequests {
    counts: Vec<Counts>,
    rest: Vec<Rest>,
    free: Vec<u32>,
    /// Open requests by what they keep, oldest first; ended ones are taken out when they come to the front.
    order: VecDeque<Request>,
    ended: Vec<RequestEntry>,
}

impl OpenRequests {
    pub fn live(&self) -> usize {
        self.counts.len() - self.free.len()
    }

    pub fn ended(&self) -> usize {
        self.ended.len()
    }

    /// Opens one. `keeps`: the first frame that may hold a row of it.
    pub fn open(&mut self, number: RequestNo, rid: &str, keeps: FrameNo) -> Result<Request, RequestError> {
        if rid.len() > RID_BYTES_MAX {
            return Err(RequestError::RidTooLong { bytes: rid.len() });
        }
        Ok(self.insert(RequestInfo::new(number, rid.into()), keeps))
    }

    /// Takes up one that an earlier run left open. In order of first frames, and before any other is opened.
    pub fn resume(&mut self, info: RequestInfo, unfinished: Option<FrameNo>) -> Request {
        // Not past what `open` will say, so that those come behind.
        let keeps = unfinished.map_or(info.first_frame, |first| first.min(info.first_frame));
        self.insert(info, keeps)
    }

    fn insert(&mut self, info: RequestInfo, keeps: FrameNo) -> Request {
        let counts = Counts {
            number: info.number.0,
            rows: info.rows,
            received: info.received,
            forwarded: info.forwarded,
            last_frame: info.last_frame.0,
            last_unix_ns: info.last_unix_ns,
            abandoned: false,
        };
        let request_number = info.number;
        let rest = Rest { rows_before: info.rows, info, keeps };
        let slot = match self.free.pop() {
            Some(slot) => {
                self.counts[slot as usize] = counts;
                self.rest[slot as usize] = rest;
                slot
            }
            None => {
                self.counts.push(counts);
                self.rest.push(rest);
                (self.counts.len() - 1) as u32
            }
        };
        let request = Request { number: request_number, slot };
        self.keep(request);
        request
    }

    fn keep(&mut self, request: Request) {
        if self.order.len() > 2 * self.live() + 1024 {
            self.order.retain(|each| self.counts[each.slot as usize].number == each.number.0);
        }
        self.order.push_back(request);
    }

    /// Counts an outcome's rows. Rows of requests that are closed already are not counted.
    pub fn count(&mut self, outcome: &Outcome<'_>) {
        let (frame, received_unix_ns) = (outcome.frame.0, outcome.received_unix_ns);
        for (request, &tokens) in outcome.requests.iter().zip(outcome.tokens) {
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
        let actions = outcome.actions.iter().map(|action| (action.row, action.verdict, action.forwarded));
        for effect in row_effects(actions) {
            let Some(&tokens) = outcome.tokens.get(effect.row as usize) else { continue };
            let tokens = u64::from(tokens);
            let Some((counts, info)) = self.of_row(outcome, effect.row) else { continue };
            counts.forwarded = effect.forwarded(counts.forwarded, tokens);
            effect.book(tokens, info);
        }
        for gap in outcome.gaps {
            let Some((_, info)) = self.of_row(outcome, gap.row) else { continue };
            info.gaps += 1;
        }
        for finished in outcome.finished {
            let Some((_, info)) = self.of_row(outcome, finished.row) else { continue };
            info.state = State::Finished;
            info.finish = finished.reason.into();
            info.completion_tokens = finished.completion_tokens;
        }
    }

    /// The first row of a request, or the first after it was given up.
    #[cold]
    fn first_row(&mut self, request: Request, first: bool, frame: FrameNo, received_unix_ns: u64) {
        let rest = &mut self.rest[request.slot as usize];
        if first {
            (rest.info.first_frame, rest.info.first_unix_ns) = (frame, received_unix_ns);
        }
        if std::mem::take(&mut self.counts[request.slot as usize].abandoned) {
            (rest.info.state, rest.keeps) = (State::Live, frame);
            self.keep(request);
        }
    }

    fn of_row(&mut self, outcome: &Outcome<'_>, row: u32) -> Option<(&mut Counts, &mut RequestInfo)> {
        self.get_mut(*outcome.requests.get(row as usize)?)
    }

    /// `None` where it was closed already.
    fn get_mut(&mut self, request: Request) -> Option<(&mut Counts, &mut RequestInfo)> {
        let counts = self.counts.get_mut(request.slot as usize)?;
        (counts.number == request.number.0).then(|| (counts, &mut self.rest[request.slot as usize].info))
    }

    /// How far the operator's end of one has come; false if it was closed already.
    pub fn set_ending(&mut self, request: Request, ending: Ending) -> bool {
        self.get_mut(request).map(|(_, info)| info.ending = ending).is_some()
    }

    /// Ends one; how it ended, or `None` if it was closed already. With `remember` it is kept for the summary.
    pub fn close(&mut self, request: Request, remember: bool) -> Option<State> {
        let slot = request.slot as usize;
        if self.counts.get(slot)?.number != request.number.0 {
            return None;
        }
        let (counts, rest) = (&self.counts[slot], &mut self.rest[slot]);
        OpenRequests::settle(counts, rest);
        let here = counts.rows > rest.rows_before;
        let mut info = std::mem::replace(&mut rest.info, RequestInfo::new(RequestNo(0), String::new()));
        if info.state == State::Live {
            info.state = State::Abandoned;
        }
        let state = info.state;
        if remember {
            self.ended.push(RequestEntry { info, closed: true, here });
        }
        self.counts[slot] = Counts::default();
        self.free.push(request.slot);
        Some(state)
    }

    /// Marks those without a row since `idle_before`, or numbered before `oldest`: they keep nothing any more.
    pub fn abandon(&mut self, idle_before: u64, oldest: u64) {
        for (counts, rest) in self.counts.iter_mut().zip(&mut self.rest) {
            let idle = counts.rows > 0 && counts.last_unix_ns < idle_before || counts.number < oldest;
            if counts.number != 0 && idle && rest.info.state == State::Live {
                (counts.abandoned, rest.info.state) = (true, State::Abandoned);
            }
        }
    }

    /// The first frame that an open request keeps.
    pub fn keeps(&mut self) -> Option<FrameNo> {
        while let Some(first) = self.order.front() {
            let slot = first.slot as usize;
            if self.counts[slot].number == first.number.0 && !self.counts[slot].abandoned {
                return Some(self.rest[slot].keeps);
            }
            self.order.pop_front();
        }
        None
    }

    /// Brings the counts of a slot into its info.
    fn settle(counts: &Counts, rest: &mut Rest) {
        let info = &mut rest.info;
        (info.rows, info.received, info.forwarded) = (counts.rows, counts.received, counts.forwarded);
        (info.last_frame, info.last_unix_ns) = (FrameNo(counts.last_frame), counts.last_unix_ns);
    }

    /// What a segment that begins must know: those that are open, and those whose end is on record in none before.
    pub fn carried(&mut self) -> impl Iterator<Item = RequestEntryRef<'_>> {
        let slots = self.counts.iter().zip(&mut self.rest).filter(|(counts, _)| counts.number != 0);
        let open = slots.map(|(counts, rest)| {
            OpenRequests::settle(counts, rest);
            RequestEntryRef { info: &rest.info, closed: false, here: counts.rows > rest.rows_before }
        });
        open.chain(self.ended.iter().map(RequestEntry::by_ref))
    }

    /// The entries of the summary of the segment that ends here.
    pub fn sum_up(&mut self) -> Vec<RequestEntry> {
        let entries = self.carried().map(RequestEntryRef::to_entry).collect();
        self.ended.clear();
        for (counts, rest) in self.counts.iter().zip(&mut self.rest) {
            rest.rows_before = counts.rows;
        }
        entries
    }
}
