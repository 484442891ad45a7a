//! Writes a batch column by column from rows of other batches. Each row comes from one row (copied or edited) or from
//! several (joined by the table in `columns`).

use std::ops::Range;

use crate::pickle::{PickleWriter, SourceId, Tree};
use bytes::Bytes;

use super::batch::{ColumnForm, Columns};
use super::decode::read_again;
use crate::batch::{Batch, PartRow};
use crate::bounds::MAX_EXPANSION;
use crate::error::RowsError;
use crate::pack;
use crate::rows::{check_rows, mixed};
use crate::sglang::columns::Join;
use crate::sglang::joining::{ColumnRule, JoinError, absent, join};
use crate::sglang::layouts::{KnownField, TextLayout};
use crate::sglang::mask::Mask;
use crate::sglang::pickled;
use crate::sglang::row_change::RowChange;
use crate::sglang::value_writer::{ValueWriter, wait};
use crate::value::{ColumnCells, ColumnView, IdCells, RawValue};

mod without_text;

/// A batch to be written: its rows, and the rows that they come from.
pub(crate) struct WritePlan<'a> {
    parts: Vec<&'a Batch>,
    /// The columns of each part.
    columns: Vec<&'a Columns>,
    rows: usize,
    /// Empty: all rows are unchanged rows of a part, so they are `firsts`.
    steps: Vec<WriteStep<'a>>,
    /// The rows that [`WriteStep::One`] refers to.
    from: Vec<PartRow>,
    /// The first of the rows that each row is joined from.
    firsts: Vec<RowRun>,
    /// The last of the rows that each row is joined from. Empty: no row is joined from several, so they are the first ones.
    lasts: Vec<RowRun>,
    has_changes: bool,
}

/// The next rows to write into each column.
enum WriteStep<'a> {
    /// Adjacent rows of a part, unchanged.
    Run(RowRun),
    /// One row that is joined from these rows. A change applies to a single row.
    One { from: Range<usize>, change: Option<&'a RowChange> },
}

/// Adjacent rows of a part.
#[derive(Clone)]
pub(crate) struct RowRun {
    pub(crate) part: u32,
    pub(crate) rows: Range<u32>,
}

impl RowRun {
    fn of((part, row): PartRow) -> RowRun {
        RowRun { part, rows: row..row + 1 }
    }

    /// Adds a row if it is the next one.
    fn extend(&mut self, (part, row): PartRow) -> bool {
        let is_next = self.part == part && self.rows.end == row;
        self.rows.end += u32::from(is_next);
        is_next
    }
}

fn push_row(runs: &mut Vec<RowRun>, row: PartRow) {
    if !runs.last_mut().is_some_and(|run| run.extend(row)) {
        runs.push(RowRun::of(row));
    }
}

