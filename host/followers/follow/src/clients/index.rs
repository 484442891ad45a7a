//! The places of the rows of one segment, by request: whoever reads a request needs no scan of the segment.

use std::collections::{BTreeMap, HashMap};

use afterbay_journal::reader::RequestRecord;
use afterbay_journal::{FrameNo, Outcome, PluginAction, Position, SegmentId, StoredReplacement, row_effects};

/// Most frames without an outcome whose place is kept.
const PLACES_MAX: usize = 65_536;
/// Bytes of two numbers in a table.
const ENTRY_BYTES: usize = 32;
/// Bytes of a request in the index beside its runs, at least: its key, and its share of the table.
const REQUEST_BYTES: usize = 64;

/// The places of the rows of one segment.
///
/// A row takes less than 1 byte where requests get rows in every frame, and 32 bytes at most.
#[derive(Debug, Default)]
pub(super) struct SegmentIndex {
    pub(super) segment: SegmentId,
    /// The places of frames without an outcome.
    places: BTreeMap<u64, u32>,
    /// Frames with rows, in the order of their outcomes.
    frames: Vec<IndexedFrame>,
    runs: HashMap<u64, Vec<Run>>,
    /// Tokens that left of requests before the segment.
    carried: HashMap<u64, u64>,
    bytes: usize,
}

#[derive(Clone, Copy, Debug)]
struct IndexedFrame {
    frame: FrameNo,
    /// The offset of the frame's record. `None`: it is in another segment, or not stored.
    received: Option<u32>,
    outcome: u32,
}

/// Rows of one request in frames that follow each other in the index.
#[derive(Clone, Copy, Debug)]
struct Run {
    /// The index of the first frame.
    first: u32,
    rows: u32,
    /// Tokens that left with each row.
    forwarded: u32,
    /// Whether the number of tokens is all that a reader behind the row needs to know.
    is_plain: bool,
}

/// A row of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RowPlace {
    pub(super) segment: SegmentId,
    pub(super) frame: FrameNo,
    /// The offset of the frame's record. `None`: it is in another segment, or not stored.
    pub(super) received: Option<u32>,
    /// The offset of the frame's outcome.
    pub(super) outcome: u32,
    /// Tokens that left.
    pub(super) forwarded: u32,
    /// Whether the row is neither the last for its reader, nor has all ids so far.
    pub(super) is_plain: bool,
}

impl RowPlace {
    pub(super) fn received_at(&self) -> Option<Position> {
        let RowPlace { segment, frame, received, .. } = *self;
        received.map(|offset| Position { frame, segment, offset })
    }
}

impl SegmentIndex {
    pub(super) fn new(segment: SegmentId) -> SegmentIndex {
        SegmentIndex { segment, ..SegmentIndex::default() }
    }

    /// The memory that the index takes, about.
    pub(super) fn bytes(&self) -> usize {
        self.bytes + (self.places.len() + self.carried.len()) * ENTRY_BYTES
    }

    /// Adds a record of the segment. `only`: the rows of other requests are left out.
    pub(super) fn apply(&mut self, record: &RequestRecord<'_>, only: Option<u64>) {
        match record {
            RequestRecord::Frame(position, _) => {
                self.places.insert(position.frame.0, position.offset);
                if self.places.len() > PLACES_MAX {
                    self.places.pop_first();
                }
            }
            RequestRecord::Outcome(outcome, offset) => self.outcome(outcome, *offset, only),
            RequestRecord::Carried(requests) => {
                let is_wanted = |number: u64| only.is_none_or(|only| only == number);
                let known = requests.iter().map(|(info, _)| (info.number.0, info.forwarded));
                self.carried.extend(known.filter(|(number, _)| is_wanted(*number)));
            }
            _ => {}
        }
    }

    /// Forgets everything but the places of frames without an outcome.
    pub(super) fn forget_rows(&mut self) {
        let places = std::mem::take(&mut self.places);
        *self = SegmentIndex { places, ..SegmentIndex::new(self.segment) };
    }

    /// Ends the index: the segment has no further record.
    pub(super) fn end(&mut self) {
        self.places.clear();
        self.frames.shrink_to_fit();
        self.runs.values_mut().for_each(Vec::shrink_to_fit);
    }

    /// Tokens that left of a request before the segment.
    pub(super) fn carried(&self, request: u64) -> u64 {
        self.carried.get(&request).copied().unwrap_or_default()
    }

    /// The place of a frame whose outcome is the next record.
    pub(super) fn received(&self, frame: FrameNo) -> Option<Position> {
        let offset = *self.places.get(&frame.0)?;
        Some(Position { frame, segment: self.segment, offset })
    }

