//! A batch: the rows of one scheduler step, one per request, read in place from the frame. The operations on rows are
//! in `rows`.

use std::ops::RangeInclusive;
use std::sync::{Arc, OnceLock};

use crate::pickle::{Node, NodeId, Tree};
use bytes::Bytes;

use crate::abort::AbortShape;
use crate::error::RowsError;
use crate::finish::{Finish, finish};
use crate::ids::Ids;
use crate::kind::{BatchKind, Wire};
use crate::layouts::{KnownField, MessageLayout};
use crate::packed::{ColumnShape, Packed};
use crate::pickled::{self, Pickled};
use crate::value::{ColumnCells, ColumnView, RawValue};
use crate::vllm::{EngineLoad, Outputs};

/// The prefix of the rids of SGLang's health checks (`HEALTH_CHECK_RID_PREFIX`).
const HEALTH_CHECK: &[u8] = b"HEALTH_CHECK_";
/// The length of `uuid4().hex`.
const UUID_LENGTH: usize = 32;
/// The lengths of `time.time()` as a text: ten digits, a point, and one to seven decimals.
const TIME_LENGTHS: RangeInclusive<usize> = 12..=18;

/// Whether a rid has exactly the form of SGLang's own health checks: `HEALTH_CHECK_` and `uuid4().hex`, or in earlier
/// versions `time.time()`. Any other rid with this prefix belongs to a client's ordinary request.
#[inline]
pub fn is_health_check(rid: &[u8]) -> bool {
    may_be_health_check(rid.len()) && has_health_check_form(rid)
}

/// Whether a rid of this length can be of a health check. Most rids have another length.
#[inline]
fn may_be_health_check(length: usize) -> bool {
    let rest = length.wrapping_sub(HEALTH_CHECK.len());
    rest == UUID_LENGTH || TIME_LENGTHS.contains(&rest)
}

fn has_health_check_form(rid: &[u8]) -> bool {
    rid.strip_prefix(HEALTH_CHECK).is_some_and(|rest| is_uuid(rest) || is_time(rest))
}

/// Whether a row with these counts is the first of its request: it has tokens, and all that the request has.
#[inline]
pub fn is_first(tokens: u32, completion_tokens: Option<u64>) -> bool {
    tokens > 0 && completion_tokens == Some(u64::from(tokens))
}

fn is_uuid(text: &[u8]) -> bool {
    text.len() == UUID_LENGTH && text.iter().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
}

/// Seconds since 1970 as Python writes a float: ten digits, and up to seven decimals.
fn is_time(text: &[u8]) -> bool {
    let Some((seconds, fraction)) = text.split_at_checked(10) else { return false };
    let are_digits = |digits: &[u8]| digits.iter().all(u8::is_ascii_digit);
    TIME_LENGTHS.contains(&text.len())
        && are_digits(seconds)
        && matches!(fraction, [b'.', digits @ ..] if are_digits(digits))
}

/// A row with an unreadable rid, ids or text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unread {
    /// The row.
    pub row: u32,
    /// The unreadable column.
    pub column: &'static str,
}

/// The rows of one scheduler step, at least one. A batch owns its bytes.
///
/// For a row past the last one, accessors return the empty answer (`""`, 0, `None`, running).
#[derive(Debug)]
pub struct Batch {
    pub(crate) bytes: Bytes,
    pub(crate) layout: Arc<MessageLayout>,
    pub(crate) rows: u32,
    pub(crate) body: BatchBody,
    /// The pickles that stand for a column inside msgpack (`PickleWrapper`), by field. They are parsed on first use.
    wrapped: OnceLock<Result<Vec<(usize, Tree)>, RowsError>>,
    /// Rows whose `output_ids` are all ids of the request so far, ascending. The frame does not say so.
    pub(crate) cumulative: Vec<u32>,
    /// Whether a row may be the first of its request.
    pub(crate) may_begin: bool,
    /// Rows that cannot be read, ascending.
    pub(crate) unread: Vec<Unread>,
    /// The number of ids of each cell of `output_ids`, if it is the same in all rows and the ids have the usual form.
    pub(crate) ids_each: Option<usize>,
    /// Whether every rid is valid UTF-8.
    pub(crate) has_text_rids: bool,
}

