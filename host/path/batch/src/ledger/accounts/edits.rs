//! The edits that carry out the chain's decisions, and the counts of the tokens after these edits.

use super::Ledger;
use crate::{ChainOutput, Decision, ReceivedTokens, Row, RowContent};
use afterbay_events::StreamCounters;
use afterbay_wire::{Edit, FinishKind, TokenEdit};

impl Ledger {
    /// The edits of all rows that are not sent as received, in order of rows.
    pub(super) fn edits(&self, output: &ChainOutput) -> Vec<Edit> {
        let accounted = output.accounted();
        let mut edits = Vec::new();
        for (index, row) in (0..).zip(accounted.rows()) {
            let Some(request) = self.requests.get(row.request) else { continue };
            let decision = output.decisions.get(index as usize).unwrap_or(&Decision::UNCHANGED);
            let mut edit = Edit::new(index);
            if output.is_held(index) {
                edit.tokens = TokenEdit::Drop;
                edits.push(edit);
                continue;
            }
            let released = output.released_at(index);
            let (tokens, received) = match released {
                Some(released) => (released.held.tokens, released.held.received.total() as i64),
                None => (row.tokens, i64::from(row.tokens)),
            };
            let mut shift = request.count_shift;
            if row.swallowed {
                edit.tokens = TokenEdit::Drop;
            } else {
                match &decision.content {
                    RowContent::Unchanged => shift += i64::from(tokens) - received,
                    RowContent::Delta(ids) => {
                        shift += ids.len() as i64 - received;
                        edit.tokens = TokenEdit::Delta(ids.clone());
                    }
                    RowContent::Cumulative(ids) => {
                        shift += i64::from(tokens) - received;
                        edit.tokens = TokenEdit::Cumulative(ids.clone());
                    }
                    RowContent::Dropped => {
                        shift -= received;
                        let is_last = row.finish != FinishKind::Running || decision.finish.is_some();
                        // The reader gets the first and the last row of each request. All rows of a released batch are sent, so
                        // that the journal has their requests.
                        let stays = is_last || !request.reader_has_row || accounted.is_released();
                        edit.tokens = if stays { TokenEdit::Empty } else { TokenEdit::Drop };
                    }
                }
                edit.text.clone_from(&decision.text);
                edit.finish.clone_from(&decision.finish);
            }
            if shift != 0 && !matches!(edit.tokens, TokenEdit::Drop) {
                let count = match released {
                    Some(released) => released.held.completion_tokens(),
                    None => accounted.batch().completion_tokens(index),
                };
                edit.completion_tokens = count.map(|count| count.saturating_add_signed(shift));
            }
            if edit != Edit::new(index) {
                edits.push(edit);
            }
        }
        edits
    }

    /// Counts each row's tokens by the edits that were applied.
    pub(super) fn count_tokens(&mut self, output: &ChainOutput, edits: &[Edit]) {
        if edits.is_empty() && output.is_unchanged() {
            return self.count_unchanged(output.accounted().rows());
        }
        let mut edits = edits.iter().peekable();
        let mut counts = SettledCounts::default();
        for (index, row) in (0..).zip(output.accounted().rows()) {
            let Some(request) = self.requests.get_mut(row.request) else { continue };
            let decision = output.decisions.get(index as usize);
            let ends = decision.is_some_and(|decision| decision.finish.is_some());
            if !row.swallowed && (ends || row.finish != FinishKind::Running) {
                request.is_last_held = output.is_held(index);
            }
            let edit = edits.next_if(|edit| edit.row == index).map(|edit| &edit.tokens);
            if output.is_held(index) {
                request.held += u64::from(row.tokens);
                continue;
            }
            let released = output.released_at(index).map(|released| &released.held);
            let mut received = released.map_or(ReceivedTokens::of_row(row.tokens), |held| held.received);
            let mut sent = released.map_or(row.tokens, |held| held.tokens);
            // The row's own tokens were never counted as held.
            request.held -= (received.total() - u64::from(row.tokens)).min(request.held);
            match edit {
                None | Some(TokenEdit::Keep) => {}
                Some(TokenEdit::Delta(ids)) => (received, sent) = (received.to_replaced(), ids.len() as u32),
                Some(TokenEdit::Cumulative(_)) => received = received.to_replaced(),
                Some(TokenEdit::Empty | TokenEdit::Drop) if row.swallowed => {
                    request.swallowed += received.total();
                    counts.swallowed = (counts.swallowed.0 + 1, counts.swallowed.1 + received.total());
                    continue;
                }
                Some(TokenEdit::Empty | TokenEdit::Drop) => (received, sent) = (received.to_dropped(), 0),
            }
            request.count_shift += i64::from(sent) - received.total() as i64;
            request.forwarded += received.forwarded;
            request.replaced += received.replaced;
            request.dropped += received.dropped;
            request.reader_has_row |= !matches!(edit, Some(TokenEdit::Drop));
            counts.add(received);
        }
        counts.add_to(&self.telemetry.counters);
    }

    /// Counts the tokens of rows that are all sent as received: the usual batch, so it skips what only a changed batch needs.
    fn count_unchanged(&mut self, rows: &[Row]) {
        let mut counts = SettledCounts::default();
        for row in rows {
            let Some(request) = self.requests.get_mut(row.request) else { continue };
            request.is_last_held &= row.swallowed || row.finish == FinishKind::Running;
            request.forwarded += u64::from(row.tokens);
            request.reader_has_row = true;
            counts.forwarded.0 += 1;
            counts.forwarded.1 += u64::from(row.tokens);
        }
        counts.add_to(&self.telemetry.counters);
    }
}

/// The rows and tokens of one settled batch, by what happened to them. Pairs are rows and tokens.
#[derive(Default)]
struct SettledCounts {
    forwarded: (u64, u64),
    /// Rows only: no counter has the replaced tokens.
    replaced: u64,
    dropped: (u64, u64),
    swallowed: (u64, u64),
}

impl SettledCounts {
    /// Adds a row, with the held rows that are joined to it. All its rows are counted together: as replaced if a token was
    /// replaced and none is unchanged, as dropped if all tokens were dropped, and otherwise as forwarded.
    fn add(&mut self, received: ReceivedTokens) {
        self.forwarded.1 += received.forwarded;
        self.dropped.1 += received.dropped;
        let rows = match received {
            ReceivedTokens { forwarded: 0, replaced: 0, dropped: 1.., .. } => &mut self.dropped.0,
            ReceivedTokens { forwarded: 0, replaced: 1.., .. } => &mut self.replaced,
            _ => &mut self.forwarded.0,
        };
        *rows += received.rows;
    }

    fn add_to(&self, counters: &StreamCounters) {
        counters.rows_forwarded.add(self.forwarded.0);
        counters.tokens_forwarded.add(self.forwarded.1);
        counters.rows_replaced.add(self.replaced);
        counters.rows_dropped.add(self.dropped.0);
        counters.tokens_dropped.add(self.dropped.1);
        counters.rows_swallowed.add(self.swallowed.0);
        counters.tokens_swallowed.add(self.swallowed.1);
    }
}
