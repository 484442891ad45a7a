//! The columns that the chain is shown, and what a verdict of one row does to it.

use afterbay_batch::{
    Accounted, ChainOutput, Decision, Destination, RecordedVerdicts, Row, RowContent, aborted,
};
use afterbay_hold::HeldRows;
use afterbay_journal as journal;
use afterbay_journal::{PluginAction, StoredReplacement};
use afterbay_runtime::{
    Action, ColumnSet, Columns, Ending, FinishKind, IdShape, PlainColumns, Replacement, Verdict,
};
use afterbay_wire::{FinishReason, Ids};

/// The columns that the chain is shown, as the plugins before have left them.
#[derive(Default)]
pub(super) struct ChainInput {
    /// The batch's row of each row shown; health checks and swallowed rows are left out.
    pub(super) rows: Vec<u32>,
    pub(super) requests: Vec<u64>,
    /// Tokens of each row, whether or not a plugin asked for the ids. Empty until a plugin says something.
    pub(super) tokens: Vec<u32>,
    ids: Ids,
    plain: PlainColumns,
}

impl ChainInput {
    /// Fills the columns that are wanted from the batch as it came.
    pub(super) fn show(&mut self, accounted: &Accounted, wants: ColumnSet) {
        let (batch, rows, any) = (accounted.batch(), accounted.rows(), accounted.any());
        self.clear();
        match any.hidden {
            true => {
                let seen = (0..).zip(rows).filter(|(_, row)| !row.hidden);
                self.rows.extend(seen.map(|(index, _)| index));
            }
            false => self.rows.extend(0..rows.len() as u32),
        }
        // Column by column: of what is known to be so long room is made once, and not asked for by each row.
        fill(&mut self.requests, rows, &self.rows, |row| row.number);
        if wants.contains(ColumnSet::COMPLETION_TOKENS) {
            fill(&mut self.plain.completion_tokens, rows, &self.rows, |row| {
                row.completion_tokens.unwrap_or(0)
            });
        }
        if wants.contains(ColumnSet::FINISHED) {
            fill(&mut self.plain.finished, rows, &self.rows, |row| row.finish);
        }
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

    /// Counts each row's tokens, as the batch came.
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

    /// The columns. The chain adds texts and held rows for each plugin.
    pub(super) fn columns(&self) -> Columns<'_> {
        Columns {
            requests: &self.requests,
            output_ids: &self.ids.values,
            output_ends: &self.ids.ends,
            ..self.plain.columns()
        }
    }

