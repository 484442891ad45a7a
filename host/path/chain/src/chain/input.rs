//! The columns that each plugin of the chain sees, and the effect of one verdict on its row.

use afterbay_batch::hold::HeldRows;
use afterbay_batch::{
    Accounted, ChainOutput, Decision, Destination, RecordedVerdicts, Row, RowContent, recorded_end,
};
use afterbay_journal as journal;
use afterbay_journal::{PluginAction, StoredReplacement};
use afterbay_runtime::{
    Action, ColumnSet, Columns, Ending, FinishKind, IdShape, PlainColumns, Replacement, Verdict,
};
use afterbay_wire::{self as wire, FinishReason, Ids};

/// The columns of a batch after the plugins that were already called.
#[derive(Default)]
pub(super) struct ChainInput {
    /// The index in the batch of each row that plugins see. Health checks and swallowed rows are left out.
    pub(super) rows: Vec<u32>,
    pub(super) requests: Vec<u64>,
    /// The number of tokens of each row. Empty until a plugin gives a verdict.
    pub(super) tokens: Vec<u32>,
    pub(super) ids: Ids,
    pub(super) plain: PlainColumns,
    time_ms: u64,
}

impl ChainInput {
    /// Fills the wanted columns from the batch as it was received.
    pub(super) fn show(&mut self, accounted: &Accounted, wants: ColumnSet) {
        let (batch, rows, any) = (accounted.batch(), accounted.rows(), accounted.any());
        self.clear();
        self.time_ms = accounted.persisted().at().unix_ms();
        match any.hidden {
            true => {
                let seen = (0..).zip(rows).filter(|(_, row)| !row.hidden);
                self.rows.extend(seen.map(|(index, _)| index));
            }
            false => self.rows.extend(0..rows.len() as u32),
        }
        // Column by column: each column allocates once.
        fill(&mut self.requests, rows, &self.rows, |row| row.number());
        if wants.contains(ColumnSet::COMPLETION_TOKENS) {
            fill(&mut self.plain.completion_tokens, rows, &self.rows, |row| row.tokens_so_far);
        }
        if wants.contains(ColumnSet::FINISHED) {
            fill(&mut self.plain.finished, rows, &self.rows, |row| finish_kind(row.finish));
        }
        self.show_counts(batch, wants);
        if !wants.contains(ColumnSet::OUTPUT_IDS) {
            return;
        }
        if !any.hidden {
            batch.output_ids(&mut self.ids);
            return;
        }
        for row in &self.rows {
            batch.row_ids(*row, &mut self.ids.values);
            self.ids.ends.push(self.ids.values.len() as u32);
        }
    }

    /// Fills `tokens` with the tokens of each row as it was received.
    pub(super) fn count(&mut self, accounted: &Accounted) {
        let (batch, rows) = (accounted.batch(), accounted.rows());
        match accounted.is_released() {
            true => self.tokens.extend(self.rows.iter().map(|row| batch.tokens(*row))),
            false => fill(&mut self.tokens, rows, &self.rows, |row| row.tokens),
        }
    }

    pub(super) fn clear(&mut self) {
        self.rows.clear();
        self.requests.clear();
        self.tokens.clear();
        self.ids.values.clear();
        self.ids.ends.clear();
        self.plain.clear();
    }

