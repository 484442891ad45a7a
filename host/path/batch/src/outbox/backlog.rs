//! The rows of one lane that wait, by request, and the order of the requests.

use std::collections::VecDeque;
use std::hash::BuildHasher;

use afterbay_text::{TextEnd, TextProgress, Vocabulary};
use foldhash::fast::{FixedState, RandomState};
use hashbrown::HashMap;

use crate::outbox::sent::FrameIndex;

/// A row that waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) frame: FrameIndex,
    pub(crate) row: u32,
    tokens: u32,
    /// How the request's text ends after this row. Whole if the text does not matter.
    ending: TextEnd,
    /// Whether it is the request's first row and has tokens.
    first: bool,
}

/// A request of this lane, from its first row to its last.
#[derive(Debug)]
struct Request {
    number: u64,
    /// A hash of its rid.
    rid: u64,
    rows: VecDeque<Row>,
    progress: TextProgress,
    /// Whether its first row waits.
    begins: bool,
    /// Whether its last row waits.
    ends: bool,
    /// Whether its rows cannot be joined, because a column forbids it.
    single: bool,
    /// Whether rows of an earlier request with its rid wait. No queue has it meanwhile.
    is_behind: bool,
    /// The next request with its rid, which waits for the end of this one.
    next: Option<u32>,
    /// The ticket of its valid queue entry. Entries with other tickets are skipped.
    ticket: u64,
    /// Whether it is also in [`Backlog::firsts`] or [`Backlog::lasts`].
    hurried: bool,
}

/// The memory of a row that waits: a queue that grows has up to twice the room that it needs.
pub(crate) const ROW_BYTES: usize = 2 * size_of::<Row>();
/// The memory of a request, beside its rows: its entry, the room of its rows' queue, and its places in the tables and the
/// orders.
const REQUEST_BYTES: usize = size_of::<Request>() + ROWS_KEPT * size_of::<Row>() + 128;
/// An empty queue of rows with more room is freed.
const ROWS_KEPT: usize = 8;
/// Entries beyond twice those in use after which a table or an order is searched for those that are not.
const UNUSED_MAX: usize = 1024;

/// A row to add.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewRow<'a> {
    pub(crate) frame: FrameIndex,
    pub(crate) row: u32,
    pub(crate) rid: &'a str,
    /// The request's number.
    pub(crate) request: u64,
    pub(crate) tokens: u32,
    /// Whether it is the request's first row.
    pub(crate) first: bool,
    /// Whether it is the request's last row.
    pub(crate) last: bool,
    /// Whether it must not be joined.
    pub(crate) alone: bool,
}

/// The requests that wait, in three queues.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    requests: Vec<Request>,
    /// Places in `requests` for others.
    free: Vec<u32>,
    by_number: HashMap<u64, u32, FixedState>,
    /// The newest request with each rid, by the rid's hash. If two rids have one hash, one request waits for the other.
    by_rid: HashMap<u64, u32, FixedState>,
    hasher: RandomState,
    firsts: VecDeque<(u32, u64)>,
    lasts: VecDeque<(u32, u64)>,
    /// Every request that waits, in the order in which it began to wait.
    all: VecDeque<(u32, u64)>,
    tickets: u64,
    rows: usize,
    tokens: u64,
    /// The requests that are single, and those behind another with their rid.
    slow: usize,
    /// The number of requests at which those without rows are removed.
    clean_at: usize,
}

impl Backlog {
    /// The number of rows that wait.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// The tokens of the rows that wait.
    pub(crate) fn tokens(&self) -> u64 {
        self.tokens
    }

    /// The memory of the requests, beside their rows.
    pub(crate) fn memory(&self) -> usize {
        self.requests.len() * REQUEST_BYTES
    }

    /// The requests that are single, and those behind another with their rid.
    pub(crate) fn slow(&self) -> usize {
        self.slow
    }

