//! A frame to what it is: a batch of rows, or a barrier that goes on as it came. Recognised per frame by its first
//! bytes, since nothing on the wire says which encoding it is in. Next are plugins and the outbox, which see batches.

use std::fmt;
use std::sync::Arc;

use afterbay_pickle::Parser;
use bytes::Bytes;

use crate::batch::{Batch, Body, Unread};
use crate::bounds::{MAX_EXPANSION, MAX_FRAME_BYTES, MAX_TAG_BYTES, PICKLE_HEAD_BYTES};
use crate::error::WireError;
use crate::kind::Kind;
use crate::layouts::{Known, Layout, Layouts};
use crate::pack::{EXT, LIST, MAP, NIL, OTHER, STR, Types};
use crate::packed::{self, Packed};
use crate::pickled::Pickled;
use crate::textless::Textless;
use crate::value::{Rows, Value};

/// What a frame is.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "one a frame: a box would cost more than the move")]
pub enum Decoded {
    /// Rows.
    Batch(Batch),
    /// Passed on as it is, in its place.
    Barrier(Barrier),
}

impl Decoded {
    /// Whether the reader counts it when it has finished it (credit).
    pub fn counted(&self) -> bool {
        match self {
            Decoded::Batch(_) => true,
            Decoded::Barrier(barrier) => barrier.counted(),
        }
    }
}

/// A frame without rows of its own, or whose rows are not known.
#[derive(Debug)]
pub struct Barrier {
    /// Why it is one.
    pub kind: BarrierKind,
    bytes: Bytes,
    counted: bool,
    /// Of an idle batch, its columns. Of a batch that is not understood and whose rids can be read, likewise; other columns of it
    /// are not checked.
    pub(crate) columns: Option<Box<Batch>>,
}

/// Why a frame is a barrier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BarrierKind {
    /// Another message.
    Control {
        /// Its class, cut after 128 bytes.
        tag: String,
    },
    /// A batch with no rows.
    Idle {
        /// Which message.
        kind: Kind,
    },
    /// Not understood, and why.
    NotUnderstood {
        /// The error.
        error: WireError,
    },
}

impl fmt::Display for BarrierKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BarrierKind::Control { tag } => write!(f, "{tag}"),
            BarrierKind::Idle { kind } => write!(f, "idle {kind}"),
            BarrierKind::NotUnderstood { error } => write!(f, "{error}"),
        }
    }
}

/// Reads frames one after another; keeps the pickle parser's memory and the last layouts between them.
#[derive(Debug)]
pub struct Decoder {
    layouts: Layouts,
    parser: Parser,
    /// Of the last pickled batch of each kind.
    pickled: [Option<Arc<Layout>>; Kind::ALL.len()],
}

impl Barrier {
    /// The frame.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Whether it is a batch whose rows cannot be read, by what it says of itself at its head. Other messages have no rows.
    pub fn hides_rows(&self) -> bool {
        self.counted && matches!(self.kind, BarrierKind::NotUnderstood { .. })
    }

    /// Of a batch whose rows cannot be read, who they are for, where that can be: only the rids are to be asked for, and
    /// [the end](Batch::ended) of all rows.
    pub fn named_rows(&self) -> Option<&Batch> {
        self.columns.as_deref().filter(|_| self.hides_rows())
    }

    /// Whether SGLang's reader counts it among the batches it has finished (`_handle_batch_output`): idle batches do,
    /// control messages do not. Of a frame that is not understood, by its class if that can be read.
    pub fn counted(&self) -> bool {
        self.counted
    }
}

/// Reads one frame. A stream has a [`Decoder`].
pub fn decode(frame: Bytes, layouts: &Layouts) -> Decoded {
    Decoder::new(layouts.clone()).decode(frame)
}

impl Decoder {
    /// A decoder that reads msgpack batches by these layouts.
    pub fn new(layouts: Layouts) -> Decoder {
        Decoder { layouts, parser: Parser::default(), pickled: Default::default() }
    }