/// The positions of the columns.
#[derive(Debug)]
pub(crate) enum BatchBody {
    Packed(Packed),
    Pickled(Pickled),
    /// Rows of vLLM, without columns.
    Outputs(Outputs),
}

impl Batch {
    /// The memory of the batch in bytes: its frame, and the decoded positions of its columns and cells. A column that is pickled
    /// apart counts once it was read.
    pub fn memory(&self) -> usize {
        let body = match &self.body {
            BatchBody::Packed(packed) => packed.memory(),
            BatchBody::Pickled(pickled) => pickled.memory(),
            BatchBody::Outputs(outputs) => outputs.memory(),
        };
        let wrapped = self.wrapped.get().and_then(|wrapped| wrapped.as_ref().ok()).into_iter().flatten();
        size_of::<Batch>() + self.bytes.len() + body + wrapped.map(|(_, tree)| tree.memory()).sum::<usize>()
    }

    pub(crate) fn new(bytes: Bytes, layout: Arc<MessageLayout>, rows: u32, body: BatchBody) -> Batch {
        let (cumulative, unread) = (Vec::new(), Vec::new());
        Batch {
            bytes,
            layout,
            rows,
            body,
            wrapped: OnceLock::new(),
            cumulative,
            may_begin: true,
            unread,
            ids_each: None,
            has_text_rids: false,
        }
    }

    /// Adds the results of the check.
    pub(crate) fn checked(self, unread: Vec<Unread>, ids_each: Option<usize>, has_text_rids: bool) -> Batch {
        Batch { unread, ids_each, has_text_rids, ..self }
    }

    /// Marks these rows, ascending: their `output_ids` are all ids of their requests so far. When rows are joined, the
    /// last such row replaces the ids of the rows before it.
    pub fn with_cumulative(self, rows: Vec<u32>) -> Batch {
        Batch { cumulative: rows, ..self }
    }

    /// Says that no row is the first of its request, so that nobody searches for one.
    pub fn without_first_rows(self) -> Batch {
        Batch { may_begin: false, ..self }
    }

    /// The number of rows that are the first of their requests.
    pub fn first_rows(&self) -> u32 {
        if !self.may_begin {
            return 0;
        }
        if let BatchBody::Outputs(outputs) = &self.body {
            return outputs.first_rows();
        }
        let counts = self.token_counts().zip(self.completion_counts());
        counts.filter(|(tokens, count)| is_first(*tokens, *count)).count() as u32
    }

    /// Whether the row is the first of its request: of SGLang it has all tokens that the request has, of vLLM it has
    /// `prefill_stats`.
    pub fn is_first(&self, row: u32) -> bool {
        self.may_begin
            && match &self.body {
                BatchBody::Outputs(outputs) => outputs.is_first(row),
                _ => is_first(self.tokens(row), self.completion_tokens(row)),
            }
    }

    /// Whether the row's `output_ids` are all ids of its request so far, as [`TokenEdit::Cumulative`](crate::TokenEdit) makes
    /// them.
    pub fn is_cumulative(&self, row: u32) -> bool {
        self.cumulative.binary_search(&row).is_ok()
    }

    /// The kind of message.
    pub fn kind(&self) -> BatchKind {
        self.layout.kind
    }

    /// The encoding.
    pub fn wire(&self) -> Wire {
        match &self.body {
            BatchBody::Packed(_) => Wire::Msgpack { versions: self.layout.versions.clone() },
            BatchBody::Pickled(pickled) => Wire::Pickle { protocol: pickled.protocol() },
            BatchBody::Outputs(outputs) => Wire::EngineCore { versions: outputs.versions() },
        }
    }

    /// The form in which the scheduler that wrote the batch reads an abort.
    pub fn abort_shape(&self) -> AbortShape {
        match &self.body {
            BatchBody::Packed(_) => AbortShape::Msgpack,
            BatchBody::Pickled(pickled) => match pickled.tree().node(pickled.tree().root()) {
                Node::Build { .. } => AbortShape::Dataclass,
                _ => AbortShape::Struct,
            },
            BatchBody::Outputs(_) => AbortShape::EngineCore,
        }
    }