    /// Adds a row. `text` has the row's ids, if joined rows must end where the text is whole.
    pub(crate) fn push(&mut self, new_row: NewRow<'_>, text: Option<(&Vocabulary, &[i64])>) {
        let NewRow { frame, row, rid, request: number, tokens, first, last, alone } = new_row;
        let index = match self.by_number.get(&number) {
            Some(index) => *index,
            None => self.add(rid, number),
        };
        let Some(request) = self.requests.get_mut(index as usize) else { return };
        let ending =
            text.map_or(TextEnd::Whole, |(vocabulary, ids)| request.progress.advance(vocabulary, ids));
        let ending = if alone { TextEnd::Broken } else { ending };
        let is_new = request.rows.is_empty();
        request.rows.push_back(Row { frame, row, tokens, ending, first: first && tokens > 0 });
        request.begins |= first;
        request.ends |= last;
        if is_new {
            self.enqueue(index);
        } else {
            self.hurry(index);
        }
        self.rows += 1;
        self.tokens += u64::from(tokens);
    }

    fn add(&mut self, rid: &str, number: u64) -> u32 {
        if self.by_number.len() >= self.clean_at {
            self.remove_idle();
            self.clean_at = 2 * self.by_number.len() + UNUSED_MAX;
        }
        let rid = self.hasher.hash_one(rid);
        let index = self.free.pop().unwrap_or(self.requests.len() as u32);
        let before = self.requests.get_mut(index as usize);
        let request = Request {
            number,
            rid,
            rows: before.map(|before| std::mem::take(&mut before.rows)).unwrap_or_default(),
            progress: TextProgress::default(),
            begins: false,
            ends: false,
            // Rows without a number are of several requests.
            single: number == 0,
            is_behind: false,
            next: None,
            ticket: 0,
            hurried: false,
        };
        self.slow += usize::from(request.single);
        match self.requests.get_mut(index as usize) {
            Some(free) => *free = request,
            None => self.requests.push(request),
        }
        self.by_number.insert(number, index);
        if let Some(before) = self.by_rid.insert(rid, index) {
            self.follow(before, index);
        }
        index
    }

    /// Lets a new request wait until the one with its rid has no more rows.
    fn follow(&mut self, before: u32, index: u32) {
        let earlier = &mut self.requests[before as usize];
        if earlier.rows.is_empty() {
            return self.remove(before);
        }
        earlier.next = Some(index);
        self.requests[index as usize].is_behind = true;
        self.slow += 1;
    }

    /// Removes a request without rows. The next request with its rid no longer waits for it.
    fn remove(&mut self, index: u32) {
        let request = &mut self.requests[index as usize];
        request.ticket = 0;
        request.shrink();
        self.slow -= usize::from(request.single) + usize::from(request.is_behind);
        let (number, rid, is_behind) = (request.number, request.rid, request.is_behind);
        let next = request.next.take();
        self.by_number.remove(&number);
        if self.by_rid.get(&rid) == Some(&index) {
            self.by_rid.remove(&rid);
        }
        self.free.push(index);
        if is_behind {
            // Only of two rids with one hash can the later request end first.
            let before = self.requests.iter_mut().find(|before| before.next == Some(index));
            before.into_iter().for_each(|before| before.next = next);
        } else if let Some(next) = next {
            self.requests[next as usize].is_behind = false;
            self.slow -= 1;
            self.enqueue(next);
        }
    }

    /// Removes the requests that have no rows and whose text is whole: some end without a last row.
    fn remove_idle(&mut self) {
        let is_idle = |index: &u32| {
            let request = &self.requests[*index as usize];
            request.rows.is_empty() && request.progress == TextProgress::default()
        };
        let idle: Vec<u32> = self.by_number.values().copied().filter(is_idle).collect();
        idle.into_iter().for_each(|index| self.remove(index));
    }

    /// Marks the request's rows as not joinable. Returns false if they were already.
    pub(crate) fn make_single(&mut self, index: u32) -> bool {
        let Some(request) = self.requests.get_mut(index as usize) else { return false };
        let is_new = !std::mem::replace(&mut request.single, true);
        self.slow += usize::from(is_new);
        is_new
    }

