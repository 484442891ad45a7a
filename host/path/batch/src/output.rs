//! A batch after the plugin chain, with a decision per row.

use crate::accounted::{Accounted, Row};
use crate::content::Content;
use crate::decision::{Decision, Destination, RowContent, failed};
use crate::held::{HeldRow, ReleasedRow};
use crate::settled::{BatchChange, Settled, SettledContent};
use crate::tokens::ReceivedTokens;
use crate::verdicts::RecordedVerdicts;
use afterbay_events::Name;
use afterbay_journal::StoredReplacement;
use afterbay_wire::{Edit, TokenEdit};

/// An accounted batch with the decisions of the plugin chain.
pub struct ChainOutput {
    accounted: Accounted,
    /// The decision for each row. Empty if no plugin returned a verdict.
    pub decisions: Vec<Decision>,
    /// The verdicts behind the decisions.
    pub verdicts: RecordedVerdicts,
    /// A plugin with a verdict on the batch and `on_fault = "terminate"`.
    pub guard: Option<Name>,
    /// The held rows, ascending.
    held: Vec<u32>,
    /// The rows that are sent with held rows joined to them, ascending by row. Decisions apply to the joined rows.
    released: Vec<ReleasedRow>,
}

impl ChainOutput {
    /// The output of a chain without plugins.
    pub fn new(accounted: Accounted) -> ChainOutput {
        ChainOutput {
            accounted,
            decisions: Vec::new(),
            verdicts: RecordedVerdicts::default(),
            guard: None,
            held: Vec::new(),
            released: Vec::new(),
        }
    }

    /// The accounted batch.
    pub fn accounted(&self) -> &Accounted {
        &self.accounted
    }

    /// Whether the chain sends every row as received. The ledger may still edit rows.
    pub fn is_unchanged(&self) -> bool {
        self.decisions.is_empty() && self.held.is_empty() && self.released.is_empty()
    }

    /// The decisions, one per row.
    pub fn decide(&mut self) -> &mut [Decision] {
        self.decisions.resize(self.accounted.rows().len(), Decision::UNCHANGED);
        &mut self.decisions
    }

    /// The rows that are sent with held rows, ascending.
    pub fn released(&self) -> &[ReleasedRow] {
        &self.released
    }

    /// The row with which held rows are sent at this index.
    pub fn released_at(&self, row: u32) -> Option<&ReleasedRow> {
        let at = self.released.binary_search_by_key(&row, |released| released.row).ok()?;
        self.released.get(at)
    }

    /// Sends this row with held rows joined to it.
    pub fn put_released(&mut self, row: ReleasedRow) {
        match self.released.binary_search_by_key(&row.row, |known| known.row) {
            Ok(at) => self.released[at] = row,
            Err(at) => self.released.insert(at, row),
        }
    }

    /// Removes the released rows that the batch does not contain yet.
    pub fn take_released(&mut self) -> Vec<ReleasedRow> {
        self.released.extract_if(.., |released| !released.in_place).collect()
    }

    /// Whether the row is held.
    pub fn is_held(&self, row: u32) -> bool {
        self.held.binary_search(&row).is_ok()
    }

    /// Marks the row as held: the row does not leave with this batch.
    pub fn hold_row(&mut self, row: u32) {
        if let Err(at) = self.held.binary_search(&row) {
            self.held.insert(at, row);
        }
        if let Ok(at) = self.released.binary_search_by_key(&row, |released| released.row) {
            self.released.remove(at);
        }
    }

    /// Drops the row's tokens and ends its request with an error, because `plugin` had to judge the row and did not.
    pub fn terminate(&mut self, row: u32, plugin: &str, message: &str) {
        let decision = &mut self.decide()[row as usize];
        (decision.content, decision.text) = (RowContent::Dropped, None);
        // An earlier plugin may have finished the request.
        let ends = decision.finish.is_none();
        decision.finish.get_or_insert_with(|| failed(message));
        self.verdicts.push_terminate(row, plugin, message, ends);
    }

    /// Removes the verdicts that change or end a row that leaves with the batch: none is carried out.
    pub fn revert_verdicts(&mut self) {
        let ChainOutput { accounted, verdicts, held, released, .. } = self;
        let in_place = |row: u32| released.iter().find(|released| released.row == row);
        let own = |row: u32| accounted.rows().get(row as usize).map_or(0, |row| row.tokens);
        verdicts.revert(
            |row| held.binary_search(&row).is_ok(),
            |row| in_place(row).map_or_else(|| own(row), |released| released.held.tokens),
        );
    }

    /// The row with the chain's changes so far, but without a finish reason. The error's text is for the operator.
    pub fn to_held_row(&self, row: u32) -> Result<HeldRow, String> {
        let decision = &self.decisions[row as usize];
        // After a restart the held row is rebuilt from the journal.
        if decision.text.as_deref().is_some_and(|text| StoredReplacement::with_text(text).is_none()) {
            return Err("the text that a plugin gave the row is longer than the journal stores".to_owned());
        }
        let mut edit = Edit { text: decision.text.clone(), ..Edit::new(0) };
        let mut held = match self.released_at(row) {
            Some(ReleasedRow { held, .. }) => HeldRow { is_whole: true, ..held.clone() },
            None => {
                let tokens = self.accounted.rows().get(row as usize).map_or(0, |row| row.tokens);
                let frame = self.accounted.persisted().frame();
                HeldRow::new(self.accounted.batch().clone(), row, frame, ReceivedTokens::of_row(tokens))
            }
        };
        let mut received = held.received;
        match &decision.content {
            RowContent::Unchanged => {}
            RowContent::Delta(ids) => {
                (edit.tokens, received) = (TokenEdit::Delta(ids.clone()), received.to_replaced())
            }
            RowContent::Dropped => (edit.tokens, received) = (TokenEdit::Empty, received.to_dropped()),
            RowContent::Cumulative(_) => {
                return Err("the row has all ids so far, so it cannot be joined".to_owned());
            }
        }
        held.edit(edit, received)?;
        Ok(held)
    }

    /// Consumes the output once the outcome is recorded. `requests` and `redirected` are of the rows that are sent. Returns the
    /// rows, too, so that the ledger uses their memory again.
    pub fn into_settled(
        self,
        change: BatchChange,
        requests: Box<[u64]>,
        redirected: Vec<(u32, Destination)>,
    ) -> (Settled, Vec<Row>) {
        let may_begin =
            self.accounted.any().first || self.accounted.is_released() || !self.released.is_empty();
        let (persisted, batch, rows) = self.accounted.into_parts();
        let batch = match change {
            BatchChange::Unchanged => batch,
            BatchChange::Changed(batch) => batch,
            BatchChange::Dropped => {
                return (Settled { persisted, content: SettledContent::without_rows(&batch) }, rows);
            }
        };
        let batch = if may_begin { batch } else { batch.without_first_rows() };
        let content = Content::Rows { batch, requests };
        (Settled { persisted, content: SettledContent { content, to_all: false, redirected } }, rows)
    }
}
