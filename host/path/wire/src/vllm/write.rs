//! Writes EngineCoreOutputs: rows of one frame or of several, copied, joined or edited, and the fields of the frames.
//!
//! A written frame has one part: arrays that were in parts are written into their rows, which vLLM's decoder takes in
//! any size.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;

use super::arrays::{Logprobs, mark_parts, write_whole};
use super::fields::{
    FINISH_REASON, FRAME, FrameJoin, NEW_LOGPROBS, NEW_TOKEN_IDS, OUTPUTS, REQUEST_ID, ROW, RowField,
    RowJoin, STOP_REASON, TIMESTAMP,
};
use super::layout::Layout;
use super::outputs::{OutputRow, Outputs};
use super::stats;
use crate::batch::{EngineBatch, PartRow};
use crate::bounds::ID_MAX;
use crate::edit::{Edit, FinishReason, TokenEdit, retained};
use crate::error::RowsError;
use crate::pack::{self, PackValue};

/// The room for the fields before the rows: three headers and an int.
const HEAD_BYTES: usize = 24;

const NIL: &[u8] = &[0xc0];
const NO_IDS: &[u8] = &[0x90];
const FINISH_STOP: &[u8] = &[0];
const FINISH_LENGTH: &[u8] = &[1];
const FINISH_ABORT: &[u8] = &[2];
const FINISH_ERROR: &[u8] = &[3];

/// The values of a row's fields.
type Cells<'a> = Vec<Cow<'a, [u8]>>;

/// A frame that is being written.
pub(crate) struct OutputsWriter<'a> {
    parts: Vec<&'a Outputs>,
    out: Vec<u8>,
    /// The number of arrays written, at least one for each row.
    arrays: usize,
}

/// Whether rows of the frame can be taken, joined or edited. The error names the field.
pub(crate) fn splittable(outputs: &Outputs) -> Result<(), RowsError> {
    if outputs.aux_parts() == 0 {
        return Ok(());
    }
    // Rows must name each part once. Another part might be named by a value that stays behind.
    let mut marked = vec![false; outputs.aux_parts() + 1];
    let mut row_cells = Vec::new();
    for row in &outputs.rows {
        cells(outputs, row, &mut row_cells)?;
        let layout = layout_of(outputs)?;
        for (at, cell) in row_cells.iter().enumerate() {
            match layout.row_field(at) {
                Some(field) if field.has_arrays() => {
                    mark_parts(&mut marked, outputs, cell).ok_or_else(|| split(field.name))?
                }
                Some(_) => (),
                // An unknown field might name a part.
                None if matches!(pack::item(cell), Some(PackValue::Array(..) | PackValue::Map(..))) => {
                    return Err(split("unknown"));
                }
                None => (),
            }
        }
    }
    let all_marked = marked.iter().skip(1).all(|marked| *marked);
    if all_marked { Ok(()) } else { Err(split("parts")) }
}

fn text(rid: Option<&[u8]>) -> String {
    String::from_utf8_lossy(rid.unwrap_or_default()).into_owned()
}

fn split(name: &str) -> RowsError {
    RowsError::Split { name: name.to_owned() }
}

/// The layout of the rows. The error: no row has a known form.
fn layout_of(outputs: &Outputs) -> Result<&Arc<Layout>, RowsError> {
    outputs.row_layout.as_ref().ok_or(RowsError::NoColumn { name: ROW[NEW_TOKEN_IDS].name })
}

/// Finds the values of a row's fields, by their canonical positions. The error: the row has another form.
fn cells<'a>(outputs: &'a Outputs, row: &OutputRow, out: &mut Vec<&'a [u8]>) -> Result<(), RowsError> {
    out.clear();
    let layout = layout_of(outputs)?;
    if !row.has_fields() {
        return Err(RowsError::NoColumn { name: ROW[NEW_TOKEN_IDS].name });
    }
    let array = |bytes: &'a [u8]| match pack::item(bytes) {
        Some(PackValue::Array(len, body)) => pack::items(body, len),
        _ => pack::items(&[], 0),
    };
    out.extend(layout.absent.iter().map(|value| &**value));
    for (field, value) in layout.wire.iter().zip(array(&outputs.frame()[row.first()])) {
        out[*field] = value;
    }
    if row.has_end_row() {
        for (field, value) in layout.wire.iter().zip(array(&outputs.frame()[row.second()])) {
            if layout.row_field(*field).is_some_and(|field| field.at_end) {
                out[*field] = value;
            }
        }
    }
    Ok(())
}