    /// The received bytes, or those that [`take`](Batch::take), [`join`](Batch::join) or [`edit`](Batch::edit) wrote.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The number of rows, at least one.
    pub fn rows(&self) -> u32 {
        self.rows
    }

    /// The rows that cannot be read, ascending: the rid is not a str, the ids are not an id array, or the text is not
    /// UTF-8. They count as having no tokens. No plugin can see them, but they can be taken, joined and edited.
    pub fn unread(&self) -> &[Unread] {
        &self.unread
    }

    /// Whether the row is in [`Batch::unread`].
    #[inline]
    pub fn is_unread(&self, row: u32) -> bool {
        !self.unread.is_empty() && self.unread.binary_search_by_key(&row, |unread| unread.row).is_ok()
    }

    /// Whether every rid is valid UTF-8. Otherwise the batch cannot be joined: it is unknown which requests its rows
    /// are of.
    pub fn has_text_rids(&self) -> bool {
        self.has_text_rids
    }

    /// The bytes of the rid. `None` if it is not a str.
    pub fn rid_of(&self, row: u32) -> Option<&[u8]> {
        match self.cell(KnownField::Rids, row) {
            Some(rid) => rid.str_bytes(),
            None => self.outputs()?.rid_bytes(row),
        }
    }

    /// The rid. Empty if it is not UTF-8 ([`Batch::rid_of`] has its bytes).
    pub fn rid(&self, row: u32) -> &str {
        match self.cell(KnownField::Rids, row) {
            Some(rid) => rid.str().unwrap_or_default(),
            None => self.outputs().map_or("", |outputs| outputs.rid(row)),
        }
    }

    /// The socket of the HTTP worker that waits for the request, if there are several workers.
    pub fn http_worker_ipc(&self, row: u32) -> Option<&str> {
        self.cell(KnownField::HttpWorkerIpcs, row)?.str()
    }

    /// Whether the row is of one of SGLang's own health checks. Such a row is never held and never dropped.
    pub fn is_health_check(&self, row: u32) -> bool {
        self.rid_of(row).is_some_and(is_health_check)
    }

    /// Whether any row [is](Batch::is_health_check) of a health check.
    pub fn has_health_check(&self) -> bool {
        // If all rids have one length, no other cell needs a look.
        let model = self.rows_of(KnownField::Rids).and_then(ColumnCells::model);
        let may_be = |rid: &[u8]| may_be_health_check(rid.len());
        model.and_then(RawValue::str_bytes).is_none_or(may_be) && self.rid_bytes().any(is_health_check)
    }

    /// The number of new tokens: of vLLM `new_token_ids`, of SGLang those of `output_ids` or, if that is nil, those of `decode_ids` without the prompt's
    /// tail.
    pub fn tokens(&self, row: u32) -> u32 {
        if self.is_unread(row) {
            return 0;
        }
        match (self.cell(KnownField::OutputIds, row), self.outputs()) {
            (Some(ids), _) => ids.id_count().unwrap_or(0) as u32,
            (None, Some(outputs)) => outputs.tokens(row),
            (None, None) => self.decode_count(row) - self.prompt_tail(row),
        }
    }

    /// The [`rid`](Batch::rid) of every row. Iterating over a column is cheaper than calling per row.
    pub fn rids(&self) -> impl Iterator<Item = &str> + Clone {
        let (rids, outputs) = (self.rows_of(KnownField::Rids), self.outputs());
        (0..self.rows).map(move |row| match (rids, outputs) {
            (Some(rids), _) => rids.get(row).str().unwrap_or_default(),
            (None, outputs) => outputs.map_or("", |outputs| outputs.rid(row)),
        })
    }

