//! The rows of a message of SMG's wire, as everything else asks for them.

use std::sync::Arc;

use afterbay_types::{Engine, TopLogprobs};
use bytes::Bytes;
use serde_json::{Map, Value as Json};

use super::columns::{
    CACHED_TOKENS, COMPLETION_TOKENS, ENGINE_INDEX, LOGPROBS, MATCHED, OUTPUT_IDS, PROMPT_TOKENS,
    REASONING_TOKENS, REASONS, RIDS, SlimLayout, SlimLayouts, TOP_IDS, TOP_LOGPROBS,
};
use super::write;
use crate::batch::{Batch, BatchPart, EngineBatch, EngineLoad, PartRow, RowColumn, Unread, is_first};
use crate::edit::{BlankRow, Edit};
use crate::error::{EraseError, RowsError};
use crate::finish::{Finish, matched};
use crate::json_values::{JsonConverter, Wrapped};
use crate::kind::{AbortShape, BatchKind, Wire};
use crate::pack::{self, PackValue};
use crate::packed::Packed;
use crate::value::{ColumnCells, RawValue};

/// The columns of a frame.
#[derive(Debug)]
pub(super) struct SlimRows {
    pub(super) frame: Bytes,
    pub(super) layout: Arc<SlimLayout>,
    /// The layouts by which frames that are written from this one are read again.
    pub(super) layouts: SlimLayouts,
    pub(super) packed: Packed,
    pub(super) count: u32,
}

impl SlimRows {
    /// `None`: the rids are no list.
    pub(super) fn new(
        frame: Bytes,
        layout: Arc<SlimLayout>,
        layouts: SlimLayouts,
        packed: Packed,
    ) -> Option<SlimRows> {
        let rids = packed.columns.get(layout.position(RIDS)?)?;
        let (count, _) = pack::array_at(&frame, rids.start as usize).ok()??;
        Some(SlimRows { frame, layout, layouts, packed, count: count as u32 })
    }

    pub(super) fn into_batch(self, unread: Vec<Unread>, has_text_rids: bool) -> Batch {
        Batch::new(self.frame.clone(), self.count, self).checked(unread, has_text_rids)
    }

    pub(super) fn has_text_rids(&self) -> bool {
        self.cells(RIDS)
            .is_some_and(|rids| rids.are_ascii(self.count) || rids.iter(self.count).all(RawValue::is_text))
    }

    /// The cells of a column, if there is one per row.
    #[inline]
    pub(super) fn cells(&self, name: &str) -> Option<ColumnCells<'_>> {
        self.packed.cells(&self.frame, self.layout.position(name)?)
    }

    fn cell(&self, name: &str, row: u32) -> Option<RawValue<'_>> {
        if row < self.count { self.cells(name).map(|cells| cells.get(row)) } else { None }
    }

    /// The bytes of a whole field.
    pub(super) fn raw(&self, field: usize) -> &[u8] {
        let span = self.packed.columns[field];
        &self.frame[span.start as usize..span.end as usize]
    }

    /// A number of the frame.
    fn number(&self, name: &str) -> Option<u64> {
        pack::int(self.raw(self.layout.position(name)?))?.try_into().ok()
    }

    fn count(&self, name: &str, row: u32) -> Option<u64> {
        self.cell(name, row)?.int()?.try_into().ok()
    }

    /// The number of a row's ids, and the ids.
    fn id_items(&self, row: u32) -> Option<(u64, &[u8])> {
        match self.cell(OUTPUT_IDS, row)? {
            RawValue::Packed(bytes) => match pack::item(bytes)? {
                PackValue::Array(count, body) => Some((count, body)),
                _ => None,
            },
            RawValue::Tree(..) => None,
        }
    }
}

impl EngineBatch for SlimRows {
    fn engine(&self) -> Engine {
        super::ENGINE
    }

    fn memory(&self) -> usize {
        self.packed.memory()
    }

    fn kind(&self) -> BatchKind {
        self.layout.kind
    }

    fn wire(&self) -> Wire {
        Wire::Msgpack { engine: super::ENGINE, versions: self.layout.versions.clone() }
    }

    fn abort_shape(&self) -> AbortShape {
        AbortShape::AnsweredNames
    }

    /// SMG attributes a frame to the rank that it names.
    fn is_like(&self, other: &Batch) -> bool {
        other.body_of::<SlimRows>().is_ok_and(|other| {
            let is_same =
                Arc::ptr_eq(&self.layout, &other.layout) || self.layout.fields == other.layout.fields;
            is_same && self.kind() == other.kind() && self.engine_index() == other.engine_index()
        })
    }