impl<'a> WritePlan<'a> {
    /// A plan of rows of these batches. The error: one is another engine's.
    pub(crate) fn new(parts: Vec<&'a Batch>) -> Result<WritePlan<'a>, RowsError> {
        let (steps, from, firsts, lasts) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let columns = parts.iter().map(|part| part.columns()).collect::<Result<_, _>>()?;
        Ok(WritePlan { parts, columns, rows: 0, steps, from, firsts, lasts, has_changes: false })
    }

    /// A plan of some rows of a batch, ascending.
    pub(crate) fn of_rows(batch: &'a Batch, rows: &[u32]) -> Result<WritePlan<'a>, RowsError> {
        let mut plan = WritePlan::new(vec![batch])?;
        check_rows(batch, rows)?;
        plan.rows = rows.len();
        plan.firsts.reserve_exact(rows.len());
        rows.iter().for_each(|row| push_row(&mut plan.firsts, (0, *row)));
        Ok(plan)
    }

    /// Adds a row.
    pub(crate) fn push(&mut self, from: &[PartRow], change: Option<&'a RowChange>) {
        let &[first, ..] = from else { return };
        self.rows += 1;
        let last = from[from.len() - 1];
        let is_copied = from.len() == 1 && change.is_none();
        if is_copied && self.steps.is_empty() {
            return push_row(&mut self.firsts, first);
        }
        if self.steps.is_empty() {
            self.steps = self.firsts.iter().cloned().map(WriteStep::Run).collect();
        }
        if from.len() > 1 && self.lasts.is_empty() {
            self.lasts = self.firsts.clone();
        }
        if from.len() > 1 || !self.lasts.is_empty() {
            push_row(&mut self.lasts, last);
        }
        push_row(&mut self.firsts, first);
        if is_copied {
            let is_next = match self.steps.last_mut() {
                Some(WriteStep::Run(run)) => run.extend(first),
                _ => false,
            };
            if !is_next {
                self.steps.push(WriteStep::Run(RowRun::of(first)));
            }
            return;
        }
        self.has_changes |= change.is_some();
        let start = self.from.len();
        self.from.extend_from_slice(from);
        self.steps.push(WriteStep::One { from: start..self.from.len(), change });
    }

    /// The part whose form the written batch follows. The error: there are no rows.
    pub(super) fn first(&self) -> Result<(&'a Batch, &'a Columns), RowsError> {
        let first = self.parts.first().copied().zip(self.columns.first().copied());
        first.filter(|_| self.rows > 0).ok_or(RowsError::NoRows)
    }

    /// Writes the batch and reads it again, so that sent batches pass the same checks as received ones.
    pub(crate) fn write(&self) -> Result<Batch, RowsError> {
        self.write_as(None)
    }

    /// Writes the batch as the detokenizer would, without text.
    pub(crate) fn write_without_text(&self, textless: &'a TextLayout) -> Result<Batch, RowsError> {
        self.write_as(Some(textless))
    }

    fn write_as(&self, textless: Option<&'a TextLayout>) -> Result<Batch, RowsError> {
        let (first, columns) = self.first()?;
        for (part, it) in self.parts.iter().enumerate() {
            if !it.is_like(first) {
                return Err(mixed(part, it, first));
            }
        }
        let mut ends = Vec::new();
        let bytes = match &columns.form {
            ColumnForm::Packed(_) => self.msgpack(columns, textless, &mut ends)?,
            ColumnForm::Pickled(_) => self.pickle(columns, textless)?,
        };
        if textless.is_none()
            && self.is_taken()
            && let Some(batch) = first.read_taken(&bytes, &ends, self.rows as u32)
        {
            return Ok(batch.with_cumulative(self.cumulative()));
        }
        let layout = textless.map_or(&columns.layout, |textless| &textless.layout);
        let batch =
            read_again(columns, bytes, layout).map_err(|error| RowsError::Written(Box::new(error)))?;
        Ok(batch.with_cumulative(self.cumulative()))
    }

    /// The rows that have all ids so far: a source row has them, or a change gives them.
    fn cumulative(&self) -> Vec<u32> {
        if !self.has_cumulative() {
            return Vec::new();
        }
        let has = |(part, row): PartRow| self.parts[part as usize].is_cumulative(row);
        let (mut cumulative, mut next) = (Vec::new(), 0);
        let add_run = |RowRun { part, rows }: &RowRun, next: &mut u32, cumulative: &mut Vec<u32>| {
            if !self.parts[*part as usize].cumulative.is_empty() {
                let of_run = (*next..).zip(rows.clone()).filter(|(_, row)| has((*part, *row)));
                cumulative.extend(of_run.map(|(row, _)| row));
            }
            *next += rows.end - rows.start;
        };
        if self.steps.is_empty() {
            self.firsts.iter().for_each(|run| add_run(run, &mut next, &mut cumulative));
        }
        for step in &self.steps {
            match step {
                WriteStep::Run(run) => add_run(run, &mut next, &mut cumulative),
                WriteStep::One { from, change } => {
                    let is_given = change.is_some_and(RowChange::is_cumulative);
                    if is_given || self.from[from.clone()].iter().any(|row| has(*row)) {
                        cumulative.push(next);
                    }
                    next += 1;
                }
            }
        }
        cumulative
    }

    /// Whether the rows are all rows of one part, in order. Some may be changed.
    fn is_all_of_one(&self) -> bool {
        // Rows are ascending and each occurs once, and `Batch::join` does not join rows of one part.
        self.parts.len() == 1 && self.rows == self.parts[0].rows as usize
    }

    /// An estimate of the bytes to write: as many per row as the parts have.
    fn capacity(&self) -> usize {
        let (bytes, rows) = self
            .parts
            .iter()
            .fold((0, 1), |(bytes, rows), part| (bytes + part.bytes.len(), rows + part.rows as usize));
        bytes / rows * self.rows + 1024
    }

    /// Whether the rows are unchanged rows of one part.
    fn is_taken(&self) -> bool {
        self.parts.len() == 1 && self.lasts.is_empty() && !self.has_changes
    }

    /// Writes msgpack. `ends` gets the end of the head and of each column.
    fn msgpack(
        &self,
        first: &Columns,
        textless: Option<&TextLayout>,
        ends: &mut Vec<u32>,
    ) -> Result<Bytes, RowsError> {
        let mut out = Vec::with_capacity(self.capacity());
        let layout = textless.map_or(&first.layout, |textless| &textless.layout);
        pack::write::array(&mut out, layout.fields.len() + 1);
        pack::write::str(&mut out, layout.kind.class());
        let sources = vec![None; self.parts.len()];
        ends.push(out.len() as u32);
        for (at, field) in layout.fields.iter().enumerate() {
            match textless {
                Some(textless) => self.without_text(&mut out, &sources, textless.from[at])?,
                None => self.column(&mut out, &sources, at, ColumnRule::new(field))?,
            }
            ends.push(out.len() as u32);
        }
        Ok(out.into())
    }

    fn pickle(&self, first: &'a Columns, textless: Option<&'a TextLayout>) -> Result<Bytes, RowsError> {
        let trees = self.columns.iter().map(|part| part.tree()).collect::<Option<Vec<_>>>();
        let trees = trees.ok_or(RowsError::Foreign)?;
        let fields = &textless.map_or(&first.layout, |textless| &textless.layout).fields;
        let masks = match textless {
            _ if self.steps.is_empty() => Vec::new(),
            Some(_) => Vec::new(),
            None => (0..fields.len()).map(|field| self.masks(field)).collect::<Result<Vec<_>, _>>()?,
        };
        let other = textless.map(|textless| pickled::model(textless.layout.kind, first.is_dataclass()));
        let other = other.transpose().map_err(|error| RowsError::Written(Box::new(error.into())))?;
        let mut writer = PickleWriter::new(trees[0].0.protocol());
        writer.reserve(self.capacity());
        let sources: Vec<_> = trees.iter().map(|(tree, _)| writer.source(tree)).collect();
        let masks: Vec<_> =
            masks.iter().map(|tree| Some((writer.source(tree.as_ref()?), tree.as_ref()?.root()))).collect();
        let (model, root) = match &other {
            Some(model) => (writer.source(model), model.root()),
            None => (sources[0], trees[0].1),
        };
        let sources = sources.into_iter().map(Some).collect::<Vec<_>>();
        let mut failed = None;
        let object = writer.object(model, root, |writer| {
            let written = fields.iter().enumerate().try_for_each(|(at, field)| {
                writer.str(&field.name);
                match (textless, masks.get(at)) {
                    (Some(textless), _) => self.without_text(writer, &sources, textless.from[at]),
                    (None, Some(&Some((source, id)))) => Ok(writer.copy(source, id)?),
                    (None, _) => self.column(writer, &sources, at, ColumnRule::new(field)),
                }
            });
            wait(written, &mut failed)
        });
        failed.map_or(object.map_err(RowsError::from), Err)?;
        Ok(writer.finish()?)
    }

    /// Writes a pickle's column of sampling masks as a pickle of its own, which is then copied. Joined or edited chunks
    /// are function calls, which the pickle crate can copy and cannot write. `None`: no chunk changes, so the column is
    /// written like others.
    fn masks(&self, field: usize) -> Result<Option<Tree>, RowsError> {
        let rule = ColumnRule::new(&self.columns[0].layout.fields[field]);
        let new = self.steps.iter().any(|step| matches!(step, WriteStep::One { .. }));
        if rule.join != Join::Mask || !new || self.columns.iter().all(|part| part.plain_rows(field).is_none())
        {
            return Ok(None);
        }
        let mut out = b"\x80\x04](".to_vec();
        for step in &self.steps {
            let (rows, change): (Vec<PartRow>, _) = match step {
                WriteStep::Run(RowRun { part, rows }) => {
                    (rows.clone().map(|row| (*part, row)).collect(), None)
                }
                WriteStep::One { from, change } => (self.from[from.clone()].to_vec(), *change),
            };
            // The rows of a run separately, the rows of one step together.
            let together = if matches!(step, WriteStep::One { .. }) { rows.len() } else { 1 };
            for rows in rows.chunks(together) {
                let cells = rows.iter().filter_map(|&(part, row)| {
                    Some(self.columns[part as usize].plain_rows(field)?.get(row))
                        .filter(|cell| !cell.is_nil())
                });
                let Some(masks) = cells.map(Mask::read).collect::<Option<Vec<_>>>() else { return Ok(None) };
                if masks.is_empty() {
                    out.push(b'N');
                    continue;
                }
                let mask = Mask::concat(masks);
                let mask = change.map_or(Some(mask.clone()), |change| change.mask(mask));
                mask.ok_or_else(|| RowsError::Split { name: rule.name.to_owned() })?.pickle(&mut out);
            }
        }
        out.extend_from_slice(b"e.");
        Tree::parse(out.into())
            .map(Some)
            .map_err(|error| RowsError::Wrapped { name: rule.name.to_owned(), error })
    }

    /// Writes a column. `sources` are the parts' trees, if the output is a pickle.
    pub(crate) fn column<S: ValueWriter<'a>>(
        &self,
        out: &mut S,
        sources: &[Option<SourceId>],
        field: usize,
        rule: ColumnRule<'_>,
    ) -> Result<(), RowsError> {
        if self.is_all_of_one() && !RowChange::touches(rule.name, rule.per_token) {
            return out.copy(self.columns[0].raw(field), sources[0]);
        }
        if self.columns.iter().any(|part| part.wrapped_pickle(field).is_some()) {
            return out.wrapped(&self.wrapped(field, rule)?);
        }
        if rule.join == Join::Frame {
            let values = self.columns.iter().zip(sources).map(|(part, source)| (part.raw(field), *source));
            return match values.rev().find(|(value, _)| !value.is_nil()) {
                Some((value, source)) => out.copy(value, source),
                None => {
                    out.nil();
                    Ok(())
                }
            };
        }
        if let [part] = self.columns.as_slice()
            && self.is_taken()
            && let Some(cells) = part.plain_rows(field)
        {
            return self.rows(out, sources, rule, &[Some(cells)]);
        }
        let views = self.columns.iter().map(|part| part.view(field)).collect::<Result<Vec<_>, _>>()?;
        self.views(out, sources, rule, &views)
    }

    /// Writes a column from its views in the parts.
    fn views<S: ValueWriter<'a>>(
        &self,
        out: &mut S,
        sources: &[Option<SourceId>],
        rule: ColumnRule<'_>,
        views: &[ColumnView<'a>],
    ) -> Result<(), RowsError> {
        if views.iter().any(|view| matches!(view, ColumnView::Whole)) {
            return Err(RowsError::Split { name: rule.name.to_owned() });
        }
        if views.iter().all(|view| matches!(view, ColumnView::Nil)) {
            out.nil();
            return Ok(());
        }
        if views.iter().all(|view| matches!(view, ColumnView::Empty)) {
            return out.list(0, |_| Ok(()));
        }
        if views.iter().any(|view| matches!(view, ColumnView::Named(_))) {
            return self.named(out, sources, rule, views);
        }
        let rows: Vec<_> = views
            .iter()
            .map(|view| match view {
                ColumnView::Cells(rows) => Some(*rows),
                _ => None,
            })
            .collect();
        self.rows(out, sources, rule, &rows)
    }

    /// Writes the pickle that stands for a column.
    fn wrapped(&self, field: usize, rule: ColumnRule<'_>) -> Result<Bytes, RowsError> {
        let trees =
            self.columns.iter().map(|part| part.wrapped_tree(field)).collect::<Result<Vec<_>, _>>()?;
        let protocol = trees.iter().flatten().map(|tree| tree.protocol()).next();
        let mut writer = PickleWriter::new(protocol.unwrap_or_default());
        let sources: Vec<_> = trees.iter().map(|tree| tree.map(|tree| writer.source(tree))).collect();
        let views = self.columns.iter().map(|part| part.view(field)).collect::<Result<Vec<_>, _>>()?;
        if views.iter().zip(&trees).any(|(view, tree)| tree.is_none() && !matches!(view, ColumnView::Nil)) {
            return Err(rule.shape_error());
        }
        self.views(&mut writer, &sources, rule, &views)?;
        Ok(writer.finish()?)
    }

    /// Writes a dict of columns with the names of all parts.
    fn named<S: ValueWriter<'a>>(
        &self,
        out: &mut S,
        sources: &[Option<SourceId>],
        rule: ColumnRule<'_>,
        views: &[ColumnView<'a>],
    ) -> Result<(), RowsError> {
        let mut names: Vec<&str> = Vec::new();
        for view in views {
            match view {
                ColumnView::Named(columns) => {
                    let new = columns.iter().map(|(name, _)| *name);
                    new.for_each(|name| {
                        if !names.contains(&name) {
                            names.push(name)
                        }
                    });
                }
                ColumnView::Nil => (),
                _ => return Err(rule.shape_error()),
            }
        }
        let join = if rule.join == Join::Named { Join::Concat } else { Join::Never };
        out.map(names.len(), |out| {
            names.iter().try_for_each(|name| {
                out.str(name);
                let column = |view: &ColumnView<'a>| match view {
                    ColumnView::Named(columns) => {
                        columns.iter().find(|(it, _)| it == name).map(|(_, rows)| *rows)
                    }
                    _ => None,
                };
                let rows: Vec<_> = views.iter().map(column).collect();
                self.rows(out, sources, ColumnRule { join, ..rule }, &rows)
            })
        })
    }

