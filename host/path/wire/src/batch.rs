//! A batch: the rows of one scheduler step, one per request, read in place from the frame. The operations on rows are
//! in `rows`. An engine's module knows what its frames say of their rows, and answers by [`EngineBatch`].

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value as Json;

use afterbay_types::{Engine, TopLogprobs};

use crate::edit::{BlankRow, Edit};
use crate::error::{EraseError, RowsError};
use crate::facts::{Drafts, RoutedExperts, SamplingMask, WeightSpan};
use crate::finish::{Finish, finish};
use crate::ids::Ids;
use crate::json_values::Wrapped;
use crate::kind::{AbortShape, BatchKind, Wire};
use crate::value::{ColumnCells, RawValue};

/// The longest time to a first token that is believed, in seconds.
const SECONDS_MAX: f64 = 1e9;

/// Whether a row with these counts is the first of its request: it has tokens, and all that the request has.
#[inline]
pub fn is_first(tokens: u32, completion_tokens: Option<u64>) -> bool {
    tokens > 0 && completion_tokens == Some(u64::from(tokens))
}

/// A row with an unreadable rid, ids or text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unread {
    /// The row.
    pub row: u32,
    /// The unreadable column.
    pub column: &'static str,
}

/// An engine's load after a step, as its frame tells it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EngineLoad {
    /// The engine's number among those that send to the same front end.
    pub engine: u64,
    /// Requests that run.
    pub running: u64,
    /// Requests that wait.
    pub waiting: u64,
    /// The used share of the KV cache, from 0 to 1.
    pub kv_cache_usage: f64,
}

/// The rids of a batch as its frame has them, if all have one length and stand side by side: rids are the same where these bytes are.
#[derive(Clone, Copy, Debug)]
pub struct RidCells<'a> {
    /// All rids, each with what stands before it.
    pub cells: &'a [u8],
    /// Bytes of each.
    pub width: usize,
}

/// A row of a part: the part's index, and the row in it.
pub(crate) type PartRow = (u32, u32);

/// Some rows of a batch, to be joined with others.
#[derive(Clone, Copy, Debug)]
pub struct BatchPart<'a> {
    /// The batch.
    pub batch: &'a Batch,
    /// The rows, ascending. `None`: all rows.
    pub rows: Option<&'a [u32]>,
}

impl<'a> From<&'a Batch> for BatchPart<'a> {
    fn from(batch: &'a Batch) -> BatchPart<'a> {
        BatchPart { batch, rows: None }
    }
}

/// The columns that a batch may have one cell per row of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowColumn {
    Rids,
    OutputIds,
    CompletionTokens,
    FinishedReasons,
}

/// The questions about an engine's rows and the operations on them: everything that differs between engines once a frame is
/// decoded. Each engine's module implements it once.
///
/// A row is one of the batch's. A fact that an engine does not send has the default.
pub(crate) trait EngineBatch: Any + fmt::Debug + Send + Sync {
    // The frame.

    fn engine(&self) -> Engine;
    fn memory(&self) -> usize;
    fn kind(&self) -> BatchKind;
    fn wire(&self) -> Wire;
    fn abort_shape(&self) -> AbortShape;
    /// Whether the batches can share a frame.
    fn is_like(&self, other: &Batch) -> bool;
    fn to_json(&self, wrapped: Wrapped) -> Json;

    /// The requests that the engine says have ended.
    fn finished_requests(&self) -> Vec<&str> {
        Vec::new()
    }

    fn load(&self) -> Option<EngineLoad> {
        None
    }

    fn engine_index(&self) -> Option<u64> {
        None
    }

    // Columns. An engine with columns is asked for them in place of single rows.

