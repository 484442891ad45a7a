//! EngineCoreOutputs, read in place: one pass checks the structure and finds the rows, and the values that Afterbay reads
//! of each. Other values are found when they are needed.

use std::ops::Range;
use std::sync::Arc;

use afterbay_types::parts;
use bytes::Bytes;

use super::fields::{
    self, ENGINE_INDEX, FINISH_REASON, FRAME, FRAME_FIELDS_MIN, NEW_TOKEN_IDS, OUTPUTS, PREFILL_STATS,
    REQUEST_ID, STOP_REASON,
};
use super::frame::map_value;
use super::layout::{CLASS, Layout, OutputsLayouts};
use crate::batch::EngineBatch;
use crate::error::{PackError, WireError};
use crate::finish::{Finish, Matched};
use crate::pack::{self, INT, PackValue, TYPES};

mod taken;

/// The fewest bytes of a row: a header and 13 fields.
const ROW_BYTES_MIN: usize = 14;
/// The fewest bytes of a row of an engine that introduced itself: a header and the fields that Afterbay needs.
const NEEDED_BYTES_MIN: usize = 4;

/// The longest row whose usual form is compared as bytes. Longer rows are read value by value.
const USUAL_MAX: usize = 64;

const NIL: u8 = 0xc0;

/// The position of the request of a row that has none.
const NO_RID: (u32, u32) = (0, 0);

/// A row: one request in one step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutputRow {
    start: u32,
    /// The start of `new_token_ids`.
    ids: u32,
    /// The start of the field behind `new_token_ids`.
    pub(super) rest: u32,
    /// The end of the row's first array.
    pub(super) first_end: u32,
    /// The end of the row. A row may have a second array: the end of a request whose last ids are in the first.
    end: u32,
    /// The start of `finish_reason`. 0: nil.
    pub(super) finish: u32,
    /// The start of `prefill_stats`. 0: nil.
    pub(super) prefill: u32,
    tokens: u32,
    /// The number of elements of the first array. 0: the row is no array, or has too few elements.
    elements: u32,
    /// Whether `new_token_ids` is an array of ids.
    pub(super) has_ids: bool,
    /// Whether no field behind `new_token_ids` says anything.
    pub(super) is_plain: bool,
}

/// The frame and the positions of its fields and rows.
#[derive(Debug)]
pub(crate) struct Outputs {
    frame: Bytes,
    /// The parts. Empty: the frame is its only part.
    pub(super) parts: Vec<Range<usize>>,
    layouts: OutputsLayouts,
    /// The layout of the frame's fields.
    pub(super) layout: Arc<Layout>,
    /// The layout of its rows. Nothing if there are none.
    pub(super) row_layout: Option<Arc<Layout>>,
    /// The positions of the known fields. Empty: the version has none.
    spans: [(u32, u32); FRAME.len()],
    /// The positions of the others.
    unknown: Vec<(u32, u32)>,
    pub(super) rows: Vec<OutputRow>,
    /// The position of each row's `request_id`.
    pub(super) rids: Vec<(u32, u32)>,
    /// Rows that cannot be read, with the field.
    pub(crate) unread: Vec<(u32, &'static str)>,
    pub(crate) has_text_rids: bool,
    pub(super) has_finish: bool,
    pub(super) has_first: bool,
}

/// The bytes behind `new_token_ids` of a row that says nothing else.
struct Usual {
    elements: u64,
    bytes: [u8; USUAL_MAX],
    len: usize,
}

impl Usual {
    fn new(layout: Option<&Layout>) -> Usual {
        let layout = layout.filter(|layout| layout.is_usual);
        let mut usual = Usual { elements: 0, bytes: [NIL; USUAL_MAX], len: 0 };
        if let Some(Layout { wire, absent, .. }) = layout {
            let bytes = wire.iter().skip(2).flat_map(|canonical| absent[*canonical].iter());
            let len = bytes.clone().count();
            if len <= USUAL_MAX {
                (usual.elements, usual.len) = (wire.len() as u64, len);
                usual.bytes.iter_mut().zip(bytes).for_each(|(byte, absent)| *byte = *absent);
            }
        }
        usual
    }