    fn to_json(&self, _: Wrapped) -> Json {
        let mut converter = JsonConverter::new(self.frame.len());
        let mut shown = Map::new();
        shown.insert("__struct__".into(), self.layout.class.into());
        for (at, (name, _)) in self.layout.fields.iter().enumerate() {
            shown.insert(name.to_string(), converter.packed(self.raw(at), None, 0));
        }
        Json::Object(shown)
    }

    /// `None` if the scheduler had no snapshot of its load.
    fn load(&self) -> Option<EngineLoad> {
        let total = self.number("kv_total_tokens").filter(|total| *total > 0)?;
        Some(EngineLoad {
            engine: self.engine_index()?,
            running: self.number("num_running")?,
            waiting: self.number("num_waiting")?,
            kv_cache_usage: self.number("kv_used_tokens")? as f64 / total as f64,
        })
    }

    fn engine_index(&self) -> Option<u64> {
        self.number(ENGINE_INDEX)
    }

    /// Reasons and ids have forms of their own, so they are asked for by row.
    #[inline]
    fn column(&self, column: RowColumn) -> Option<ColumnCells<'_>> {
        match column {
            RowColumn::Rids => self.cells(RIDS),
            RowColumn::CompletionTokens => self.cells(COMPLETION_TOKENS),
            RowColumn::OutputIds | RowColumn::FinishedReasons => None,
        }
    }

    fn may_end(&self) -> bool {
        let reasons = self.cells(REASONS).and_then(|reasons| reasons.equal_width(self.count));
        !matches!(reasons, Some((bytes, 1)) if pack::equal_bytes(bytes) == Some(0xa0))
    }

    fn rid(&self, row: u32) -> Option<&[u8]> {
        self.cell(RIDS, row)?.str_bytes()
    }

    fn tokens(&self, row: u32) -> u32 {
        self.id_items(row).map_or(0, |(count, _)| count as u32)
    }

    fn ids(&self, row: u32, out: &mut Vec<i64>) {
        let Some((count, ids)) = self.id_items(row) else { return };
        out.extend(pack::items(ids, count).filter_map(pack::int));
    }

    fn finish(&self, row: u32) -> Finish<'_> {
        match self.cell(REASONS, row).and_then(RawValue::str) {
            None | Some("") => Finish::Running,
            Some("stop") => Finish::Stop { matched: matched(self.cell(MATCHED, row)) },
            Some("length") => Finish::Length,
            Some("abort") => Finish::Abort,
            Some(_) => Finish::Other,
        }
    }

    fn is_first(&self, row: u32) -> bool {
        is_first(self.tokens(row), self.completion_tokens(row))
    }

    fn prompt_tokens(&self, row: u32) -> Option<u64> {
        self.count(PROMPT_TOKENS, row)
    }

    fn cached_tokens(&self, row: u32) -> Option<u64> {
        self.count(CACHED_TOKENS, row)
    }

    fn logprobs(&self, row: u32, out: &mut Vec<f32>) -> bool {
        self.cell(LOGPROBS, row).and_then(RawValue::list).is_some_and(|logprobs| {
            out.extend(logprobs.into_iter().filter_map(RawValue::float).map(|value| value as f32));
            true
        })
    }

    fn top_logprobs(&self, row: u32, out: &mut TopLogprobs) -> Option<()> {
        crate::value::top_logprobs(self.cell(TOP_LOGPROBS, row)?, self.cell(TOP_IDS, row)?, out)
    }

    fn reasoning_tokens(&self, row: u32) -> Option<u64> {
        self.count(REASONING_TOKENS, row)
    }

    fn completion_tokens(&self, row: u32) -> Option<u64> {
        self.count(COMPLETION_TOKENS, row)
    }

    fn take(&self, _: &Batch, rows: &[u32], _: bool) -> Result<Batch, RowsError> {
        write::take(self, rows)
    }

    fn join(
        &self,
        parts: &[BatchPart<'_>],
        requests: &mut dyn Iterator<Item = &[PartRow]>,
        _: bool,
    ) -> Result<Batch, RowsError> {
        write::join(parts, requests)
    }

    fn edit(
        &self,
        parts: Vec<&Batch>,
        edits: &[Edit],
        instead: &[(u32, PartRow)],
    ) -> Result<Option<Batch>, RowsError> {
        write::edit(&parts, edits, instead)
    }

    fn blank(&self, rows: &[BlankRow<'_>]) -> Result<Batch, RowsError> {
        write::blank(self, rows)
    }

    fn erase(&self, _: &Batch, rows: &[u32], left: &mut Vec<String>) -> Result<Bytes, EraseError> {
        Ok(super::erase::erase(self, rows, left).into())
    }
}