impl<'a> OutputsWriter<'a> {
    /// A frame of rows of these frames, which must be [alike](Outputs::is_like) if they are several.
    pub(crate) fn new(parts: Vec<&'a Outputs>) -> OutputsWriter<'a> {
        let bytes = parts.iter().map(|part| part.frame().len()).sum::<usize>();
        let mut out = Vec::with_capacity(HEAD_BYTES + bytes);
        out.resize(HEAD_BYTES, 0);
        OutputsWriter { parts, out, arrays: 0 }
    }

    /// Whether all rows can be told apart.
    pub(crate) fn check(self) -> Result<OutputsWriter<'a>, RowsError> {
        self.parts.iter().try_for_each(|part| splittable(part))?;
        Ok(self)
    }

    fn row(&self, (part, row): PartRow) -> (&'a Outputs, &'a OutputRow) {
        let outputs = self.parts[part as usize];
        (outputs, &outputs.rows[row as usize])
    }

    /// Writes a row as it is.
    pub(crate) fn copy(&mut self, from: PartRow) -> Result<(), RowsError> {
        let (outputs, row) = self.row(from);
        if outputs.aux_parts() == 0 {
            self.out.extend_from_slice(&outputs.frame()[row.span()]);
            self.arrays += 1 + usize::from(row.has_end_row());
            return Ok(());
        }
        let cells = whole_cells(outputs, row)?;
        self.put(layout_of(outputs)?, &cells, row.has_end_row());
        Ok(())
    }

    /// Writes several rows of a request as one.
    pub(crate) fn join(&mut self, from: &[PartRow]) -> Result<(), RowsError> {
        let (&[first, .., last], rows) = (from, from.iter().map(|from| self.row(*from))) else {
            return from.iter().try_for_each(|from| self.copy(*from));
        };
        let ((outputs, first_row), (_, last_row)) = (self.row(first), self.row(last));
        let elements = first_row.elements();
        let cannot =
            |name: &str| RowsError::Column { name: name.to_owned(), rid: text(outputs.rid(first.1)) };
        let is_usual = |row: &OutputRow| row.is_plain & row.has_ids & (row.elements() == elements);
        let layout = Arc::clone(layout_of(outputs)?);
        if rows.clone().all(|(_, row)| is_usual(row)) {
            // Nothing but ids.
            self.put_plain(first, |writer| writer.put_ids(from));
            return Ok(());
        }
        if rows.clone().any(|(_, row)| row.elements() != elements) {
            return Err(cannot(FRAME[OUTPUTS].name));
        }
        if rows.clone().any(|(_, row)| !row.has_ids) {
            return Err(cannot(ROW[NEW_TOKEN_IDS].name));
        }
        let all = rows.map(|(outputs, row)| whole_cells(outputs, row)).collect::<Result<Vec<_>, _>>()?;
        let mut joined = Cells::with_capacity(layout.absent.len());
        for (at, absent) in layout.absent.iter().enumerate() {
            let cell = match at {
                NEW_TOKEN_IDS => {
                    let mut ids = OutputsWriter { parts: self.parts.clone(), out: Vec::new(), arrays: 0 };
                    ids.put_ids(from);
                    Some(Cow::Owned(ids.out))
                }
                _ => join_cells(layout.row_field(at), &all, at, absent),
            };
            joined.push(cell.ok_or_else(|| cannot(layout.name_of(at)))?);
        }
        // The front end leaves the last id of a row that stops out of the text.
        let stops = &*joined[FINISH_REASON] == FINISH_STOP && *joined[NEW_TOKEN_IDS] != *NO_IDS;
        let has_end_row = stops && (last_row.has_end_row() || last_row.tokens() == 0);
        self.put(&layout, &joined, has_end_row);
        Ok(())
    }

