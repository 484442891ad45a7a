//! Frames whose rows may overtake each other: of one kind, wire and layout, with no barrier between them.

use std::collections::VecDeque;
use std::time::Instant;

use afterbay_wire::{Batch, Finish, Matched, Part, RowsError, is_health_check};
use bytes::Bytes;

use crate::outbox::Joins;
use crate::sent::Place;
use crate::waiting::{Coming, Waiting};

/// A frame with rows that wait.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) place: Place,
    pub(crate) number: u64,
    pub(crate) at: Instant,
    /// `None` when all of its rows have left.
    pub(crate) batch: Option<Batch>,
    /// The number of each row's request.
    requests: Box<[u64]>,
    /// Rows that wait.
    left: u32,
    bytes: u64,
}

impl Held {
    pub(crate) fn new(place: Place, number: u64, at: Instant, batch: Batch, requests: Box<[u64]>) -> Held {
        let (left, bytes) = (batch.rows(), batch.bytes().len() as u64);
        Held { place, number, at, batch: Some(batch), requests, left, bytes }
    }

    /// None of its rows has left.
    fn is_whole(&self) -> bool {
        self.batch.as_ref().is_some_and(|batch| batch.rows() == self.left)
    }

    /// The number of a row's request; 0 where none was given.
    fn request(&self, row: u32) -> u64 {
        self.requests.get(row as usize).copied().unwrap_or(0)
    }

    /// So many of its rows have left.
    fn leave(&mut self, rows: u32) {
        self.left -= rows;
        if self.left == 0 {
            self.batch = None;
        }
    }
}

/// What leaves a lane.
#[derive(Debug)]
pub(crate) struct Composed {
    pub(crate) bytes: Bytes,
    /// Of which frames, and how many rows of each.
    pub(crate) of: Vec<(Place, u32)>,
    /// The frame's number, where it leaves as it came.
    pub(crate) frame: Option<u64>,
    /// Where it does not: its requests, and the frame up to which each has left.
    pub(crate) ahead: Vec<(u64, u64)>,
    /// Rows that came, and rows that leave.
    pub(crate) rows: (u32, u32),
    /// When the oldest of its frames came.
    pub(crate) at: Instant,
    /// Rows of it may have left before: it could not be taken apart.
    pub(crate) torn: bool,
}

/// The frames, and their rows by request.
#[derive(Debug, Default)]
pub(crate) struct Lane {
    frames: VecDeque<Held>,
    /// What it has let go of since that was asked: frames, and their bytes.
    gone: (usize, u64),
    /// So many of `frames`, the first ones, are in `waiting`. A frame that waits alone is not.
    indexed: usize,
    waiting: Waiting,
    /// Something in it cannot be joined: its frames leave one by one.
    plain: bool,
    // Kept so that composing allocates little.
    picked: Vec<(u32, u32)>,
    rows: Vec<(Place, u32)>,
    ids: Vec<i64>,
}

