//! The requests of the last batch's rows, in order.
//!
//! A scheduler's step has nearly the same requests as the step before, in nearly the same order. So the rids of a frame are
//! compared with those of the frame before as bytes, many rows at a time, and only the rows that differ are looked up.

use afterbay_journal::JournalRequest;
use afterbay_wire::RidCells;

/// Rows that are compared at once. A run that ends within a block is found row by row.
const BLOCK_ROWS: usize = 32;

/// The requests of the rows of the last batch and of this batch so far.
#[derive(Default)]
pub(super) struct Roster {
    last: Vec<JournalRequest>,
    now: Vec<JournalRequest>,
    /// Index in `last` of the request expected next.
    cursor: usize,
    /// By slot: the index of the request's row in the last batch with a row of it.
    row_of: Vec<u32>,
    /// The rids of `last` as their frame had them; empty if they have several lengths.
    cells: Vec<u8>,
    /// Bytes of each of these rids.
    width: usize,
    /// Whether `cells` are the rids of `now`.
    is_ended: bool,
}

impl Roster {
    /// Begins a batch. The first row is expected to have the same request as the first row of the last batch.
    pub fn begin(&mut self) {
        std::mem::swap(&mut self.last, &mut self.now);
        self.now.clear();
        self.cursor = 0;
        if !std::mem::take(&mut self.is_ended) {
            self.cells.clear();
        }
    }

    /// Ends a batch with these rids, which the next batch is compared with.
    pub fn end(&mut self, rids: Option<RidCells<'_>>) {
        self.is_ended = true;
        match rids.filter(|rids| rids.cells.len() == rids.width * self.now.len()) {
            Some(RidCells { cells, width }) if (cells, width) != (&self.cells, self.width) => {
                self.cells.clear();
                self.cells.extend_from_slice(cells);
                self.width = width;
            }
            Some(_) => {}
            None => self.cells.clear(),
        }
    }

    /// The requests of this batch's rows so far.
    #[inline]
    pub fn rows(&self) -> &[JournalRequest] {
        &self.now
    }

    /// Gives the next rows to the expected requests for as long as the rids are the same and the requests live. Returns how many
    /// rows these are.
    pub fn match_same(&mut self, rids: RidCells<'_>, is_live: impl Fn(JournalRequest) -> bool) -> usize {
        if rids.width != self.width || self.cells.is_empty() {
            return 0;
        }
        let width = self.width;
        let (before, now) = (&self.cells[self.cursor * width..], &rids.cells[self.now.len() * width..]);
        let blocks = before.chunks_exact(BLOCK_ROWS * width).zip(now.chunks_exact(BLOCK_ROWS * width));
        let mut rows = BLOCK_ROWS * blocks.take_while(|(before, now)| before == now).count();
        let rest = before[rows * width..].chunks_exact(width).zip(now[rows * width..].chunks_exact(width));
        rows += rest.take_while(|(before, now)| before == now).count();
        let expected = &self.last[self.cursor..self.cursor + rows];
        let rows = expected.iter().position(|request| !is_live(*request)).unwrap_or(rows);
        let expected = &expected[..rows];
        if self.cursor != self.now.len() {
            for (row, request) in (self.now.len()..).zip(expected) {
                self.row_of[request.slot()] = row as u32;
            }
        }
        self.now.extend_from_slice(expected);
        self.cursor += rows;
        rows
    }

    /// The request that is expected to have the next row.
    #[inline]
    pub fn expected(&self) -> Option<JournalRequest> {
        self.last.get(self.cursor).copied()
    }

    /// The request that is expected after that one.
    pub fn behind_expected(&self) -> Option<JournalRequest> {
        self.last.get(self.cursor + 1).copied()
    }

    /// Gives the next row to the expected request.
    #[inline]
    pub fn match_expected(&mut self, request: JournalRequest) {
        if self.cursor != self.now.len() {
            self.row_of[request.slot()] = self.now.len() as u32;
        }
        self.now.push(request);
        self.cursor += 1;
    }

    /// Gives the next row to this request. The requests behind it in the last batch are expected next.
    pub fn match_other(&mut self, request: JournalRequest) {
        let row = self.row_of.get(request.slot()).map_or(usize::MAX, |row| *row as usize);
        if self.last.get(row) == Some(&request) {
            self.cursor = row + 1;
        }
        self.push(request);
    }

    /// Gives the next row to this request, which begins with it.
    pub fn push(&mut self, request: JournalRequest) {
        if self.row_of.len() <= request.slot() {
            self.row_of.resize(request.slot() + 1, u32::MAX);
        }
        self.row_of[request.slot()] = self.now.len() as u32;
        self.now.push(request);
    }
}