    /// Writes a column with one cell per row. For a part without cells it writes the absent value.
    fn rows<S: ValueWriter<'a>>(
        &self,
        out: &mut S,
        sources: &[Option<SourceId>],
        rule: ColumnRule<'_>,
        rows: &[Option<ColumnCells<'a>>],
    ) -> Result<(), RowsError> {
        let is_touched = self.has_changes && RowChange::touches(rule.name, rule.per_token);
        if let Some(runs) = self.copied(rule).filter(|_| !is_touched) {
            return out.list(self.rows, |out| self.copy(out, sources, rule, rows, runs));
        }
        if !is_touched && self.are_nil(rows) {
            return out.list(self.rows, |out| {
                (0..self.rows).for_each(|_| out.nil());
                Ok(())
            });
        }
        let joins_ids = rule.join == Join::Ids && !is_touched && !self.has_cumulative();
        let id_cells: Option<Vec<_>> = match joins_ids {
            true => {
                self.parts.iter().zip(rows).map(|(part, rows)| Some((*rows)?.id_cells(part.rows))).collect()
            }
            false => None,
        };
        let (mut cells, mut ids) = (Vec::new(), Vec::new());
        let bytes: usize = self.parts.iter().map(|part| part.bytes.len()).sum();
        let mut left = MAX_EXPANSION * bytes;
        let expands = || RowsError::Expands { name: rule.name.to_owned() };
        let is_ids = rule.name == KnownField::OutputIds.name();
        out.list(self.rows, |out| {
            for step in &self.steps {
                match step {
                    WriteStep::Run(RowRun { part, rows: run }) => match rows[*part as usize] {
                        Some(rows) => out.run(rows, sources[*part as usize], run.clone())?,
                        None => run.clone().try_for_each(|_| absent(out, rule))?,
                    },
                    WriteStep::One { from, change } => {
                        if let Some(id_cells) = &id_cells
                            && self.usual_ids(id_cells, from.clone(), &mut ids)
                        {
                            let bytes = ids.iter().map(|ids| ids.len()).sum();
                            left = left.checked_sub(bytes).ok_or_else(expands)?;
                            out.id_bytes(&ids);
                            continue;
                        }
                        cells.clear();
                        let mut from = from.clone();
                        if is_ids {
                            // The last cell with all ids so far replaces the ids of the cells before it.
                            let all = self.from[from.clone()]
                                .iter()
                                .rposition(|&(part, row)| self.parts[part as usize].is_cumulative(row));
                            from.start += all.unwrap_or(0);
                        }
                        for &(part, row) in &self.from[from.clone()] {
                            let part = part as usize;
                            let cell = rows[part].map(|rows| rows.get(row));
                            if rule.reads_cells() {
                                left =
                                    left.checked_sub(cell.map_or(0, RawValue::weight)).ok_or_else(expands)?;
                            }
                            cells.push(cell.map(|cell| (cell, sources[part])));
                        }
                        match (change, cells.as_slice()) {
                            (Some(change), &[Some(cell)]) => {
                                change.write(out, rule.name, rule.per_token, cell)?
                            }
                            _ => join(out, rule, &cells).map_err(|error| match error {
                                JoinError::Failed(error) => error,
                                JoinError::NotJoinable => self.cannot(rule, from.start),
                            })?,
                        }
                    }
                }
            }
            Ok(())
        })
    }