impl Lane {
    /// Whether a batch can stand beside those that are here.
    pub(crate) fn takes(&self, batch: &Batch) -> bool {
        let other = self.frames.iter().rev().find_map(|held| held.batch.as_ref());
        other.is_none_or(|other| other.is_like(batch))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    pub(crate) fn frames(&self) -> usize {
        self.frames.len()
    }

    /// Rows that wait.
    pub(crate) fn rows(&self) -> usize {
        let fresh = self.frames.iter().skip(self.indexed).map(|held| held.left as usize);
        self.waiting.rows() + fresh.sum::<usize>()
    }

    /// Their tokens. Reads the frames that were not looked into.
    pub(crate) fn tokens(&self) -> u64 {
        let fresh = self.frames.iter().skip(self.indexed).filter_map(|held| held.batch.as_ref());
        self.waiting.tokens() + fresh.flat_map(Batch::token_counts).map(u64::from).sum::<u64>()
    }

    /// Frames that wait no more since this was asked last, and their bytes.
    pub(crate) fn take_gone(&mut self) -> (usize, u64) {
        std::mem::take(&mut self.gone)
    }

    pub(crate) fn oldest(&self) -> Option<Instant> {
        self.frames.front().map(|held| held.at)
    }

    /// A frame comes to wait. One that waits alone is not looked into.
    pub(crate) fn push(&mut self, held: Held) {
        self.frames.push_back(held);
    }

    /// Looks into the frames that came since the last time. Health checks go into `urgent`, each a frame of its own.
    pub(crate) fn index(&mut self, joins: &Joins, urgent: &mut VecDeque<Composed>) {
        let Lane { frames, indexed, waiting, plain, ids, .. } = self;
        for held in frames.iter_mut().skip(*indexed) {
            *indexed += 1;
            let Some(batch) = &held.batch else { continue };
            let (place, at) = (held.place, held.at);
            let mut alone_rows = 0;
            *plain |= batch.splittable().is_err();
            let text = joins.vocabulary(batch.kind());
            let counts = batch.token_counts().zip(batch.completion_counts());
            let columns = batch.rids().zip(counts).zip(batch.finishes());
            for (row, ((rid, (tokens, count)), finish)) in (0..).zip(columns) {
                if is_health_check(rid.as_bytes())
                    && let Ok(alone) = batch.take(&[row])
                {
                    alone_rows += 1;
                    let (bytes, of) = (alone.bytes().clone(), vec![(place, 1)]);
                    let ahead = vec![(held.request(row), held.number)];
                    urgent.push_back(Composed {
                        bytes,
                        of,
                        frame: None,
                        ahead,
                        rows: (1, 1),
                        at,
                        torn: false,
                    });
                    continue;
                }
                let text = text.map(|vocabulary| {
                    ids.clear();
                    batch.row_ids(row, ids);
                    (vocabulary, &**ids)
                });
                // Nothing came before a row whose tokens are all that its request has.
                let first = count == Some(u64::from(tokens));
                let last = finish != Finish::Running;
                // The detokenizer cuts the text of its last row at the stop text: what single rows have let out of that, a
                // joined one would not.
                let alone = matches!(finish, Finish::Stop { matched: Matched::Text(_) });
                let request = held.request(row);
                waiting.push(Coming { place, row, rid, request, tokens, first, last, alone }, text);
            }
            held.leave(alone_rows);
        }
        self.clean();
    }

    /// The next frame out of what waits: the one that waits alone as it came, else at most so many requests. `hurried`: of
    /// requests that wait with their first or their last row only.
    pub(crate) fn next(&mut self, most: usize, hurried: bool) -> Option<Composed> {
        if !hurried && self.frames.len() == 1 && self.frames.front().is_some_and(Held::is_whole) {
            return self.whole();
        }
        loop {
            if self.plain {
                return self.rest_of_front();
            }
            self.waiting.pick(most, hurried, &mut self.picked);
            if self.picked.is_empty() {
                return None;
            }
            self.waiting.rows_of(&self.picked, &mut self.rows);
            match self.join() {
                Ok((bytes, frame)) => return Some(self.leave(bytes, frame)),
                Err(error) => {
                    self.waiting.stay(&self.picked);
                    let is_single =
                        matches!(&error, RowsError::Column { rid, .. } if self.waiting.make_single(rid));
                    self.plain |= !is_single;
                }
            }
        }
    }

    /// Writes the rows that were picked as one frame; which it is where these are all rows of one.
    fn join(&self) -> Result<(Bytes, Option<u64>), RowsError> {
        let rows: Vec<u32> = self.rows.iter().map(|(_, row)| *row).collect();
        let mut parts = Vec::new();
        let mut number = None;
        let mut from = 0;
        for of_one in self.rows.chunk_by(|one, next| one.0 == next.0) {
            let to = from + of_one.len();
            if let Some(held) = self.held(of_one[0].0)
                && let Some(batch) = &held.batch
            {
                parts.push(Part { batch, rows: Some(&rows[from..to]) });
                number = Some(held.number);
            }
            from = to;
        }
        match parts.as_slice() {
            [Part { batch, rows: Some(rows) }] if rows.len() == batch.rows() as usize => {
                Ok((batch.bytes().clone(), number))
            }
            parts => Ok((Batch::join(parts)?.bytes().clone(), None)),
        }
    }

    /// The rows that were picked have been written.
    fn leave(&mut self, bytes: Bytes, frame: Option<u64>) -> Composed {
        let rows = (self.rows.len() as u32, self.picked.len() as u32);
        let number = |place| self.held(place).map_or(0, |held| held.number);
        let ahead = match frame {
            Some(_) => Vec::new(),
            None => {
                self.waiting.last_of(&self.picked).map(|(request, place)| (request, number(place))).collect()
            }
        };
        self.waiting.leave(&self.picked);
        let groups = self.rows.chunk_by(|one, next| one.0 == next.0);
        let of: Vec<(Place, u32)> = groups.map(|group| (group[0].0, group.len() as u32)).collect();
        let at = self.left(&of);
        Composed { bytes, of, frame, ahead, rows, at, torn: false }
    }

    /// The first frame leaves as it came.
    fn whole(&mut self) -> Option<Composed> {
        let held = self.frames.front()?;
        let (place, frame, rows, at) = (held.place, Some(held.number), held.left, held.at);
        let bytes = held.batch.as_ref()?.bytes().clone();
        if self.indexed > 0 {
            self.waiting.forget(place);
        }
        self.left(&[(place, rows)]);
        let (of, ahead) = (vec![(place, rows)], Vec::new());
        Some(Composed { bytes, of, frame, ahead, rows: (rows, rows), at, torn: false })
    }

    /// What is left of the first frame, some of whose rows have left joined with others.
    fn rest_of_front(&mut self) -> Option<Composed> {
        if self.frames.front()?.is_whole() {
            return self.whole();
        }
        let held = self.frames.front()?;
        let (place, at) = (held.place, held.at);
        let rows = self.waiting.forget(place);
        let batch = held.batch.as_ref()?;
        let (bytes, torn) = match batch.take(&rows) {
            Ok(rest) => (rest.bytes().clone(), false),
            Err(_) => (batch.bytes().clone(), true),
        };
        let ahead = rows.iter().map(|row| (held.request(*row), held.number)).collect();
        let of = vec![(place, rows.len() as u32)];
        self.left(&of);
        let rows = (rows.len() as u32, rows.len() as u32);
        Some(Composed { bytes, of, frame: None, ahead, rows, at, torn })
    }

    /// So many rows of these frames have left. When the oldest of them came.
    fn left(&mut self, of: &[(Place, u32)]) -> Instant {
        let at = of.first().and_then(|(place, _)| self.held(*place)).map(|held| held.at);
        for (place, rows) in of {
            if let Ok(index) = self.frames.binary_search_by_key(place, |held| held.place)
                && let Some(held) = self.frames.get_mut(index)
            {
                held.leave(*rows);
            }
        }
        self.clean();
        at.unwrap_or_else(Instant::now)
    }

    /// Lets go of frames all of whose rows have left.
    fn clean(&mut self) {
        while let Some(held) = self.frames.pop_front_if(|held| held.left == 0) {
            self.gone = (self.gone.0 + 1, self.gone.1 + held.bytes);
            self.indexed = self.indexed.saturating_sub(1);
        }
    }

    fn held(&self, place: Place) -> Option<&Held> {
        let index = self.frames.binary_search_by_key(&place, |held| held.place).ok()?;
        self.frames.get(index)
    }
}