    /// Picks at most `most` requests, and for each the rows that become one. Requests with their first row come first, then
    /// requests with their last row, then those that have waited longest. The last group has a quarter of the places, so
    /// that every request is sent eventually.
    pub(crate) fn pick(&mut self, most: usize, picked: &mut Vec<(u32, u32)>) {
        picked.clear();
        let kept = most / 4;
        let Backlog { requests, firsts, lasts, all, .. } = self;
        let mut take = |queue: &mut VecDeque<(u32, u64)>, up_to: usize, picked: &mut Vec<(u32, u32)>| {
            while picked.len() < up_to
                && let Some((index, ticket)) = queue.pop_front()
            {
                let Some(request) = requests.get_mut(index as usize) else { continue };
                if request.ticket == ticket && !request.rows.is_empty() {
                    // It has no valid queue entry any more.
                    request.ticket = 0;
                    picked.push((index, request.joined_rows()));
                }
            }
        };
        take(firsts, most - kept, picked);
        take(lasts, most - kept, picked);
        take(all, most, picked);
        take(firsts, most, picked);
        take(lasts, most, picked);
    }

    /// Picks the requests of the oldest frame that have rows in it, if all of them are slow: they are single, or another with
    /// their rid follows. `numbers` are those of all its rows. Returns whether it picked any.
    pub(crate) fn pick_slow(
        &mut self,
        frame: FrameIndex,
        numbers: &[u64],
        picked: &mut Vec<(u32, u32)>,
    ) -> bool {
        picked.clear();
        for index in numbers.iter().filter_map(|number| self.by_number.get(number)) {
            let request = &self.requests[*index as usize];
            if request.rows.front().is_none_or(|row| row.frame != frame) || request.is_behind {
                continue;
            }
            if !request.single && request.next.is_none() {
                picked.clear();
                return false;
            }
            picked.push((*index, request.joined_rows()));
        }
        picked.sort_unstable();
        picked.dedup();
        picked.iter().for_each(|(index, _)| self.requests[*index as usize].ticket = 0);
        !picked.is_empty()
    }

    /// The picked rows, sorted by frame and row.
    pub(crate) fn rows_of(&self, picked: &[(u32, u32)], rows: &mut Vec<(FrameIndex, u32)>) {
        rows.clear();
        for (index, count) in picked {
            let Some(request) = self.requests.get(*index as usize) else { continue };
            rows.extend(request.rows.iter().take(*count as usize).map(|row| (row.frame, row.row)));
        }
        rows.sort_unstable();
    }

    /// The first row of each picked request.
    pub(crate) fn fronts_of(&self, picked: &[(u32, u32)]) -> impl Iterator<Item = (u32, Row)> {
        picked.iter().filter_map(|(index, _)| {
            let row = self.requests.get(*index as usize)?.rows.front()?;
            Some((*index, *row))
        })
    }

    /// The number of each picked request, and the frame of its last picked row.
    pub(crate) fn last_of(&self, picked: &[(u32, u32)]) -> impl Iterator<Item = (u64, FrameIndex)> {
        picked.iter().filter_map(|(index, count)| {
            let request = self.requests.get(*index as usize)?;
            Some((request.number, request.rows.get(count.checked_sub(1)? as usize)?.frame))
        })
    }

    /// The frame of each picked row that is the first of its request.
    pub(crate) fn first_rows_of(&self, picked: &[(u32, u32)]) -> impl Iterator<Item = FrameIndex> {
        self.fronts_of(picked).filter_map(|(_, row)| row.first.then_some(row.frame))
    }

