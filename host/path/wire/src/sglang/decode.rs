//! Decodes a frame of SGLang: reads it as a batch, and checks the columns that identify its rows. The first bytes determine
//! the encoding, because no field of a message does.

use std::sync::Arc;

use bytes::Bytes;

use super::batch::{ColumnForm, Columns};
use super::layouts::{KnownField, MessageLayout, Messages};
use super::pickled::Pickled;
use super::textless::find_text_layout;
use crate::batch::{Batch, Unread};
use crate::bounds::{MAX_EXPANSION, MAX_FRAME_BYTES, MAX_TAG_BYTES, PICKLE_HEAD_BYTES};
use crate::error::WireError;
use crate::frame::{Barrier, BarrierKind, DecodedFrame};
use crate::kind::BatchKind;
use crate::pack::{EXT, LIST, MAP, NIL, OTHER, STR, Types};
use crate::packed::{self, Packed};
use crate::pickle::{Node, Parser};
use crate::value::{ColumnCells, RawValue};

/// Decodes SGLang's frames. It keeps the pickle parser's memory and the last layouts from one frame to the next.
#[derive(Debug)]
pub(crate) struct FrameDecoder {
    messages: Messages,
    /// The layout of the last msgpack batch of each kind, of which the types of the columns fit.
    fitting: [Option<Arc<MessageLayout>>; BatchKind::WITH_COLUMNS.len()],
    parser: Parser,
    /// The layout of the last pickled batch of each kind.
    pickled: [Option<Arc<MessageLayout>>; BatchKind::WITH_COLUMNS.len()],
}

impl FrameDecoder {
    pub(crate) fn new(messages: Messages) -> FrameDecoder {
        let (parser, fitting, pickled) = Default::default();
        FrameDecoder { messages, fitting, parser, pickled }
    }

    /// Decodes a frame. A frame that cannot be read becomes a barrier.
    pub(crate) fn decode(&mut self, frame: Bytes) -> DecodedFrame {
        let read = match frame.as_ref() {
            _ if frame.len() > MAX_FRAME_BYTES => Err(WireError::TooLong { bytes: frame.len() }),
            [0x80, 4..=5, ..] => {
                read_pickle(&frame, &mut self.parser, |kind| self.pickled[kind as usize].as_ref())
            }
            [0x90..=0x9f | 0xdc | 0xdd, ..] => {
                read_msgpack(&frame, |kind, fields| self.messages.of(kind, fields).next())
            }
            _ => Err(WireError::NotAFrame { head: frame.iter().copied().take(4).collect() }),
        };
        let barrier = |kind, counted, columns: Option<Columns>| {
            let columns = columns.map(|columns| Box::new(columns.into_batch()));
            DecodedFrame::Barrier(Barrier::new(kind, frame.clone(), counted, columns))
        };
        match read {
            Ok(ReadFrame::Batch(columns)) if columns.rows == 0 => {
                barrier(BarrierKind::Idle { kind: columns.layout.kind }, true, Some(columns))
            }
            Ok(ReadFrame::Batch(mut columns)) => {
                match self.fit(&mut columns).and_then(|()| check(&columns, true)) {
                    Ok(checked) => {
                        if let ColumnForm::Pickled(_) = columns.form {
                            find_text_layout(&columns, &self.messages);
                            self.pickled[columns.layout.kind as usize] = Some(Arc::clone(&columns.layout));
                        }
                        DecodedFrame::Batch(checked.of(columns))
                    }
                    Err(error) => {
                        let columns = Some(columns).filter(has_rids);
                        barrier(BarrierKind::NotUnderstood { error }, true, columns)
                    }
                }
            }
            Ok(ReadFrame::Control(tag)) => barrier(BarrierKind::Control { tag }, false, None),
            Err(error) => {
                let counted = names_batch(&frame);
                barrier(BarrierKind::NotUnderstood { error }, counted, None)
            }
        }
    }
}

impl FrameDecoder {
    /// Chooses the layout of a msgpack batch among those with its number of fields: the one whose columns have the types
    /// of the batch's. The error: there is none, or there are several.
    fn fit(&mut self, columns: &mut Columns) -> Result<(), WireError> {
        let ColumnForm::Packed(_) = columns.form else { return Ok(()) };
        let kind = columns.layout.kind;
        let fitting = &mut self.fitting[kind as usize];
        let fields = columns.layout.fields.len();
        if self.messages.is_one() {
            return Ok(());
        }
        if let Some(last) = fitting.as_ref().filter(|last| last.fields.len() == fields) {
            columns.layout = Arc::clone(last);
            return Ok(());
        }
        let mut fits = self.messages.of(kind, fields as u64).filter(|layout| {
            columns.layout = Arc::clone(layout);
            columns.has_its_types()
        });
        let first = fits.next().cloned();
        match (first, fits.next()) {
            (Some(layout), None) => {
                *fitting = Some(Arc::clone(&layout));
                columns.layout = layout;
                Ok(())
            }
            (first, other) => {
                let versions = first.iter().chain(other).map(|layout| &*layout.versions);
                let versions = versions.collect::<Vec<_>>().join(" or ");
                let (tag, elements) = (kind.class().to_owned(), fields as u64 + 1);
                Err(WireError::Layout { tag, elements, versions })
            }
        }
    }
}