    fn column(&self, _: RowColumn) -> Option<ColumnCells<'_>> {
        None
    }

    /// The number of ids of each row, if it is the same in all rows.
    fn ids_each(&self) -> Option<usize> {
        None
    }

    /// Whether any row may be its request's last.
    fn may_end(&self) -> bool {
        true
    }

    // Rows.

    fn rid(&self, row: u32) -> Option<&[u8]>;
    fn tokens(&self, row: u32) -> u32;
    fn ids(&self, row: u32, out: &mut Vec<i64>);
    fn finish(&self, row: u32) -> Finish<'_>;
    fn is_first(&self, row: u32) -> bool;
    fn prompt_tokens(&self, row: u32) -> Option<u64>;
    fn cached_tokens(&self, row: u32) -> Option<u64>;
    /// Appends a logprob for each id. False if the row has none.
    fn logprobs(&self, row: u32, out: &mut Vec<f32>) -> bool;
    /// Appends a place for each id. `None`: the row has none. The caller removes what was appended before that was known.
    fn top_logprobs(&self, row: u32, out: &mut TopLogprobs) -> Option<()>;

    fn reasoning_tokens(&self, _: u32) -> Option<u64> {
        None
    }

    fn drafts(&self, _: u32) -> Drafts {
        Drafts::default()
    }

    fn weight_version(&self, _: u32) -> Option<&str> {
        None
    }

    fn weight_spans(&self, _: u32) -> Option<Vec<WeightSpan>> {
        None
    }

    fn sampling_mask(&self, _: u32) -> Option<SamplingMask> {
        None
    }

    fn routed_experts(&self, _: u32) -> Option<RoutedExperts> {
        None
    }

    /// The times at which the engine queued a request and had its first token, in seconds.
    fn queued_and_first(&self, _: u32) -> Option<(f64, f64)> {
        None
    }

    fn completion_tokens(&self, _: u32) -> Option<u64> {
        None
    }

    fn text(&self, _: u32) -> Option<&str> {
        None
    }

    fn front_end(&self, _: u32) -> Option<&str> {
        None
    }

    // Health checks that the engine sends as requests.

    fn has_probes(&self) -> bool {
        false
    }

    /// Whether a rid of this length can be of a health check. Most rids have another length.
    fn may_be_probe(&self, _: &[u8]) -> bool {
        false
    }

    fn is_probe(&self, _: &[u8]) -> bool {
        false
    }

    // Operations. Rows ascend and exist.

    fn take(&self, batch: &Batch, rows: &[u32], fields_stay: bool) -> Result<Batch, RowsError>;
    /// Joins rows of the parts, of which this is the first. Each of `requests` are the rows of one request.
    fn join(
        &self,
        parts: &[BatchPart<'_>],
        requests: &mut dyn Iterator<Item = &[PartRow]>,
        fields_stay: bool,
    ) -> Result<Batch, RowsError>;
    /// Edits the first of the parts, after replacing some of its rows by rows of the others.
    fn edit(
        &self,
        parts: Vec<&Batch>,
        edits: &[Edit],
        instead: &[(u32, PartRow)],
    ) -> Result<Option<Batch>, RowsError>;
    /// A frame in this layout of these rows, at least one.
    fn blank(&self, rows: &[BlankRow<'_>]) -> Result<Batch, RowsError>;
    fn erase(&self, batch: &Batch, rows: &[u32], left: &mut Vec<String>) -> Result<Bytes, EraseError>;

    /// The frame without its rows, if it says anything without them.
    fn without_rows(&self) -> Option<Bytes> {
        None
    }
}

/// The rows of one scheduler step, at least one. A batch owns its bytes. Clones share the bytes and the decoded rows.
///
/// For a row past the last one, accessors return the empty answer (`""`, 0, `None`, running).
#[derive(Clone, Debug)]
pub struct Batch {
    pub(crate) bytes: Bytes,
    pub(crate) rows: u32,
    /// The rows as their engine's module knows them.
    pub(crate) body: Arc<dyn EngineBatch>,
    /// Rows whose `output_ids` are all ids of the request so far, ascending. The frame does not say so.
    pub(crate) cumulative: Vec<u32>,
    /// Whether a row may be the first of its request.
    pub(crate) may_begin: bool,
    /// Rows that cannot be read, ascending.
    pub(crate) unread: Vec<Unread>,
    /// Whether every rid is valid UTF-8.
    pub(crate) has_text_rids: bool,
}

impl Batch {
    pub(crate) fn new(bytes: Bytes, rows: u32, body: impl EngineBatch) -> Batch {
        let body = Arc::new(body);
        let (cumulative, unread) = (Vec::new(), Vec::new());
        Batch { bytes, rows, body, cumulative, may_begin: true, unread, has_text_rids: false }
    }

    /// Adds the results of the check.
    pub(crate) fn checked(self, unread: Vec<Unread>, has_text_rids: bool) -> Batch {
        Batch { unread, has_text_rids, ..self }
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

    #[inline]
    pub(crate) fn of_engine(&self) -> &dyn EngineBatch {
        &*self.body
    }

    /// The rows of this engine's module. The error: the batch is another engine's.
    pub(crate) fn body_of<E: EngineBatch>(&self) -> Result<&E, RowsError> {
        let body: &dyn Any = &*self.body;
        body.downcast_ref().ok_or(RowsError::Foreign)
    }

    /// The engine's rows, if the row exists.
    #[inline]
    pub(crate) fn at(&self, row: u32) -> Option<&dyn EngineBatch> {
        (row < self.rows).then(|| self.of_engine())
    }

    /// The memory of the batch in bytes: its frame, and the decoded positions of its columns and cells. A column that is pickled
    /// apart counts once it was read.
    pub fn memory(&self) -> usize {
        size_of::<Batch>() + size_of_val(&*self.body) + self.bytes.len() + self.of_engine().memory()
    }

    /// A number that this batch and its clones have, and no other batch that lives at the same time.
    pub fn address(&self) -> usize {
        Arc::as_ptr(&self.body).addr()
    }

    /// The engine that wrote the batch.
    pub fn engine(&self) -> Engine {
        self.of_engine().engine()
    }

    /// The kind of message.
    pub fn kind(&self) -> BatchKind {
        self.of_engine().kind()
    }

    /// The encoding.
    pub fn wire(&self) -> Wire {
        self.of_engine().wire()
    }

    /// The versions of the engine whose frames have this layout, as `0.5.21..0.5.23`. `None`: a pickle, whose fields have
    /// names, or a later version.
    pub fn versions(&self) -> Option<String> {
        match self.wire() {
            Wire::Msgpack { versions, .. } => Some(versions).filter(|versions| *versions != "unknown"),
            Wire::Pickle { .. } => None,
        }
    }

    /// The form in which the scheduler that wrote the batch reads an abort.
    pub fn abort_shape(&self) -> AbortShape {
        self.of_engine().abort_shape()
    }

    /// The received bytes, or those that [`take`](Batch::take), [`join`](Batch::join) or [`edit`](Batch::edit) wrote.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The number of rows, at least one.
    pub fn rows(&self) -> u32 {
        self.rows
    }

    /// Whether the batches can share a frame: they have the same kind, encoding and fields. Batches with fields beside their rows
    /// also have the same values there, and neither has a value that no other frame may have, such as an answer.
    pub fn is_like(&self, other: &Batch) -> bool {
        self.of_engine().is_like(other)
    }

    /// The requests that the engine says have ended, also those whose client left. They have no further rows. Only an
    /// engine that is told to names them.
    pub fn finished_requests(&self) -> impl Iterator<Item = &str> {
        self.of_engine().finished_requests().into_iter()
    }

    /// The load that the engine sends with a step. `None`: the engine sends none with its frames.
    pub fn load(&self) -> Option<EngineLoad> {
        self.of_engine().load()
    }

    /// The number of the engine that sent the batch, if the frame has it.
    pub fn engine_index(&self) -> Option<u64> {
        self.of_engine().engine_index()
    }

    /// The number of rows that are the first of their requests.
    pub fn first_rows(&self) -> u32 {
        if !self.may_begin {
            return 0;
        }
        let engine = self.of_engine();
        if engine.column(RowColumn::CompletionTokens).is_none() {
            return (0..self.rows).filter(|row| self.is_first(*row)).count() as u32;
        }
        let counts = self.token_counts().zip(self.completion_counts());
        counts.filter(|(tokens, count)| is_first(*tokens, *count)).count() as u32
    }

    /// Whether the row is the first of its request: it has all tokens that the request has, or the engine says so.
    pub fn is_first(&self, row: u32) -> bool {
        self.may_begin && !self.is_unread(row) && self.at(row).is_some_and(|engine| engine.is_first(row))
    }

    /// Whether the row's `output_ids` are all ids of its request so far, as [`TokenEdit::Cumulative`](crate::TokenEdit) makes
    /// them.
    pub fn is_cumulative(&self, row: u32) -> bool {
        self.cumulative.binary_search(&row).is_ok()
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
        self.at(row)?.rid(row)
    }

    /// The rid. Empty if it is not UTF-8 ([`Batch::rid_of`] has its bytes).
    pub fn rid(&self, row: u32) -> &str {
        self.rid_of(row).and_then(|rid| std::str::from_utf8(rid).ok()).unwrap_or_default()
    }

    /// The front end that waits for the request, if the engine has several that share one output.
    pub fn front_end(&self, row: u32) -> Option<&str> {
        self.at(row)?.front_end(row)
    }

    /// Whether the row is of one of the engine's own health checks. Such a row is never held and never dropped.
    pub fn is_health_check(&self, row: u32) -> bool {
        self.at(row).is_some_and(|engine| engine.rid(row).is_some_and(|rid| engine.is_probe(rid)))
    }

    /// Whether any row [is](Batch::is_health_check) of a health check.
    pub fn has_health_check(&self) -> bool {
        let engine = self.of_engine();
        if !engine.has_probes() {
            return false;
        }
        // If all rids have one length, no other cell needs a look.
        let model = engine.column(RowColumn::Rids).and_then(ColumnCells::model);
        let may_be = model.and_then(RawValue::str_bytes).is_none_or(|rid| engine.may_be_probe(rid));
        may_be && self.rid_bytes().any(|rid| engine.may_be_probe(rid) && engine.is_probe(rid))
    }

    /// The number of new tokens. A prompt's tail, which a frame may repeat for a detokenizer, does not count.
    pub fn tokens(&self, row: u32) -> u32 {
        if self.is_unread(row) { 0 } else { self.at(row).map_or(0, |engine| engine.tokens(row)) }
    }

    /// The [`rid`](Batch::rid) of every row. Iterating over a column is cheaper than calling per row.
    pub fn rids(&self) -> impl Iterator<Item = &str> + Clone {
        self.rid_bytes().map(|rid| std::str::from_utf8(rid).unwrap_or_default())
    }

    /// The [`rid`](Batch::rid) of every row as bytes, for comparing: this skips the UTF-8 check.
    #[inline]
    pub fn rid_bytes(&self) -> impl Iterator<Item = &[u8]> + Clone {
        (0..self.rows).map(self.rid_reader())
    }

    /// The rids as bytes to compare with those of another frame.
    pub fn rid_cells(&self) -> Option<RidCells<'_>> {
        let (cells, width, _) = self.of_engine().column(RowColumn::Rids)?.uniform_texts(self.rows)?;
        Some(RidCells { cells, width })
    }

    /// The function that reads the rids, which knows by now whether they stand in a column.
    #[inline]
    pub fn rid_reader<'b>(&'b self) -> impl Fn(u32) -> &'b [u8] + Clone {
        let engine = self.of_engine();
        let rids = engine.column(RowColumn::Rids);
        let uniform = rids.and_then(|rids| rids.uniform_texts(self.rows));
        move |row| match (uniform, rids) {
            (Some((cells, width, text)), _) => &cells[row as usize * width..][text..width],
            (None, Some(rids)) => rids.get(row).str_bytes().unwrap_or_default(),
            (None, None) => engine.rid(row).unwrap_or_default(),
        }
    }

    /// The [`tokens`](Batch::tokens) of every row.
    #[inline]
    pub fn token_counts(&self) -> impl Iterator<Item = u32> + Clone {
        let engine = self.of_engine();
        let is_read = self.unread.is_empty();
        let ids = engine.column(RowColumn::OutputIds).filter(|_| is_read);
        let each = engine.ids_each().filter(|_| is_read);
        (0..self.rows).map(move |row| match (each, ids) {
            (Some(count), _) => count as u32,
            (None, Some(ids)) => ids.get(row).id_count().unwrap_or(0) as u32,
            (None, None) if is_read => engine.tokens(row),
            (None, None) => self.tokens(row),
        })
    }

    /// Appends the [`completion_tokens`](Batch::completion_tokens) of every row: cheaper than the iterator.
    pub fn read_completion_counts(&self, out: &mut Vec<Option<u64>>) {
        match self.of_engine().column(RowColumn::CompletionTokens) {
            Some(counts) => counts.counts(self.rows, out),
            None => out.resize(out.len() + self.rows as usize, None),
        }
    }

    /// Whether any row may be its request's last.
    pub fn may_end(&self) -> bool {
        self.of_engine().may_end()
    }

    /// The [`completion_tokens`](Batch::completion_tokens) of every row.
    #[inline]
    pub fn completion_counts(&self) -> impl Iterator<Item = Option<u64>> + Clone {
        let counts = self.of_engine().column(RowColumn::CompletionTokens);
        (0..self.rows).map(move |row| counts?.get(row).int()?.try_into().ok())
    }

    /// The [`finish`](Batch::finish) of every row.
    #[inline]
    pub fn finishes(&self) -> impl Iterator<Item = Finish<'_>> + Clone {
        (0..self.rows).map(self.finish_reader())
    }

    /// The function that reads the finish reasons, which knows by now whether there are any.
    #[inline]
    pub(crate) fn finish_reader<'b>(&'b self) -> impl Fn(u32) -> Finish<'b> + Clone {
        let engine = Some(self.of_engine()).filter(|engine| engine.may_end());
        let reasons = engine.and_then(|engine| engine.column(RowColumn::FinishedReasons));
        move |row| match (reasons, engine) {
            (Some(reasons), _) => finish(reasons.get(row)),
            (None, Some(engine)) => engine.finish(row),
            (None, None) => Finish::Running,
        }
    }

    /// Reads the new ids of every row into `out`, which is cleared first.
    pub fn output_ids(&self, out: &mut Ids) {
        out.values.clear();
        out.ends.clear();
        out.ends.reserve(self.rows as usize);
        let engine = self.of_engine();
        if let Some(ids) = engine.column(RowColumn::OutputIds).filter(|_| self.unread.is_empty()) {
            return ids.ids(self.rows, engine.ids_each(), out);
        }
        for row in 0..self.rows {
            self.row_ids(row, &mut out.values);
            out.ends.push(out.values.len() as u32);
        }
    }

    /// Appends the new ids of one row.
    pub fn row_ids(&self, row: u32, out: &mut Vec<i64>) {
        if let Some(engine) = self.at(row).filter(|_| !self.is_unread(row)) {
            engine.ids(row, out);
        }
    }

    /// The scheduler's count of the request's tokens so far, including this row, if the engine counts.
    pub fn completion_tokens(&self, row: u32) -> Option<u64> {
        self.at(row)?.completion_tokens(row)
    }

    /// The length of the request's prompt in tokens. Some engines say it in a request's first row only.
    pub fn prompt_tokens(&self, row: u32) -> Option<u64> {
        self.at(row)?.prompt_tokens(row)
    }

    /// Whether the row is its request's last, and why the request ended.
    pub fn finish(&self, row: u32) -> Finish<'_> {
        self.at(row).map_or(Finish::Running, |engine| engine.finish(row))
    }

    /// The row's new text. `None` except for [`BatchKind::Str`].
    pub fn text(&self, row: u32) -> Option<&str> {
        self.at(row)?.text(row)
    }

    /// Tokens of the request's prompt that the engine took from its cache. Some engines say it in a request's first row only.
    pub fn cached_tokens(&self, row: u32) -> Option<u64> {
        self.at(row)?.cached_tokens(row)
    }

    /// The version of the weights that made the request's last token. Some engines say it in a request's last row only.
    pub fn weight_version(&self, row: u32) -> Option<&str> {
        self.at(row)?.weight_version(row)
    }

    /// Time from the request's entry into the engine's queue to its first token, in nanoseconds, by the engine's clock. Only in a
    /// request's first row, and only of an engine that measures it.
    pub fn first_token_ns(&self, row: u32) -> Option<u64> {
        let (queued, first) = self.at(row)?.queued_and_first(row)?;
        let seconds = first - queued;
        // An engine that does not know a time leaves it at 0.
        (queued > 0.0 && (0.0..SECONDS_MAX).contains(&seconds)).then_some((seconds * 1e9) as u64)
    }

    /// Whether all rows can be read, and so some of them in a frame with these bytes.
    pub(crate) fn is_readable(&self, frame: &Bytes) -> bool {
        self.unread.is_empty() && self.has_text_rids && frame.len() <= crate::bounds::MAX_FRAME_BYTES
    }
}