    /// The end of a row whose rest begins at `at`, if the row says nothing else.
    #[inline]
    fn end(&self, elements: u64, bytes: &[u8], at: usize) -> Option<usize> {
        let end = at + self.len;
        let is_usual = elements == self.elements && bytes.get(at..end)? == &self.bytes[..self.len];
        (is_usual && self.len > 0).then_some(end)
    }
}

/// The end of an array of ids, and their number. `None`: the value is no array of ids.
#[inline]
fn read_ids(bytes: &[u8], at: usize) -> Result<Option<(usize, u32)>, PackError> {
    let Some((count, mut at)) = pack::array_at(bytes, at)? else { return Ok(None) };
    for _ in 0..count {
        match bytes.get(at) {
            Some(0x00..=0x7f) => at += 1,
            Some(width @ 0xcc..=0xce) => at += 1 + (1 << (width - 0xcc)),
            Some(first) if TYPES[*first as usize] == INT => {
                let end = pack::skip(bytes, at)?;
                if pack::int(&bytes[at..end]).is_none() {
                    return Ok(None);
                }
                at = end;
            }
            Some(_) => return Ok(None),
            None => return Err(PackError::Cut { at, needed: 1, left: 0 }),
        }
    }
    if let Some(needed @ 1..) = at.checked_sub(bytes.len()) {
        return Err(PackError::Cut { at: bytes.len(), needed: needed as u64, left: 0 });
    }
    // A count is at most the frame's length, which fits into u32.
    Ok(Some((at, count as u32)))
}

/// The positions in a row whose fields stand in another order than usual.
#[derive(Default)]
struct Reordered {
    rid: (usize, usize),
    ids: (usize, usize),
    /// `None`: the ids are none.
    tokens: Option<u32>,
    finish: u32,
    prefill: u32,
    end: usize,
}

impl Reordered {
    fn read(layout: &Layout, bytes: &[u8], mut at: usize) -> Result<Reordered, PackError> {
        let mut read = Reordered::default();
        for field in &layout.wire {
            let end = pack::skip(bytes, at)?;
            let some = if bytes[at] == NIL { 0 } else { at as u32 };
            match *field {
                REQUEST_ID => read.rid = (at, end),
                NEW_TOKEN_IDS => {
                    read.ids = (at, end);
                    read.tokens = read_ids(bytes, at)?.map(|(_, tokens)| tokens);
                }
                FINISH_REASON => read.finish = some,
                PREFILL_STATS => read.prefill = some,
                _ => (),
            }
            at = end;
        }
        Ok(Reordered { end: at, ..read })
    }
}

fn is_text(text: &[u8]) -> bool {
    text.is_ascii() || std::str::from_utf8(text).is_ok()
}

impl Outputs {
    /// Reads a frame: one part, or an envelope of several.
    pub(crate) fn read(frame: &Bytes, layouts: &OutputsLayouts) -> Result<Outputs, WireError> {
        Outputs::read_with(frame, layouts, Outputs::read_rows)
    }

