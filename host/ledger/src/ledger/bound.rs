//! How many requests live at once, and who goes where there is no room: those that have had no row for the longest time.
//!
//! A scheduler runs some thousands of requests. More live here only where it has died or has lost some, or where somebody means
//! harm. Requests that end in the frame that they begin in need no room.

use super::{Ledger, Request};
use afterbay_batch::RequestSlot;
use afterbay_events::HoldEnd;
use afterbay_events::event::{LiveRequestsFull, RequestAbandoned};
use afterbay_hold::HeldRows;
use afterbay_journal::bounds::LIVE_REQUESTS_MAX;
use afterbay_persist::Persister;
use afterbay_runtime::FinishKind;
use afterbay_wire::Batch;
use std::time::{Duration, Instant};

/// A request without a row for this long may be given up where there is no room for another. A scheduler that is short of KV
/// cache retracts requests, and these may be silent for tens of seconds.
const IDLE_MIN: Duration = Duration::from_secs(60);
/// How often it is looked for such requests while there is no room.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// With one part in so many of all places free, there is room again. So many are freed at once.
const FREE_SHARE: usize = 16;

/// What the ledger knows of its bound.
#[derive(Default)]
pub struct LiveBound {
    /// There is or was no room, and since then it was not told that there is.
    pub is_full: bool,
    look_at: Option<Instant>,
}

impl LiveBound {
    /// Requests that live at once.
    pub fn most(&self) -> usize {
        LIVE_REQUESTS_MAX
    }
}

impl Ledger {
    /// Whether there is no room for all requests that may begin with a batch.
    pub fn lacks_room(&self, batch: &Batch) -> bool {
        self.live() + batch.rows() as usize > self.bound.most() && self.needed(batch) > 0
    }

    /// How many places are missing for the requests that begin with a batch and go on.
    #[cold]
    fn needed(&self, batch: &Batch) -> usize {
        let rows = batch.rid_bytes().zip(batch.finishes());
        let begins = rows.filter(|(rid, finish)| {
            super::finish_kind(finish) == FinishKind::Running && self.requests.find(rid).is_none()
        });
        (self.live() + begins.count()).saturating_sub(self.bound.most())
    }

    /// Makes room: gives up the requests that had no row for the longest time, and for some time at least. Their numbers.
    #[cold]
    pub fn make_room(
        &mut self,
        batch: &Batch,
        now: Instant,
        held_rows: &mut HeldRows,
        persister: &mut Persister,
    ) -> Vec<u64> {
        self.bound.is_full = true;
        if self.bound.look_at.is_some_and(|at| now < at) {
            return Vec::new();
        }
        self.bound.look_at = Some(now + LOOK_EVERY);
        let idle = |request: &Request| now.saturating_duration_since(request.last_row) >= IDLE_MIN;
        let old = self.requests.iter().filter(|(_, _, request)| idle(request));
        let mut old: Vec<(Instant, RequestSlot)> =
            old.map(|(slot, _, request)| (request.last_row, slot)).collect();
        old.sort_unstable();
        old.truncate(self.needed(batch) + self.bound.most() / FREE_SHARE);
        let slots = old.into_iter().map(|(_, slot)| slot).collect();
        let gone = self.give_up(slots, held_rows, persister, |_, _| {});
        let (stream, given_up) = (self.telemetry.stream.clone(), gone.len() as u64);
        self.telemetry.counters.requests_given_up.add(given_up);
        self.telemetry.publish(LiveRequestsFull { stream, limit: self.bound.most() as u64, given_up });
        gone
    }

    /// Why not all requests are judged and accounted, as long as it is so.
    pub fn full(&mut self) -> Option<String> {
        let most = self.bound.most();
        self.bound.is_full &= self.live() > most - most / FREE_SHARE;
        self.bound.is_full.then(|| format!("{} live requests, the limit is {most}", self.live()))
    }

    /// Forgets requests without a row for that long: their scheduler died, or lost them. Their numbers.
    pub fn abandon(
        &mut self,
        idle: Duration,
        now: Instant,
        held_rows: &mut HeldRows,
        persister: &mut Persister,
    ) -> Vec<u64> {
        let old = |request: &Request| now.saturating_duration_since(request.last_row) >= idle;
        let slots: Vec<RequestSlot> =
            self.requests.iter().filter(|(_, _, request)| old(request)).map(|(slot, ..)| slot).collect();
        self.give_up(slots, held_rows, persister, |ledger, rid| {
            ledger.telemetry.publish(RequestAbandoned { stream: ledger.telemetry.stream.clone(), rid });
        })
    }

    fn give_up(
        &mut self,
        slots: Vec<RequestSlot>,
        held_rows: &mut HeldRows,
        persister: &mut Persister,
        tell: impl Fn(&Ledger, String),
    ) -> Vec<u64> {
        let mut gone = Vec::new();
        for slot in slots {
            let Some(rid) = self.requests.rid(slot).map(str::to_owned) else { continue };
            // What waits of it goes first, and it the next time.
            if let Some(number) = self.requests.get(slot).map(|request| request.handle.number().0)
                && held_rows.has(number)
            {
                held_rows.end_all(HoldEnd::Stop, Some(number));
                continue;
            }
            gone.extend(self.close(slot, persister));
            tell(self, rid);
        }
        gone
    }

    /// Takes out the requests that live no longer than the frame in hand.
    pub fn end_brief(&mut self, persister: &mut Persister) {
        let mut brief = std::mem::take(&mut self.brief);
        for slot in brief.drain(..) {
            self.close(slot, persister);
        }
        self.brief = brief;
    }

    /// Takes out a request that the scheduler has not ended. Its number.
    fn close(&mut self, slot: RequestSlot, persister: &mut Persister) -> Option<u64> {
        let request = self.requests.remove(slot)?;
        self.forget_ending(slot);
        self.restart.forget(request.handle.number().0);
        persister.record_close(request.handle);
        Some(request.handle.number().0)
    }
}
