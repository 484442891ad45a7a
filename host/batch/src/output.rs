//! A batch that the whole plugin chain has seen.

use crate::accounted::Accounted;
use crate::decision::{Decision, RowContent};
use crate::held::{HeldRow, ReleasedRow};
use crate::recorded::RecordedVerdicts;
use crate::tokens::ReceivedTokens;
use afterbay_events::Name;
use afterbay_journal::StoredReplacement;
use afterbay_wire::{Edit, TokenEdit};

/// A batch that the whole chain has seen.
pub struct ChainOutput {
    pub accounted: Accounted,
    /// By row; empty where no plugin said anything.
    pub decisions: Vec<Decision>,
    pub actions: RecordedVerdicts,
    /// The rows that wait, ascending.
    pub held: Vec<u32>,
    /// What stands in the place of rows with which others go on, ascending by row. Fates are of that.
    pub instead: Vec<ReleasedRow>,
    /// A plugin that said something of the batch and lets nothing pass that it has not judged.
    pub guard: Option<Name>,
}

impl ChainOutput {
    /// No plugin was asked yet.
    pub fn new(accounted: Accounted) -> ChainOutput {
        ChainOutput {
            accounted,
            decisions: Vec::new(),
            actions: RecordedVerdicts::default(),
            held: Vec::new(),
            instead: Vec::new(),
            guard: None,
        }
    }
}

impl ChainOutput {
    /// What stands in the place of this row.
    pub fn instead_of(&self, row: u32) -> Option<&ReleasedRow> {
        let at = self.instead.binary_search_by_key(&row, |instead| instead.row).ok()?;
        self.instead.get(at)
    }

    /// This row waits.
    pub fn is_held(&self, row: u32) -> bool {
        self.held.binary_search(&row).is_ok()
    }

    pub fn stand(&mut self, instead: ReleasedRow) {
        match self.instead.binary_search_by_key(&instead.row, |known| known.row) {
            Ok(at) => self.instead[at] = instead,
            Err(at) => self.instead.insert(at, instead),
        }
    }

    /// This row waits from now on.
    pub fn wait(&mut self, row: u32) {
        if let Err(at) = self.held.binary_search(&row) {
            self.held.insert(at, row);
        }
        if let Ok(at) = self.instead.binary_search_by_key(&row, |known| known.row) {
            self.instead.remove(at);
        }
    }

    /// The row by itself, as the chain has made it so far, without its finish. It stays where it is.
    pub fn by_itself(&self, row: u32) -> Result<HeldRow, String> {
        let decision = &self.decisions[row as usize];
        // It is made again out of the journal, where it must.
        if decision.text.as_deref().is_some_and(|text| StoredReplacement::with_text(text).is_none()) {
            return Err("the text that a plugin gave it is longer than the journal keeps".to_owned());
        }
        let mut edit = Edit { text: decision.text.clone(), ..Edit::new(0) };
        let (batch, mut came, frame, is_made) = match self.instead_of(row) {
            Some(ReleasedRow { held, .. }) => (held.batch.take(&[0]), held.came, held.frame, held.is_made),
            None => (
                self.accounted.batch.take(&[row]),
                ReceivedTokens::row(self.tokens_of(row)),
                self.accounted.persisted.frame,
                false,
            ),
        };
        match &decision.written {
            RowContent::Unchanged => {}
            RowContent::Delta(ids) => {
                (edit.tokens, came) = (TokenEdit::Delta(ids.clone()), came.to_replaced())
            }
            RowContent::Dropped => (edit.tokens, came) = (TokenEdit::Empty, came.to_dropped()),
            RowContent::Cumulative(_) => {
                return Err("all ids so far stand in it: it cannot be joined".to_owned());
            }
        }
        let batch = batch.map_err(|error| error.to_string())?;
        let mut held = HeldRow { is_made, ..HeldRow::new(batch, frame, came) };
        held.edit(edit, came)?;
        Ok(held)
    }

    pub fn tokens_of(&self, row: u32) -> u32 {
        self.accounted.rows.get(row as usize).map_or(0, |row| row.tokens)
    }
}