    fn read_with(
        frame: &Bytes,
        layouts: &OutputsLayouts,
        mut read_rows: impl FnMut(&mut Outputs, &[u8], usize) -> Result<usize, WireError>,
    ) -> Result<Outputs, WireError> {
        let parts = if parts::is_envelope(frame) { parts::ranges(frame)? } else { Vec::new() };
        let head = parts.first().cloned().unwrap_or(0..frame.len());
        let bytes = &frame[..head.end];
        let no_array =
            || WireError::NotAFrame { head: bytes[head.start..].iter().copied().take(4).collect() };
        let (elements, mut at) = pack::array_at(bytes, head.start)?.ok_or_else(no_array)?;
        let layout =
            layouts.frame(elements).filter(|_| elements >= FRAME_FIELDS_MIN || !layouts.is_builtin());
        let unknown = || WireError::UnknownLayout { tag: CLASS.to_owned(), elements };
        let layout = layout.ok_or_else(unknown)?;
        let mut outputs = Outputs {
            frame: frame.clone(),
            parts,
            layouts: layouts.clone(),
            layout: Arc::clone(&layout),
            row_layout: None,
            spans: [(0, 0); FRAME.len()],
            unknown: Vec::new(),
            rows: Vec::new(),
            rids: Vec::new(),
            unread: Vec::new(),
            has_text_rids: true,
            has_finish: false,
            has_first: false,
        };
        for field in &layout.wire {
            let start = at;
            at = match *field {
                OUTPUTS => read_rows(&mut outputs, bytes, at)?,
                _ => pack::skip(bytes, at)?,
            };
            match outputs.spans.get_mut(*field) {
                Some(span) => *span = (start as u32, at as u32),
                None => outputs.unknown.push((start as u32, at as u32)),
            }
        }
        if at != bytes.len() {
            return Err(PackError::Trailing { bytes: bytes.len() - at }.into());
        }
        if TYPES[outputs.field(ENGINE_INDEX)[0] as usize] != INT {
            return Err(WireError::Column { name: FRAME[ENGINE_INDEX].name, expected: "an int" });
        }
        Ok(outputs)
    }

    /// Reads the rows of the array at `at`, and returns its end.
    fn read_rows(&mut self, bytes: &[u8], at: usize) -> Result<usize, WireError> {
        let wrong = || WireError::Column {
            name: FRAME[OUTPUTS].name,
            expected: "an array of arrays of 13 fields or more",
        };
        let (count, mut at) = pack::array_at(bytes, at)?.ok_or_else(wrong)?;
        // Rows take more memory than a byte, so their number is checked before memory is reserved.
        let row_bytes_min = if self.layouts.is_builtin() { ROW_BYTES_MIN } else { NEEDED_BYTES_MIN };
        if count as usize > bytes.len() / row_bytes_min {
            return Err(wrong());
        }
        self.rows.reserve_exact(count as usize);
        self.rids.reserve_exact(count as usize);
        let first = pack::array_at(bytes, at).ok().flatten();
        self.row_layout = first.and_then(|(elements, _)| self.layouts.row(&self.layout, elements));
        let usual = Usual::new(self.row_layout.as_deref());
        for _ in 0..count {
            at = self.read_row(bytes, at, &usual)?;
        }
        Ok(at)
    }