    /// The [`rid`](Batch::rid) of every row as bytes, for comparing: this skips the UTF-8 check.
    #[inline]
    pub fn rid_bytes(&self) -> impl Iterator<Item = &[u8]> + Clone {
        let (rids, outputs) = (self.rows_of(KnownField::Rids), self.outputs());
        let uniform = rids.and_then(|rids| rids.uniform_texts(self.rows));
        (0..self.rows).map(move |row| match (uniform, rids) {
            (Some((cells, width, text)), _) => &cells[row as usize * width..][text..width],
            (None, Some(rids)) => rids.get(row).str_bytes().unwrap_or_default(),
            (None, None) => outputs.and_then(|outputs| outputs.rid_bytes(row)).unwrap_or_default(),
        })
    }

    /// The [`tokens`](Batch::tokens) of every row.
    #[inline]
    pub fn token_counts(&self) -> impl Iterator<Item = u32> + Clone {
        let ids = self.rows_of(KnownField::OutputIds);
        let each = self.ids_each.filter(|_| self.unread.is_empty());
        (0..self.rows).map(move |row| match (each, ids) {
            (Some(count), _) => count as u32,
            (None, Some(ids)) if self.unread.is_empty() => ids.get(row).id_count().unwrap_or(0) as u32,
            (None, _) => self.tokens(row),
        })
    }

    /// The [`completion_tokens`](Batch::completion_tokens) of every row.
    #[inline]
    pub fn completion_counts(&self) -> impl Iterator<Item = Option<u64>> + Clone {
        let counts = self.rows_of(KnownField::CompletionTokens);
        (0..self.rows).map(move |row| counts?.get(row).int()?.try_into().ok())
    }

