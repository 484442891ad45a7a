//! A batch: the rows of one scheduler step, one a request, over the bytes that came. It says what the stream must know
//! of a row; what can be done to rows is in `rows` and `edit`.

use std::sync::{Arc, OnceLock};

use afterbay_pickle::{Node, NodeId, Tree};
use bytes::Bytes;

use crate::abort::AbortShape;
use crate::error::RowsError;
use crate::kind::{Kind, Wire};
use crate::layouts::{Known, Layout};
use crate::packed::{Packed, Shape};
use crate::pickled::{self, Pickled};
use crate::row::{Finish, Ids, finish};
use crate::value::{ColumnView, Rows, Value};

/// The rids of SGLang's health checks begin with it (`HEALTH_CHECK_RID_PREFIX`).
const HEALTH_CHECK: &[u8] = b"HEALTH_CHECK_";

/// Whether a rid has exactly the form of the rids of SGLang's own health checks: `HEALTH_CHECK_`, and behind it `uuid4().hex`,
/// or in earlier versions `time.time()`. A client may choose any other rid that begins so: its request is an ordinary one.
pub fn is_health_check(rid: &[u8]) -> bool {
    rid.strip_prefix(HEALTH_CHECK).is_some_and(|rest| is_uuid(rest) || is_time(rest))
}

fn is_uuid(text: &[u8]) -> bool {
    text.len() == 32 && text.iter().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
}

/// Seconds since 1970 as Python writes a float: ten digits and up to seven behind the point.
fn is_time(text: &[u8]) -> bool {
    let Some((seconds, fraction)) = text.split_at_checked(10) else { return false };
    let are_digits = |digits: &[u8]| digits.iter().all(u8::is_ascii_digit);
    are_digits(seconds)
        && matches!(fraction, [b'.', digits @ ..] if (1..=7).contains(&digits.len()) && are_digits(digits))
}

/// A row of which a column cannot be read that says who it is for or what it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unread {
    /// The row.
    pub row: u32,
    /// The column.
    pub column: &'static str,
}

/// The rows of one scheduler step. It has at least one, and owns its bytes.
///
/// Asked for a row that it does not have, it gives the empty answer (`""`, 0, `None`, running).
#[derive(Debug)]
pub struct Batch {
    pub(crate) bytes: Bytes,
    pub(crate) layout: Arc<Layout>,
    pub(crate) rows: u32,
    pub(crate) body: Body,
    /// The pickles that stand for a column inside msgpack (`PickleWrapper`), by field; read when they are first needed.
    wrapped: OnceLock<Result<Vec<(usize, Tree)>, RowsError>>,
    /// Rows whose `output_ids` are all of the request's so far, ascending. The wire does not say so.
    pub(crate) cumulative: Vec<u32>,
    /// Rows that cannot be read, ascending.
    pub(crate) unread: Vec<Unread>,
    /// Every cell of `output_ids` is an id array of the usual form, so that equal headers say equal numbers of ids.
    pub(crate) has_usual_ids: bool,
    /// Every rid is a text.
    pub(crate) has_text_rids: bool,
}

/// Where the columns are.
#[derive(Debug)]
pub(crate) enum Body {
    Packed(Packed),
    Pickled(Pickled),
}

impl Batch {
    pub(crate) fn new(bytes: Bytes, layout: Arc<Layout>, rows: u32, body: Body) -> Batch {
        let (cumulative, unread) = (Vec::new(), Vec::new());
        Batch {
            bytes,
            layout,
            rows,
            body,
            wrapped: OnceLock::new(),
            cumulative,
            unread,
            has_usual_ids: false,
            has_text_rids: false,
        }
    }

    /// The same, as it was found to be.
    pub(crate) fn checked(self, unread: Vec<Unread>, has_usual_ids: bool, has_text_rids: bool) -> Batch {
        Batch { unread, has_usual_ids, has_text_rids, ..self }
    }

    /// The same, of which these rows, ascending, have all ids of their requests so far in `output_ids`: joined, the last one's
    /// stand for those before.
    pub fn with_cumulative(self, rows: Vec<u32>) -> Batch {
        Batch { cumulative: rows, ..self }
    }

