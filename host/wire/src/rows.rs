//! Taking rows out of batches and joining rows of several: one operation, since a batch is written column by column
//! from rows of other batches, each row out of one (copied) or several (joined by the table in `columns`).
//! `edit` uses it too, with rows that are changed on the way.

use std::ops::Range;

use afterbay_pickle::{Source, Tree, Writer};
use bytes::Bytes;
use hashbrown::HashMap;

use crate::batch::{Batch, Body};
use crate::bounds::MAX_EXPANSION;
use crate::columns::Join;
use crate::edit::Change;
use crate::error::RowsError;
use crate::joining::{Joining, Rule, absent, join};
use crate::layouts::{Field, Known};
use crate::mask::Mask;
use crate::pack;
use crate::pickled;
use crate::row::Finish;
use crate::sink::{Sink, wait};
use crate::textless::{Textless, is_dataclass};
use crate::value::{ColumnView, Rows, Value};

/// Rows of a batch that are to be joined with others.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// The batch.
    pub batch: &'a Batch,
    /// Which of its rows, ascending; `None`: all.
    pub rows: Option<&'a [u32]>,
}

impl<'a> From<&'a Batch> for Part<'a> {
    fn from(batch: &'a Batch) -> Part<'a> {
        Part { batch, rows: None }
    }
}

impl Part<'_> {
    /// The rows, checked.
    fn rows(&self) -> Result<impl Iterator<Item = u32>, RowsError> {
        let rows = self.batch.rows;
        let given = self.rows.unwrap_or_default();
        let unordered = given.windows(2).find(|pair| pair[0] >= pair[1]).map(|pair| pair[1]);
        if let Some(row) = unordered.or(given.last().copied().filter(|&row| row >= rows)) {
            return Err(RowsError::Row { row, rows });
        }
        let all = if self.rows.is_none() { 0..rows } else { 0..0 };
        Ok(all.chain(given.iter().copied()))
    }
}

impl Batch {
    /// Some rows, ascending, as a batch of its own.
    pub fn take(&self, rows: &[u32]) -> Result<Batch, RowsError> {
        Plan::of_rows(self, rows)?.write()
    }

    /// The parts' rows as one batch. Rows of one request become one row, the earlier first; rows of several stand side
    /// by side in the order of their first appearance. The parts must be of one kind, wire and layout.
    ///
    /// It is exact or an error: the reader ends in the state that the single batches would have left it in.
    pub fn join(parts: &[Part<'_>]) -> Result<Batch, RowsError> {
        let mut plan = Plan::new(parts.iter().map(|part| part.batch).collect());
        let mut requests: HashMap<&str, u32, foldhash::fast::RandomState> = HashMap::default();
        let mut ended = Vec::new();
        let mut rows = Vec::new();
        for (part, it) in parts.iter().enumerate() {
            if !it.batch.has_text_rids {
                return Err(RowsError::Column { name: Known::Rids.name().to_owned(), rid: String::new() });
            }
            for row in it.rows()? {
                let rid = it.batch.rid(row);
                let request = *requests.entry(rid).or_insert(ended.len() as u32);
                match ended.get(request as usize) {
                    None => ended.push(false),
                    Some(true) => return Err(RowsError::AfterFinish { rid: rid.to_owned() }),
                    Some(false) => (),
                }
                ended[request as usize] = it.batch.finish(row) != Finish::Running;
                rows.push((request, (part as u32, row)));
            }
        }
        // By request, and of one request in order: the sort is stable.
        rows.sort_by_key(|(request, _)| *request);
        let mut from = Vec::new();
        for request in rows.chunk_by(|one, next| one.0 == next.0) {
            from.clear();
            from.extend(request.iter().map(|(_, row)| *row));
            plan.push(&from, None);
        }
        plan.write()
    }
}

/// Whether a field of a batch can be taken apart.
pub(crate) fn check_splittable(batch: &Batch, field: usize) -> Result<(), RowsError> {
    let Field { name, column } = &batch.layout.fields[field];
    match batch.column(field)? {
        ColumnView::Whole if column.is_none_or(|column| column.join != Join::Frame) => {
            Err(RowsError::Split { name: name.to_string() })
        }
        _ => Ok(()),
    }
}

/// A row of a part: the part, and the row in it.
type RowOf = (u32, u32);

/// A batch to be written: its rows, and where each comes from.
pub(crate) struct Plan<'a> {
    parts: Vec<&'a Batch>,
    rows: usize,
    steps: Vec<Step<'a>>,
    /// Where the rows of [`Step::One`] come from.
    from: Vec<RowOf>,
}

/// What is written next into each column.
enum Step<'a> {
    /// Rows that follow each other in a part, as they are.
    Run { part: usize, rows: Range<u32> },
    /// One row, out of those rows; a change is made to a row out of one.
    One { from: Range<usize>, change: Option<&'a Change> },
}

