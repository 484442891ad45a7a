//! Reads a frame as a batch, and checks the columns that identify its rows.

use std::sync::Arc;

use crate::pickle::{Node, Parser};
use bytes::Bytes;

use crate::batch::{Batch, BatchBody, Unread};
use crate::bounds::{MAX_EXPANSION, MAX_FRAME_BYTES, MAX_TAG_BYTES};
use crate::error::WireError;
use crate::kind::BatchKind;
use crate::layouts::{KnownField, MessageLayout};
use crate::pack::{EXT, LIST, MAP, NIL, OTHER, STR, Types};
use crate::packed::{self, Packed};
use crate::pickled::Pickled;
use crate::value::{ColumnCells, RawValue};
use crate::vllm::Outputs;

pub(crate) fn read_msgpack<'l>(
    frame: &Bytes,
    layout: impl FnOnce(BatchKind, u64) -> Option<&'l Arc<MessageLayout>>,
) -> Result<ReadFrame, WireError> {
    let head = packed::tagged(frame)?.ok_or_else(|| WireError::NotAFrame { head: Vec::new() })?;
    let fields = head.elements - 1;
    let Some(kind) = BatchKind::of_class(head.tag) else {
        packed::check_rest(frame, head.body, fields)?;
        return Ok(ReadFrame::Control(cut(head.tag)));
    };
    let Some(layout) = layout(kind, fields) else {
        packed::check_rest(frame, head.body, fields)?;
        return Err(WireError::UnknownLayout { tag: head.tag.to_owned(), elements: head.elements });
    };
    let (packed, rows) = Packed::read(frame, layout, head.body)?;
    Ok(ReadFrame::Batch(Batch::new(frame.clone(), Arc::clone(layout), rows, BatchBody::Packed(packed))))
}

pub(crate) fn read_pickle<'l>(
    frame: &Bytes,
    parser: &mut Parser,
    known: impl FnOnce(BatchKind) -> Option<&'l Arc<MessageLayout>>,
) -> Result<ReadFrame, WireError> {
    let tree = parser.parse(frame.clone())?;
    let object = tree.object(tree.root()).ok_or(WireError::NotAnObject)?;
    let Some(kind) = BatchKind::of_class(object.name) else {
        return Ok(ReadFrame::Control(cut(object.name)));
    };
    let fields = object.fields.ok_or(WireError::NotAnObject)?;
    let (pickled, layout) = Pickled::read(tree, kind, fields, known(kind))?;
    let rids = layout.position(KnownField::Rids).ok_or(NO_RIDS)?;
    let rows = match pickled.tree().node(pickled.value(rids)) {
        Node::None => 0,
        Node::List(rids) => rids.len(),
        _ => return Err(NO_RIDS),
    };
    Ok(ReadFrame::Batch(Batch::new(frame.clone(), layout, rows as u32, BatchBody::Pickled(pickled))))
}

/// Reads vLLM's rows. The error beside them: no row can be read, so the layout is another than assumed.
pub(crate) fn read_outputs(
    frame: &Bytes,
    layout: &Arc<MessageLayout>,
) -> Result<(Batch, Option<WireError>), WireError> {
    let mut outputs = Outputs::read(frame)?;
    let rows = outputs.rows();
    let error = match outputs.unread.first() {
        Some(&(row, name)) if outputs.unread.len() == rows => {
            Some(WireError::Cell { name, row, expected: "what vLLM sends" })
        }
        _ => None,
    };
    let unread = std::mem::take(&mut outputs.unread);
    let unread = unread.into_iter().map(|(row, column)| Unread { row, column }).collect();
    Ok((of_outputs(frame, layout, outputs, unread), error))
}

fn of_outputs(frame: &Bytes, layout: &Arc<MessageLayout>, outputs: Outputs, unread: Vec<Unread>) -> Batch {
    let (has_text_rids, has_first, rows) = (outputs.has_text_rids, outputs.has_first(), outputs.rows());
    let batch = Batch::new(frame.clone(), Arc::clone(layout), rows as u32, BatchBody::Outputs(outputs));
    let batch = batch.checked(unread, None, has_text_rids);
    if has_first { batch } else { batch.without_first_rows() }
}

