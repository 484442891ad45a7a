//! Frames and batches that are not forwarded, because a plugin with `on_fault = "terminate"` did not judge them. Their requests
//! are aborted as far as the rids are known.

use super::Ledger;
use super::barrier::without_rows;
use crate::records::Records;
use crate::{
    ChainOutput, Content, DecodedBarrier, Persisted, RecordedVerdicts, Row, Settled, failed, not_judged,
};
use afterbay_events::{Barrier as BarrierLabel, Name};
use afterbay_journal::{Outcome, Passage};
use afterbay_wire::{BarrierKind, Batch, Edit, FinishKind, TokenEdit};

impl Ledger {
    /// Drops a barrier that may contain rows, and aborts the requests whose rids can be read.
    pub fn refuse_barrier(
        &mut self,
        decoded: DecodedBarrier,
        plugin: &Name,
        records: &mut Records,
    ) -> Settled {
        let (barrier, persisted) = (decoded.barrier(), decoded.persisted());
        let (kind, why) = match &barrier.kind {
            BarrierKind::NotUnderstood { error } => (error.label(), error.to_string()),
            kind => ("barrier", kind.to_string()),
        };
        let aborted = barrier.named_rows().and_then(|named| {
            let rows: Vec<u32> = (0..named.rows()).collect();
            Some((named, named.ended(&rows, &failed(&not_judged(plugin))).ok()?))
        });
        let requests = aborted.as_ref().map_or(0, |(named, _)| named.rows());
        self.report_refused(persisted, kind, why, plugin, requests);
        let Some((named, ended)) = aborted else {
            records.record_outcome(&without_rows(persisted, Passage::Dropped));
            return decoded.into_settled(Content::Nothing.into());
        };
        let content = self.abort_named(persisted, named, ended, plugin, records);
        decoded.into_settled(content.into())
    }

    /// Drops a poison frame.
    pub fn refuse_poison(
        &self,
        persisted: Persisted,
        why: String,
        plugin: &Name,
        records: &mut Records,
    ) -> Settled {
        self.report_refused(&persisted, "panic", why, plugin, 0);
        records.record_outcome(&without_rows(&persisted, Passage::Dropped));
        Settled::undecoded(persisted, Content::Nothing)
    }

    fn report_refused(&self, persisted: &Persisted, kind: &str, why: String, plugin: &Name, requests: u32) {
        self.telemetry.counters.barriers.add(BarrierLabel::Refused, 1);
        let then =
            format!("dropped, because plugin {plugin:?} did not judge it; aborted requests: {requests}");
        self.report_not_understood(persisted, kind, why, then);
    }

    /// Replaces the frame with the aborts of the requests that it names. The number of tokens received is not known, so none is
    /// counted.
    fn abort_named(
        &mut self,
        persisted: &Persisted,
        named: &Batch,
        ended: Batch,
        plugin: &Name,
        records: &mut Records,
    ) -> Content {
        let mut rows = self.begin_frame();
        self.requests.begin_batch();
        let mut verdicts = RecordedVerdicts::default();
        for index in 0..named.rows() {
            let known = named.rid_of(index).and_then(|rid| self.requests.find_next(rid));
            let handle = known.unwrap_or_else(|| {
                self.find_or_open(persisted, named, index, (0, FinishKind::Running), records)
            });
            let Some(request) = self.requests.get_mut(handle) else { continue };
            (request.last_row_at, request.trusts_next_count) = (persisted.at().instant, true);
            let first = !request.has_row;
            if first {
                request.read_first_row(named, index);
            }
            let opens = !std::mem::replace(&mut request.is_announced, true);
            self.handles.push(handle);
            self.tokens.push(0);
            rows.push(Row {
                request: handle,
                tokens: 0,
                is_counted: false,
                tokens_so_far: request.before + request.scheduler_count,
                finish: FinishKind::Running,
                first,
                opens,
                may_close: false,
                swallowed: request.is_finished_early(),
                unread: true,
                hidden: true,
            });
            verdicts.push_terminate(index, plugin, &not_judged(plugin), true);
        }
        self.publish_verdicts(&rows, &verdicts, persisted.frame());
        self.abort_upstream(&rows, &verdicts);
        records.record_outcome(&Outcome {
            changed: Some(ended.bytes().clone()),
            requests: (&self.handles).into(),
            tokens: (&self.tokens).into(),
            actions: verdicts.as_slice().into(),
            ..without_rows(persisted, Passage::Changed)
        });
        self.telemetry.counters.frames_rewritten.add(1);
        self.close_single_frame(records);
        let requests = rows.iter().map(|row| row.number()).collect();
        self.rows = rows;
        Content::Rows { batch: ended, requests }
    }

    /// Aborts the requests of all rows that `edits` leaves with this message, because of a verdict of `plugin`. Returns the batch
    /// to send; `None` if no row is left.
    pub(super) fn terminate_all(
        &self,
        output: &mut ChainOutput,
        plugin: &Name,
        message: &str,
        edits: &mut Vec<Edit>,
    ) -> Option<Batch> {
        let dropped: Vec<u32> = edits.iter().map(|edit| edit.row).collect();
        let is_dropped = |row: u32| dropped.binary_search(&row).is_ok();
        let left: Vec<u32> =
            (0..output.accounted().rows().len() as u32).filter(|row| !is_dropped(*row)).collect();
        output.verdicts.retain_rows(is_dropped);
        for row in &left {
            output.terminate(*row, plugin, message);
            let finish = output.decisions.get(*row as usize).and_then(|decision| decision.finish.clone());
            edits.push(Edit { tokens: TokenEdit::Empty, finish, ..Edit::new(*row) });
        }
        output.verdicts.sort();
        edits.sort_by_key(|edit| edit.row);
        let ended = output.accounted().batch().ended(&left, &failed(message)).ok();
        if ended.is_none() {
            edits.iter_mut().for_each(|edit| edit.tokens = TokenEdit::Drop);
        }
        ended
    }
}
