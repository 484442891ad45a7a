//! Held rows that leave in a frame of Afterbay's own. The journal has a release marker for this frame.

use super::Ledger;
use super::barrier::without_rows;
use crate::hold::{DueRow, HeldRows};
use crate::records::Records;
use crate::{Accounted, AnyRow, ChainOutput, Content, Decision, Persisted, ReleasedRow, Row, Settled};
use afterbay_events::Name;
use afterbay_journal::Passage;
use afterbay_wire::{Edit, TokenEdit};
use std::time::Instant;

impl Ledger {
    /// Makes a batch of the held rows that are due, and returns the batch with the plugin that held the rows. Settles the marker
    /// if no row is due.
    #[expect(clippy::result_large_err, reason = "one per frame: a box costs more than the move")]
    pub fn release(
        &mut self,
        marker: Persisted,
        held_rows: &mut HeldRows,
        records: &mut Records,
        now: Instant,
    ) -> Result<(ChainOutput, Name), Settled> {
        let Some(due) = held_rows.take_due(now) else {
            return Err(self.drop_marker(marker, records));
        };
        let mut rows = self.begin_frame();
        let mut any = AnyRow { needs_edit: true, ..AnyRow::default() };
        let mut released = Vec::new();
        for DueRow { request: handle, held, rows: count, why } in due.rows {
            let Some(request) = self.requests.get(handle) else { continue };
            self.handles.push(handle);
            self.tokens.push(0);
            let counted = held.completion_tokens();
            let row = Row {
                request: handle,
                tokens: 0,
                tokens_so_far: request.before + counted.unwrap_or(request.scheduler_count),
                is_counted: counted.is_some(),
                finish: held.finish().kind(),
                first: false,
                opens: false,
                may_close: request.is_finishing,
                unread: false,
                // A plugin after the one that held the row has ended the request.
                swallowed: request.is_over(),
                hidden: request.is_hidden(),
            };
            any.add(&row, request.count_shift != 0, request.skip_plugin.is_some());
            // A row of Afterbay's own stands for no held row.
            let count = if held.received.rows == 0 { 0 } else { count };
            released.push((held, why, count));
            rows.push(row);
        }
        let mut output = ChainOutput::new(Accounted::released(marker, due.batch, rows, any));
        for (row, (held, why, count)) in (0..).zip(released) {
            output.verdicts.push_release(row, &due.plugin, why, count, held.tokens);
            let plugin = due.plugin.clone();
            output.put_released(ReleasedRow { row, held, in_place: true, plugin, why });
        }
        Ok((output, due.plugin))
    }

    /// Drops a release marker with which no row leaves.
    pub fn drop_marker(&self, marker: Persisted, records: &mut Records) -> Settled {
        records.record_outcome(&without_rows(&marker, Passage::Dropped));
        Settled::undecoded(marker, Content::Nothing)
    }

    /// Holds the released rows again and resets all decisions and their verdicts, because the batch could not be written with
    /// them. Returns the edits that remove the rows that do not leave.
    pub(super) fn hold_again(&self, output: &mut ChainOutput, held_rows: &mut HeldRows) -> Vec<Edit> {
        output.decisions.fill(Decision::UNCHANGED);
        let now = output.accounted().persisted().at().instant;
        for ReleasedRow { row, held, plugin, .. } in output.take_released() {
            let Some(Row { request, .. }) = output.accounted().rows().get(row as usize) else { continue };
            held_rows.hold_again(*request, &plugin, held, now);
            output.verdicts.push_hold_again(row, &plugin);
            output.hold_row(row);
        }
        output.revert_verdicts();
        let rows = (0..).zip(output.accounted().rows());
        let dropped = rows.filter(|(index, row)| row.swallowed || output.is_held(*index));
        dropped.map(|(index, _)| Edit { tokens: TokenEdit::Drop, ..Edit::new(index) }).collect()
    }
}
