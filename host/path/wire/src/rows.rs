//! Operations on the rows of batches: taking, joining and editing. Each makes a plan and writes it.

pub(crate) mod vllm;

use std::iter;

use bytes::Bytes;
use hashbrown::HashMap;

use crate::batch::Batch;
use crate::edit::{Edit, TokenEdit};
use crate::error::RowsError;
use crate::finish::Finish;
use crate::layouts::KnownField;
use crate::plan::{WritePlan, check_rows};
use crate::row_change::RowChange;
use crate::vllm::PartRow;

/// Some rows of a batch, to be joined with others.
#[derive(Clone, Copy, Debug)]
pub struct BatchPart<'a> {
    /// The batch.
    pub batch: &'a Batch,
    /// The rows, ascending. `None`: all rows.
    pub rows: Option<&'a [u32]>,
}

impl<'a> From<&'a Batch> for BatchPart<'a> {
    fn from(batch: &'a Batch) -> BatchPart<'a> {
        BatchPart { batch, rows: None }
    }
}

/// The rows of several parts by request. The requests stand in the order of their first rows.
struct RequestRows {
    /// The rows, those of one request one after the other, in the order of the parts.
    rows: Vec<PartRow>,
    /// The end of each request's rows.
    ends: Vec<u32>,
}

impl RequestRows {
    fn of(parts: &[BatchPart<'_>]) -> Result<RequestRows, RowsError> {
        let rows_of = |part: &BatchPart<'_>| part.rows.map_or(part.batch.rows as usize, <[u32]>::len);
        let total = parts.iter().map(rows_of).sum();
        let mut requests = Requests { of_rows: Vec::with_capacity(total), ..Requests::default() };
        for BatchPart { batch, rows } in parts {
            if !batch.has_text_rids {
                let name = KnownField::Rids.name().to_owned();
                return Err(RowsError::Column { name, rid: String::new() });
            }
            match rows {
                None => requests.add(batch, 0..batch.rows)?,
                Some(rows) => {
                    check_rows(batch, rows)?;
                    requests.add(batch, rows.iter().copied())?;
                }
            }
        }
        // The next place of each request. In the end this is the end of its rows.
        let mut ends = requests.counts;
        let mut end = 0;
        for count in &mut ends {
            end += std::mem::replace(count, end);
        }
        let mut sorted = vec![(0, 0); total];
        let mut of_rows = requests.of_rows.iter();
        let mut place = |part: u32, row: u32| {
            let Some(request) = of_rows.next() else { return };
            let at = &mut ends[*request as usize];
            sorted[*at as usize] = (part, row);
            *at += 1;
        };
        for (part, BatchPart { batch, rows }) in (0..).zip(parts) {
            match rows {
                None => (0..batch.rows).for_each(|row| place(part, row)),
                Some(rows) => rows.iter().for_each(|row| place(part, *row)),
            }
        }
        Ok(RequestRows { rows: sorted, ends })
    }

    fn iter(&self) -> impl Iterator<Item = &[PartRow]> {
        let mut start = 0;
        self.ends
            .iter()
            .map(move |end| &self.rows[std::mem::replace(&mut start, *end as usize)..*end as usize])
    }
}

/// The requests of the rows that were added.
#[derive(Default)]
struct Requests<'a> {
    numbers: HashMap<&'a [u8], u32, foldhash::fast::RandomState>,
    rids: Vec<&'a [u8]>,
    /// Whether the last row of each request was its last.
    ended: Vec<bool>,
    /// The number of rows of each request.
    counts: Vec<u32>,
    /// The request of each row.
    of_rows: Vec<u32>,
}

impl<'a> Requests<'a> {
    /// Adds rows of a batch. The error: a row follows the last one of its request.
    fn add(&mut self, batch: &'a Batch, rows: impl Iterator<Item = u32>) -> Result<(), RowsError> {
        let (rids, outputs) = (batch.rows_of(KnownField::Rids), batch.outputs());
        // The texts of rids of one length are at one place in their cells.
        let equal = rids.and_then(|rids| {
            let (cells, width) = rids.equal_width(batch.rows)?;
            let text = rids.model()?.str_bytes()?.len();
            Some((cells, width, text))
        });
        let reasons =
            batch.rows_of(KnownField::FinishedReasons).filter(|reasons| !reasons.are_nil(batch.rows));
        let ending = outputs.filter(|outputs| outputs.has_finish());
        // A step mostly has the requests of the step before, in the same order.
        let mut expected = 0;
        for row in rows {
            let rid = match (equal, rids, outputs) {
                (Some((cells, width, text)), ..) => {
                    let end = (row as usize + 1) * width;
                    cells.get(end - text..end)
                }
                (None, Some(rids), _) => rids.get(row).str_bytes(),
                (None, None, outputs) => outputs.and_then(|outputs| outputs.rid_bytes(row)),
            };
            let rid = rid.unwrap_or_default();
            let request = match self.rids.get(expected as usize) {
                Some(known) if *known == rid => expected,
                _ => *self.numbers.entry(rid).or_insert(self.rids.len() as u32),
            };
            expected = request + 1;
            if request as usize == self.rids.len() {
                self.rids.push(rid);
                self.ended.push(false);
                self.counts.push(0);
            }
            let ended = match (reasons, ending) {
                (Some(reasons), _) => !reasons.get(row).is_nil(),
                (None, Some(outputs)) => outputs.finish(row) != Finish::Running,
                (None, None) => false,
            };
            if std::mem::replace(&mut self.ended[request as usize], ended) {
                return Err(RowsError::AfterFinish { rid: batch.rid(row).to_owned() });
            }
            self.counts[request as usize] += 1;
            self.of_rows.push(request);
        }
        Ok(())
    }
}