    /// Each row's text as the plugins before have left it; none where rows have no text.
    pub(super) fn texts<'b>(&self, output: &'b ChainOutput) -> Vec<&'b str> {
        let text = |row: &u32| {
            let decision = output.decisions.get(*row as usize);
            let written = decision.and_then(|decision| decision.text.as_deref());
            let came = match output.released_at(*row) {
                Some(instead) => instead.held.batch.text(0),
                None => output.accounted().batch().text(*row),
            };
            came.map(|came| match decision.map(|decision| &decision.content) {
                Some(RowContent::Dropped) => "",
                _ => written.unwrap_or(came),
            })
        };
        self.rows.iter().map_while(text).collect()
    }

    /// The rows with which requests begin.
    pub(super) fn begun(&self, accounted: &Accounted) -> Vec<u32> {
        if !accounted.any().first {
            return Vec::new();
        }
        self.rows.iter().copied().filter(|row| accounted.rows()[*row as usize].first).collect()
    }

    /// How many rows of each row's request the plugin holds.
    pub(super) fn waiting(&self, held_rows: &HeldRows, plugin: &str) -> Vec<u32> {
        self.requests.iter().map(|request| held_rows.rows_held(*request, plugin)).collect()
    }

    /// Enters one verdict into its row's fate.
    pub(super) fn apply(
        &mut self,
        verdict: Verdict,
        shape: IdShape,
        plugin: &str,
        decisions: &mut [Decision],
        verdicts: &mut RecordedVerdicts,
    ) {
        if let Action::FinishAs(Ending { matched, instead }) = verdict.action {
            // One after the other: so it stands in the journal.
            let forwarded = instead.ids.len() as u32;
            for action in [Action::Replace(instead), Action::Finish(matched)] {
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
        let mut said = PluginAction {
            row,
            plugin: plugin.to_owned().into(),
            verdict: journal::Verdict::Replace,
            text: "".into(),
            ids: Vec::new().into(),
            forwarded: tokens,
        };
        match verdict.action {
            Action::Replace(Replacement { ids, text }) => {
                said.text = text.as_deref().and_then(StoredReplacement::with_text).unwrap_or_default().into();
                // Without one it stays as the plugins before have left it.
                decision.text = text.or(decision.text.take());
                said.forwarded = ids.len() as u32;
                decision.content = match shape {
                    IdShape::Delta => {
                        said.ids = ids.clone().into();
                        RowContent::Delta(ids)
                    }
                    IdShape::Cumulative => {
                        // All ids so far stand in the journal already, in the request's rows.
                        said.forwarded = tokens;
                        said.text = StoredReplacement::cumulative(ids.len()).into();
                        RowContent::Cumulative(ids)
                    }
                };
            }
            Action::Drop(reason) => {
                said.verdict = journal::Verdict::Drop;
                said.text = reason.into();
                said.forwarded = 0;
                (decision.content, decision.text) = (RowContent::Dropped, None);
            }
            Action::Finish(matched) => {
                said.verdict = journal::Verdict::Finish;
                said.text = matched.clone().into();
                decision.finish = Some(FinishReason::Stop(matched));
            }
            Action::Abort(message) => {
                said.verdict = journal::Verdict::Abort;
                decision.finish = Some(aborted(&message));
                said.text = message.into();
            }
            Action::Route(sink) => {
                said.verdict = journal::Verdict::Route;
                said.text = sink.clone().into();
                decision.destination = Some(Destination::To(sink));
            }
            Action::SkipDetokenization => {
                said.verdict = journal::Verdict::SkipDetokenizing;
                decision.destination = Some(Destination::SkipDetokenizer);
            }
            Action::Annotate(note) => {
                said.verdict = journal::Verdict::Annotate;
                said.text = note.into();
            }
            // Those are not of one row only: `holding` carries them out. The last is two.
            Action::Hold(_)
            | Action::Release
            | Action::ReleaseAs(_)
            | Action::ReleaseAndHold(_)
            | Action::FinishAs(_) => return,
        }
        verdicts.push(said);
    }

    /// Makes the columns anew as the next plugin is to see them.
    pub(super) fn rebuild(&mut self, output: &ChainOutput) {
        let before = std::mem::take(self);
        let mut begin = 0;
        for (shown, row) in before.rows.iter().enumerate() {
            // Empty where no plugin asked for ids.
            let end = before.ids.ends.get(shown).copied().unwrap_or(0) as usize;
            let came = before.ids.values.get(begin..end).unwrap_or_default();
            begin = end;
            if output.is_held(*row) {
                continue;
            }
            let Some(decision) = output.decisions.get(*row as usize) else { continue };
            self.rows.push(*row);
            self.requests.push(before.requests[shown]);
            self.plain.push_row_of(&before.plain, shown);
            if let (Some(finish), Some(finished)) = (&decision.finish, self.plain.finished.last_mut()) {
                *finished = match finish {
                    FinishReason::Stop(_) => FinishKind::Stop,
                    FinishReason::Abort { .. } => FinishKind::Abort,
                };
            }
            let start = self.ids.values.len();
            match (&decision.content, output.released_at(*row)) {
                (RowContent::Unchanged, Some(instead)) => instead.held.batch.row_ids(0, &mut self.ids.values),
                (RowContent::Unchanged, None) => self.ids.values.extend_from_slice(came),
                (RowContent::Delta(ids) | RowContent::Cumulative(ids), _) => {
                    self.ids.values.extend_from_slice(ids)
                }
                (RowContent::Dropped, _) => {}
            }
            self.tokens.push(match &decision.content {
                RowContent::Unchanged => before.tokens[shown],
                _ => (self.ids.values.len() - start) as u32,
            });
            self.ids.ends.push(self.ids.values.len() as u32);
        }
    }
}

/// Fills a column with what each row that is shown has.
fn fill<T>(column: &mut Vec<T>, rows: &[Row], shown: &[u32], of: impl Fn(&Row) -> T) {
    match shown.len() == rows.len() {
        true => column.extend(rows.iter().map(of)),
        false => column.extend(shown.iter().map(|row| of(&rows[*row as usize]))),
    }
}