    /// Writes a row with changes. The error: the row has not the form that the edit needs.
    pub(crate) fn edit(&mut self, from: PartRow, edit: &Edit) -> Result<(), RowsError> {
        let (outputs, row) = self.row(from);
        if edit.completion_tokens.is_some() {
            return Err(RowsError::NoColumn { name: "completion_tokens" });
        }
        let ids: Option<&[i64]> = match &edit.tokens {
            TokenEdit::Keep | TokenEdit::Drop => None,
            TokenEdit::Delta(ids) => Some(ids),
            TokenEdit::Empty => Some(&[]),
            TokenEdit::Cumulative(_) => return Err(RowsError::NoColumn { name: "output_ids" }),
        };
        if let Some(id) = ids.into_iter().flatten().find(|id| !(0..=ID_MAX).contains(*id)) {
            return Err(RowsError::TokenId { id: *id });
        }
        if let (Some(ids), None) = (ids.filter(|_| row.is_plain), &edit.finish) {
            self.put_plain(from, |writer| write_ids(&mut writer.out, ids));
            return Ok(());
        }
        let mut cells = whole_cells(outputs, row)?;
        let mut has_end_row = row.has_end_row();
        if let Some(ids) = ids {
            let mut before = Vec::new();
            outputs.ids(from.1, &mut before);
            replace_ids(&mut cells, &before, ids)?;
            // The engine's stop token, which the front end leaves out of the text, is no longer the last id.
            has_end_row |= &*cells[FINISH_REASON] == FINISH_STOP && before.last() != ids.last();
        }
        if let Some(finish) = &edit.finish {
            let (reason, stop) = finish.cells();
            (cells[FINISH_REASON], cells[STOP_REASON]) = (reason.into(), stop.into());
            has_end_row = reason == FINISH_STOP;
        }
        has_end_row &= *cells[NEW_TOKEN_IDS] != *NO_IDS;
        self.put(layout_of(outputs)?, &cells, has_end_row);
        Ok(())
    }

    /// Writes a row that has nothing but its rid.
    pub(crate) fn blank(&mut self, outputs: &Outputs, rid: &str) {
        let layout = outputs.row_layout();
        let mut cells: Vec<Cow<'_, [u8]>> = layout.absent.iter().map(|value| Cow::from(&**value)).collect();
        let mut packed = Vec::with_capacity(5 + rid.len());
        pack::write::str(&mut packed, rid);
        cells[REQUEST_ID] = packed.into();
        cells[NEW_TOKEN_IDS] = NO_IDS.into();
        self.put(&layout, &cells, false);
    }

    /// Writes a row that has nothing but ids, with other ids.
    fn put_plain(&mut self, from: PartRow, ids: impl FnOnce(&mut Self)) {
        let (outputs, row) = self.row(from);
        let frame = outputs.frame();
        self.out.extend_from_slice(&frame[row.first().start..row.ids()]);
        ids(self);
        self.out.extend_from_slice(&frame[row.rest()..row.first().end]);
        self.arrays += 1;
    }

    /// Writes the ids of several rows as one array.
    fn put_ids(&mut self, from: &[PartRow]) {
        let tokens = from.iter().map(|from| self.row(*from).1.tokens() as usize).sum();
        pack::write::array(&mut self.out, tokens);
        for from in from {
            let (outputs, row) = self.row(*from);
            self.out.extend_from_slice(outputs.id_items(row));
        }
    }