    fn outcome(&mut self, outcome: &Outcome<'static>, offset: u32, only: Option<u64>) {
        let received = self.places.remove(&outcome.frame.0);
        // A record may be written twice.
        let is_known = self.frames.last().is_some_and(|last| last.frame >= outcome.frame);
        if is_known || outcome.is_record() {
            return;
        }
        let at = self.frames.len() as u32;
        let mut effects = row_effects(&outcome.actions).peekable();
        let mut has_row = false;
        for (row, (request, received)) in (0..).zip(outcome.requests.iter().zip(outcome.tokens.iter())) {
            let effect = effects.next_if(|effect| effect.row == row);
            if only.is_some_and(|only| only != request.0) {
                continue;
            }
            has_row = true;
            let is_special = |action: &PluginAction<'_>| {
                action.ends_request() || action.replaced() == Some(StoredReplacement::Cumulative)
            };
            let of_row = || outcome.actions.iter().filter(|action| action.row == row);
            let is_last = !outcome.finished.is_empty() && outcome.finished.iter().any(|it| it.row == row);
            let is_plain = !is_last && (effect.is_none() || !of_row().any(is_special));
            let forwarded = effect.map_or(*received, |effect| effect.forwarded);
            self.row(request.0, Run { first: at, rows: 1, forwarded, is_plain });
        }
        if has_row {
            self.frames.push(IndexedFrame { frame: outcome.frame, received, outcome: offset });
            self.bytes += size_of::<IndexedFrame>();
        }
    }

    fn row(&mut self, request: u64, row: Run) {
        let runs = self.runs.entry(request).or_insert_with(|| {
            self.bytes += REQUEST_BYTES;
            Vec::new()
        });
        let continues = |last: &&mut Run| {
            (last.first + last.rows, last.forwarded) == (row.first, row.forwarded)
                && last.is_plain
                && row.is_plain
        };
        match runs.last_mut().filter(continues) {
            Some(last) => last.rows += 1,
            None => {
                runs.push(row);
                self.bytes += size_of::<Run>();
            }
        }
    }

    /// The rows of a request behind a frame.
    pub(super) fn rows(&self, request: u64, behind: FrameNo) -> impl Iterator<Item = RowPlace> {
        let from = self.frames.partition_point(|known| known.frame <= behind) as u32;
        let runs = self.runs.get(&request).map(Vec::as_slice).unwrap_or_default();
        let first = runs.partition_point(|run| run.first + run.rows <= from);
        runs[first..].iter().flat_map(move |run| {
            let frames = run.first.max(from)..run.first + run.rows;
            frames.filter_map(move |at| {
                let IndexedFrame { frame, received, outcome } = *self.frames.get(at as usize)?;
                let Run { forwarded, is_plain, .. } = *run;
                Some(RowPlace { segment: self.segment, frame, received, outcome, forwarded, is_plain })
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use afterbay_journal::{Passage, RequestNo, RowFinish, Verdict};

    use super::*;

    fn frame(index: &mut SegmentIndex, number: u64, rows: &[(u64, u32)], finished: Option<u32>) {
        let position =
            Position { frame: FrameNo(number), segment: index.segment, offset: number as u32 * 10 };
        index.apply(&RequestRecord::Frame(position, 1), None);
        let requests: Vec<RequestNo> = rows.iter().map(|(request, _)| RequestNo(*request)).collect();
        let tokens: Vec<u32> = rows.iter().map(|(_, tokens)| *tokens).collect();
        let finish = |row| RowFinish { row, reason: "stop".into(), completion_tokens: None };
        let drop = PluginAction {
            row: 0,
            plugin: "p".into(),
            verdict: Verdict::Drop,
            text: "".into(),
            ids: vec![].into(),
            forwarded: 0,
        };
        let outcome = Outcome {
            requests: requests.into(),
            tokens: tokens.into(),
            finished: finished.map(finish).into_iter().collect::<Vec<_>>().into(),
            actions: if number % 100 == 50 { vec![drop].into() } else { vec![].into() },
            ..Outcome::new(FrameNo(number), 0, Passage::Unchanged)
        };
        index.apply(&RequestRecord::Outcome(&outcome, number as u32 * 10 + 5), None);
    }

    #[test]
    fn the_rows_of_a_request_behind_a_frame_are_found_and_rows_in_every_frame_take_little_memory() {
        let mut index = SegmentIndex::default();
        for number in 1..=1000 {
            let mut rows: Vec<(u64, u32)> = (1..=100).map(|request| (request, 1)).collect();
            rows.extend((number % 2 == 0).then_some((7000, number as u32)));
            frame(&mut index, number, &rows, (number == 1000).then_some(0));
        }
        // It was read again.
        frame(&mut index, 1000, &[(1, 1)], None);
        let rows: Vec<RowPlace> = index.rows(1, FrameNo(0)).collect();
        assert_eq!(rows.len(), 1000);
        assert!(rows.iter().zip(1..).all(|(row, number)| row.frame == FrameNo(number)));
        assert_eq!((rows[48].forwarded, rows[49].forwarded, rows[50].forwarded), (1, 0, 1), "a dropped row");
        assert_eq!((rows[998].is_plain, rows[999].is_plain), (true, false), "the last row");
        assert_eq!((rows[999].received, rows[999].outcome), (Some(10_000), 10_005));
        let behind: Vec<u64> = index.rows(7000, FrameNo(995)).map(|row| row.frame.0).collect();
        assert_eq!(behind, [996, 998, 1000]);
        assert_eq!(index.rows(9, FrameNo(1000)).count() + index.rows(5, FrameNo(5000)).count(), 0);
        assert_eq!(index.rows(3, FrameNo(0)).count(), 1000);
        assert!(index.bytes() < 60_000, "{} bytes for 100,500 rows", index.bytes());
    }
}
