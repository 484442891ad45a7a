//! The rows of one lane that wait, by request, and the order of the requests.

use std::collections::VecDeque;

use afterbay_text::{TextEnd, TextProgress, Vocabulary};
use foldhash::fast::FixedState;
use hashbrown::HashTable;
use std::hash::BuildHasher;

use crate::sent::FrameIndex;

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

/// A request with rows in this lane.
#[derive(Debug)]
struct Request {
    rid: Box<str>,
    number: u64,
    rows: VecDeque<Row>,
    progress: TextProgress,
    /// Whether its first row waits.
    begins: bool,
    /// Whether its last row waits.
    ends: bool,
    /// Whether its rows cannot be joined, because a column forbids it.
    single: bool,
    /// The ticket of its valid queue entry. Entries with other tickets are skipped.
    ticket: u64,
    /// Whether it is also in [`Backlog::firsts`] or [`Backlog::lasts`].
    hurried: bool,
}

/// The memory of a row that waits: a queue that grows has up to twice the room that it needs.
pub(crate) const ROW_BYTES: usize = 2 * size_of::<Row>();
/// The memory of a request, beside its rows: its entry, the least room of its rows' queue, its rid, and its places in the orders.
pub(crate) const REQUEST_BYTES: usize = size_of::<Request>() + 2 * ROW_BYTES + 128;

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
    by_rid: HashTable<u32>,
    hasher: FixedState,
    firsts: VecDeque<(u32, u64)>,
    lasts: VecDeque<(u32, u64)>,
    /// Every request that waits, in the order in which it began to wait.
    all: VecDeque<(u32, u64)>,
    tickets: u64,
    rows: usize,
    tokens: u64,
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

    /// Adds a row. `text` has the row's ids, if joined rows must end where the text is whole.
    pub(crate) fn push(&mut self, new_row: NewRow<'_>, text: Option<(&Vocabulary, &[i64])>) {
        let NewRow { frame, row, rid, request: number, tokens, first, last, alone } = new_row;
        let index = self.find_or_make(rid, number);
        let Some(request) = self.requests.get_mut(index as usize) else { return };
        let ending =
            text.map_or(TextEnd::Whole, |(vocabulary, ids)| request.progress.advance(vocabulary, ids));
        let ending = if alone { TextEnd::Broken } else { ending };
        let is_new = request.rows.is_empty();
        request.rows.push_back(Row { frame, row, tokens, ending, first: first && tokens > 0 });
        request.begins |= first;
        request.ends |= last;
        if is_new {
            request.ticket = next_ticket(&mut self.tickets);
            request.hurried = false;
            self.all.push_back((index, request.ticket));
        }
        if (first || last) && !request.hurried {
            request.hurried = true;
            let queue = if first { &mut self.firsts } else { &mut self.lasts };
            queue.push_back((index, request.ticket));
        }
        self.rows += 1;
        self.tokens += u64::from(tokens);
    }

    fn find(&self, rid: &str) -> Option<u32> {
        let known = |index: &u32| self.requests.get(*index as usize).is_some_and(|it| *it.rid == *rid);
        self.by_rid.find(self.hasher.hash_one(rid), known).copied()
    }

    fn find_or_make(&mut self, rid: &str, number: u64) -> u32 {
        if let Some(index) = self.find(rid) {
            return index;
        }
        let Backlog { requests, by_rid, hasher, .. } = self;
        let index = requests.len() as u32;
        requests.push(Request {
            rid: rid.into(),
            number,
            rows: VecDeque::new(),
            progress: TextProgress::default(),
            begins: false,
            ends: false,
            single: false,
            ticket: 0,
            hurried: false,
        });
        by_rid.insert_unique(hasher.hash_one(rid), index, |index| {
            requests.get(*index as usize).map_or(0, |it| hasher.hash_one(&*it.rid))
        });
        index
    }

    /// Marks the request's rows as not joinable. Returns false if they were already.
    pub(crate) fn make_single(&mut self, rid: &str) -> bool {
        let Some(index) = self.find(rid) else { return false };
        let Some(request) = self.requests.get_mut(index as usize) else { return false };
        !std::mem::replace(&mut request.single, true)
    }

    /// Picks at most `most` requests, and for each the rows that become one. Requests with their first row come first, then
    /// requests with their last row, then those that have waited longest. The last group has a quarter of the places, so
    /// that every request is sent eventually. `hurried` picks from the first two groups only.
    pub(crate) fn pick(&mut self, most: usize, hurried: bool, picked: &mut Vec<(u32, u32)>) {
        picked.clear();
        let kept = if hurried { 0 } else { most / 4 };
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
        if !hurried {
            take(all, most, picked);
            take(firsts, most, picked);
            take(lasts, most, picked);
        }
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

    /// The number of each picked request, and the frame of its last picked row.
    pub(crate) fn last_of(&self, picked: &[(u32, u32)]) -> impl Iterator<Item = (u64, FrameIndex)> {
        picked.iter().filter_map(|(index, count)| {
            let request = self.requests.get(*index as usize)?;
            Some((request.number, request.rows.get(count.checked_sub(1)? as usize)?.frame))
        })
    }

    /// The frame of each picked row that is the first of its request.
    pub(crate) fn first_rows_of(&self, picked: &[(u32, u32)]) -> impl Iterator<Item = FrameIndex> {
        picked.iter().filter_map(|(index, _)| {
            let row = self.requests.get(*index as usize)?.rows.front()?;
            row.first.then_some(row.frame)
        })
    }

    /// Removes the picked rows. A request with more rows waits again, behind the others.
    pub(crate) fn leave(&mut self, picked: &[(u32, u32)]) {
        for (index, count) in picked {
            let Some(request) = self.requests.get_mut(*index as usize) else { continue };
            let tokens = request.rows.drain(..*count as usize).map(|row| u64::from(row.tokens));
            self.tokens -= tokens.sum::<u64>();
            self.rows -= *count as usize;
            self.enqueue(*index);
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

    /// Removes all rows of the oldest frame and returns them.
    pub(crate) fn forget(&mut self, frame: FrameIndex) -> Vec<u32> {
        let mut rows = Vec::new();
        for request in &mut self.requests {
            while let Some(row) = request.rows.pop_front_if(|row| row.frame == frame) {
                rows.push(row.row);
                self.tokens -= u64::from(row.tokens);
            }
        }
        self.rows -= rows.len();
        rows.sort_unstable();
        rows
    }

    fn enqueue(&mut self, index: u32) {
        let Some(request) = self.requests.get_mut(index as usize) else { return };
        (request.hurried, request.begins) = (false, false);
        if request.rows.is_empty() {
            return;
        }
        request.ticket = next_ticket(&mut self.tickets);
        self.all.push_back((index, request.ticket));
        if request.ends {
            request.hurried = true;
            self.lasts.push_back((index, request.ticket));
        }
    }
}

/// A ticket that no queue entry has.
fn next_ticket(tickets: &mut u64) -> u64 {
    *tickets += 1;
    *tickets
}

impl Request {
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
