//! The rows of a message of SGLang: its columns, msgpack or pickled.

use std::sync::{Arc, OnceLock};

use afterbay_types::{Engine, TopLogprobs};
use bytes::Bytes;
use serde_json::Value as Json;

use super::layouts::{KnownField, LayoutField, MessageLayout};
use super::mask::Mask;
use super::pickled::{self, Pickled};
use super::rows;
use crate::batch::{Batch, BatchPart, EngineBatch, PartRow, RowColumn, is_first};
use crate::edit::{BlankRow, Edit};
use crate::error::{EraseError, RowsError};
use crate::facts::{Drafts, RoutedExperts, SamplingMask, WeightSpan};
use crate::finish::{Finish, finish};
use crate::json_values::Wrapped;
use crate::kind::{AbortShape, BatchKind, Wire};
use crate::packed::{ColumnShape, Packed};
use crate::pickle::{Node, NodeId, Tree};
use crate::tensor::{self, Tensor};
use crate::value::{ColumnCells, ColumnView, RawValue};

/// The column of times.
const TIME_STATS: &str = "time_stats";
const SAMPLING_MASK: &str = "output_token_sampling_mask";
const ROUTED_EXPERTS: &str = "routed_experts";

/// The columns of a frame.
#[derive(Debug)]
pub(crate) struct Columns {
    pub(crate) frame: Bytes,
    pub(crate) rows: u32,
    pub(crate) layout: Arc<MessageLayout>,
    pub(crate) form: ColumnForm,
    /// The pickles that stand for a column inside msgpack (`PickleWrapper`), by field. They are parsed on first use.
    wrapped: OnceLock<Result<Vec<(usize, Tree)>, RowsError>>,
    /// The number of ids of each cell of `output_ids`, if it is the same in all rows and the ids have the usual form.
    pub(crate) ids_each: Option<usize>,
}

/// The positions of the columns.
#[derive(Debug)]
pub(crate) enum ColumnForm {
    Packed(Packed),
    Pickled(Pickled),
}

impl Columns {
    pub(crate) fn new(frame: Bytes, layout: Arc<MessageLayout>, rows: u32, form: ColumnForm) -> Columns {
        Columns { frame, rows, layout, form, wrapped: OnceLock::new(), ids_each: None }
    }

    /// A batch of these columns, not checked.
    pub(crate) fn into_batch(self) -> Batch {
        Batch::new(self.frame.clone(), self.rows, self)
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

    /// The cells of a column with one per row, except those inside a pickle in msgpack.
    #[inline]
    pub(crate) fn plain_rows(&self, field: usize) -> Option<ColumnCells<'_>> {
        match &self.form {
            ColumnForm::Packed(packed) => packed.cells(&self.frame, field),
            ColumnForm::Pickled(pickled) => pickled.rows(field, self.rows),
        }
    }

