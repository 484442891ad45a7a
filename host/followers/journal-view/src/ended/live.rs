//! One request that has not ended: what was read of it so far, in little memory.

use std::collections::HashMap;
use std::sync::Arc;

use afterbay_journal::reader::{RequestInfo, RequestState};
use afterbay_journal::{PluginAction, RequestNo, RowEffect, SegmentId, TokenGap, Verdict};

use super::frames::{RowContent, RowTraining};
use super::numbers::PackedNumbers;
use super::types::{
    Contents, DroppedTokens, EndPosition, EndedRequest, EngineFacts, RowColumns, RowExperts, RowVerdict,
    TokenLedger, Training,
};
use super::{DROPS_MAX, GAPS_MAX};
use crate::sent::SentIds;
use afterbay_wire::{RequestRecord, SamplingMask, WeightSpan};
use bytes::Bytes;

/// A request that has not ended.
pub(super) struct LiveRequest {
    pub(super) rid: Arc<str>,
    /// The segment in which the reader saw the request first.
    pub(super) first_segment: SegmentId,
    /// The number of the newest segment that lists the request or has a row of it.
    pub(super) listed: u64,
    /// The totals at the end of the segment before, or as the open segment lists them.
    pub(super) base: Option<RequestInfo>,
    pub(super) sink: Option<Arc<str>>,
    pub(super) facts: Option<EngineFacts>,
    pub(super) record: Option<Box<RequestRecord>>,
    /// Rows that are kept.
    rows: u32,
    last_unix_ns: u64,
    /// Time of receipt of each row, as the difference to the row before.
    times: PackedNumbers,
    tokens: PackedNumbers,
    ids: PackedNumbers,
    /// The number of `ids`.
    kept_ids: u64,
    /// The ids that were sent on, if they differ from `ids`.
    sent: Option<PackedNumbers>,
    logprobs: ForEachId<Vec<f32>>,
    training: Option<Box<KeptTraining>>,
    rows_absent: u64,
    verdicts: Vec<RowVerdict>,
    verdict_bytes: usize,
    gaps: Vec<TokenGap>,
    ledger: TokenLedger,
}

/// A value for each id.
enum ForEachId<T> {
    /// No row had ids.
    Open,
    Known(T),
    /// A row had ids without values.
    None,
}

/// The fields for training.
struct KeptTraining {
    weight_versions: Vec<WeightSpan>,
    sampling_mask: ForEachId<SamplingMask>,
    routed_experts: Vec<RowExperts>,
    bytes: usize,
}

impl<T> ForEachId<T> {
    fn add(&mut self, values: Option<T>, extend: impl FnOnce(&mut T, T)) {
        match (&mut *self, values) {
            (known, None) => *known = ForEachId::None,
            (ForEachId::Open, Some(values)) => *self = ForEachId::Known(values),
            (ForEachId::Known(known), Some(values)) => extend(known, values),
            (ForEachId::None, _) => {}
        }
    }

    fn known(self) -> Option<T> {
        match self {
            ForEachId::Known(values) => Some(values),
            ForEachId::Open | ForEachId::None => None,
        }
    }
}

impl KeptTraining {
    /// Adds a row whose ids begin at this index.
    fn add(&mut self, row: RowTraining, first_id: u64, ids: u64) {
        let RowTraining { weight_spans, weight_version, sampling_mask, routed_experts } = row;
        match (weight_spans, weight_version) {
            (Some(all), _) => self.weight_versions = all,
            (None, Some(version)) if ids > 0 => match self.weight_versions.last_mut() {
                Some(last) if last.version == version && last.end == first_id => last.end += ids,
                _ => self.weight_versions.push(WeightSpan { version, start: first_id, end: first_id + ids }),
            },
            (None, _) => {}
        }
        if let Some(experts) = routed_experts {
            self.bytes += size_of_val(&*experts.experts);
            self.routed_experts.push(RowExperts { first_id, experts });
        }
        if ids > 0 {
            let mask = sampling_mask.filter(|mask| mask.lengths.len() as u64 == ids);
            self.bytes += mask.as_ref().map_or(0, |mask| 4 * (mask.lengths.len() + 2 * mask.token_ids.len()));
            self.sampling_mask.add(mask, |known, row| {
                known.lengths.extend(row.lengths);
                known.token_ids.extend(row.token_ids);
                known.logprobs.extend(row.logprobs);
            });
        }
    }
}

/// The component of a plugin.
pub(super) struct PluginFacts {
    pub(super) version: Arc<str>,
    pub(super) digest: Arc<str>,
}

/// A row of an outcome.
pub(super) struct OutcomeRow<'a> {
    pub(super) unix_ns: u64,
    pub(super) tokens: u32,
    /// The actions on the row, and their effect.
    pub(super) actions: &'a [PluginAction<'static>],
    pub(super) effect: Option<RowEffect>,
    pub(super) gap: Option<TokenGap>,
}