impl Batch {
    /// Returns some rows, ascending, as a batch of its own.
    ///
    /// A frame of vLLM has fields beside its rows: statistics, the names of ended requests, answers. Each must reach the
    /// front end once. They go **with the frame's last row**: of several batches that share a frame's rows, exactly one
    /// has them, also if some are taken after a restart. Engine, time and version of the weights are in each. Rows that
    /// leave a batch which continues without them are [detached](Batch::detach).
    pub fn take(&self, rows: &[u32]) -> Result<Batch, RowsError> {
        self.take_rows(rows, false)
    }

    /// [Takes](Batch::take) some rows and no fields of the frame: the fields stay with the batch, from which an
    /// [edit](Batch::edit) drops the rows. SGLang's frames have no such fields.
    pub fn detach(&self, rows: &[u32]) -> Result<Batch, RowsError> {
        self.take_rows(rows, true)
    }

    fn take_rows(&self, rows: &[u32], fields_stay: bool) -> Result<Batch, RowsError> {
        let mut taken = match self.outputs() {
            Some(outputs) => {
                check_rows(self, rows)?;
                vllm::take(self, outputs, rows, fields_stay)?
            }
            None => WritePlan::of_rows(self, rows)?.write()?,
        };
        taken.may_begin &= self.may_begin;
        Ok(taken)
    }

    /// The frame with all its fields and without rows, for a batch of which an [edit](Batch::edit) left no row. `None`:
    /// the frame says nothing without its rows, as every frame of SGLang.
    pub fn without_rows(&self) -> Option<Bytes> {
        vllm::without_rows(self.outputs()?)
    }

    /// Joins the parts' rows into one batch. The rows of one request become one row, in the order of the parts.
    /// Requests stand in the order of their first rows. The parts must have one kind, encoding and layout.
    ///
    /// The result is exact or an error: the reader ends in the same state as after the single batches.
    ///
    /// A part of vLLM's whose last row is among the rows also gives the fields of its frame, as [`Batch::take`] does.
    /// Statistics of several frames become one: what happened in the steps is added, a state is the last one, and the
    /// names of ended requests stand one after the other.
    pub fn join(parts: &[BatchPart<'_>]) -> Result<Batch, RowsError> {
        let requests = RequestRows::of(parts)?;
        if parts.iter().any(|part| part.batch.outputs().is_some()) {
            return vllm::join(parts, requests.iter());
        }
        let mut plan = WritePlan::new(parts.iter().map(|part| part.batch).collect());
        requests.iter().for_each(|rows| plan.push(rows, None));
        plan.write()
    }

    /// Returns the batch with some rows edited, or `None` if no row is left. The edits are ascending, at most one per
    /// row.
    ///
    /// A batch of vLLM's keeps the fields of its frame. If no row is left, [`Batch::without_rows`] has them.
    pub fn edit(&self, edits: &[Edit]) -> Result<Option<Batch>, RowsError> {
        self.edit_replacing(edits, &[])
    }

    /// [Edits](Batch::edit) a batch after replacing some rows. Each of `instead` is a row and a batch of one row of the
    /// same request, for example of held rows [joined](Batch::join) with it. `instead` is ascending, at most one per
    /// row. Edits apply to the replacements. Fields of the frame are those of this batch.
    pub fn edit_replacing(
        &self,
        edits: &[Edit],
        instead: &[(u32, &Batch)],
    ) -> Result<Option<Batch>, RowsError> {
        let mut next = 0;
        for edit in edits {
            if edit.row < next || edit.row >= self.rows {
                return Err(RowsError::Row { row: edit.row, rows: self.rows });
            }
            next = edit.row + 1;
        }
        if let Some(outputs) = self.outputs() {
            return vllm::edit(self, outputs, edits, instead);
        }
        let mut changes = Vec::with_capacity(edits.len());
        for edit in edits {
            changes.push(match instead.binary_search_by_key(&edit.row, |(row, _)| *row) {
                Ok(at) => RowChange::new(instead[at].1, 0, edit)?,
                Err(_) => RowChange::new(self, edit.row, edit)?,
            });
        }
        let others = instead.iter().map(|(_, other)| *other);
        let mut plan = WritePlan::new(iter::once(self).chain(others).collect());
        let mut changes = edits.iter().zip(&changes).peekable();
        let mut instead = (1..).zip(instead).peekable();
        for row in 0..self.rows {
            let change = changes.next_if(|(edit, _)| edit.row == row);
            let other = instead.next_if(|(_, (of, _))| *of == row);
            if change.is_none_or(|(edit, _)| edit.tokens != TokenEdit::Drop) {
                let from = other.map_or((0, row), |(part, _)| (part, 0));
                plan.push(&[from], change.map(|(_, change)| change));
            }
        }
        if let Some((_, (row, _))) = instead.next() {
            return Err(RowsError::Row { row: *row, rows: self.rows });
        }
        match plan.write() {
            Ok(batch) => Ok(Some(batch)),
            Err(RowsError::NoRows) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