    /// Reads a frame. It never fails: what cannot be read is a barrier.
    pub fn decode(&mut self, frame: Bytes) -> Decoded {
        let read = match frame.as_ref() {
            _ if frame.len() > MAX_FRAME_BYTES => Err(WireError::TooLong { bytes: frame.len() }),
            [0x80, 0..=5, ..] => {
                read_pickle(&frame, &mut self.parser, |kind| self.pickled[kind as usize].as_ref())
            }
            [0x90..=0x9f | 0xdc | 0xdd, ..] => {
                read_msgpack(&frame, |kind, fields| self.layouts.find(kind, fields))
            }
            _ => Err(WireError::NotAFrame { head: frame.iter().copied().take(4).collect() }),
        };
        let barrier = |kind, counted| Barrier { kind, bytes: frame.clone(), counted, columns: None };
        match read {
            Ok(Read::Batch(batch)) if batch.rows == 0 => {
                let kind = BarrierKind::Idle { kind: batch.kind() };
                Decoded::Barrier(Barrier { columns: Some(Box::new(batch)), ..barrier(kind, true) })
            }
            Ok(Read::Batch(batch)) => match check(&batch, true) {
                Ok(checked) => {
                    let batch = checked.of(batch);
                    if let Body::Pickled(_) = batch.body {
                        Textless::find(&batch, &self.layouts);
                        self.pickled[batch.kind() as usize] = Some(Arc::clone(&batch.layout));
                    }
                    Decoded::Batch(batch)
                }
                Err(error) => {
                    let columns = has_rids(&batch).then(|| Box::new(batch));
                    let kind = BarrierKind::NotUnderstood { error };
                    Decoded::Barrier(Barrier { columns, ..barrier(kind, true) })
                }
            },
            Ok(Read::Control(tag)) => Decoded::Barrier(barrier(BarrierKind::Control { tag }, false)),
            Err(error) => {
                let counted = names_batch(&frame);
                Decoded::Barrier(barrier(BarrierKind::NotUnderstood { error }, counted))
            }
        }
    }
}

fn read_msgpack<'l>(
    frame: &Bytes,
    layout: impl FnOnce(Kind, u64) -> Option<&'l Arc<Layout>>,
) -> Result<Read, WireError> {
    let head = packed::tagged(frame)?.ok_or_else(|| WireError::NotAFrame { head: Vec::new() })?;
    let fields = head.elements - 1;
    let Some(kind) = Kind::of_class(head.tag) else {
        packed::check_rest(frame, head.body, fields)?;
        return Ok(Read::Control(cut(head.tag)));
    };
    let Some(layout) = layout(kind, fields) else {
        packed::check_rest(frame, head.body, fields)?;
        return Err(WireError::UnknownLayout { tag: head.tag.to_owned(), elements: head.elements });
    };
    let (packed, rows) = Packed::read(frame, layout, head.body)?;
    Ok(Read::Batch(Batch::new(frame.clone(), Arc::clone(layout), rows, Body::Packed(packed))))
}

fn read_pickle<'l>(
    frame: &Bytes,
    parser: &mut Parser,
    known: impl FnOnce(Kind) -> Option<&'l Arc<Layout>>,
) -> Result<Read, WireError> {
    let tree = parser.parse(frame.clone())?;
    let object = tree.object(tree.root()).ok_or(WireError::NotAnObject)?;
    let Some(kind) = Kind::of_class(object.name) else { return Ok(Read::Control(cut(object.name))) };
    let fields = object.fields.ok_or(WireError::NotAnObject)?;
    let (pickled, layout) = Pickled::read(tree, kind, fields, known(kind))?;
    let rids = layout.position(Known::Rids).ok_or(NO_RIDS)?;
    let rids = Value::Tree(&pickled.tree, pickled.value(rids));
    let rows = if rids.is_nil() { 0 } else { rids.list().ok_or(NO_RIDS)?.len() };
    Ok(Read::Batch(Batch::new(frame.clone(), layout, rows as u32, Body::Pickled(pickled))))
}

impl Batch {
    /// Reads what was written out of batches like this one, in that layout.
    pub(crate) fn read_again(&self, bytes: Bytes, layout: &Arc<Layout>) -> Result<Batch, WireError> {
        let too_long = WireError::TooLong { bytes: bytes.len() };
        if bytes.len() > MAX_FRAME_BYTES {
            return Err(too_long);
        }
        let read = match &self.body {
            Body::Packed(_) => {
                read_msgpack(&bytes, |_, fields| (layout.fields.len() as u64 == fields).then_some(layout))
            }
            Body::Pickled(_) => read_pickle(&bytes, &mut Parser::default(), |_| Some(layout)),
        };
        match read? {
            Read::Batch(batch) => check(&batch, false).map(|checked| checked.of(batch)),
            Read::Control(_) => Err(NO_RIDS),
        }
    }
}