    /// Whether the row's `output_ids` are all of its request's so far, as [`Tokens::Cumulative`](crate::Tokens) makes them.
    pub fn is_cumulative(&self, row: u32) -> bool {
        self.cumulative.binary_search(&row).is_ok()
    }

    /// Which message it is.
    pub fn kind(&self) -> Kind {
        self.layout.kind
    }

    /// How it is encoded.
    pub fn wire(&self) -> Wire {
        match &self.body {
            Body::Packed(_) => Wire::Msgpack { versions: self.layout.versions.clone() },
            Body::Pickled(pickled) => Wire::Pickle { protocol: pickled.tree.protocol() },
        }
    }

    /// How the scheduler that wrote it reads an abort.
    pub fn abort_shape(&self) -> AbortShape {
        match &self.body {
            Body::Packed(_) => AbortShape::Msgpack,
            Body::Pickled(Pickled { tree, .. }) => match tree.node(tree.root()) {
                Node::Build { .. } => AbortShape::Dataclass,
                _ => AbortShape::Struct,
            },
        }
    }

    /// The bytes that came, or that [`take`](Batch::take), [`join`](Batch::join) or [`edit`](Batch::edit) wrote.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// How many rows it has, at least one.
    pub fn rows(&self) -> u32 {
        self.rows
    }

    /// The rows that cannot be read, ascending: their rid is no str, their ids are no id array, or their text is no text. They have
    /// no tokens. Nobody can judge them; they can still be taken, joined and edited like all others.
    pub fn unread(&self) -> &[Unread] {
        &self.unread
    }

    /// Whether the row is one of [`Batch::unread`].
    #[inline]
    pub fn is_unread(&self, row: u32) -> bool {
        !self.unread.is_empty() && self.unread.binary_search_by_key(&row, |unread| unread.row).is_ok()
    }

    /// Whether every rid is a text: rows of other batches cannot be joined, since nobody can tell which request they are of.
    pub fn has_text_rids(&self) -> bool {
        self.has_text_rids
    }

    /// The bytes of the request's name; `None` where it is no str.
    pub fn rid_of(&self, row: u32) -> Option<&[u8]> {
        self.cell(Known::Rids, row)?.str_bytes()
    }

    /// The request's name; nothing where it is no text ([`Batch::rid_of`] has its bytes).
    pub fn rid(&self, row: u32) -> &str {
        self.cell(Known::Rids, row).and_then(Value::str).unwrap_or_default()
    }

    /// The socket of the HTTP worker that waits for the request, where there are several.
    pub fn http_worker_ipc(&self, row: u32) -> Option<&str> {
        self.cell(Known::HttpWorkerIpcs, row)?.str()
    }

    /// Whether the request is SGLang's own, to see whether it is alive: never held, never dropped.
    pub fn is_health_check(&self, row: u32) -> bool {
        let rid = self.cell(Known::Rids, row).and_then(Value::str_bytes);
        rid.is_some_and(is_health_check)
    }

    /// Whether any of its rows [is](Batch::is_health_check) a health check.
    pub fn has_health_check(&self) -> bool {
        self.rid_bytes().any(is_health_check)
    }

    /// How many new tokens the row has: those of `output_ids`, or where that is nil of `decode_ids` without the
    /// prompt's tail.
    pub fn tokens(&self, row: u32) -> u32 {
        if self.is_unread(row) {
            return 0;
        }
        match self.cell(Known::OutputIds, row) {
            Some(ids) => ids.id_count().unwrap_or(0) as u32,
            None => self.decode_count(row) - self.prompt_tail(row),
        }
    }

    /// Every row's [`rid`](Batch::rid). Columns as iterators cost less than row by row.
    pub fn rids(&self) -> impl Iterator<Item = &str> + Clone {
        let rids = self.rows_of(Known::Rids);
        (0..self.rows).map(move |row| rids.and_then(|rids| rids.get(row).str()).unwrap_or_default())
    }

    /// Every row's [`rid`](Batch::rid) as bytes, to be compared: as text they are checked again each time.
    #[inline]
    pub fn rid_bytes(&self) -> impl Iterator<Item = &[u8]> + Clone {
        let rids = self.rows_of(Known::Rids);
        (0..self.rows).map(move |row| rids.and_then(|rids| rids.get(row).str_bytes()).unwrap_or_default())
    }