    /// The columns. The chain adds texts, facts and held rows for each plugin.
    pub(super) fn columns(&self) -> Columns<'_> {
        Columns {
            time_ms: self.time_ms,
            requests: &self.requests,
            output_ids: &self.ids.values,
            output_ends: &self.ids.ends,
            ..self.plain.columns()
        }
    }

    /// The text of each row after the plugins that were already called. Empty if the rows have no text.
    pub(super) fn texts<'b>(&self, output: &'b ChainOutput) -> Vec<&'b str> {
        let text = |row: &u32| {
            let decision = output.decisions.get(*row as usize);
            let replaced = decision.and_then(|decision| decision.text.as_deref());
            let received = match output.released_at(*row) {
                Some(instead) => instead.held.text(),
                None => output.accounted().batch().text(*row),
            };
            received.map(|received| match decision.map(|decision| &decision.content) {
                Some(RowContent::Dropped) => "",
                _ => replaced.unwrap_or(received),
            })
        };
        self.rows.iter().map_while(text).collect()
    }

    /// The first rows of requests.
    pub(super) fn begun(&self, accounted: &Accounted) -> Vec<u32> {
        if !accounted.any().opens {
            return Vec::new();
        }
        self.rows.iter().copied().filter(|row| accounted.rows()[*row as usize].opens).collect()
    }

    /// The number of rows that the plugin holds of each row's request.
    pub(super) fn waiting(&self, held_rows: &HeldRows, plugin: &str) -> Vec<u32> {
        self.requests.iter().map(|request| held_rows.rows_held(*request, plugin)).collect()
    }

    /// Applies one verdict to the decision for its row, and records it.
    pub(super) fn apply(
        &mut self,
        verdict: Verdict,
        shape: IdShape,
        plugin: &str,
        decisions: &mut [Decision],
        verdicts: &mut RecordedVerdicts,
    ) {
        if let Action::Finish(Ending { reason, replacement: Some(replacement) }) = verdict.action {
            // The journal records two verdicts.
            let forwarded = replacement.ids.len() as u32;
            let finish = Action::Finish(Ending { reason, replacement: None });
            for action in [Action::Replace(replacement), finish] {
                self.apply(Verdict { action, ..verdict }, shape, plugin, decisions, verdicts);
            }
            if let (IdShape::Delta, Some(finish)) = (shape, verdicts.last_mut()) {
                finish.forwarded = forwarded;
            }
            return;
        }
        let Some(row) = self.rows.get(verdict.row as usize).copied() else { return };
        let Some(decision) = decisions.get_mut(row as usize) else { return };
        let tokens = self.tokens.get(verdict.row as usize).copied().unwrap_or(0);
        let mut recorded = PluginAction {
            row,
            plugin: plugin.to_owned().into(),
            verdict: journal::Verdict::Replace,
            text: "".into(),
            ids: Vec::new().into(),
            forwarded: tokens,
        };
        match verdict.action {
            Action::Replace(Replacement { ids, text }) => {
                recorded.text =
                    text.as_deref().and_then(StoredReplacement::with_text).unwrap_or_default().into();
                // Without a text, the text of the plugins before stays.
                decision.text = text.or(decision.text.take());
                recorded.forwarded = ids.len() as u32;
                decision.content = match shape {
                    IdShape::Delta => {
                        recorded.ids = ids.clone().into();
                        RowContent::Delta(ids)
                    }
                    IdShape::Cumulative => {
                        // The journal has all ids already, in the request's rows.
                        recorded.forwarded = tokens;
                        recorded.text = StoredReplacement::cumulative(ids.len()).into();
                        RowContent::Cumulative(ids)
                    }
                };
            }
            Action::Drop(reason) => {
                recorded.verdict = journal::Verdict::Drop;
                recorded.text = reason.into();
                recorded.forwarded = 0;
                (decision.content, decision.text) = (RowContent::Dropped, None);
            }
            Action::Finish(Ending { reason, .. }) => {
                let finish = ending(&reason);
                let (verdict, text) = recorded_end(&finish);
                (recorded.verdict, recorded.text) = (verdict, text.into());
                decision.finish = Some(finish);
            }
            Action::Route(sink) => {
                recorded.verdict = journal::Verdict::Route;
                recorded.text = sink.clone().into();
                decision.destination = Some(Destination::To(sink));
            }
            Action::SkipText => {
                recorded.verdict = journal::Verdict::SkipText;
                decision.destination = Some(Destination::SkipText);
            }
            Action::Annotate(note) => {
                recorded.verdict = journal::Verdict::Annotate;
                recorded.text = note.into();
            }
            // `holding` applies the verdicts that concern several rows.
            Action::Hold(_) | Action::Release | Action::ReleaseAs(_) | Action::ReleaseAndHold(_) => return,
        }
        verdicts.push(recorded);
    }

    /// Makes the columns that the next plugin sees.
    pub(super) fn rebuild(&mut self, output: &ChainOutput) {
        let before = std::mem::take(self);
        self.time_ms = before.time_ms;
        let mut begin = 0;
        for (index, row) in before.rows.iter().enumerate() {
            // Empty if no plugin asked for ids.
            let end = before.ids.ends.get(index).copied().unwrap_or(0) as usize;
            let received = before.ids.values.get(begin..end).unwrap_or_default();
            begin = end;
            if output.is_held(*row) {
                continue;
            }
            let Some(decision) = output.decisions.get(*row as usize) else { continue };
            self.rows.push(*row);
            self.requests.push(before.requests[index]);
            self.plain.push_row_of(&before.plain, index);
            if let (Some(finish), Some(finished)) = (&decision.finish, self.plain.finished.last_mut()) {
                *finished = finish_kind(finish.kind());
            }
            let start = self.ids.values.len();
            match (&decision.content, output.released_at(*row)) {
                (RowContent::Unchanged, Some(instead)) => instead.held.ids(&mut self.ids.values),
                (RowContent::Unchanged, None) => self.ids.values.extend_from_slice(received),
                (RowContent::Delta(ids) | RowContent::Cumulative(ids), _) => {
                    self.ids.values.extend_from_slice(ids)
                }
                (RowContent::Dropped, _) => {}
            }
            self.tokens.push(match &decision.content {
                RowContent::Unchanged => before.tokens[index],
                _ => (self.ids.values.len() - start) as u32,
            });
            self.ids.ends.push(self.ids.values.len() as u32);
        }
    }
}

/// The end of a request, for the wire.
pub(super) fn ending(reason: &afterbay_runtime::FinishReason) -> FinishReason {
    use afterbay_runtime::{Failure, FinishReason as Given};
    match reason {
        Given::Stop(matched) => FinishReason::Stop(matched.clone()),
        Given::Length => FinishReason::Length,
        Given::Abort(message) => FinishReason::Abort(message.clone()),
        Given::Error(Failure { status, message }) => {
            FinishReason::Error { status: *status, message: message.clone() }
        }
    }
}

/// The column's value for how a row ends its request.
pub fn finish_kind(finish: wire::FinishKind) -> FinishKind {
    match finish {
        wire::FinishKind::Running => FinishKind::Running,
        wire::FinishKind::Stop => FinishKind::Stop,
        wire::FinishKind::Length => FinishKind::Length,
        wire::FinishKind::Abort | wire::FinishKind::Error => FinishKind::Abort,
        wire::FinishKind::Other => FinishKind::Other,
    }
}

/// Fills a column with one value for each row that plugins see.
fn fill<T>(column: &mut Vec<T>, rows: &[Row], seen: &[u32], value: impl Fn(&Row) -> T) {
    match seen.len() == rows.len() {
        true => column.extend(rows.iter().map(value)),
        false => column.extend(seen.iter().map(|row| value(&rows[*row as usize]))),
    }
}
