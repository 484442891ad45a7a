//! The rows of a message of vLLM, as everything else asks for them.

use std::ops::Range;

use afterbay_types::{Engine, TopLogprobs};
use bytes::Bytes;
use serde_json::Value as Json;

use super::arrays::{Array, sampled_logprobs, sampling_mask, top_logprobs};
use super::fields::{
    EVENTS, NEW_LOGPROBS, NEW_SAMPLING_MASK, QUEUED, ROUTED, SPEC_DECODE_METRICS, TIMESTAMP,
};
use super::frame::map_value;
use super::outputs::{OutputRow, Outputs};
use super::rows;
use crate::batch::{Batch, BatchPart, EngineBatch, EngineLoad, PartRow};
use crate::edit::{BlankRow, Edit};
use crate::error::{EraseError, RowsError};
use crate::facts::{Drafts, RoutedExperts, SamplingMask};
use crate::finish::Finish;
use crate::json_values::Wrapped;
use crate::kind::{AbortShape, BatchKind, Wire};
use crate::pack::{self, PackValue};

/// The draft tokens of a request by its `RequestSpecDecodeMetrics`: those proposed, and how many steps accepted each number of
/// them.
fn drafts(metrics: &[u8]) -> Option<Drafts> {
    let count = |value| u64::try_from(pack::int(value)?).ok();
    let PackValue::Array(len, steps) = pack::item(map_value(metrics, "histogram")?)? else { return None };
    let accepted = (0..)
        .zip(pack::items(steps, len))
        .try_fold(0_u64, |sum, (accepted, steps)| sum.checked_add(count(steps)?.checked_mul(accepted)?));
    Some(Drafts { drafted: map_value(metrics, "num_draft_tokens").and_then(count), accepted })
}

impl EngineBatch for Outputs {
    fn engine(&self) -> Engine {
        super::ENGINE
    }

    fn memory(&self) -> usize {
        let Outputs { parts, rows, rids, unread, .. } = self;
        parts.capacity() * size_of::<Range<usize>>()
            + rows.capacity() * size_of::<OutputRow>()
            + rids.capacity() * size_of::<(u32, u32)>()
            + unread.capacity() * size_of::<(u32, &str)>()
    }

    fn kind(&self) -> BatchKind {
        BatchKind::Outputs
    }

    fn wire(&self) -> Wire {
        Wire::Msgpack { engine: super::ENGINE, versions: Outputs::versions(self).to_string() }
    }

    fn abort_shape(&self) -> AbortShape {
        AbortShape::Names
    }

    fn is_like(&self, other: &Batch) -> bool {
        other.outputs().is_ok_and(|other| self.is_like_outputs(other))
    }

    fn to_json(&self, _: Wrapped) -> Json {
        super::json::to_json(self)
    }

    fn finished_requests(&self) -> Vec<&str> {
        self.ended_requests().collect()
    }

    fn load(&self) -> Option<EngineLoad> {
        self.engine_load()
    }

    fn engine_index(&self) -> Option<u64> {
        self.index()
    }

    fn may_end(&self) -> bool {
        self.has_finish
    }

    fn rid(&self, row: u32) -> Option<&[u8]> {
        let (start, end) = *self.rids.get(row as usize)?;
        pack::str_bytes(&self.frame()[start as usize..end as usize])
    }

    fn tokens(&self, row: u32) -> u32 {
        self.rows.get(row as usize).map_or(0, |row| row.tokens())
    }

    fn ids(&self, row: u32, out: &mut Vec<i64>) {
        let Some(row) = self.rows.get(row as usize).filter(|row| row.tokens() > 0) else { return };
        match self.id_items(row) {
            // The usual case.
            one if row.tokens() == 1 => out.extend(pack::int(one)),
            some => out.extend(pack::items(some, row.tokens().into()).filter_map(pack::int)),
        }
    }