impl LiveRequest {
    pub(super) fn new(rid: &str, segment: SegmentId, listed: u64) -> LiveRequest {
        LiveRequest {
            rid: rid.into(),
            first_segment: segment,
            listed,
            base: None,
            sink: None,
            facts: None,
            record: None,
            rows: 0,
            last_unix_ns: 0,
            times: PackedNumbers::default(),
            tokens: PackedNumbers::default(),
            ids: PackedNumbers::default(),
            kept_ids: 0,
            sent: None,
            logprobs: ForEachId::Open,
            training: None,
            rows_absent: 0,
            verdicts: Vec::new(),
            verdict_bytes: 0,
            gaps: Vec::new(),
            ledger: TokenLedger::default(),
        }
    }

    /// Whether no row was read.
    pub(super) fn is_new(&self) -> bool {
        self.rows == 0
    }

    /// Bytes of the prompt, rows, ids and verdicts.
    pub(super) fn bytes(&self) -> usize {
        let sent = self.sent.as_ref().map_or(0, PackedNumbers::bytes);
        let logprobs = match &self.logprobs {
            ForEachId::Known(logprobs) => size_of_val(logprobs.as_slice()),
            ForEachId::Open | ForEachId::None => 0,
        };
        let training = self.training.as_ref().map_or(0, |training| training.bytes);
        let prompt =
            self.record.as_ref().and_then(|record| record.prompt_ids()).map_or(0, |ids| 4 * ids.len());
        let rows = self.times.bytes() + self.tokens.bytes() + self.ids.bytes() + sent + logprobs;
        rows + training + prompt + self.verdict_bytes
    }

    /// Counts the tokens of a row.
    pub(super) fn count(&mut self, row: &OutcomeRow<'_>) {
        let tokens = u64::from(row.tokens);
        let ledger = &mut self.ledger;
        ledger.received += tokens;
        let Some(effect) = row.effect else {
            ledger.forwarded += tokens;
            return;
        };
        let (dropped, replaced) = effect.dropped_and_replaced(tokens);
        ledger.forwarded += u64::from(effect.forwarded);
        ledger.replaced += replaced;
        ledger.dropped += dropped;
        let drop = row.actions.iter().rfind(|action| action.verdict == Verdict::Drop);
        let Some(drop) = drop.filter(|_| dropped > 0) else { return };
        if drop.is_swallowed() {
            ledger.swallowed += dropped;
            return;
        }
        let is_full = ledger.dropped_by.len() >= DROPS_MAX;
        let is_same = |by: &DroppedTokens| by.plugin == drop.plugin && by.reason == drop.text;
        match ledger.dropped_by.iter_mut().find(|by| is_same(by)) {
            Some(by) => by.tokens += dropped,
            None if is_full => {
                if let Some(last) = ledger.dropped_by.last_mut() {
                    (last.reason, last.tokens) = (String::new(), last.tokens + dropped);
                }
            }
            None => ledger.dropped_by.push(DroppedTokens {
                plugin: drop.plugin.to_string(),
                reason: drop.text.to_string(),
                tokens: dropped,
            }),
        }
    }

    /// Keeps a row.
    pub(super) fn keep(
        &mut self,
        row: &OutcomeRow<'_>,
        plugins: &HashMap<Arc<str>, PluginFacts>,
        name: &mut dyn FnMut(&str) -> Arc<str>,
    ) {
        self.times.push_signed(row.unix_ns.wrapping_sub(self.last_unix_ns) as i64);
        self.last_unix_ns = row.unix_ns;
        self.tokens.push(row.tokens.into());
        let at = self.rows;
        self.rows += 1;
        if let Some(gap) = row.gap.filter(|_| self.gaps.len() < GAPS_MAX) {
            self.gaps.push(TokenGap { row: at, ..gap });
        }
        for action in row.actions {
            self.verdict_bytes += size_of::<RowVerdict>() + action.text.len();
            let facts = plugins.get(&*action.plugin);
            self.verdicts.push(RowVerdict {
                row: at,
                plugin: name(&action.plugin),
                version: facts.map(|facts| facts.version.clone()),
                digest: facts.map(|facts| facts.digest.clone()),
                verdict: action.verdict,
                reason: Box::from(&*action.text),
                forwarded: action.forwarded,
            });
        }
    }