    /// Every row's [`tokens`](Batch::tokens).
    #[inline]
    pub fn token_counts(&self) -> impl Iterator<Item = u32> + Clone {
        let ids = self.rows_of(Known::OutputIds);
        let is_alike = self.has_usual_ids && self.unread.is_empty();
        let each = ids.filter(|_| is_alike).and_then(Rows::model).and_then(Value::id_count);
        (0..self.rows).map(move |row| match (each, ids) {
            (Some(count), _) => count as u32,
            (None, Some(ids)) if self.unread.is_empty() => ids.get(row).id_count().unwrap_or(0) as u32,
            (None, _) => self.tokens(row),
        })
    }

    /// Every row's [`completion_tokens`](Batch::completion_tokens).
    #[inline]
    pub fn completion_counts(&self) -> impl Iterator<Item = Option<u64>> + Clone {
        let counts = self.rows_of(Known::CompletionTokens);
        (0..self.rows).map(move |row| counts?.get(row).int()?.try_into().ok())
    }

    /// Every row's [`finish`](Batch::finish).
    #[inline]
    pub fn finishes(&self) -> impl Iterator<Item = Finish<'_>> + Clone {
        let reasons = self.rows_of(Known::FinishedReasons).filter(|reasons| !reasons.are_nil(self.rows));
        (0..self.rows).map(move |row| reasons.map_or(Finish::Running, |reasons| finish(reasons.get(row))))
    }

    /// Reads every row's new ids. What was in `out` is gone.
    pub fn output_ids(&self, out: &mut Ids) {
        out.values.clear();
        out.ends.clear();
        out.ends.reserve(self.rows as usize);
        if let Some(ids) = self.rows_of(Known::OutputIds).filter(|_| self.unread.is_empty()) {
            return ids.ids(self.rows, self.has_usual_ids, out);
        }
        for row in 0..self.rows {
            self.row_ids(row, &mut out.values);
            out.ends.push(out.values.len() as u32);
        }
    }

    /// Appends one row's new ids.
    pub fn row_ids(&self, row: u32, out: &mut Vec<i64>) {
        if self.is_unread(row) {
            return;
        }
        if let Some(ids) = self.cell(Known::OutputIds, row) {
            ids.ids(out);
        } else if let Some(ids) = self.cell(Known::DecodeIds, row) {
            let (start, tail) = (out.len(), self.prompt_tail(row) as usize);
            ids.ids(out);
            out.drain(start..start + tail);
        }
    }

    /// How many ids at the head of the row's `decode_ids` are the prompt's tail, which the detokenizer is given with a
    /// request's first row. The batch alone tells: where `output_ids` is there it is what `decode_ids` has more than
    /// that; else the row is a first one if the prompt's tail (`read_offsets`, which every row has) and all
    /// `completion_tokens` make up its `decode_ids`. A later row has fewer new ids than its request has tokens, so
    /// the two cannot be confused.
    pub(crate) fn prompt_tail(&self, row: u32) -> u32 {
        if self.is_unread(row) {
            return 0;
        }
        let decode = self.decode_count(row);
        if let Some(ids) = self.cell(Known::OutputIds, row) {
            return decode.saturating_sub(ids.id_count().unwrap_or(0) as u32);
        }
        let offset = self.cell(Known::ReadOffsets, row).and_then(Value::int);
        match (offset.and_then(|offset| u32::try_from(offset).ok()), self.completion_tokens(row)) {
            (Some(offset), Some(tokens)) if u64::from(offset) + tokens == u64::from(decode) => offset,
            _ => 0,
        }
    }

    fn decode_count(&self, row: u32) -> u32 {
        self.cell(Known::DecodeIds, row).and_then(Value::id_count).unwrap_or(0) as u32
    }

    /// The scheduler's count of the request's tokens so far, this row's included.
    pub fn completion_tokens(&self, row: u32) -> Option<u64> {
        self.cell(Known::CompletionTokens, row)?.int()?.try_into().ok()
    }

    /// The length of the request's prompt in tokens.
    pub fn prompt_tokens(&self, row: u32) -> Option<u64> {
        self.cell(Known::PromptTokens, row)?.int()?.try_into().ok()
    }

    /// Whether the row is its request's last, and why.
    pub fn finish(&self, row: u32) -> Finish<'_> {
        self.cell(Known::FinishedReasons, row).map_or(Finish::Running, finish)
    }

    /// The row's new text; `None` but for [`Kind::Str`].
    pub fn text(&self, row: u32) -> Option<&str> {
        self.cell(Known::OutputStrs, row)?.str()
    }

    /// Whether rows can be taken, joined or edited; if not, the frame is carried whole. The error names the column that
    /// is in the way.
    pub fn splittable(&self) -> Result<(), RowsError> {
        (0..self.layout.fields.len()).try_for_each(|field| crate::rows::check_splittable(self, field))
    }

    /// A cell of a column that Afterbay reads, if it has one a row and the row is there.
    #[inline]
    pub(crate) fn cell(&self, known: Known, row: u32) -> Option<Value<'_>> {
        if row >= self.rows {
            return None;
        }
        self.rows_of(known).map(|rows| rows.get(row))
    }

    /// The cells of a column that Afterbay reads, if it has one a row.
    #[inline]
    fn rows_of(&self, known: Known) -> Option<Rows<'_>> {
        self.plain_rows(self.layout.position(known)?)
    }

    /// The cells of a column with one a row, but for those for which a pickle stands.
    #[inline]
    pub(crate) fn plain_rows(&self, field: usize) -> Option<Rows<'_>> {
        match &self.body {
            Body::Packed(packed) => match packed.columns[field].shape {
                Shape::Rows(cells) => {
                    Some(Rows::Packed { frame: &self.bytes, starts: &packed.starts, cells })
                }
                _ => None,
            },
            Body::Pickled(pickled) => pickled.rows(field, self.rows),
        }
    }

    /// A column. The error is that of a pickle that stands for it and cannot be read.
    pub(crate) fn column(&self, field: usize) -> Result<ColumnView<'_>, RowsError> {
        if let Some(tree) = self.wrapped_tree(field)? {
            return Ok(pickled::view(tree, tree.root(), self.rows));
        }
        match &self.body {
            Body::Packed(packed) => Ok(match packed.columns[field].shape {
                Shape::Nil => ColumnView::Nil,
                Shape::Empty => ColumnView::Empty,
                Shape::Rows(cells) => {
                    ColumnView::Rows(Rows::Packed { frame: &self.bytes, starts: &packed.starts, cells })
                }
                Shape::Wrapped { .. } | Shape::Whole => ColumnView::Whole,
            }),
            Body::Pickled(pickled) => Ok(pickled::view(&pickled.tree, pickled.value(field), self.rows)),
        }
    }

    /// The pickle that stands for a column, if one does.
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

    /// The bytes of the pickle that stands for a column, if one does.
    pub(crate) fn wrapped_pickle(&self, field: usize) -> Option<&[u8]> {
        match &self.body {
            Body::Packed(packed) => match packed.columns[field].shape {
                Shape::Wrapped { start, end } => Some(&self.bytes[start as usize..end as usize]),
                _ => None,
            },
            Body::Pickled(_) => None,
        }
    }

    /// A column's whole value.
    pub(crate) fn raw(&self, field: usize) -> Value<'_> {
        match &self.body {
            Body::Packed(packed) => {
                let span = packed.columns[field];
                Value::Packed(&self.bytes[span.start as usize..span.end as usize])
            }
            Body::Pickled(pickled) => Value::Tree(&pickled.tree, pickled.value(field)),
        }
    }

    pub(crate) fn is_nil_or_empty(&self, field: usize) -> bool {
        matches!(self.column(field), Ok(ColumnView::Nil | ColumnView::Empty))
    }

    /// Whether the other can stand beside it in a frame: of the same kind, encoding and fields.
    pub fn is_like(&self, other: &Batch) -> bool {
        let protocol = |batch: &Batch| batch.tree().map(|(tree, _)| tree.protocol());
        self.kind() == other.kind()
            && protocol(self) == protocol(other)
            && (Arc::ptr_eq(&self.layout, &other.layout) || self.layout.fields == other.layout.fields)
    }

    /// The tree and the root of a pickled batch.
    pub(crate) fn tree(&self) -> Option<(&Tree, NodeId)> {
        match &self.body {
            Body::Pickled(pickled) => Some((&pickled.tree, pickled.tree.root())),
            Body::Packed(_) => None,
        }
    }
}