    /// A column. The error: a pickle stands for it and cannot be read.
    pub(crate) fn view(&self, field: usize) -> Result<ColumnView<'_>, RowsError> {
        if let Some(tree) = self.wrapped_tree(field)? {
            return Ok(pickled::view(tree, tree.root(), self.rows));
        }
        Ok(match &self.form {
            ColumnForm::Packed(packed) => match packed.columns[field].shape {
                ColumnShape::Nil => ColumnView::Nil,
                ColumnShape::Empty => ColumnView::Empty,
                ColumnShape::Cells(cells) => ColumnView::Cells(ColumnCells::Packed {
                    frame: &self.frame,
                    starts: &packed.starts,
                    cells,
                }),
                ColumnShape::Wrapped { .. } | ColumnShape::Whole => ColumnView::Whole,
            },
            ColumnForm::Pickled(pickled) => pickled::view(pickled.tree(), pickled.value(field), self.rows),
        })
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
            let tree = Tree::parse(self.frame.slice_ref(pickle))
                .map_err(|error| RowsError::Wrapped { name: field.name.to_string(), error })?;
            trees.push((at, tree));
        }
        Ok(trees)
    }

    /// The bytes of the pickle that stands for a column, if there is one.
    pub(crate) fn wrapped_pickle(&self, field: usize) -> Option<&[u8]> {
        match &self.form {
            ColumnForm::Packed(packed) => match packed.columns[field].shape {
                ColumnShape::Wrapped { start, end } => Some(&self.frame[start as usize..end as usize]),
                _ => None,
            },
            ColumnForm::Pickled(_) => None,
        }
    }

    /// Whether the columns that Afterbay knows have their types. One may have no cell of its types: a wrong layout shifts many.
    pub(super) fn has_its_types(&self) -> bool {
        let is_wrong = |(at, field): &(usize, &LayoutField)| {
            let (Some(column), Some(cells)) = (field.column, self.plain_rows(*at)) else { return false };
            cells.types(self.rows, usize::MAX).is_none_or(|types| types & column.types == 0)
        };
        self.layout.fields.iter().enumerate().filter(is_wrong).nth(1).is_none()
    }

    /// The whole value of a column.
    pub(crate) fn raw(&self, field: usize) -> RawValue<'_> {
        match &self.form {
            ColumnForm::Packed(packed) => {
                let span = packed.columns[field];
                RawValue::Packed(&self.frame[span.start as usize..span.end as usize])
            }
            ColumnForm::Pickled(pickled) => RawValue::Tree(pickled.tree(), pickled.value(field)),
        }
    }

    pub(crate) fn is_nil_or_empty(&self, field: usize) -> bool {
        matches!(self.view(field), Ok(ColumnView::Nil | ColumnView::Empty))
    }

    /// Whether a pickled batch is a dataclass, as before 0.5.15.
    pub(crate) fn is_dataclass(&self) -> bool {
        self.tree().is_some_and(|(tree, root)| matches!(tree.node(root), Node::Build { .. }))
    }

    /// The tree and the root of a pickled batch.
    pub(crate) fn tree(&self) -> Option<(&Tree, NodeId)> {
        match &self.form {
            ColumnForm::Pickled(pickled) => Some((pickled.tree(), pickled.tree().root())),
            ColumnForm::Packed(_) => None,
        }
    }

    /// The cell of a field that only some readers need.
    fn named_cell(&self, name: &str, row: u32) -> Option<RawValue<'_>> {
        let field = self.layout.fields.iter().position(|field| &*field.name == name)?;
        match self.view(field) {
            Ok(ColumnView::Cells(cells)) => Some(cells.get(row)),
            _ => None,
        }
    }

    /// The number of ids at the head of the row's `decode_ids` that are the prompt's tail. A request's first row has
    /// this tail for the detokenizer. With `output_ids`, the tail is what `decode_ids` has more. Otherwise the row is a
    /// first one if the prompt's tail (`read_offsets`, in every row) and all `completion_tokens` make up its
    /// `decode_ids`. A later row has fewer new ids than its request has tokens, so the two cases are distinct.
    pub(crate) fn prompt_tail(&self, row: u32) -> u32 {
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

    fn count(&self, known: KnownField, row: u32) -> Option<u64> {
        self.cell(known, row)?.int()?.try_into().ok()
    }

    fn protocol(&self) -> Option<u8> {
        match &self.form {
            ColumnForm::Pickled(pickled) => Some(pickled.protocol()),
            ColumnForm::Packed(_) => None,
        }
    }
}

/// The fields of a `WeightVersionSpan`: version, start, end.
fn span_fields(span: RawValue<'_>) -> Option<[RawValue<'_>; 3]> {
    match span {
        RawValue::Packed(_) => span.list()?.try_into().ok(),
        RawValue::Tree(tree, id) => {
            let fields = tree.object(id)?.fields?;
            let field = |name| Some(RawValue::Tree(tree, tree.get(fields, name)?));
            Some([field("version")?, field("start")?, field("end")?])
        }
    }
}

fn weight_span(span: RawValue<'_>) -> Option<WeightSpan> {
    let [version, start, end] = span_fields(span)?;
    let number = |value: RawValue<'_>| value.int()?.try_into().ok();
    Some(WeightSpan { version: version.str()?.to_owned(), start: number(start)?, end: number(end)? })
}

impl Batch {
    /// The columns. The error: the batch is another engine's.
    pub(super) fn columns(&self) -> Result<&Columns, RowsError> {
        self.body_of()
    }
}

