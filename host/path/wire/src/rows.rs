//! Operations on the rows of batches: taking, joining and editing. Each makes a plan and writes it.

use bytes::Bytes;
use hashbrown::HashMap;

use crate::batch::{Batch, BatchPart, PartRow};
use crate::edit::{BlankRow, Edit, FinishReason, TokenEdit};
use crate::error::RowsError;
use crate::finish::Finish;

/// Checks that the rows exist and ascend.
pub(crate) fn check_rows(batch: &Batch, rows: &[u32]) -> Result<(), RowsError> {
    let unordered = rows.windows(2).find(|pair| pair[0] >= pair[1]).map(|pair| pair[1]);
    match unordered.or(rows.last().copied().filter(|&row| row >= batch.rows)) {
        Some(row) => Err(RowsError::Row { row, rows: batch.rows }),
        None => Ok(()),
    }
}

/// Calls `write` for each row that an edit leaves in the batch, which is part 0: where the row comes from, and its edit.
pub(crate) fn edited<'e>(
    batch: &Batch,
    edits: &'e [Edit],
    instead: &[(u32, PartRow)],
    mut write: impl FnMut(PartRow, Option<&'e Edit>) -> Result<(), RowsError>,
) -> Result<(), RowsError> {
    let (mut edits, mut instead) = (edits.iter().peekable(), instead.iter().peekable());
    for row in 0..batch.rows {
        let edit = edits.next_if(|edit| edit.row == row);
        let other = instead.next_if(|(of, _)| *of == row);
        if edit.is_none_or(|edit| edit.tokens != TokenEdit::Drop) {
            write(other.map_or((0, row), |(_, other)| *other), edit)?;
        }
    }
    match instead.next() {
        Some((row, _)) => Err(RowsError::Row { row: *row, rows: batch.rows }),
        None => Ok(()),
    }
}

/// The error for a part that cannot share a frame with the first.
pub(crate) fn mixed(part: usize, it: &Batch, first: &Batch) -> RowsError {
    let describe = |batch: &Batch| format!("{} in {}", batch.kind(), batch.wire());
    RowsError::Mixed { part, it: describe(it), first: describe(first) }
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
                return Err(RowsError::Column { name: "rids".to_owned(), rid: String::new() });
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
        let (rid_of, finish_of) = (batch.rid_reader(), batch.finish_reader());
        // A step mostly has the requests of the step before, in the same order.
        let mut expected = 0;
        for row in rows {
            let rid = rid_of(row);
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
            let ended = finish_of(row) != Finish::Running;
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
        check_rows(self, rows)?;
        let mut taken = self.of_engine().take(self, rows, fields_stay)?;
        taken.may_begin &= self.may_begin;
        Ok(taken)
    }

    /// The frame with all its fields and without rows, for a batch of which an [edit](Batch::edit) left no row. `None`:
    /// the frame says nothing without its rows, as every frame of SGLang.
    pub fn without_rows(&self) -> Option<Bytes> {
        self.of_engine().without_rows()
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
        Batch::join_rows(parts, false)
    }

    /// [Joins](Batch::join) rows and no fields of their frames, as if each part was [detached](Batch::detach).
    pub fn join_detached(parts: &[BatchPart<'_>]) -> Result<Batch, RowsError> {
        Batch::join_rows(parts, true)
    }

    fn join_rows(parts: &[BatchPart<'_>], fields_stay: bool) -> Result<Batch, RowsError> {
        let requests = RequestRows::of(parts)?;
        let first = parts.first().ok_or(RowsError::NoRows)?;
        first.batch.of_engine().join(parts, &mut requests.iter(), fields_stay)
    }

    /// Returns the batch with some rows edited, or `None` if no row is left. The edits are ascending, at most one per
    /// row.
    ///
    /// A batch of vLLM's keeps the fields of its frame. If no row is left, [`Batch::without_rows`] has them.
    pub fn edit(&self, edits: &[Edit]) -> Result<Option<Batch>, RowsError> {
        self.edit_replacing(edits, &[])
    }

    /// [Edits](Batch::edit) a batch after replacing some rows. Each of `instead` is a row, and a batch with the number of a row
    /// of the same request in it, for example of held rows [joined](Batch::join) with the row. `instead` is ascending, at most
    /// one per row. Edits apply to the replacements. Fields of the frame are those of this batch.
    pub fn edit_replacing(
        &self,
        edits: &[Edit],
        instead: &[(u32, &Batch, u32)],
    ) -> Result<Option<Batch>, RowsError> {
        let mut next = 0;
        for edit in edits {
            if edit.row < next || edit.row >= self.rows {
                return Err(RowsError::Row { row: edit.row, rows: self.rows });
            }
            next = edit.row + 1;
        }
        let mut parts = vec![self];
        let mut rows = Vec::with_capacity(instead.len());
        for (row, other, at) in instead {
            check_rows(other, &[*at])?;
            if parts.len() == 1 || parts.last().is_none_or(|last| last.address() != other.address()) {
                parts.push(other);
            }
            rows.push((*row, (parts.len() as u32 - 1, *at)));
        }
        self.of_engine().edit(parts, edits, &rows)
    }

    /// Returns a frame in the layout of this one with these rows, which have no tokens. Of the rows of this frame nothing is
    /// read, so that a frame of unreadable rows serves as well.
    ///
    /// The error: there are no rows, or they cannot be written.
    pub fn blank(&self, rows: &[BlankRow<'_>]) -> Result<Batch, RowsError> {
        if rows.is_empty() {
            return Err(RowsError::NoRows);
        }
        self.of_engine().blank(rows)
    }

    /// Returns a frame in the layout of this one that ends the requests of some rows, ascending, for this reason. The rows have
    /// no tokens.
    ///
    /// The error: there are no rows, or they cannot be written.
    pub fn ended(&self, rows: &[u32], finish: &FinishReason) -> Result<Batch, RowsError> {
        if let Some(&row) = rows.iter().find(|row| **row >= self.rows) {
            return Err(RowsError::Row { row, rows: self.rows });
        }
        let blank = rows.iter().map(|row| {
            let rid = self.rid_of(*row).and_then(|rid| std::str::from_utf8(rid).ok());
            Ok(BlankRow {
                rid: rid.ok_or(RowsError::NoColumn { name: "rid" })?,
                front_end: self.front_end(*row),
                prompt_tokens: self.prompt_tokens(*row).unwrap_or(0),
                completion_tokens: self.completion_tokens(*row).unwrap_or(0),
            })
        });
        let blank = self.blank(&blank.collect::<Result<Vec<_>, RowsError>>()?)?;
        let end = |row| Edit { finish: Some(finish.clone()), ..Edit::new(row) };
        let edits: Vec<Edit> = (0..blank.rows).map(end).collect();
        blank.edit(&edits)?.ok_or(RowsError::NoRows)
    }
}