impl<'a> Plan<'a> {
    pub(crate) fn new(parts: Vec<&'a Batch>) -> Plan<'a> {
        Plan { parts, rows: 0, steps: Vec::new(), from: Vec::new() }
    }

    /// Some rows of a batch, ascending.
    pub(crate) fn of_rows(batch: &'a Batch, rows: &[u32]) -> Result<Plan<'a>, RowsError> {
        let mut plan = Plan::new(vec![batch]);
        Part { batch, rows: Some(rows) }.rows()?.for_each(|row| plan.push(&[(0, row)], None));
        Ok(plan)
    }

    /// Adds a row.
    pub(crate) fn push(&mut self, from: &[RowOf], change: Option<&'a Change>) {
        self.rows += 1;
        if let (&[(part, row)], None) = (from, change) {
            match self.steps.last_mut() {
                Some(Step::Run { part: last, rows }) if *last == part as usize && rows.end == row => {
                    rows.end += 1
                }
                _ => self.steps.push(Step::Run { part: part as usize, rows: row..row + 1 }),
            }
            return;
        }
        let start = self.from.len();
        self.from.extend_from_slice(from);
        self.steps.push(Step::One { from: start..self.from.len(), change });
    }

    /// The part after whose model the batch is written. The error: there are no rows.
    pub(crate) fn first(&self) -> Result<&'a Batch, RowsError> {
        self.parts.first().copied().filter(|_| self.rows > 0).ok_or(RowsError::NoRows)
    }

    /// Writes a list of what `cell` writes for each row of a plan of rows as they are.
    pub(crate) fn each<S: Sink<'a>>(
        &self,
        sink: &mut S,
        mut cell: impl FnMut(&mut S, u32) -> Result<(), RowsError>,
    ) -> Result<(), RowsError> {
        let rows = self.steps.iter().flat_map(|step| match step {
            Step::Run { rows, .. } => rows.clone(),
            Step::One { .. } => 0..0,
        });
        sink.list(self.rows, |sink| rows.into_iter().try_for_each(|row| cell(sink, row)))
    }

    /// Writes the batch, and reads it again: what leaves has passed the same checks as what came.
    pub(crate) fn write(&self) -> Result<Batch, RowsError> {
        self.write_as(None)
    }

    /// Writes it as what the detokenizer would make of it, without text.
    pub(crate) fn write_without_text(&self, textless: &'a Textless) -> Result<Batch, RowsError> {
        self.write_as(Some(textless))
    }

    fn write_as(&self, textless: Option<&'a Textless>) -> Result<Batch, RowsError> {
        let first = self.first()?;
        for (part, it) in self.parts.iter().enumerate() {
            if !it.is_like(first) {
                let tell = |batch: &Batch| format!("{} in {}", batch.kind(), batch.wire());
                return Err(RowsError::Mixed { part, it: tell(it), first: tell(first) });
            }
        }
        let bytes = match &first.body {
            Body::Packed(_) => self.msgpack(first, textless)?,
            Body::Pickled(_) => self.pickle(first, textless)?,
        };
        let layout = textless.map_or(&first.layout, |textless| &textless.layout);
        let batch = first.read_again(bytes, layout).map_err(|error| RowsError::Written(Box::new(error)))?;
        Ok(batch.with_cumulative(self.cumulative()))
    }

    /// The rows that have all ids so far: one of those that they come from has, or is given them.
    fn cumulative(&self) -> Vec<u32> {
        let has = |(part, row): RowOf| self.parts[part as usize].is_cumulative(row);
        let (mut cumulative, mut next) = (Vec::new(), 0);
        for step in &self.steps {
            match step {
                Step::Run { part, rows } => {
                    if !self.parts[*part].cumulative.is_empty() {
                        let of_run = (next..).zip(rows.clone()).filter(|(_, row)| has((*part as u32, *row)));
                        cumulative.extend(of_run.map(|(row, _)| row));
                    }
                    next += rows.end - rows.start;
                }
                Step::One { from, change } => {
                    let is_given = change.is_some_and(Change::is_cumulative);
                    if is_given || self.from[from.clone()].iter().any(|row| has(*row)) {
                        cumulative.push(next);
                    }
                    next += 1;
                }
            }
        }
        cumulative
    }

    /// Whether the rows are all those of one part, in order; some may be changed.
    fn is_all_of_one(&self) -> bool {
        // Rows are ascending, each once, and `Batch::join` does not join rows of one part.
        self.parts.len() == 1 && self.rows == self.parts[0].rows as usize
    }

