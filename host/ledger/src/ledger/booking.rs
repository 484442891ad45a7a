//! What of a batch is written otherwise than it came, and where its tokens are booked.

use super::Ledger;
use super::released::SettledCounts;
use afterbay_batch::{Accounted, ChainOutput, Decision, RowContent};
use afterbay_runtime::FinishKind;
use afterbay_wire::{Edit, TokenEdit};

impl Ledger {
    /// What must be written otherwise than it came, in order of rows.
    pub fn edits(&self, output: &ChainOutput) -> Vec<Edit> {
        let ChainOutput { accounted: Accounted { batch, rows, is_released, .. }, decisions, .. } = output;
        let mut edits = Vec::new();
        for (index, row) in rows.iter().enumerate() {
            let Some(request) = self.requests.get(row.slot) else { continue };
            let decision = decisions.get(index).unwrap_or(&Decision::KEEP);
            let mut edit = Edit::new(index as u32);
            if output.is_held(index as u32) {
                edit.tokens = TokenEdit::Drop;
                edits.push(edit);
                continue;
            }
            // Of what stands there, and what came of it.
            let instead = output.instead_of(index as u32);
            let (tokens, came) = match instead {
                Some(instead) => (instead.held.tokens, instead.held.came.tokens() as i64),
                None => (row.tokens, i64::from(row.tokens)),
            };
            let mut shift = request.shift;
            if row.swallowed {
                edit.tokens = TokenEdit::Drop;
            } else {
                match &decision.written {
                    RowContent::Unchanged => shift += i64::from(tokens) - came,
                    RowContent::Delta(ids) => {
                        shift += ids.len() as i64 - came;
                        edit.tokens = TokenEdit::Delta(ids.clone());
                    }
                    RowContent::Cumulative(ids) => {
                        shift += i64::from(tokens) - came;
                        edit.tokens = TokenEdit::Cumulative(ids.clone());
                    }
                    RowContent::Dropped => {
                        shift -= came;
                        let last = row.finish != FinishKind::Running || decision.finish.is_some();
                        // The reader must see both ends of a request. Of a frame of Afterbay's own each row leaves, so that
                        // the journal has their requests.
                        let stays = last || !request.reader_knows || *is_released;
                        edit.tokens = if stays { TokenEdit::Empty } else { TokenEdit::Drop };
                    }
                }
                edit.text.clone_from(&decision.text);
                edit.finish.clone_from(&decision.finish);
            }
            if shift != 0 && !matches!(edit.tokens, TokenEdit::Drop) {
                let count = match instead {
                    Some(instead) => instead.held.batch.completion_tokens(0),
                    None => batch.completion_tokens(index as u32),
                };
                edit.completion_tokens = count.map(|count| count.saturating_add_signed(shift));
            }
            if edit != Edit::new(index as u32) {
                edits.push(edit);
            }
        }
        edits
    }

    /// Books where each row's tokens went, by what was really written.
    pub fn book(&mut self, output: &ChainOutput, edits: &[Edit]) {
        let rows = &output.accounted.rows;
        let mut edits = edits.iter().peekable();
        let mut gone = SettledCounts::default();
        for (index, row) in rows.iter().enumerate() {
            let Some(request) = self.requests.get_mut(row.slot) else { continue };
            let edit = edits.next_if(|edit| edit.row == index as u32);
            if output.is_held(index as u32) {
                request.held += u64::from(row.tokens);
                continue;
            }
            let instead = output.instead_of(index as u32);
            let mut came = instead.map_or_else(|| row.came(), |instead| instead.held.came);
            let mut now = instead.map_or(row.tokens, |instead| instead.held.tokens);
            // Its own tokens were never among those.
            request.held -= (came.tokens() - u64::from(row.tokens)).min(request.held);
            match edit.map(|edit| &edit.tokens) {
                None | Some(TokenEdit::Keep) => {}
                Some(TokenEdit::Delta(ids)) => (came, now) = (came.to_replaced(), ids.len() as u32),
                Some(TokenEdit::Cumulative(_)) => came = came.to_replaced(),
                Some(TokenEdit::Empty | TokenEdit::Drop) if row.swallowed => {
                    request.swallowed += came.tokens();
                    gone.swallowed = (gone.swallowed.0 + 1, gone.swallowed.1 + came.tokens());
                    continue;
                }
                Some(TokenEdit::Empty | TokenEdit::Drop) => (came, now) = (came.to_dropped(), 0),
            }
            request.shift += i64::from(now) - came.tokens() as i64;
            request.forwarded += came.forwarded;
            request.replaced += came.replaced;
            request.dropped += came.dropped;
            request.reader_knows |= !matches!(edit.map(|edit| &edit.tokens), Some(TokenEdit::Drop));
            gone.add(came);
        }
        gone.count(&self.telemetry.counters);
    }
}
