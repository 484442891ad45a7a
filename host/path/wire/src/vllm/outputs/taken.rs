//! The positions in a frame that was written from rows of another one: those of the rows, moved.

use bytes::Bytes;

use super::{OutputRow, Outputs};
use crate::batch::EngineBatch;
use crate::finish::Finish;
use crate::pack;

impl Outputs {
    /// Reads a frame that was written from these rows of this one, whose rows need no further look. `None`: the frame must be
    /// read as any other.
    pub(crate) fn read_taken(&self, frame: &Bytes, rows: &[u32]) -> Option<Outputs> {
        // A row without ids may be the end of the row that is now before it.
        let is_end = |row: &u32| self.rows[*row as usize].tokens == 0 && self.finish(*row) != Finish::Running;
        if !self.parts.is_empty() || self.has_finish && rows.iter().any(is_end) {
            return None;
        }
        let taken = Outputs::read_with(frame, &self.layouts, |outputs, bytes, at| {
            outputs.row_layout.clone_from(&self.row_layout);
            let begin = pack::array_at(bytes, at)?.map_or(at, |(_, begin)| begin);
            Ok(outputs.move_rows(self, rows, begin))
        });
        taken.ok()
    }

    /// Adds these rows of another frame, which stand one after the other from `at` on, and returns the end of the last one.
    fn move_rows(&mut self, from: &Outputs, rows: &[u32], mut at: usize) -> usize {
        self.rows.reserve_exact(rows.len());
        self.rids.reserve_exact(rows.len());
        for row in rows {
            let (row, (rid, rid_end)) = (from.rows[*row as usize], from.rids[*row as usize]);
            let by = (at as u32).wrapping_sub(row.start);
            self.has_finish |= row.finish != 0;
            self.has_first |= row.prefill != 0;
            self.rows.push(row.moved(by));
            self.rids.push((rid.wrapping_add(by), rid_end.wrapping_add(by)));
            at += row.span().len();
        }
        at
    }
}

impl OutputRow {
    /// The row at a place that is so many bytes further. 0 stays: it says that a field is nil.
    fn moved(self, by: u32) -> OutputRow {
        let moved = |at: u32| at.wrapping_add(by);
        OutputRow {
            start: moved(self.start),
            ids: moved(self.ids),
            rest: moved(self.rest),
            first_end: moved(self.first_end),
            end: moved(self.end),
            finish: if self.finish == 0 { 0 } else { moved(self.finish) },
            prefill: if self.prefill == 0 { 0 } else { moved(self.prefill) },
            ..self
        }
    }
}