impl Batch {
    /// Reads a frame that this crate wrote from some rows of this batch, without another look at what is as it was here.
    /// `ends` are the ends of its head and of its columns. `None`: the frame must be read as any other.
    pub(crate) fn read_taken(&self, bytes: &Bytes, ends: &[u32], rows: u32) -> Option<Batch> {
        if !self.is_readable(bytes) {
            return None;
        }
        let body = match &self.body {
            BatchBody::Packed(packed) => BatchBody::Packed(packed.of_taken(bytes, ends, rows)?),
            BatchBody::Pickled(_) => {
                BatchBody::Pickled(Pickled::written(bytes.clone(), self.layout.fields.len()))
            }
            BatchBody::Outputs(_) => return None,
        };
        let batch = Batch::new(bytes.clone(), Arc::clone(&self.layout), rows, body);
        Some(batch.checked(Vec::new(), self.ids_each, true))
    }

    /// Reads a frame of vLLM's that this crate wrote from these rows of this batch, as [`Batch::read_taken`].
    pub(crate) fn read_taken_outputs(&self, bytes: &Bytes, rows: &[u32]) -> Option<Batch> {
        if !self.is_readable(bytes) {
            return None;
        }
        let outputs = self.outputs()?.read_taken(bytes, rows)?;
        Some(of_outputs(bytes, &self.layout, outputs, Vec::new()))
    }

    /// Whether all rows can be read, and so some of them in this frame.
    fn is_readable(&self, frame: &Bytes) -> bool {
        self.unread.is_empty() && self.has_text_rids && frame.len() <= MAX_FRAME_BYTES
    }

    /// Reads a frame that this crate wrote from batches like this one, in the given layout.
    pub(crate) fn read_again(&self, bytes: Bytes, layout: &Arc<MessageLayout>) -> Result<Batch, WireError> {
        let too_long = WireError::TooLong { bytes: bytes.len() };
        if bytes.len() > MAX_FRAME_BYTES {
            return Err(too_long);
        }
        let read = match &self.body {
            BatchBody::Packed(_) => {
                read_msgpack(&bytes, |_, fields| (layout.fields.len() as u64 == fields).then_some(layout))
            }
            BatchBody::Pickled(_) => read_pickle(&bytes, &mut Parser::default(), |_| Some(layout)),
            BatchBody::Outputs(_) => return read_outputs(&bytes, layout).map(|(batch, _)| batch),
        };
        match read? {
            ReadFrame::Batch(batch) => check(&batch, false).map(|checked| checked.of(batch)),
            ReadFrame::Control(_) => Err(NO_RIDS),
        }
    }
}

#[expect(clippy::large_enum_variant, reason = "taken apart where it is returned to")]
pub(crate) enum ReadFrame {
    /// A batch that is not checked yet and may have no rows.
    Batch(Batch),
    Control(String),
}

const NO_RIDS: WireError = WireError::Column { name: "rids", expected: "a list of str" };

fn cut(tag: &str) -> String {
    tag.chars()
        .scan(0, |len, char| {
            *len += char.len_utf8();
            (*len <= MAX_TAG_BYTES).then_some(char)
        })
        .collect()
}

/// The results of checking a batch.
pub(crate) struct BatchCheck {
    /// Whether a column without a single cell of its type is an error. It is not for a frame written in a layout that
    /// is known to be right.
    is_strict: bool,
    unread: Vec<Unread>,
    ids_each: Option<usize>,
    has_text_rids: bool,
}

impl BatchCheck {
    pub(crate) fn of(self, batch: Batch) -> Batch {
        let BatchCheck { unread, ids_each, has_text_rids, .. } = self;
        batch.checked(unread, ids_each, has_text_rids)
    }