impl EngineBatch for Columns {
    fn engine(&self) -> Engine {
        super::ENGINE
    }

    fn memory(&self) -> usize {
        let form = match &self.form {
            ColumnForm::Packed(packed) => packed.memory(),
            ColumnForm::Pickled(pickled) => pickled.memory(),
        };
        let wrapped = self.wrapped.get().and_then(|wrapped| wrapped.as_ref().ok()).into_iter().flatten();
        form + wrapped.map(|(_, tree)| tree.memory()).sum::<usize>()
    }

    fn kind(&self) -> BatchKind {
        self.layout.kind
    }

    fn wire(&self) -> Wire {
        match self.protocol() {
            None => Wire::Msgpack { engine: super::ENGINE, versions: self.layout.versions.clone() },
            Some(protocol) => Wire::Pickle { protocol },
        }
    }

    fn abort_shape(&self) -> AbortShape {
        match &self.form {
            ColumnForm::Packed(_) => AbortShape::Msgpack,
            ColumnForm::Pickled(_) if self.is_dataclass() => AbortShape::Dataclass,
            ColumnForm::Pickled(_) => AbortShape::Struct,
        }
    }

    fn is_like(&self, other: &Batch) -> bool {
        other.columns().is_ok_and(|other| {
            self.layout.kind == other.layout.kind
                && self.protocol() == other.protocol()
                && (Arc::ptr_eq(&self.layout, &other.layout) || self.layout.fields == other.layout.fields)
        })
    }

    fn to_json(&self, wrapped: Wrapped) -> Json {
        super::json::to_json(self, wrapped)
    }