    /// Reads the row at `at`, and returns its end.
    #[inline]
    fn read_row(&mut self, bytes: &[u8], start: usize, usual: &Usual) -> Result<usize, PackError> {
        let head = match bytes.get(start..start + 3) {
            Some(&[0xdc, high, low]) => Some((u64::from(u16::from_be_bytes([high, low])), start + 3)),
            _ => pack::array_at(bytes, start)?,
        };
        let mut row = OutputRow {
            start: start as u32,
            ids: 0,
            rest: 0,
            first_end: 0,
            end: 0,
            finish: 0,
            prefill: 0,
            tokens: 0,
            elements: 0,
            has_ids: false,
            is_plain: false,
        };
        let Some((elements, rid)) = head.filter(|(elements, _)| *elements > 1) else {
            let end = pack::skip(bytes, start)?;
            self.has_text_rids = false;
            return Ok(self.push_unread(row, NO_RID, FRAME[OUTPUTS].name, end));
        };
        if self.row_layout.is_none() {
            self.row_layout = self.layouts.row(&self.layout, elements);
        }
        let layout = self.row_layout.as_deref().filter(|layout| layout.wire.len() as u64 == elements);
        if let Some(layout) = layout.filter(|layout| !layout.is_usual) {
            let read = Reordered::read(layout, bytes, rid)?;
            return Ok(self.push_reordered(bytes, row, read, elements as u32));
        }
        let is_known = layout.is_some();
        let ids = match bytes.get(rid) {
            Some(&short @ 0xa0..=0xbf) => rid + 1 + usize::from(short & 0x1f),
            _ => pack::skip(bytes, rid)?,
        };
        let cut = PackError::Cut { at: rid, needed: (ids - rid) as u64, left: bytes.len() - rid };
        let rid_bytes = bytes.get(rid..ids).ok_or(cut)?;
        let text = pack::str_bytes(rid_bytes);
        self.has_text_rids &= text.is_some_and(is_text);
        let span = (rid as u32, ids as u32);
        if !is_known {
            let end = pack::skip(bytes, start)?;
            return Ok(self.push_unread(row, span, FRAME[OUTPUTS].name, end));
        }
        (row.ids, row.elements) = (ids as u32, elements as u32);
        let read = read_ids(bytes, ids)?;
        let rest = match read {
            Some((rest, tokens)) => {
                (row.tokens, row.has_ids) = (tokens, true);
                rest
            }
            None => pack::skip(bytes, ids)?,
        };
        row.rest = rest as u32;
        let end = match usual.end(elements, bytes, rest) {
            Some(end) => {
                row.is_plain = true;
                end
            }
            None => self.read_rest(bytes, rest, &mut row)?,
        };
        let wrong = match (text, read) {
            (None, _) => Some(fields::ROW[fields::REQUEST_ID].name),
            (_, None) => Some(fields::ROW[fields::NEW_TOKEN_IDS].name),
            _ => None,
        };
        if let Some(field) = wrong {
            return Ok(self.push_unread(row, span, field, end));
        }
        row.first_end = end as u32;
        row.end = end as u32;
        if row.tokens == 0 && row.finish != 0 && self.ends_last_row(bytes, &row, rid_bytes) {
            return Ok(end);
        }
        self.has_finish |= row.finish != 0;
        self.has_first |= row.prefill != 0;
        self.rows.push(row);
        self.rids.push(span);
        Ok(end)
    }

    /// Adds a row whose fields stand in another order than usual, and returns its end.
    fn push_reordered(&mut self, bytes: &[u8], row: OutputRow, read: Reordered, elements: u32) -> usize {
        let Reordered { rid, ids, tokens, finish, prefill, end } = read;
        let text = pack::str_bytes(&bytes[rid.0..rid.1]);
        self.has_text_rids &= text.is_some_and(is_text);
        let row = OutputRow {
            first_end: end as u32,
            end: end as u32,
            ids: ids.0 as u32,
            rest: ids.1 as u32,
            finish,
            prefill,
            tokens: tokens.unwrap_or(0),
            elements,
            has_ids: tokens.is_some(),
            ..row
        };
        let span = (rid.0 as u32, rid.1 as u32);
        let wrong = match (text, tokens) {
            (None, _) => Some(REQUEST_ID),
            (_, None) => Some(NEW_TOKEN_IDS),
            _ => None,
        };
        if let Some(field) = wrong {
            return self.push_unread(row, span, fields::ROW[field].name, end);
        }
        if row.tokens == 0 && finish != 0 && self.ends_last_row(bytes, &row, &bytes[rid.0..rid.1]) {
            return end;
        }
        self.has_finish |= finish != 0;
        self.has_first |= prefill != 0;
        self.rows.push(row);
        self.rids.push(span);
        end
    }

    fn push_unread(&mut self, row: OutputRow, rid: (u32, u32), field: &'static str, end: usize) -> usize {
        self.unread.push((self.rows.len() as u32, field));
        self.has_finish |= row.finish != 0;
        self.rows.push(OutputRow { first_end: end as u32, end: end as u32, ..row });
        self.rids.push(rid);
        end
    }