    /// About how many bytes will be written: as many a row as the parts have.
    fn capacity(&self) -> usize {
        let (bytes, rows) = self
            .parts
            .iter()
            .fold((0, 1), |(bytes, rows), part| (bytes + part.bytes.len(), rows + part.rows as usize));
        bytes / rows * self.rows + 1024
    }

    fn msgpack(&self, first: &Batch, textless: Option<&Textless>) -> Result<Bytes, RowsError> {
        let mut out = Vec::with_capacity(self.capacity());
        let layout = textless.map_or(&first.layout, |textless| &textless.layout);
        pack::write::array(&mut out, layout.fields.len() + 1);
        pack::write::str(&mut out, layout.kind.class());
        let sources = vec![None; self.parts.len()];
        for (at, field) in layout.fields.iter().enumerate() {
            match textless {
                Some(textless) => self.without_text(&mut out, &sources, textless.from[at])?,
                None => self.column(&mut out, &sources, at, Rule::new(field))?,
            }
        }
        Ok(out.into())
    }

    fn pickle(&self, first: &'a Batch, textless: Option<&'a Textless>) -> Result<Bytes, RowsError> {
        let trees = self.parts.iter().map(|part| part.tree()).collect::<Option<Vec<_>>>();
        let trees = trees.ok_or(RowsError::Foreign)?;
        let fields = &textless.map_or(&first.layout, |textless| &textless.layout).fields;
        let masks = match textless {
            Some(_) => Vec::new(),
            None => (0..fields.len()).map(|field| self.masks(field)).collect::<Result<Vec<_>, _>>()?,
        };
        let other = textless.map(|textless| pickled::model(textless.layout.kind, is_dataclass(first)));
        let other = other.transpose().map_err(|error| RowsError::Written(Box::new(error.into())))?;
        let mut writer = Writer::new(trees[0].0.protocol());
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
                    (None, _) => self.column(writer, &sources, at, Rule::new(field)),
                }
            });
            wait(written, &mut failed)
        });
        failed.map_or(object.map_err(RowsError::from), Err)?;
        Ok(writer.finish()?)
    }

    /// A pickle's column of sampling masks, as a pickle of its own that is then copied: chunks that were joined or
    /// edited are calls of a function, which the pickle crate copies but has no way to write anew.
    /// `None`: it is written like other columns, since no chunk is new.
    fn masks(&self, field: usize) -> Result<Option<Tree>, RowsError> {
        let rule = Rule::new(&self.parts[0].layout.fields[field]);
        let new = self.steps.iter().any(|step| matches!(step, Step::One { .. }));
        if rule.join != Join::Mask || !new || self.parts.iter().all(|part| part.plain_rows(field).is_none()) {
            return Ok(None);
        }
        let mut out = b"\x80\x04](".to_vec();
        for step in &self.steps {
            let (rows, change): (Vec<RowOf>, _) = match step {
                Step::Run { part, rows } => (rows.clone().map(|row| (*part as u32, row)).collect(), None),
                Step::One { from, change } => (self.from[from.clone()].to_vec(), *change),
            };
            // Each row of a run on its own, the rows of one step together.
            let together = if matches!(step, Step::One { .. }) { rows.len() } else { 1 };
            for rows in rows.chunks(together) {
                let cells = rows.iter().filter_map(|&(part, row)| {
                    Some(self.parts[part as usize].plain_rows(field)?.get(row)).filter(|cell| !cell.is_nil())
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

    /// Writes a column. `sources` are the parts' trees, where the sink is a pickle.
    pub(crate) fn column<S: Sink<'a>>(
        &self,
        sink: &mut S,
        sources: &[Option<Source>],
        field: usize,
        rule: Rule<'_>,
    ) -> Result<(), RowsError> {
        if self.is_all_of_one() && !Change::touches(rule.name, rule.per_token) {
            return sink.copy(self.parts[0].raw(field), sources[0]);
        }
        if self.parts.iter().any(|part| part.wrapped_pickle(field).is_some()) {
            return sink.wrapped(&self.wrapped(field, rule)?);
        }
        if rule.join == Join::Frame {
            let values = self.parts.iter().zip(sources).map(|(part, source)| (part.raw(field), *source));
            return match values.rev().find(|(value, _)| !value.is_nil()) {
                Some((value, source)) => sink.copy(value, source),
                None => {
                    sink.nil();
                    Ok(())
                }
            };
        }
        let views = self.parts.iter().map(|part| part.column(field)).collect::<Result<Vec<_>, _>>()?;
        self.views(sink, sources, rule, &views)
    }

    /// Writes a column that is this in the parts.
    fn views<S: Sink<'a>>(
        &self,
        sink: &mut S,
        sources: &[Option<Source>],
        rule: Rule<'_>,
        views: &[ColumnView<'a>],
    ) -> Result<(), RowsError> {
        if views.iter().any(|view| matches!(view, ColumnView::Whole)) {
            return Err(RowsError::Split { name: rule.name.to_owned() });
        }
        if views.iter().all(|view| matches!(view, ColumnView::Nil)) {
            sink.nil();
            return Ok(());
        }
        if views.iter().all(|view| matches!(view, ColumnView::Empty)) {
            return sink.list(0, |_| Ok(()));
        }
        if views.iter().any(|view| matches!(view, ColumnView::Named(_))) {
            return self.named(sink, sources, rule, views);
        }
        let rows: Vec<_> = views
            .iter()
            .map(|view| match view {
                ColumnView::Rows(rows) => Some(*rows),
                _ => None,
            })
            .collect();
        self.rows(sink, sources, rule, &rows)
    }

    /// Writes the pickle that stands for a column.
    fn wrapped(&self, field: usize, rule: Rule<'_>) -> Result<Bytes, RowsError> {
        let trees = self.parts.iter().map(|part| part.wrapped_tree(field)).collect::<Result<Vec<_>, _>>()?;
        let protocol = trees.iter().flatten().map(|tree| tree.protocol()).next();
        let mut writer = Writer::new(protocol.unwrap_or_default());
        let sources: Vec<_> = trees.iter().map(|tree| tree.map(|tree| writer.source(tree))).collect();
        let views = self.parts.iter().map(|part| part.column(field)).collect::<Result<Vec<_>, _>>()?;
        if views.iter().zip(&trees).any(|(view, tree)| tree.is_none() && !matches!(view, ColumnView::Nil)) {
            return Err(rule.shape_error());
        }
        self.views(&mut writer, &sources, rule, &views)?;
        Ok(writer.finish()?)
    }

    /// Writes a dict of columns by name: the names of all parts.
    fn named<S: Sink<'a>>(
        &self,
        sink: &mut S,
        sources: &[Option<Source>],
        rule: Rule<'_>,
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
        sink.map(names.len(), |sink| {
            names.iter().try_for_each(|name| {
                sink.str(name);
                let column = |view: &ColumnView<'a>| match view {
                    ColumnView::Named(columns) => {
                        columns.iter().find(|(it, _)| it == name).map(|(_, rows)| *rows)
                    }
                    _ => None,
                };
                let rows: Vec<_> = views.iter().map(column).collect();
                self.rows(sink, sources, Rule { join, ..rule }, &rows)
            })
        })
    }

    /// Writes a column of one cell a row. A part without one has rows that were given none.
    fn rows<S: Sink<'a>>(
        &self,
        sink: &mut S,
        sources: &[Option<Source>],
        rule: Rule<'_>,
        rows: &[Option<Rows<'a>>],
    ) -> Result<(), RowsError> {
        let mut cells = Vec::new();
        let bytes: usize = self.parts.iter().map(|part| part.bytes.len()).sum();
        let mut left = MAX_EXPANSION * bytes;
        let is_ids = rule.name == Known::OutputIds.name();
        sink.list(self.rows, |sink| {
            for step in &self.steps {
                match step {
                    Step::Run { part, rows: run } => match rows[*part] {
                        Some(rows) => sink.run(rows, sources[*part], run.clone())?,
                        None => run.clone().try_for_each(|_| absent(sink, rule))?,
                    },
                    Step::One { from, change } => {
                        cells.clear();
                        let mut from = from.clone();
                        if is_ids {
                            // All ids so far stand for those of the rows before.
                            let all = self.from[from.clone()]
                                .iter()
                                .rposition(|&(part, row)| self.parts[part as usize].is_cumulative(row));
                            from.start += all.unwrap_or(0);
                        }
                        for &(part, row) in &self.from[from.clone()] {
                            let part = part as usize;
                            let cell = rows[part].map(|rows| rows.get(row));
                            if rule.reads_cells() {
                                left = left
                                    .checked_sub(cell.map_or(0, Value::weight))
                                    .ok_or_else(|| RowsError::Expands { name: rule.name.to_owned() })?;
                            }
                            cells.push(cell.map(|cell| (cell, sources[part])));
                        }
                        match (change, cells.as_slice()) {
                            (Some(change), &[Some(cell)]) => {
                                change.write(sink, rule.name, rule.per_token, cell)?
                            }
                            _ => join(sink, rule, &cells).map_err(|error| match error {
                                Joining::Failed(error) => error,
                                Joining::Cannot => self.cannot(rule, from.start),
                            })?,
                        }
                    }
                }
            }
            Ok(())
        })
    }

    fn cannot(&self, rule: Rule<'_>, from: usize) -> RowsError {
        let (part, row) = self.from[from];
        RowsError::Column { name: rule.name.to_owned(), rid: self.parts[part as usize].rid(row).to_owned() }
    }
}