    #[inline]
    fn column(&self, column: RowColumn) -> Option<ColumnCells<'_>> {
        self.rows_of(match column {
            RowColumn::Rids => KnownField::Rids,
            RowColumn::OutputIds => KnownField::OutputIds,
            RowColumn::CompletionTokens => KnownField::CompletionTokens,
            RowColumn::FinishedReasons => KnownField::FinishedReasons,
        })
    }

    fn ids_each(&self) -> Option<usize> {
        self.ids_each
    }

    fn may_end(&self) -> bool {
        self.rows_of(KnownField::FinishedReasons).is_some_and(|reasons| !reasons.are_nil(self.rows))
    }

    fn rid(&self, row: u32) -> Option<&[u8]> {
        self.cell(KnownField::Rids, row)?.str_bytes()
    }

    /// The ids of `output_ids` or, if that is nil, those of `decode_ids` without the prompt's tail.
    fn tokens(&self, row: u32) -> u32 {
        match self.cell(KnownField::OutputIds, row) {
            Some(ids) => ids.id_count().unwrap_or(0) as u32,
            None => self.decode_count(row) - self.prompt_tail(row),
        }
    }

    fn ids(&self, row: u32, out: &mut Vec<i64>) {
        if let Some(ids) = self.cell(KnownField::OutputIds, row) {
            ids.ids(out);
        } else if let Some(ids) = self.cell(KnownField::DecodeIds, row) {
            let (start, tail) = (out.len(), self.prompt_tail(row) as usize);
            ids.ids(out);
            out.drain(start..start + tail);
        }
    }

    fn finish(&self, row: u32) -> Finish<'_> {
        self.cell(KnownField::FinishedReasons, row).map_or(Finish::Running, finish)
    }

    fn is_first(&self, row: u32) -> bool {
        is_first(self.tokens(row), self.completion_tokens(row))
    }

    fn prompt_tokens(&self, row: u32) -> Option<u64> {
        self.count(KnownField::PromptTokens, row)
    }

    fn cached_tokens(&self, row: u32) -> Option<u64> {
        self.count(KnownField::CachedTokens, row)
    }

    fn weight_version(&self, row: u32) -> Option<&str> {
        let spans = self.cell(KnownField::WeightVersions, row)?.list()?;
        span_fields(*spans.last()?)?[0].str()
    }

    /// Only in a request's last row.
    fn weight_spans(&self, row: u32) -> Option<Vec<WeightSpan>> {
        let spans = self.cell(KnownField::WeightVersions, row)?.list()?;
        spans.into_iter().map(weight_span).collect()
    }

    fn sampling_mask(&self, row: u32) -> Option<SamplingMask> {
        let cell = self.named_cell(SAMPLING_MASK, row)?;
        if let Some(mask) = Mask::read(cell) {
            return Some(mask.numbers());
        }
        // Up to 0.5.20: a list of ids for each token.
        let mut mask = SamplingMask::default();
        for ids in cell.list()? {
            let ids = ids.list()?;
            mask.lengths.push(ids.len() as u32);
            for id in ids {
                mask.token_ids.push(id.int()?.try_into().ok()?);
            }
        }
        Some(mask)
    }

    /// In a request's last row, of the prompt and the answer.
    fn routed_experts(&self, row: u32) -> Option<RoutedExperts> {
        let Tensor { dtype, shape, bytes } = tensor::of_value(self.named_cell(ROUTED_EXPERTS, row)?)?;
        let shape = shape.into_iter().map(u64::try_from).collect::<Result<_, _>>().ok()?;
        RoutedExperts::read(&dtype, shape, bytes)
    }

    fn queued_and_first(&self, row: u32) -> Option<(f64, f64)> {
        let RawValue::Tree(tree, id) = self.named_cell(TIME_STATS, row)? else { return None };
        let fields = tree.object(id)?.fields?;
        let time = |name| tree.float(tree.get(fields, name)?);
        Some((time("wait_queue_entry_time")?, time("prefill_finished_time")?))
    }

    fn logprobs(&self, row: u32, out: &mut Vec<f32>) -> bool {
        let cell = self.cell(KnownField::OutputLogprobs, row).and_then(RawValue::list);
        cell.is_some_and(|logprobs| {
            let (before, count) = (out.len(), logprobs.len());
            out.extend(logprobs.into_iter().map_while(RawValue::float).map(|value| value as f32));
            out.len() == before + count
        })
    }

    fn top_logprobs(&self, row: u32, out: &mut TopLogprobs) -> Option<()> {
        let [values, ids] = [KnownField::TopLogprobs, KnownField::TopIds].map(|known| self.cell(known, row));
        crate::value::top_logprobs(values?, ids?, out)
    }

    fn reasoning_tokens(&self, row: u32) -> Option<u64> {
        self.count(KnownField::ReasoningTokens, row)
    }

    /// The proposed tokens are not in the frame: their number follows from the engine's command line.
    fn drafts(&self, row: u32) -> Drafts {
        Drafts { drafted: None, accepted: self.count(KnownField::AcceptedDrafts, row) }
    }

    fn completion_tokens(&self, row: u32) -> Option<u64> {
        self.count(KnownField::CompletionTokens, row)
    }

    fn text(&self, row: u32) -> Option<&str> {
        self.cell(KnownField::OutputStrs, row)?.str()
    }

    fn front_end(&self, row: u32) -> Option<&str> {
        self.cell(KnownField::HttpWorkerIpcs, row)?.str()
    }

    fn has_probes(&self) -> bool {
        true
    }

    fn may_be_probe(&self, rid: &[u8]) -> bool {
        super::may_be_health_check(rid)
    }

    fn is_probe(&self, rid: &[u8]) -> bool {
        super::is_health_check(rid)
    }

    fn take(&self, batch: &Batch, rows: &[u32], _: bool) -> Result<Batch, RowsError> {
        super::plan::WritePlan::of_rows(batch, rows)?.write()
    }

    fn join(
        &self,
        parts: &[BatchPart<'_>],
        requests: &mut dyn Iterator<Item = &[PartRow]>,
        _: bool,
    ) -> Result<Batch, RowsError> {
        rows::join(parts, requests)
    }

    fn edit(
        &self,
        parts: Vec<&Batch>,
        edits: &[Edit],
        instead: &[(u32, PartRow)],
    ) -> Result<Option<Batch>, RowsError> {
        rows::edit(parts, edits, instead)
    }

    fn blank(&self, rows: &[BlankRow<'_>]) -> Result<Batch, RowsError> {
        super::blank::blank(self, rows)
    }

    fn erase(&self, _: &Batch, rows: &[u32], left: &mut Vec<String>) -> Result<Bytes, EraseError> {
        super::erase::erase(self, rows, left)
    }
}