    /// Reads the bytes of the ids of these rows. Returns false if a cell is no id array in the usual form.
    fn usual_ids(&self, cells: &[IdCells<'a>], from: Range<usize>, out: &mut Vec<&'a [u8]>) -> bool {
        out.clear();
        let ids = |&(part, row): &PartRow| cells[part as usize].get(row);
        self.from[from].iter().map(ids).all(|ids| ids.map(|ids| out.push(ids)).is_some())
    }

    /// Whether a row may have all ids so far.
    fn has_cumulative(&self) -> bool {
        self.has_changes || self.parts.iter().any(|part| !part.cumulative.is_empty())
    }

    /// The rows whose cells make up the column, if none is joined from several cells.
    fn copied(&self, rule: ColumnRule<'_>) -> Option<&[RowRun]> {
        match rule.join {
            _ if self.lasts.is_empty() => Some(&self.firsts),
            Join::First => Some(&self.firsts),
            Join::Last => Some(&self.lasts),
            _ => None,
        }
    }

    /// Copies the cells of these rows.
    fn copy<S: ValueWriter<'a>>(
        &self,
        out: &mut S,
        sources: &[Option<SourceId>],
        rule: ColumnRule<'_>,
        rows: &[Option<ColumnCells<'a>>],
        runs: &[RowRun],
    ) -> Result<(), RowsError> {
        if let (&[Some(cells)], &[source]) = (rows, sources) {
            let runs = runs.iter().map(|run| run.rows.clone());
            return out.rows(cells, source, (self.rows, self.parts[0].rows), runs);
        }
        for RowRun { part, rows: run } in runs {
            match rows[*part as usize] {
                Some(rows) => out.run(rows, sources[*part as usize], run.clone())?,
                None => run.clone().try_for_each(|_| absent(out, rule))?,
            }
        }
        Ok(())
    }

    /// Whether all cells of a column are nil.
    fn are_nil(&self, rows: &[Option<ColumnCells<'a>>]) -> bool {
        let of_part = self.parts.iter().map(|part| part.rows);
        rows.iter().zip(of_part).all(|(rows, count)| rows.is_some_and(|rows| rows.are_nil(count)))
    }

    fn cannot(&self, rule: ColumnRule<'_>, from: usize) -> RowsError {
        let (part, row) = self.from[from];
        RowsError::Column { name: rule.name.to_owned(), rid: self.parts[part as usize].rid(row).to_owned() }
    }
}
