//! What goes on after it has waited: with a later row of its request, or in a frame of Afterbay's own.

use super::whole::whole;
use super::{FinishKind, Ledger, Request, finish_kind};
use afterbay_batch::{
    Accounted, AnyRow, ChainOutput, Decision, Persisted, ReceivedTokens, RecordedVerdicts, ReleasedRow,
    RequestSlot, Row, hold_end_words,
};
use afterbay_events::StreamCounters;
use afterbay_hold::{DueRow, HeldRows};
use afterbay_journal as journal;
use afterbay_persist::Persister;
use afterbay_wire::{Batch, Edit, TokenEdit};
use std::time::Instant;

/// Rows and tokens that went somewhere with a frame.
#[derive(Default)]
pub struct SettledCounts {
    forwarded: (u64, u64),
    replaced: u64,
    dropped: (u64, u64),
    pub swallowed: (u64, u64),
}

impl SettledCounts {
    /// Rows count for where the most of what came of them went.
    pub fn add(&mut self, came: ReceivedTokens) {
        self.forwarded.1 += came.forwarded;
        self.dropped.1 += came.dropped;
        let of = match came {
            ReceivedTokens { forwarded: 0, replaced: 0, dropped: 1.., .. } => &mut self.dropped.0,
            ReceivedTokens { forwarded: 0, replaced: 1.., .. } => &mut self.replaced,
            _ => &mut self.forwarded.0,
        };
        *of += came.rows;
    }

    pub fn count(&self, counters: &StreamCounters) {
        counters.rows_forwarded.add(self.forwarded.0);
        counters.tokens_forwarded.add(self.forwarded.1);
        counters.rows_replaced.add(self.replaced);
        counters.rows_dropped.add(self.dropped.0);
        counters.tokens_dropped.add(self.dropped.1);
        counters.rows_swallowed.add(self.swallowed.0);
        counters.tokens_swallowed.add(self.swallowed.1);
    }
}

/// What is to stand in the place of rows and does not yet.
pub fn in_place_of(output: &ChainOutput) -> Vec<(u32, &Batch)> {
    let others = output.instead.iter().filter(|instead| !instead.in_place);
    others.map(|instead| (instead.row, &instead.held.batch)).collect()
}

impl Ledger {
    /// Makes a batch of what is to go on by itself. `Err`: nothing is, and the frame is done with.
    pub fn release(
        &mut self,
        persisted: Persisted,
        held_rows: &mut HeldRows,
        persister: &mut Persister,
    ) -> Result<(ChainOutput, afterbay_events::Name), Persisted> {
        let Some(due) = held_rows.take_due(Instant::now()) else {
            self.nothing_released(&persisted, persister);
            return Err(persisted);
        };
        let mut rows = std::mem::take(&mut self.rows);
        rows.clear();
        self.handles.clear();
        self.tokens.clear();
        self.gaps.clear();
        let mut any = AnyRow { needs_edit: true, ..AnyRow::default() };
        let mut instead = Vec::new();
        let mut actions = RecordedVerdicts::default();
        for (index, row) in (0..).zip(due.rows) {
            let DueRow { slot, number, held, rows: count, why } = row;
            let Some(request) = self.requests.get(slot) else { continue };
            self.handles.push(request.handle);
            self.tokens.push(0);
            let row = Row {
                slot,
                number,
                tokens: 0,
                completion_tokens: held.batch.completion_tokens(0),
                // The scheduler's was told with the frame it came in.
                finish: if request.lingers {
                    finish_kind(&held.batch.finish(0))
                } else {
                    FinishKind::Running
                },
                first: false,
                ends: request.lingers,
                unread: false,
                swallowed: false,
                unseen: request.is_unseen(),
            };
            any.count(&row, request.shift != 0, request.skips_by.is_some());
            rows.push(row);
            actions.release(index, &due.plugin, hold_end_words(why), count, held.tokens);
            instead.push(ReleasedRow { row: index, held, in_place: true, plugin: due.plugin.clone(), why });
        }
        let accounted = Accounted { persisted, batch: due.batch, rows, any, is_released: true };
        Ok((ChainOutput { instead, actions, ..ChainOutput::new(accounted) }, due.plugin))
    }

    /// A frame of Afterbay's own with which nothing goes on.
    pub fn nothing_released(&mut self, persisted: &Persisted, persister: &mut Persister) {
        persister.record_outcome(&whole(persisted, journal::Passage::Dropped));
    }

    /// The frame could not be written with what was to go on in it: that waits again, and no other verdict is carried out.
    /// What the frame loses.
    pub fn wait_again(
        &mut self,
        output: &mut ChainOutput,
        held_rows: &mut HeldRows,
        now: Instant,
    ) -> Vec<Edit> {
        output.decisions.fill(Decision::KEEP);
        let others = std::mem::take(&mut output.instead);
        let (stay, again): (Vec<_>, Vec<_>) = others.into_iter().partition(|instead| instead.in_place);
        output.instead = stay;
        for ReleasedRow { row, held, plugin, .. } in again {
            let Some(accounted) = output.accounted.rows.get(row as usize) else { continue };
            held_rows.hold_again(accounted.number, accounted.slot, &plugin, held, now);
            output.actions.hold_again(row, &plugin);
            output.wait(row);
        }
        let rows = (0..).zip(&output.accounted.rows);
        let gone = rows.filter(|(index, row)| row.swallowed || output.is_held(*index));
        gone.map(|(index, _)| Edit { tokens: TokenEdit::Drop, ..Edit::new(index) }).collect()
    }

    /// What an earlier run has left waiting is known now.
    pub fn take_up_held(&mut self, held_rows: &HeldRows) {
        for (slot, number) in self.live_slots() {
            let came = held_rows.received_tokens(number);
            let Some(request) = self.requests.get_mut(slot) else { continue };
            let Request { held, forwarded, replaced, dropped, shift, .. } = request;
            *held = came;
            let mut rest = came;
            for of in [forwarded, replaced, dropped] {
                let less = rest.min(*of);
                (*of, rest) = (*of - less, rest - less);
            }
            // By what the journal has as forwarded, these were dropped.
            *shift += came as i64;
        }
    }

    fn live_slots(&self) -> Vec<(RequestSlot, u64)> {
        let live = self.requests.iter();
        live.map(|(slot, _, request)| (slot, request.handle.number().0)).collect()
    }

    /// The slots of live requests, by number.
    pub fn slots(&self) -> std::collections::HashMap<u64, RequestSlot> {
        self.live_slots().into_iter().map(|(slot, number)| (number, slot)).collect()
    }
}
