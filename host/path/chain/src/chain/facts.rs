//! The columns of what the engine says beside the tokens, for each plugin that asks for them.

use afterbay_batch::{ChainOutput, RowContent};
use afterbay_runtime::{ColumnSet, PlainColumns, TokenColumns};
use afterbay_wire as wire;

use super::input::ChainInput;
use crate::row_facts::{row_counts, row_facts};

impl ChainInput {
    /// Fills the wanted columns of counts that only the engine keeps.
    pub(super) fn show_counts(&mut self, batch: &wire::Batch, wants: ColumnSet) {
        let of_drafts = ColumnSet::DRAFTED_TOKENS | ColumnSet::ACCEPTED_TOKENS;
        if !wants.intersects(ColumnSet::CACHED_TOKENS | ColumnSet::REASONING_TOKENS | of_drafts) {
            return;
        }
        let PlainColumns { cached_tokens, reasoning_tokens, drafted_tokens, accepted_tokens, .. } =
            &mut self.plain;
        for row in &self.rows {
            let values = row_counts(batch, *row);
            for (column, flag, value) in [
                (&mut *cached_tokens, ColumnSet::CACHED_TOKENS, values.cached_tokens),
                (&mut *reasoning_tokens, ColumnSet::REASONING_TOKENS, values.reasoning_tokens),
                (&mut *drafted_tokens, ColumnSet::DRAFTED_TOKENS, values.drafted_tokens),
                (&mut *accepted_tokens, ColumnSet::ACCEPTED_TOKENS, values.accepted_tokens),
            ] {
                column.extend(wants.contains(flag).then_some(value));
            }
        }
    }

    /// The facts of each row after the plugins that were already called: tokens that a plugin replaced have none.
    pub(super) fn facts(&self, output: &ChainOutput, wants: ColumnSet) -> TokenColumns {
        let mut columns = TokenColumns::default();
        let of_tokens = ColumnSet::LOGPROBS | ColumnSet::TOP_LOGPROBS;
        if !wants.intersects(of_tokens | ColumnSet::WEIGHT_VERSIONS) {
            return columns;
        }
        let mut start = 0;
        for (index, row) in self.rows.iter().enumerate() {
            let end = self.ids.ends.get(index).map_or(start, |end| *end as usize);
            let decision = output.decisions.get(*row as usize);
            let (batch, of_batch) = match output.released_at(*row) {
                Some(instead) => instead.held.batch_row(),
                None => (output.accounted().batch(), *row),
            };
            let mut facts = row_facts(batch, of_batch, wants);
            if decision.is_some_and(|decision| !matches!(decision.content, RowContent::Unchanged)) {
                facts.forget_tokens();
            }
            columns.push(end - start, &facts);
            start = end;
        }
        columns
    }
}
