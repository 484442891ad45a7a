//! The held rows of one request, and the time at which they leave.

use crate::HeldRow;
use crate::joins::{JoinEnds, Joins};
use afterbay_events::{HoldEnd, Name};
use afterbay_journal::{FrameNo, JournalRequest};
use afterbay_text::TextProgress;
use std::time::Instant;

/// The rows of one request that one plugin holds.
#[derive(Debug)]
pub(super) struct PluginHold {
    pub(super) plugin: Name,
    pub(super) request: JournalRequest,
    pub(super) rows: Vec<HeldRow>,
    /// For each row, when it leaves if nothing releases it earlier.
    pub(super) deadlines: Vec<Instant>,
    /// The first `released` rows are released by the plugin and wait for the text to be whole, or for the next frame.
    pub(super) released: usize,
    /// The time at which the released rows leave, whether the text is whole or not.
    pub(super) release_deadline: Instant,
    /// The time at which the rows that the plugin still holds leave.
    pub(super) hold_deadline: Instant,
    /// Set once all rows are to leave, with the reason.
    pub(super) end: Option<HoldEnd>,
    /// Set once the rows are to leave as the last row of their request.
    pub(super) ends_request: bool,
    /// The state of the text after the last row.
    pub(super) progress: TextProgress,
}

/// The time at which rows leave. `None`: at once.
pub(super) type LeaveAt = Option<Instant>;

/// The held rows of one request.
#[derive(Debug)]
pub(super) struct RequestHolds {
    /// The frame of the row with which the request began to have held rows. A later frame may release that row.
    pub(super) since: FrameNo,
    /// The time at which rows of the request leave if nothing else happens: its entry in `HeldRows::due`.
    pub(super) due: Option<LeaveAt>,
    pub(super) of_plugins: Vec<PluginHold>,
}

impl RequestHolds {
    /// The time at which rows leave if nothing else happens. Rows that cannot leave at the time of their release or hold need no wake-up.
    pub(super) fn leave_at(&self, joins: &Joins) -> Option<LeaveAt> {
        let at = |hold: &PluginHold| {
            let free = (hold.released > 0).then_some(hold.release_deadline);
            let held = (hold.released < hold.rows.len()).then_some(hold.hold_deadline);
            let [first, last] = [free.min(held), free.max(held)];
            [None, first, last].into_iter().find(|at| hold.due(*at, joins).is_some())
        };
        self.of_plugins.iter().filter_map(at).min()
    }
}

impl PluginHold {
    /// Ends the hold. One that has ended before keeps its first reason, but at the end of the stream the rows do not wait for
    /// whole text.
    pub(super) fn end(&mut self, why: HoldEnd) {
        if self.end.is_none() || why == HoldEnd::Stop {
            self.end = Some(why);
        }
    }

    /// Whether the deadline of the last rows has passed.
    pub(super) fn is_past_deadline(&self, now: Instant) -> bool {
        let until = if self.released < self.rows.len() { self.hold_deadline } else { self.release_deadline };
        until <= now
    }

    /// How many rows, counted from the first, leave at this time as one, and why.
    pub(super) fn due(&self, at: LeaveAt, joins: &Joins) -> Option<(usize, HoldEnd)> {
        let (rows, why) = self.due_in_all(at, &joins.ends)?;
        if !joins.has_single_rows() {
            return Some((rows, why));
        }
        let first = self.rows.first()?;
        let may_leave = !first.is_joined || joins.ends.vocabulary(first.kind()).is_none();
        let whole = || self.rows[..rows].iter().position(|row| row.is_whole).map_or(rows, |at| at + 1);
        Some((if may_leave { 1 } else { whole() }, why))
    }

    /// How many rows, counted from the first, leave at this time, and why.
    fn due_in_all(&self, at: LeaveAt, joins: &JoinEnds) -> Option<(usize, HoldEnd)> {
        if self.ends_request && self.released > 0 {
            // The released rows are no part of the request's last row.
            let is_free = joins.vocabulary(self.rows.first()?.kind()).is_none();
            let part = self.rows[..self.released].iter().rposition(|row| is_free || row.is_whole);
            if let Some(last) = part {
                return Some((last + 1, HoldEnd::Verdict));
            }
        }
        let is_hold_over = self.released < self.rows.len() && Some(self.hold_deadline) <= at;
        let (rows, why) = match self.end {
            Some(why) => (self.rows.len(), why),
            None if is_hold_over => (self.rows.len(), HoldEnd::Time),
            None if self.released > 0 && Some(self.release_deadline) <= at => {
                (self.released, HoldEnd::Verdict)
            }
            None => return None,
        };
        let kind = self.rows.first()?.kind();
        if joins.vocabulary(kind).is_none() || why == HoldEnd::Stop {
            return Some((rows, why));
        }
        // No later row makes the text whole.
        if self.ends_request || self.rows[..rows].last().is_some_and(HeldRow::is_last) {
            return Some((rows, why));
        }
        match self.rows[..rows].iter().rposition(|row| row.is_whole) {
            Some(last) => Some((last + 1, why)),
            // A row that was not joined may leave by itself, whole text or not.
            None => (!self.rows[0].is_joined).then_some((1, why)),
        }
    }
}