    /// The [`finish`](Batch::finish) of every row.
    #[inline]
    pub fn finishes(&self) -> impl Iterator<Item = Finish<'_>> + Clone {
        let reasons = self.rows_of(KnownField::FinishedReasons).filter(|reasons| !reasons.are_nil(self.rows));
        let outputs = self.outputs().filter(|outputs| outputs.has_finish());
        (0..self.rows).map(move |row| match (reasons, outputs) {
            (Some(reasons), _) => finish(reasons.get(row)),
            (None, Some(outputs)) => outputs.finish(row),
            (None, None) => Finish::Running,
        })
    }

    /// Reads the new ids of every row into `out`, which is cleared first.
    pub fn output_ids(&self, out: &mut Ids) {
        out.values.clear();
        out.ends.clear();
        out.ends.reserve(self.rows as usize);
        if let Some(ids) = self.rows_of(KnownField::OutputIds).filter(|_| self.unread.is_empty()) {
            return ids.ids(self.rows, self.ids_each, out);
        }
        for row in 0..self.rows {
            self.row_ids(row, &mut out.values);
            out.ends.push(out.values.len() as u32);
        }
    }

    /// Appends the new ids of one row.
    pub fn row_ids(&self, row: u32, out: &mut Vec<i64>) {
        if self.is_unread(row) {
            return;
        }
        if let Some(ids) = self.cell(KnownField::OutputIds, row) {
            ids.ids(out);
        } else if let Some(outputs) = self.outputs() {
            outputs.ids(row, out);
        } else if let Some(ids) = self.cell(KnownField::DecodeIds, row) {
            let (start, tail) = (out.len(), self.prompt_tail(row) as usize);
            ids.ids(out);
            out.drain(start..start + tail);
        }
    }

    /// The number of ids at the head of the row's `decode_ids` that are the prompt's tail. A request's first row has
    /// this tail for the detokenizer. With `output_ids`, the tail is what `decode_ids` has more. Otherwise the row is a
    /// first one if the prompt's tail (`read_offsets`, in every row) and all `completion_tokens` make up its
    /// `decode_ids`. A later row has fewer new ids than its request has tokens, so the two cases are distinct.
    pub(crate) fn prompt_tail(&self, row: u32) -> u32 {
        if self.is_unread(row) {
            return 0;
        }
        let decode = self.decode_count(row);
        if let Some(ids) = self.cell(KnownField::OutputIds, row) {
            return decode.saturating_sub(ids.id_count().unwrap_or(0) as u32);
        }
        let offset = self.cell(KnownField::ReadOffsets, row).and_then(RawValue::int);
        match (offset.and_then(|offset| u32::try_from(offset).ok()), self.completion_tokens(row)) {
            (Some(offset), Some(tokens)) if u64::from(offset) + tokens == u64::from(decode) => offset,
            _ => 0,
        }
    }

    fn decode_count(&self, row: u32) -> u32 {
        self.cell(KnownField::DecodeIds, row).and_then(RawValue::id_count).unwrap_or(0) as u32
    }

    /// The scheduler's count of the request's tokens so far, including this row. vLLM has none.
    pub fn completion_tokens(&self, row: u32) -> Option<u64> {
        self.cell(KnownField::CompletionTokens, row)?.int()?.try_into().ok()
    }

    /// The length of the request's prompt in tokens. vLLM says it in a request's first row only.
    pub fn prompt_tokens(&self, row: u32) -> Option<u64> {
        match self.cell(KnownField::PromptTokens, row) {
            Some(tokens) => tokens.int()?.try_into().ok(),
            None => self.outputs()?.prompt_tokens(row),
        }
    }

    /// Whether the row is its request's last, and why the request ended.
    pub fn finish(&self, row: u32) -> Finish<'_> {
        match self.cell(KnownField::FinishedReasons, row) {
            Some(reason) => finish(reason),
            None => self.outputs().map_or(Finish::Running, |outputs| outputs.finish(row)),
        }
    }

    /// The row's new text. `None` except for [`BatchKind::Str`].
    pub fn text(&self, row: u32) -> Option<&str> {
        self.cell(KnownField::OutputStrs, row)?.str()
    }

    /// A cell of a column that Afterbay reads. `None` if the row or the column's cells do not exist.
    #[inline]
    pub(crate) fn cell(&self, known: KnownField, row: u32) -> Option<RawValue<'_>> {
        if row >= self.rows {
            return None;
        }
        self.rows_of(known).map(|rows| rows.get(row))
    }

    /// The cells of a column that Afterbay reads, if it has one per row.
    #[inline]
    pub(crate) fn rows_of(&self, known: KnownField) -> Option<ColumnCells<'_>> {
        self.plain_rows(self.layout.position(known)?)
    }

    /// The requests that vLLM's engine says have ended, also those whose client left. They have no further rows. Only an
    /// engine that is told to names them (`include_finished_set`).
    pub fn finished_requests(&self) -> impl Iterator<Item = &str> {
        self.outputs().into_iter().flat_map(Outputs::finished_requests)
    }

    /// The load that vLLM's engine sends with a step. `None`: SGLang, or an engine without statistics.
    pub fn load(&self) -> Option<EngineLoad> {
        self.outputs()?.load()
    }

    /// The number of vLLM's engine that sent the batch. `None`: SGLang.
    pub fn engine_index(&self) -> Option<u64> {
        self.outputs()?.engine_index()
    }

    /// The engine that wrote the batch, in lower case.
    pub fn engine(&self) -> &'static str {
        if self.outputs().is_some() { "vllm" } else { "sglang" }
    }

    /// The rows of vLLM.
    #[inline]
    pub(crate) fn outputs(&self) -> Option<&Outputs> {
        match &self.body {
            BatchBody::Outputs(outputs) => Some(outputs),
            _ => None,
        }
    }

    /// The cells of a column with one per row, except those inside a pickle in msgpack.
    #[inline]
    pub(crate) fn plain_rows(&self, field: usize) -> Option<ColumnCells<'_>> {
        match &self.body {
            BatchBody::Packed(packed) => match packed.columns[field].shape {
                ColumnShape::Cells(cells) => {
                    Some(ColumnCells::Packed { frame: &self.bytes, starts: &packed.starts, cells })
                }
                _ => None,
            },
            BatchBody::Pickled(pickled) => pickled.rows(field, self.rows),
            BatchBody::Outputs(_) => None,
        }
    }

    /// A column. The error: a pickle stands for it and cannot be read.
    pub(crate) fn column(&self, field: usize) -> Result<ColumnView<'_>, RowsError> {
        if let Some(tree) = self.wrapped_tree(field)? {
            return Ok(pickled::view(tree, tree.root(), self.rows));
        }
        match &self.body {
            BatchBody::Packed(packed) => Ok(match packed.columns[field].shape {
                ColumnShape::Nil => ColumnView::Nil,
                ColumnShape::Empty => ColumnView::Empty,
                ColumnShape::Cells(cells) => ColumnView::Cells(ColumnCells::Packed {
                    frame: &self.bytes,
                    starts: &packed.starts,
                    cells,
                }),
                ColumnShape::Wrapped { .. } | ColumnShape::Whole => ColumnView::Whole,
            }),
            BatchBody::Pickled(pickled) => Ok(pickled::view(pickled.tree(), pickled.value(field), self.rows)),
            BatchBody::Outputs(_) => Ok(ColumnView::Nil),
        }
    }

    /// The pickle that stands for a column, if there is one.
    pub(crate) fn wrapped_tree(&self, field: usize) -> Result<Option<&Tree>, RowsError> {
        let trees = self.wrapped.get_or_init(|| self.read_wrapped()).as_ref().map_err(Clone::clone)?;
        Ok(trees.iter().find(|(at, _)| *at == field).map(|(_, tree)| tree))
    }

    fn read_wrapped(&self) -> Result<Vec<(usize, Tree)>, RowsError> {
        let mut trees = Vec::new();
        for (at, field) in self.layout.fields.iter().enumerate() {
            let Some(pickle) = self.wrapped_pickle(at) else { continue };
            let tree = Tree::parse(self.bytes.slice_ref(pickle))
                .map_err(|error| RowsError::Wrapped { name: field.name.to_string(), error })?;
            trees.push((at, tree));
        }
        Ok(trees)
    }

    /// The bytes of the pickle that stands for a column, if there is one.
    pub(crate) fn wrapped_pickle(&self, field: usize) -> Option<&[u8]> {
        match &self.body {
            BatchBody::Packed(packed) => match packed.columns[field].shape {
                ColumnShape::Wrapped { start, end } => Some(&self.bytes[start as usize..end as usize]),
                _ => None,
            },
            BatchBody::Pickled(_) | BatchBody::Outputs(_) => None,
        }
    }

    /// The whole value of a column.
    pub(crate) fn raw(&self, field: usize) -> RawValue<'_> {
        match &self.body {
            BatchBody::Packed(packed) => {
                let span = packed.columns[field];
                RawValue::Packed(&self.bytes[span.start as usize..span.end as usize])
            }
            BatchBody::Pickled(pickled) => RawValue::Tree(pickled.tree(), pickled.value(field)),
            BatchBody::Outputs(_) => RawValue::Packed(&[0xc0]),
        }
    }

    pub(crate) fn is_nil_or_empty(&self, field: usize) -> bool {
        matches!(self.column(field), Ok(ColumnView::Nil | ColumnView::Empty))
    }

    /// Whether the batches can share a frame: they have the same kind, encoding and fields. Batches of vLLM's also have
    /// the same engine and version of the weights, and neither has a value that no other frame may have, such as an answer.
    pub fn is_like(&self, other: &Batch) -> bool {
        if let (BatchBody::Outputs(outputs), BatchBody::Outputs(other)) = (&self.body, &other.body) {
            return outputs.is_like(other);
        }
        let protocol = |batch: &Batch| match &batch.body {
            BatchBody::Pickled(pickled) => Some(pickled.protocol()),
            BatchBody::Packed(_) | BatchBody::Outputs(_) => None,
        };
        self.kind() == other.kind()
            && protocol(self) == protocol(other)
            && (Arc::ptr_eq(&self.layout, &other.layout) || self.layout.fields == other.layout.fields)
    }

    /// Whether a pickled batch is a dataclass, as before 0.5.15.
    pub(crate) fn is_dataclass(&self) -> bool {
        self.tree().is_some_and(|(tree, root)| matches!(tree.node(root), Node::Build { .. }))
    }

    /// The tree and the root of a pickled batch.
    pub(crate) fn tree(&self) -> Option<(&Tree, NodeId)> {
        match &self.body {
            BatchBody::Pickled(pickled) => Some((pickled.tree(), pickled.tree().root())),
            BatchBody::Packed(_) | BatchBody::Outputs(_) => None,
        }
    }
}