    /// Keeps the content of the row that was kept last.
    pub(super) fn keep_content(&mut self, content: &mut RowContent, sent: SentIds) {
        let first_id = self.kept_ids;
        self.kept_ids += content.ids.len() as u64;
        let before_row = (self.sent.is_none() && !is_same(&sent, &content.ids)).then(|| self.ids.clone());
        self.sent = self.sent.take().or(before_row);
        content.ids.iter().for_each(|id| self.ids.push_signed(*id));
        if let Some(all) = &mut self.sent {
            let ids = match &sent {
                SentIds::AsReceived => &content.ids,
                SentIds::Row(ids) => ids,
                SentIds::Cumulative(ids) => {
                    *all = PackedNumbers::default();
                    ids
                }
            };
            ids.iter().for_each(|id| all.push_signed(*id));
        }
        self.rows_absent += u64::from(content.is_absent);
        if let Some(row) = content.training.take() {
            let training = self.training.get_or_insert_with(|| {
                Box::new(KeptTraining {
                    weight_versions: Vec::new(),
                    sampling_mask: ForEachId::Open,
                    routed_experts: Vec::new(),
                    bytes: 0,
                })
            });
            training.add(row, first_id, content.ids.len() as u64);
        }
        if !content.ids.is_empty() {
            let logprobs = (content.logprobs.len() == content.ids.len()).then(|| content.logprobs.clone());
            self.logprobs.add(logprobs, |known, row| known.extend(row));
        }
    }

    /// The totals of a request that the journal does not close.
    pub(super) fn unclosed(&self, number: RequestNo) -> RequestInfo {
        let last = self.base.clone().unwrap_or_else(|| RequestInfo {
            number,
            rid: self.rid.to_string(),
            rows: self.rows.into(),
            received: self.ledger.received,
            forwarded: self.ledger.forwarded,
            dropped: self.ledger.dropped,
            replaced: self.ledger.replaced,
            gaps: self.gaps.len() as u32,
            first_unix_ns: self.times().next().unwrap_or_default(),
            last_unix_ns: self.last_unix_ns,
            ..RequestInfo::default()
        });
        let state = match last.state {
            RequestState::Live => RequestState::Abandoned,
            state => state,
        };
        RequestInfo { state, ..last }
    }

    /// The totals of a request that a segment closes. After a failed disk, records may stand before the list of the requests that
    /// are open: the totals there count only the rows between.
    pub(super) fn closed(&self, info: &RequestInfo) -> RequestInfo {
        let Some(base) = self.base.as_ref().filter(|_| info.rid.is_empty()) else {
            let rid = if info.rid.is_empty() { self.rid.to_string() } else { info.rid.clone() };
            return RequestInfo { rid, ..info.clone() };
        };
        let first = if base.rows > 0 { base } else { info };
        RequestInfo {
            rid: base.rid.clone(),
            rows: base.rows + info.rows,
            received: base.received + info.received,
            forwarded: base.forwarded + info.forwarded,
            dropped: base.dropped + info.dropped,
            replaced: base.replaced + info.replaced,
            gaps: base.gaps + info.gaps,
            ended_early: base.ended_early || info.ended_early,
            first_frame: first.first_frame,
            first_unix_ns: first.first_unix_ns,
            last_frame: base.last_frame.max(info.last_frame),
            last_unix_ns: base.last_unix_ns.max(info.last_unix_ns),
            attributes: base.attributes.clone(),
            record_frame: base.record_frame.max(info.record_frame),
            record_unix_ns: base.record_unix_ns.max(info.record_unix_ns),
            ..info.clone()
        }
    }

    fn times(&self) -> impl Iterator<Item = u64> {
        self.times.iter_signed().scan(0u64, |last, difference| {
            *last = last.wrapping_add(difference as u64);
            Some(*last)
        })
    }

    /// The request at its end. `has_contents`: its frames were decoded.
    pub(super) fn end(
        self,
        stream: &Arc<str>,
        info: RequestInfo,
        end: EndPosition,
        has_contents: bool,
    ) -> EndedRequest {
        let rows = RowColumns {
            received_unix_ns: self.times().collect(),
            tokens: self.tokens.iter().map(|tokens| tokens as u32).collect(),
        };
        let is_erased = info.erased.is_some();
        let mut record = self.record;
        if let Some(record) = record.as_mut().filter(|_| is_erased) {
            record.prompt_ids = Bytes::new();
        }
        let contents = (has_contents && !is_erased).then(|| Contents {
            received: self.ids.iter_signed().collect(),
            sent: self.sent.as_ref().map(|sent| sent.iter_signed().collect()),
            logprobs: self.logprobs.known(),
            training: self.training.map(|training| Training {
                weight_versions: training.weight_versions,
                sampling_mask: training.sampling_mask.known(),
                routed_experts: training.routed_experts,
            }),
            rows_absent: self.rows_absent,
        });
        EndedRequest {
            stream: stream.clone(),
            is_second_leg: false,
            rows_missing: info.rows.saturating_sub(self.rows.into()),
            info,
            end,
            sink: self.sink,
            rows,
            verdicts: self.verdicts,
            gaps: self.gaps,
            ledger: self.ledger,
            gpu_ns: 0,
            facts: self.facts,
            record,
            contents,
        }
    }
}

fn is_same(sent: &SentIds, received: &[i64]) -> bool {
    match sent {
        SentIds::AsReceived => true,
        SentIds::Row(ids) => ids == received,
        SentIds::Cumulative(_) => false,
    }
}