    fn finish(&self, row: u32) -> Finish<'_> {
        match self.rows.get(row as usize) {
            Some(row) if row.finish != 0 => self.ended_by(row),
            _ => Finish::Running,
        }
    }

    fn is_first(&self, row: u32) -> bool {
        self.rows.get(row as usize).is_some_and(|row| row.prefill != 0)
    }

    /// In a request's first row.
    fn prompt_tokens(&self, row: u32) -> Option<u64> {
        self.prefill_count(row, "num_prompt_tokens")
    }

    /// In a request's first row.
    fn cached_tokens(&self, row: u32) -> Option<u64> {
        self.prefill_count(row, "num_cached_tokens")
    }

    /// In each frame since 0.32.
    fn weight_version(&self, _: u32) -> Option<&str> {
        self.weights()
    }

    fn sampling_mask(&self, row: u32) -> Option<SamplingMask> {
        let row = self.rows.get(row as usize).filter(|row| !row.is_plain)?;
        sampling_mask(self, self.cell(row.first(), NEW_SAMPLING_MASK)?)
    }

    /// The experts of the row's tokens.
    fn routed_experts(&self, row: u32) -> Option<RoutedExperts> {
        let row = self.rows.get(row as usize).filter(|row| !row.is_plain)?;
        let array = Array::read(Some(self), self.cell(row.first(), ROUTED)?)?;
        RoutedExperts::read(array.dtype(), array.shape.clone(), array.data)
    }

    /// The second is the time of the frame.
    fn queued_and_first(&self, row: u32) -> Option<(f64, f64)> {
        let row = self.rows.get(row as usize).filter(|row| row.prefill != 0)?;
        let PackValue::Array(count, events) = pack::item(self.cell(row.first(), EVENTS)?)? else {
            return None;
        };
        let is_queued = |event: &&[u8]| map_value(event, "type").and_then(pack::int) == Some(QUEUED);
        let queued = pack::items(events, count).find(is_queued)?;
        let seconds = |value| match pack::item(value)? {
            PackValue::Float(seconds) => Some(seconds),
            _ => None,
        };
        Some((seconds(map_value(queued, "timestamp")?)?, seconds(self.field(TIMESTAMP))?))
    }

    fn logprobs(&self, row: u32, out: &mut Vec<f32>) -> bool {
        let row = self.rows.get(row as usize).filter(|row| row.tokens() > 0 && !row.is_plain);
        row.is_some_and(|row| {
            let value = self.cell(row.first(), NEW_LOGPROBS);
            value.is_some_and(|value| sampled_logprobs(self, value, out).is_some())
        })
    }

    /// The first logprob of a token is its own, and the others are of the most probable tokens.
    fn top_logprobs(&self, row: u32, out: &mut TopLogprobs) -> Option<()> {
        let row = self.rows.get(row as usize).filter(|row| row.tokens() > 0 && !row.is_plain)?;
        top_logprobs(self, self.cell(row.first(), NEW_LOGPROBS)?, out)
    }

    /// In a request's last row, and only of an engine that was started with `--per-request-spec-decode-metrics`.
    fn drafts(&self, row: u32) -> Drafts {
        let row = self.rows.get(row as usize).filter(|row| row.finish != 0);
        row.and_then(|row| drafts(self.cell(row.end_array(), SPEC_DECODE_METRICS)?)).unwrap_or_default()
    }

    fn take(&self, batch: &Batch, rows: &[u32], fields_stay: bool) -> Result<Batch, RowsError> {
        rows::take(batch, self, rows, fields_stay)
    }

    fn join(
        &self,
        parts: &[BatchPart<'_>],
        requests: &mut dyn Iterator<Item = &[PartRow]>,
        fields_stay: bool,
    ) -> Result<Batch, RowsError> {
        rows::join(parts, requests, fields_stay)
    }

    fn edit(
        &self,
        parts: Vec<&Batch>,
        edits: &[Edit],
        instead: &[(u32, PartRow)],
    ) -> Result<Option<Batch>, RowsError> {
        rows::edit(&parts, self, edits, instead)
    }

    fn blank(&self, rows: &[BlankRow<'_>]) -> Result<Batch, RowsError> {
        rows::blank(self, rows)
    }

    fn erase(&self, _: &Batch, rows: &[u32], left: &mut Vec<String>) -> Result<Bytes, EraseError> {
        Ok(super::erase::erase(self, rows, left).into())
    }

    fn without_rows(&self) -> Option<Bytes> {
        rows::without_rows(self)
    }
}