    /// Reads the fields behind `new_token_ids`, and returns their end.
    fn read_rest(&self, bytes: &[u8], mut at: usize, row: &mut OutputRow) -> Result<usize, PackError> {
        let wire = self.row_layout.as_ref().map_or(&[][..], |layout| &layout.wire);
        for field in wire.iter().skip(2) {
            let end = pack::skip(bytes, at)?;
            if bytes[at] != NIL {
                match *field {
                    FINISH_REASON => row.finish = at as u32,
                    PREFILL_STATS => row.prefill = at as u32,
                    _ => (),
                }
            }
            at = end;
        }
        Ok(at)
    }

    /// Adds the row to the row before it if it is that row's end: the same request, no ids, a stop, and only fields of an
    /// end. Such rows are written for a plugin's end of a request. The engine writes one row for each request.
    fn ends_last_row(&mut self, bytes: &[u8], row: &OutputRow, rid: &[u8]) -> bool {
        let (Some(before), Some(span)) = (self.rows.last_mut(), self.rids.last()) else { return false };
        let is_next = before.finish == 0 && before.tokens > 0 && before.elements == row.elements;
        if !is_next || bytes[row.finish as usize] != 0 || &bytes[span.0 as usize..span.1 as usize] != rid {
            return false;
        }
        let Some(layout) = &self.row_layout else { return false };
        let Some(PackValue::Array(count, body)) = pack::item(&bytes[row.first()]) else { return false };
        let says_nothing = |(field, value): (&usize, &[u8])| {
            let is_name_or_ids = matches!(*field, REQUEST_ID | NEW_TOKEN_IDS);
            let is_at_end = layout.row_field(*field).is_some_and(|field| field.at_end);
            is_name_or_ids || is_at_end || *value == *layout.absent[*field]
        };
        if !layout.wire.iter().zip(pack::items(body, count)).all(says_nothing) {
            return false;
        }
        (before.end, before.finish, before.is_plain) = (row.end, row.finish, false);
        self.has_finish = true;
        true
    }

    /// The bytes of a known field of the frame. Nil if the version has none.
    pub(crate) fn field(&self, field: usize) -> &[u8] {
        match self.spans[field] {
            (0, 0) => &[NIL],
            (start, end) => &self.frame[start as usize..end as usize],
        }
    }

    /// The bytes of the fields that are not known.
    pub(super) fn unknown(&self) -> impl Iterator<Item = &[u8]> {
        self.unknown.iter().map(|(start, end)| &self.frame[*start as usize..*end as usize])
    }

    /// The bytes of a field by its canonical position.
    pub(super) fn value(&self, canonical: usize) -> &[u8] {
        match canonical.checked_sub(FRAME.len()) {
            None => self.field(canonical),
            Some(at) => self.unknown().nth(at).unwrap_or(&[NIL]),
        }
    }

    /// The bytes of a field in an array of a row. `None`: the layout has none.
    pub(super) fn cell(&self, array: Range<usize>, canonical: usize) -> Option<&[u8]> {
        let at = self.row_layout.as_ref()?.position(canonical)?;
        let PackValue::Array(count, body) = pack::item(&self.frame[array])? else { return None };
        pack::items(body, count).nth(at)
    }

    /// The layout of the rows, or the newest one that is known.
    pub(super) fn row_layout(&self) -> Arc<Layout> {
        self.row_layout.clone().unwrap_or_else(|| Layout::row_of(fields::ROW.len() as u64))
    }

    /// The number of fields of the rows, or 0.
    pub(crate) fn row_elements(&self) -> u32 {
        self.rows.iter().map(|row| row.elements).find(|elements| *elements > 0).unwrap_or(0)
    }

    /// The versions of vLLM that write such frames.
    pub(crate) fn versions(&self) -> Arc<str> {
        self.layouts.versions(&self.layout, self.row_elements().into())
    }