    /// Records the rows whose cell is not of the column's type. The error: no cell is, so the layout is wrong.
    fn note(
        &mut self,
        batch: &Batch,
        known: KnownField,
        rows: ColumnCells<'_>,
        expected: &'static str,
        is: impl Fn(RawValue<'_>) -> bool,
    ) -> Result<(), WireError> {
        let column = known.name();
        let before = self.unread.len();
        let wrong = (0..).zip(rows.iter(batch.rows)).filter(|(_, cell)| !is(*cell));
        self.unread.extend(wrong.map(|(row, _)| Unread { row, column }));
        match self.is_strict && self.unread.len() - before == batch.rows as usize {
            true => Err(WireError::Cell { name: column, row: 0, expected }),
            false => Ok(()),
        }
    }
}

/// Checks that the columns which identify a row have one cell per row. A version with another layout than assumed is
/// therefore not understood, instead of being misread. A single cell of another type affects only its own row. An
/// invalid count is treated as unknown.
pub(crate) fn check(batch: &Batch, is_strict: bool) -> Result<BatchCheck, WireError> {
    let mut checked = BatchCheck { is_strict, unread: Vec::new(), ids_each: None, has_text_rids: false };
    let (rids, types) = need(batch, KnownField::Rids)?;
    checked.has_text_rids = rids.are_ascii(batch.rows) || rids.iter(batch.rows).all(RawValue::is_text);
    if types & !STR != 0 {
        checked.note(batch, KnownField::Rids, rids, "a str", |cell| cell.types() == STR)?;
    }
    let (reasons, types) = need(batch, KnownField::FinishedReasons)?;
    if is_strict && types & (NIL | MAP) == 0 {
        let row = reasons.iter(batch.rows).position(|_| true).unwrap_or_default() as u32;
        let (name, expected) = (KnownField::FinishedReasons.name(), "nil or a map");
        return Err(WireError::Cell { name, row, expected });
    }
    if batch.kind() != BatchKind::Embedding {
        let output = cells(batch, KnownField::OutputIds)?;
        let decode = cells(batch, KnownField::DecodeIds)?;
        if output.is_none() && decode.is_none() {
            let name = KnownField::OutputIds.name();
            return Err(WireError::Column { name, expected: "a list of id arrays" });
        }
        for (known, rows) in [(KnownField::OutputIds, output), (KnownField::DecodeIds, decode)] {
            let Some(rows) = rows else { continue };
            if let Some(each) = rows.ids_each(batch.rows) {
                if rows.get(0).weight() * batch.rows as usize > weight_max(batch) {
                    return Err(WireError::Expands { name: known.name() });
                }
                if known == KnownField::OutputIds {
                    checked.ids_each = Some(each);
                }
                continue;
            }
            let may_be = types_of(batch, known, rows)? & (EXT | LIST | OTHER) != 0;
            checked.note(batch, known, rows, "an id array", |cell| may_be && cell.is_ids())?;
        }
    }
    if batch.kind() == BatchKind::Str {
        let (texts, _) = need(batch, KnownField::OutputStrs)?;
        checked.note(batch, KnownField::OutputStrs, texts, "a str", |cell| cell.is_text())?;
    }
    checked.unread.sort_by_key(|unread| unread.row);
    checked.unread.dedup_by_key(|unread| unread.row);
    Ok(checked)
}

/// Whether the rids of the rows can be read.
pub(crate) fn has_rids(batch: &Batch) -> bool {
    need(batch, KnownField::Rids).is_ok_and(|(_, types)| types == STR)
}

/// The cells of a required column, and their types.
fn need(batch: &Batch, known: KnownField) -> Result<(ColumnCells<'_>, Types), WireError> {
    let there = cells(batch, known)?;
    let rows =
        there.ok_or(WireError::Column { name: known.name(), expected: "a list with an entry a row" })?;
    Ok((rows, types_of(batch, known, rows)?))
}

/// The cells of an optional column. `None`: the column is nil, empty or missing.
fn cells(batch: &Batch, known: KnownField) -> Result<Option<ColumnCells<'_>>, WireError> {
    let Some(field) = batch.layout.position(known) else { return Ok(None) };
    match batch.plain_rows(field) {
        Some(rows) => Ok(Some(rows)),
        None if batch.is_nil_or_empty(field) => Ok(None),
        None => Err(WireError::Column { name: known.name(), expected: "a list with an entry a row" }),
    }
}

/// The types of a column's cells.
fn types_of(batch: &Batch, known: KnownField, rows: ColumnCells<'_>) -> Result<Types, WireError> {
    rows.types(batch.rows, weight_max(batch)).ok_or(WireError::Expands { name: known.name() })
}

/// The limit of a column's [weight](RawValue::weight).
fn weight_max(batch: &Batch) -> usize {
    MAX_EXPANSION * batch.bytes.len()
}