/// Whether the head of an unreadable frame names a batch.
fn names_batch(frame: &[u8]) -> bool {
    if let Ok(Some(head)) = packed::tagged(frame) {
        return BatchKind::of_class(head.tag).is_some();
    }
    let head = &frame[..frame.len().min(PICKLE_HEAD_BYTES)];
    frame.first() == Some(&0x80)
        && BatchKind::WITH_COLUMNS.iter().any(|kind| {
            let class = kind.class().as_bytes();
            head.windows(class.len()).any(|window| window == class)
        })
}

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
    let (packed, rows) = Packed::read(frame, layout.fields.len(), head.body)?;
    Ok(ReadFrame::Batch(Columns::new(frame.clone(), Arc::clone(layout), rows, ColumnForm::Packed(packed))))
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
    Ok(ReadFrame::Batch(Columns::new(frame.clone(), layout, rows as u32, ColumnForm::Pickled(pickled))))
}

impl Batch {
    /// Reads a frame that this crate wrote from some rows of this batch, without another look at what is as it was here.
    /// `ends` are the ends of its head and of its columns. `None`: the frame must be read as any other.
    pub(crate) fn read_taken(&self, bytes: &Bytes, ends: &[u32], rows: u32) -> Option<Batch> {
        let columns = self.columns().ok().filter(|_| self.is_readable(bytes))?;
        let form = match &columns.form {
            ColumnForm::Packed(packed) => ColumnForm::Packed(packed.of_taken(bytes, ends, rows)?),
            ColumnForm::Pickled(_) => {
                ColumnForm::Pickled(Pickled::written(bytes.clone(), columns.layout.fields.len()))
            }
        };
        let mut taken = Columns::new(bytes.clone(), Arc::clone(&columns.layout), rows, form);
        taken.ids_each = columns.ids_each;
        Some(taken.into_batch().checked(Vec::new(), true))
    }
}

/// Reads a frame that this crate wrote from batches like this one, in the given layout.
pub(crate) fn read_again(
    like: &Columns,
    bytes: Bytes,
    layout: &Arc<MessageLayout>,
) -> Result<Batch, WireError> {
    let too_long = WireError::TooLong { bytes: bytes.len() };
    if bytes.len() > MAX_FRAME_BYTES {
        return Err(too_long);
    }
    let read = match &like.form {
        ColumnForm::Packed(_) => {
            read_msgpack(&bytes, |_, fields| (layout.fields.len() as u64 == fields).then_some(layout))
        }
        ColumnForm::Pickled(_) => read_pickle(&bytes, &mut Parser::default(), |_| Some(layout)),
    };
    match read? {
        ReadFrame::Batch(columns) => check(&columns, false).map(|checked| checked.of(columns)),
        ReadFrame::Control(_) => Err(NO_RIDS),
    }
}

#[expect(clippy::large_enum_variant, reason = "taken apart where it is returned to")]
pub(crate) enum ReadFrame {
    /// A batch that is not checked yet and may have no rows.
    Batch(Columns),
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
    pub(crate) fn of(self, mut columns: Columns) -> Batch {
        columns.ids_each = self.ids_each;
        columns.into_batch().checked(self.unread, self.has_text_rids)
    }

    /// Records the rows whose cell is not of the column's type. The error: no cell is, so the layout is wrong.
    fn note(
        &mut self,
        batch: &Columns,
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
pub(crate) fn check(batch: &Columns, is_strict: bool) -> Result<BatchCheck, WireError> {
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
    if batch.layout.kind != BatchKind::Embedding {
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
    if batch.layout.kind == BatchKind::Str {
        let (texts, _) = need(batch, KnownField::OutputStrs)?;
        checked.note(batch, KnownField::OutputStrs, texts, "a str", |cell| cell.is_text())?;
    }
    checked.unread.sort_by_key(|unread| unread.row);
    checked.unread.dedup_by_key(|unread| unread.row);
    Ok(checked)
}

/// Whether the rids of the rows can be read.
pub(crate) fn has_rids(batch: &Columns) -> bool {
    need(batch, KnownField::Rids).is_ok_and(|(_, types)| types == STR)
}

/// The cells of a required column, and their types.
fn need(batch: &Columns, known: KnownField) -> Result<(ColumnCells<'_>, Types), WireError> {
    let there = cells(batch, known)?;
    let rows =
        there.ok_or(WireError::Column { name: known.name(), expected: "a list with an entry a row" })?;
    Ok((rows, types_of(batch, known, rows)?))
}

/// The cells of an optional column. `None`: the column is nil, empty or missing.
fn cells(batch: &Columns, known: KnownField) -> Result<Option<ColumnCells<'_>>, WireError> {
    let Some(field) = batch.layout.position(known) else { return Ok(None) };
    match batch.plain_rows(field) {
        Some(rows) => Ok(Some(rows)),
        None if batch.is_nil_or_empty(field) => Ok(None),
        None => Err(WireError::Column { name: known.name(), expected: "a list with an entry a row" }),
    }
}

/// The types of a column's cells.
fn types_of(batch: &Columns, known: KnownField, rows: ColumnCells<'_>) -> Result<Types, WireError> {
    rows.types(batch.rows, weight_max(batch)).ok_or(WireError::Expands { name: known.name() })
}

/// The limit of a column's [weight](RawValue::weight).
fn weight_max(batch: &Columns) -> usize {
    MAX_EXPANSION * batch.frame.len()
}