    /// Writes a row from its values, as one array or as two.
    fn put(&mut self, layout: &Layout, cells: &[Cow<'_, [u8]>], has_end_row: bool) {
        let at_end = |field: usize| layout.row_field(field).is_some_and(|field| field.at_end);
        pack::write::array(&mut self.out, layout.wire.len());
        for field in layout.wire.iter().copied() {
            match has_end_row && at_end(field) {
                true => self.out.extend_from_slice(&layout.absent[field]),
                false => self.out.extend_from_slice(&cells[field]),
            }
        }
        self.arrays += 1;
        if has_end_row {
            pack::write::array(&mut self.out, layout.wire.len());
            for field in layout.wire.iter().copied() {
                match field {
                    REQUEST_ID => self.out.extend_from_slice(&cells[field]),
                    NEW_TOKEN_IDS => self.out.extend_from_slice(NO_IDS),
                    _ if at_end(field) => self.out.extend_from_slice(&cells[field]),
                    _ => self.out.extend_from_slice(&layout.absent[field]),
                }
            }
            self.arrays += 1;
        }
    }

    /// Writes the fields around the rows and returns the frame. `used` are the parts whose rows are in the frame, and
    /// `own` those whose frame fields are.
    pub(crate) fn finish(mut self, used: &[u32], own: &[u32]) -> Result<Bytes, RowsError> {
        let first = self.parts[used.first().copied().unwrap_or_default() as usize];
        let of = |parts: &[u32]| parts.iter().map(|part| self.parts[*part as usize]).collect::<Vec<_>>();
        let (used, own) = (of(used), of(own));
        let has_unknown = !(first.has_unknown_container() && own.is_empty());
        let put = |out: &mut Vec<u8>, at: usize| {
            let own_values = || own.iter().map(|part| part.field(at));
            match FRAME.get(at).map(|field| field.join) {
                None if has_unknown => out.extend_from_slice(first.value(at)),
                None => pack::write::nil(out),
                Some(FrameJoin::Same | FrameJoin::Rows) => out.extend_from_slice(first.field(at)),
                Some(FrameJoin::Greatest) => out.extend_from_slice(greatest(&used, at)),
                Some(FrameJoin::Stats) => match own_values().collect::<Vec<_>>()[..] {
                    [] => out.extend_from_slice(NIL),
                    [one] => out.extend_from_slice(one),
                    ref steps => stats::write_joined(out, steps),
                },
                Some(FrameJoin::Concat) => concat(out, own_values()),
                Some(FrameJoin::Alone) => out.extend_from_slice(own_values().next().unwrap_or(NIL)),
            }
        };
        let wire = &first.layout.wire;
        let rows = wire.iter().position(|field| *field == OUTPUTS).unwrap_or(wire.len());
        wire.iter().skip(rows + 1).for_each(|field| put(&mut self.out, *field));
        let mut head = Vec::with_capacity(HEAD_BYTES);
        pack::write::array(&mut head, wire.len());
        wire.iter().take(rows).for_each(|field| put(&mut head, *field));
        pack::write::array(&mut head, self.arrays);
        let Some(start) = HEAD_BYTES.checked_sub(head.len()) else {
            head.extend_from_slice(&self.out[HEAD_BYTES..]);
            return Ok(head.into());
        };
        self.out[start..HEAD_BYTES].copy_from_slice(&head);
        Ok(Bytes::from(self.out).slice(start..))
    }
}

impl Outputs {
    /// Whether rows of the frames may be in one frame: they have the same values where a frame has only one.
    pub(super) fn is_like_outputs(&self, other: &Outputs) -> bool {
        let same = FRAME.iter().enumerate().filter(|(_, field)| field.join == FrameJoin::Same);
        self.layout == other.layout
            && self.row_layout == other.row_layout
            && same.into_iter().all(|(at, _)| self.field(at) == other.field(at))
            && self.unknown().eq(other.unknown())
            && !self.is_alone()
            && !other.is_alone()
    }
}

/// The values of a row's fields, with all data in them.
fn whole_cells<'a>(outputs: &'a Outputs, row: &OutputRow) -> Result<Cells<'a>, RowsError> {
    let mut borrowed = Vec::new();
    cells(outputs, row, &mut borrowed)?;
    let has_parts = outputs.aux_parts() > 0;
    let layout = layout_of(outputs)?;
    let cells = borrowed.into_iter().enumerate();
    cells
        .map(|(at, cell)| match layout.row_field(at).filter(|field| has_parts && field.has_arrays()) {
            Some(field) => {
                let mut whole = Vec::new();
                write_whole(&mut whole, outputs, cell).ok_or_else(|| split(field.name))?;
                Ok(Cow::Owned(whole))
            }
            None => Ok(Cow::Borrowed(cell)),
        })
        .collect()
}

/// Joins the values of a field of several rows, of which `all` are all values. `None`: they cannot be joined.
fn join_cells<'a>(
    field: Option<&RowField>,
    all: &[Cells<'a>],
    at: usize,
    absent: &[u8],
) -> Option<Cow<'a, [u8]>> {
    let values = || all.iter().map(|cells| &cells[at]);
    let some = || values().filter(|value| ***value != *NIL);
    let (first, last) = (all.first()?[at].clone(), all.last()?[at].clone());
    Some(match field.map_or(RowJoin::Never, |field| field.join) {
        RowJoin::First => first,
        RowJoin::Last => last,
        RowJoin::Latest => some().next_back().cloned().unwrap_or(first),
        RowJoin::Never => return values().all(|value| **value == *absent).then_some(first),
        RowJoin::Concat => {
            let mut out = Vec::new();
            concat(&mut out, values().map(|value| &**value));
            out.into()
        }
        RowJoin::Sum => {
            let add = |sum: i64, value: &Cow<'_, [u8]>| Some(sum.saturating_add(pack::int(value)?));
            let mut out = Vec::new();
            pack::write::int(&mut out, values().try_fold(0, add)?);
            out.into()
        }
        RowJoin::Logprobs => {
            let has_ids = |cells: &&Cells<'_>| *cells[NEW_TOKEN_IDS] != *NO_IDS;
            if some().next().is_none() {
                return Some(first);
            }
            // A row with ids and without logprobs would take the logprobs of other rows.
            let with_ids = all.iter().filter(has_ids);
            if with_ids.clone().any(|cells| *cells[at] == *NIL) {
                return None;
            }
            join_logprobs(&some().map(|value| &**value).collect::<Vec<_>>())?.into()
        }
    })
}

