//! The requests that are given up, because no row of theirs is expected: those without a row for a long time, at the bound of live
//! requests those without one for the longest time.
//!
//! A scheduler runs some thousands of requests at once. The bound is reached only if a scheduler died or lost requests, or under
//! an attack. A request that begins and ends in one frame does not count.

use super::{Ledger, Request};
use crate::hold::HeldRows;
use crate::records::Records;
use afterbay_events::event::{LiveRequestsFull, RequestAbandoned};
use afterbay_events::{EndCause, HoldEnd};
use afterbay_journal::JournalRequest;
use afterbay_journal::bounds::LIVE_REQUESTS_MAX;
use afterbay_wire::{Batch, FinishKind};
use std::time::{Duration, Instant};

/// A request without a row for this long may be given up at the bound. A scheduler that runs out of KV cache retracts requests,
/// and a retracted request may have no row for tens of seconds.
const IDLE_MIN: Duration = Duration::from_secs(60);
/// Time between two searches for such requests while the bound is reached.
const SEARCH_EVERY: Duration = Duration::from_secs(1);
/// The bound counts as reached until 1/16 of it is free. A search gives up 1/16 of the bound beyond the requests needed.
const FREE_SHARE: usize = 16;

/// The state of the bound.
pub(super) struct LiveBound {
    /// Live requests allowed.
    pub(super) max: usize,
    /// Set when the bound is reached, and cleared by [`Ledger::full`].
    pub(super) is_full: bool,
    search_at: Option<Instant>,
}

impl Default for LiveBound {
    fn default() -> LiveBound {
        LiveBound { max: LIVE_REQUESTS_MAX, is_full: false, search_at: None }
    }
}

impl Ledger {
    /// Whether the requests that begin with this batch exceed the bound.
    pub fn lacks_room(&self, batch: &Batch) -> bool {
        self.live() + batch.rows() as usize > self.bound.max && self.excess(batch) > 0
    }

    /// How many live requests exceed the bound once the requests of this batch have begun.
    #[cold]
    fn excess(&self, batch: &Batch) -> usize {
        let rows = batch.rid_bytes().zip(batch.finishes());
        let begins = rows.filter(|(rid, finish)| {
            finish.kind() == FinishKind::Running && self.requests.find(rid).is_none()
        });
        (self.live() + begins.count()).saturating_sub(self.bound.max)
    }

    /// Gives up the requests that had no row for the longest time, and for 60 seconds at least. Returns their numbers.
    #[cold]
    pub fn make_room(
        &mut self,
        batch: &Batch,
        now: Instant,
        held_rows: &mut HeldRows,
        records: &mut Records,
    ) -> Vec<u64> {
        self.bound.is_full = true;
        if self.bound.search_at.is_some_and(|at| now < at) {
            return Vec::new();
        }
        self.bound.search_at = Some(now + SEARCH_EVERY);
        let mut idle = self.idle_for(IDLE_MIN, now);
        idle.sort_unstable();
        idle.truncate(self.excess(batch) + self.bound.max / FREE_SHARE);
        let closed = self.give_up(idle, held_rows, records, |_, _| {});
        let (stream, given_up) = (self.telemetry.stream.clone(), closed.len() as u64);
        self.telemetry.publish(LiveRequestsFull { stream, limit: self.bound.max as u64, given_up });
        closed
    }

    /// Why new requests are not shown to plugins, while the bound is reached.
    pub fn full(&mut self) -> Option<String> {
        let max = self.bound.max;
        self.bound.is_full &= self.live() > max - max / FREE_SHARE;
        self.bound.is_full.then(|| format!("{} live requests, the limit is {max}", self.live()))
    }

    /// Closes requests without a row for `idle`: their scheduler died or lost them. Returns their numbers.
    pub fn abandon(
        &mut self,
        idle: Duration,
        now: Instant,
        held_rows: &mut HeldRows,
        records: &mut Records,
    ) -> Vec<u64> {
        let idle = self.idle_for(idle, now);
        self.give_up(idle, held_rows, records, |ledger, rid| {
            ledger.telemetry.publish(RequestAbandoned { stream: ledger.telemetry.stream.clone(), rid });
        })
    }

    fn idle_for(&self, idle: Duration, now: Instant) -> Vec<(Instant, JournalRequest)> {
        let is_idle = |request: &Request| now.saturating_duration_since(request.last_row_at) >= idle;
        let requests = self.requests.iter().filter(|(_, _, request)| is_idle(request));
        requests.map(|(handle, _, request)| (request.last_row_at, handle)).collect()
    }

    pub(super) fn give_up(
        &mut self,
        requests: Vec<(Instant, JournalRequest)>,
        held_rows: &mut HeldRows,
        records: &mut Records,
        report: impl Fn(&Ledger, String),
    ) -> Vec<u64> {
        let mut closed = Vec::new();
        for (_, handle) in requests {
            let Some((rid, request)) = self.request(handle) else { continue };
            // Held rows leave first. The next search gives up the request.
            if held_rows.has(request.number()) {
                held_rows.end_all_of(request.number(), HoldEnd::Stop);
                continue;
            }
            let rid = rid.to_owned();
            closed.extend(self.close(handle, EndCause::Lost, records));
            report(self, rid);
        }
        closed
    }

    /// Closes the requests that live for one frame only.
    pub(super) fn close_single_frame(&mut self, records: &mut Records) {
        let mut requests = std::mem::take(&mut self.single_frame);
        for handle in requests.drain(..) {
            self.close(handle, EndCause::Lost, records);
        }
        self.single_frame = requests;
    }

    /// Closes a request of which no last row came. Returns its number.
    pub(super) fn close(
        &mut self,
        handle: JournalRequest,
        cause: EndCause,
        records: &mut Records,
    ) -> Option<u64> {
        let (_, request) = self.remove(handle, records)?;
        self.count_end(&request, cause);
        self.restart.forget(request.number());
        Some(request.number())
    }
}

#[cfg(test)]
mod tests;