    /// The frame's bytes.
    pub(super) fn frame(&self) -> &[u8] {
        &self.frame
    }

    pub(super) fn layouts(&self) -> &OutputsLayouts {
        &self.layouts
    }

    pub(super) fn bytes(&self) -> &Bytes {
        &self.frame
    }

    /// The number of parts besides the first.
    pub(crate) fn aux_parts(&self) -> usize {
        self.parts.len().saturating_sub(1)
    }

    /// The bytes of a part, as arrays name it: the first is 0.
    pub(super) fn part(&self, part: usize) -> Option<&[u8]> {
        match (part, self.parts.as_slice()) {
            (0, []) => Some(&self.frame),
            (part, parts) => Some(&self.frame[parts.get(part)?.clone()]),
        }
    }

    /// The ids of a row that can be read, without the head of their array.
    #[inline]
    pub(super) fn id_items(&self, row: &OutputRow) -> &[u8] {
        let head = match self.frame[row.ids as usize] {
            0xdc => 3,
            0xdd => 5,
            _ => 1,
        };
        &self.frame[row.ids as usize + head..row.rest as usize]
    }

    /// Whether every row has a `request_id`.
    pub(super) fn has_rids(&self) -> bool {
        (0..self.rids.len() as u32).all(|row| self.rid(row).is_some())
    }

    pub(super) fn ended_by(&self, row: &OutputRow) -> Finish<'_> {
        let reason = pack::item(&self.frame[row.finish as usize..row.end as usize]);
        let stop = self.cell(row.end_array(), STOP_REASON).and_then(pack::item);
        match reason {
            Some(PackValue::Int(0)) => Finish::Stop {
                matched: match stop {
                    Some(PackValue::Int(token)) => Matched::Token(token),
                    Some(PackValue::Str(text)) => {
                        std::str::from_utf8(text).map_or(Matched::None, Matched::Text)
                    }
                    _ => Matched::None,
                },
            },
            Some(PackValue::Int(1)) => Finish::Length,
            Some(PackValue::Int(2)) => Finish::Abort,
            Some(PackValue::Int(3)) => Finish::Error,
            _ => Finish::Other,
        }
    }

    pub(super) fn prefill_count(&self, row: u32, name: &str) -> Option<u64> {
        let row = self.rows.get(row as usize).filter(|row| row.prefill != 0)?;
        let stats = &self.frame[row.prefill as usize..row.first_end as usize];
        pack::int(map_value(stats, name)?)?.try_into().ok()
    }
}

impl OutputRow {
    /// The row's bytes.
    pub(super) fn span(&self) -> Range<usize> {
        self.start as usize..self.end as usize
    }

    /// The position of the first array.
    pub(super) fn first(&self) -> Range<usize> {
        self.start as usize..self.first_end as usize
    }

    /// The position of the second array, or nothing.
    pub(super) fn second(&self) -> Range<usize> {
        self.first_end as usize..self.end as usize
    }

    /// The position of the array that says how the request ends, in a row that does.
    pub(super) fn end_array(&self) -> Range<usize> {
        if self.finish < self.first_end { self.first() } else { self.second() }
    }

    /// The start of `new_token_ids`.
    pub(super) fn ids(&self) -> usize {
        self.ids as usize
    }

    /// The start of the field behind `new_token_ids`.
    pub(super) fn rest(&self) -> usize {
        self.rest as usize
    }

    pub(super) fn tokens(&self) -> u32 {
        self.tokens
    }

    pub(super) fn elements(&self) -> u32 {
        self.elements
    }

    /// Whether the row is written as two arrays.
    pub(super) fn has_end_row(&self) -> bool {
        self.end != self.first_end
    }

    /// Whether the fields can be found: the row is an array of a known form.
    pub(super) fn has_fields(&self) -> bool {
        self.elements != 0
    }
}