    /// Removes the picked rows. A request with more rows waits again, behind the others.
    pub(crate) fn leave(&mut self, picked: &[(u32, u32)]) {
        for (index, count) in picked {
            let Some(request) = self.requests.get_mut(*index as usize) else { continue };
            let tokens = request.rows.drain(..*count as usize).map(|row| u64::from(row.tokens));
            self.tokens -= tokens.sum::<u64>();
            self.rows -= *count as usize;
            request.begins = false;
            if !request.rows.is_empty() {
                self.enqueue(*index);
            } else if request.ends || request.next.is_some() {
                self.remove(*index);
            } else {
                request.shrink();
            }
        }
    }

    /// Puts the picked requests back to the front.
    pub(crate) fn stay(&mut self, picked: &[(u32, u32)]) {
        for (index, _) in picked.iter().rev() {
            let Some(request) = self.requests.get_mut(*index as usize) else { continue };
            request.ticket = next_ticket(&mut self.tickets);
            let entry = (*index, request.ticket);
            self.all.push_front(entry);
            match (request.begins, request.ends) {
                (true, _) => self.firsts.push_front(entry),
                (false, true) => self.lasts.push_front(entry),
                (false, false) => {}
            }
        }
    }

    /// Removes all rows of the oldest frame and returns them. `requests` are the numbers of its rows' requests. A request
    /// without more rows goes: the frame may have rows of it that were never added.
    pub(crate) fn forget(&mut self, frame: FrameIndex, requests: &[u64]) -> Vec<u32> {
        let mut rows = Vec::new();
        for number in requests {
            let Some(index) = self.by_number.get(number).copied() else { continue };
            let request = &mut self.requests[index as usize];
            while let Some(row) = request.rows.pop_front_if(|row| row.frame == frame) {
                rows.push(row.row);
                request.begins = false;
                self.tokens -= u64::from(row.tokens);
            }
            if request.rows.is_empty() {
                self.remove(index);
            }
        }
        self.rows -= rows.len();
        rows.sort_unstable();
        rows
    }

    /// Lets a request wait that did not.
    fn enqueue(&mut self, index: u32) {
        let request = &mut self.requests[index as usize];
        if request.is_behind {
            return;
        }
        request.ticket = next_ticket(&mut self.tickets);
        request.hurried = false;
        let entry = (index, request.ticket);
        push(&mut self.all, entry, &self.requests);
        self.hurry(index);
    }

    /// Lets a waiting request go before others if its first or its last row waits.
    fn hurry(&mut self, index: u32) {
        let request = &mut self.requests[index as usize];
        if request.is_behind || request.hurried || !(request.begins || request.ends) {
            return;
        }
        request.hurried = true;
        let entry = (index, request.ticket);
        let queue = if request.begins { &mut self.firsts } else { &mut self.lasts };
        push(queue, entry, &self.requests);
    }
}

/// Adds an entry. Removes those of requests that have left by way of another queue, if there are many.
fn push(queue: &mut VecDeque<(u32, u64)>, entry: (u32, u64), requests: &[Request]) {
    if queue.len() > 2 * requests.len() + UNUSED_MAX {
        queue.retain(|(index, ticket)| requests[*index as usize].ticket == *ticket);
    }
    queue.push_back(entry);
}

/// A ticket that no queue entry has.
fn next_ticket(tickets: &mut u64) -> u64 {
    *tickets += 1;
    *tickets
}

impl Request {
    /// Frees the room of an empty queue of rows that was long.
    fn shrink(&mut self) {
        if self.rows.capacity() > ROWS_KEPT {
            self.rows = VecDeque::new();
        }
    }

    /// The number of rows that become one: up to the last row after which the text is whole, or all rows if the request
    /// ends.
    fn joined_rows(&self) -> u32 {
        if self.single {
            return 1;
        }
        let mut joined = 1;
        for (count, row) in (1..).zip(&self.rows) {
            match row.ending {
                // The rows before it are joined, and it is sent alone.
                TextEnd::Broken => break,
                TextEnd::Whole => joined = count,
                TextEnd::Open if self.ends && count as usize == self.rows.len() => joined = count,
                TextEnd::Open => {}
            }
        }
        joined
    }
}

#[cfg(test)]
mod tests;