/// Joins logprobs whose data is in them.
fn join_logprobs(values: &[&[u8]]) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    let rows = values.iter().map(|value| Logprobs::read(value)).collect::<Option<Vec<_>>>()?;
    Logprobs::write_joined(&mut out, &rows)?;
    Some(out)
}

/// Concatenates arrays. Nil counts as empty; without arrays the result is nil.
fn concat<'a>(out: &mut Vec<u8>, values: impl Iterator<Item = &'a [u8]> + Clone) {
    let arrays = values.filter_map(|value| match pack::item(value)? {
        PackValue::Array(len, body) => Some((len, body)),
        _ => None,
    });
    if arrays.clone().next().is_none() {
        return pack::write::nil(out);
    }
    pack::write::array(out, arrays.clone().map(|(len, _)| len as usize).sum());
    arrays.for_each(|(_, items)| out.extend_from_slice(items));
}

/// The greatest number of a field, as msgpack. The last value if none is a number.
fn greatest<'a>(parts: &[&'a Outputs], field: usize) -> &'a [u8] {
    debug_assert_eq!(field, TIMESTAMP);
    let number = |value: &[u8]| match pack::item(value) {
        Some(PackValue::Float(value)) => value,
        Some(PackValue::Int(value)) => value as f64,
        _ => f64::NEG_INFINITY,
    };
    let values = parts.iter().map(|part| part.field(field));
    values.max_by(|one, other| number(one).total_cmp(&number(other))).unwrap_or(NIL)
}

fn write_ids(out: &mut Vec<u8>, ids: &[i64]) {
    pack::write::array(out, ids.len());
    ids.iter().for_each(|id| pack::write::int(out, *id));
}

/// Replaces the ids of a row, and the entries of its logprobs.
fn replace_ids(cells: &mut Cells<'_>, before: &[i64], ids: &[i64]) -> Result<(), RowsError> {
    if before == ids {
        return Ok(());
    }
    let mut array = Vec::with_capacity(5 + 5 * ids.len());
    write_ids(&mut array, ids);
    for (at, field) in ROW.iter().enumerate() {
        // Other values with an entry for each token: they are of ids that are no longer there.
        if field.per_token && at != NEW_LOGPROBS {
            cells[at] = NIL.into();
        }
    }
    if *cells[NEW_LOGPROBS] != *NIL {
        let wrong = || RowsError::Split { name: ROW[NEW_LOGPROBS].name.to_owned() };
        let edited = if ids.is_empty() {
            NIL.to_vec()
        } else {
            let logprobs = Logprobs::read(&cells[NEW_LOGPROBS]).ok_or_else(wrong)?;
            let mut kept = retained(before, ids);
            if !logprobs.fits(before.len()) {
                kept.fill(None);
            }
            let mut out = Vec::new();
            logprobs.write_edited(&mut out, ids, &kept).ok_or_else(wrong)?;
            out
        };
        cells[NEW_LOGPROBS] = edited.into();
    }
    cells[NEW_TOKEN_IDS] = array.into();
    Ok(())
}

impl FinishReason {
    /// The values of `finish_reason` and `stop_reason`.
    fn cells(&self) -> (&'static [u8], Vec<u8>) {
        let text = |text: &str| {
            let mut out = Vec::new();
            pack::write::str(&mut out, text);
            out
        };
        match self {
            FinishReason::Stop(matched) => (FINISH_STOP, text(matched)),
            FinishReason::Length => (FINISH_LENGTH, NIL.to_vec()),
            FinishReason::Abort(message) | FinishReason::Error { message, .. } => {
                let is_error = matches!(self, FinishReason::Error { .. });
                let reason = if is_error { FINISH_ERROR } else { FINISH_ABORT };
                (reason, if message.is_empty() { NIL.to_vec() } else { text(message) })
            }
        }
    }
}