#[expect(clippy::large_enum_variant, reason = "taken apart where it is returned to")]
enum Read {
    /// Perhaps without rows, and not yet checked.
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

/// Whether a frame that cannot be read says at its head that it is a batch.
fn names_batch(frame: &[u8]) -> bool {
    if let Ok(Some(head)) = packed::tagged(frame) {
        return Kind::of_class(head.tag).is_some();
    }
    let head = &frame[..frame.len().min(PICKLE_HEAD_BYTES)];
    frame.first() == Some(&0x80)
        && Kind::ALL.iter().any(|kind| {
            let class = kind.class().as_bytes();
            head.windows(class.len()).any(|window| window == class)
        })
}

/// What was seen as a batch was checked.
struct Checked {
    /// A column without one cell of its type is not what the layout says. Of what was written in a layout that is known to be right,
    /// it is.
    is_strict: bool,
    unread: Vec<Unread>,
    has_usual_ids: bool,
    has_text_rids: bool,
}

impl Checked {
    fn of(self, batch: Batch) -> Batch {
        let Checked { unread, has_usual_ids, has_text_rids, .. } = self;
        batch.checked(unread, has_usual_ids, has_text_rids)
    }

    /// Notes the rows whose cell is not of its column's type. The error: none is, so that the column is not what the layout
    /// says.
    fn note(
        &mut self,
        batch: &Batch,
        known: Known,
        rows: Rows<'_>,
        expected: &'static str,
        is: impl Fn(Value<'_>) -> bool,
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

/// Checks what accessors rely on: the columns that say what a row is have a cell a row. So a version whose layout is not the one
/// assumed is not read wrong, but not understood. A single cell of another type is its row's matter, and no other row's. A count
/// that is none is not known.
fn check(batch: &Batch, is_strict: bool) -> Result<Checked, WireError> {
    let mut checked = Checked { is_strict, unread: Vec::new(), has_usual_ids: false, has_text_rids: false };
    let (rids, types) = need(batch, Known::Rids)?;
    checked.has_text_rids = rids.are_ascii(batch.rows) || rids.iter(batch.rows).all(Value::is_text);
    if types & !STR != 0 {
        checked.note(batch, Known::Rids, rids, "a str", |cell| cell.types() == STR)?;
    }
    let (reasons, types) = need(batch, Known::FinishedReasons)?;
    if is_strict && types & (NIL | MAP) == 0 {
        let row = reasons.iter(batch.rows).position(|_| true).unwrap_or_default() as u32;
        let (name, expected) = (Known::FinishedReasons.name(), "nil or a map");
        return Err(WireError::Cell { name, row, expected });
    }
    if batch.kind() != Kind::Embedding {
        let output = may(batch, Known::OutputIds)?;
        let decode = may(batch, Known::DecodeIds)?;
        if output.is_none() && decode.is_none() {
            let name = Known::OutputIds.name();
            return Err(WireError::Column { name, expected: "a list of id arrays" });
        }
        for (known, rows) in [(Known::OutputIds, output), (Known::DecodeIds, decode)] {
            let Some((rows, types)) = rows else { continue };
            let are_usual = rows.are_ids(batch.rows);
            checked.has_usual_ids |= are_usual && known == Known::OutputIds;
            if !are_usual {
                let may_be = types & (EXT | LIST | OTHER) != 0;
                let is = |cell: Value<'_>| may_be && cell.is_ids();
                checked.note(batch, known, rows, "an id array", is)?;
            }
        }
    }
    if batch.kind() == Kind::Str {
        let (texts, _) = need(batch, Known::OutputStrs)?;
        checked.note(batch, Known::OutputStrs, texts, "a str", |cell| cell.is_text())?;
    }
    checked.unread.sort_by_key(|unread| unread.row);
    checked.unread.dedup_by_key(|unread| unread.row);
    Ok(checked)
}

/// Whether it can be said who the rows are for.
fn has_rids(batch: &Batch) -> bool {
    need(batch, Known::Rids).is_ok_and(|(_, types)| types == STR)
}

/// The cells of a column that must have one a row, and their types.
fn need(batch: &Batch, known: Known) -> Result<(Rows<'_>, Types), WireError> {
    let there = may(batch, known)?;
    there.ok_or(WireError::Column { name: known.name(), expected: "a list with an entry a row" })
}

/// The cells of a column that may have one a row, and their types; or it is nil, empty or not there.
fn may(batch: &Batch, known: Known) -> Result<Option<(Rows<'_>, Types)>, WireError> {
    let Some(field) = batch.layout.position(known) else { return Ok(None) };
    let Some(rows) = batch.plain_rows(field) else {
        let wrong = WireError::Column { name: known.name(), expected: "a list with an entry a row" };
        return if batch.is_nil_or_empty(field) { Ok(None) } else { Err(wrong) };
    };
    let most = MAX_EXPANSION * batch.bytes.len();
    let types = rows.types(batch.rows, most).ok_or(WireError::Expands { name: known.name() })?;
    Ok(Some((rows, types)))
}
