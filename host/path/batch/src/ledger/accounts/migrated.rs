//! Requests of an engine that died, with which the engine in its place goes on: it gets the prompt and the tokens so far as a prompt,
//! and its rows continue the request.
//!
//! Owns which requests wait for that, and how many tokens an engine before has sent. Does not know who asks the engine.

use super::{Ledger, Request, StoredRecord};
use crate::hold::HeldRows;
use crate::records::Records;
use crate::{DecodedBarrier, Persisted, ReaderKey};
use afterbay_events::event::{EngineRestarted, RequestMigrated};
use afterbay_journal::{JournalRequest, stored_rid};
use afterbay_wire::{BarrierKind, RequestRecord};

/// A live request whose engine has died.
pub struct Interrupted {
    /// The rid.
    pub rid: String,
    /// The request's number in the journal.
    pub number: u64,
    /// Tokens received so far.
    pub received: u64,
    /// The record of what the engine was asked for.
    pub record: StoredRecord,
}

/// A change of a request whose engine has died.
pub enum Interruption {
    /// It waits for an engine, unless the answer is false.
    Began(Interrupted),
    /// Another engine goes on with the request of this number.
    Taken(u64),
    /// The request of this number ended while it waited.
    Ended(u64),
}

/// Takes changes of requests whose engine has died. The call must not block.
pub type InterruptionSender = Box<dyn Fn(Interruption) -> bool + Send>;

impl Request {
    fn has(&self, attribute: &str) -> bool {
        self.of_engine.iter().any(|(name, _)| name == attribute)
    }

    fn set(&mut self, attribute: &str, value: String) {
        self.of_engine.retain(|(name, _)| name != attribute);
        self.of_engine.push((attribute.to_owned(), value));
    }

    /// Notes that the rows to come are of another engine, which counts the tokens so far as a part of the prompt.
    fn begin_again(&mut self, before: u64) {
        (self.before, self.scheduler_count) = (before, self.received.saturating_sub(before));
        (self.unaccounted, self.missing, self.count_shift) = (0, 0, 0);
    }

    /// Restores from the attributes of an earlier run whether the request waits for an engine or has another one.
    pub(super) fn restore_migration(&mut self) {
        let at = self.of_engine.iter().find(|(name, _)| name == RequestRecord::MIGRATED_AT);
        match at.and_then(|(_, at)| at.parse().ok()) {
            Some(before) => self.begin_again(before),
            None => self.awaits_engine = self.has(RequestRecord::ENGINE_DIED),
        }
    }

    /// Whether the engine may go on with the request after its client has left, as each client of an engine that dies has.
    fn may_migrate(&self) -> bool {
        self.has(RequestRecord::LEASE)
            // Nobody has the tokens that the engine counted and that did not arrive.
            && self.received == self.before + self.scheduler_count
            && !(self.is_finished_early() || self.is_finishing || self.is_departed || self.is_rid_hashed)
    }
}

impl Ledger {
    /// Ends the requests of the engine before the one that begins: nobody is left who could send their rows. Those with a lease wait
    /// for the engine that begins, if somebody sends them again. Returns the numbers of those that ended.
    pub fn lose_all(
        &mut self,
        introduction: &Persisted,
        held_rows: &mut HeldRows,
        records: &mut Records,
    ) -> Vec<u64> {
        let all: Vec<_> =
            self.requests.iter().map(|(handle, _, request)| (request.last_row_at, handle)).collect();
        let (mut lost, mut waiting) = (Vec::new(), 0);
        let died_ms = (introduction.at().unix_ns / 1_000_000).to_string();
        for (at, handle) in all {
            let Some(request) = self.requests.get_mut(handle) else { continue };
            request.of_engine.retain(|(name, _)| name != RequestRecord::MIGRATED_AT);
            request.set(RequestRecord::ENGINE_DIED, died_ms.clone());
            request.awaits_engine = request.may_migrate();
            request.last_row_at = introduction.at().instant;
            self.refresh_attributes(handle);
            self.record_attributes(handle, records);
            if self.hand_over_interrupted(handle) {
                waiting += 1;
            } else {
                lost.push((at, handle));
            }
        }
        let closed = self.give_up(lost, held_rows, records, |_, _| {});
        if !closed.is_empty() || waiting > 0 {
            let (stream, requests) = (self.telemetry.stream.clone(), closed.len() as u64);
            self.telemetry.publish(EngineRestarted { stream, requests, waiting });
        }
        closed
    }

    /// Gives a request that waits for an engine to whoever sends it again. Returns whether it waits.
    pub(super) fn hand_over_interrupted(&mut self, handle: JournalRequest) -> bool {
        let Some((rid, request)) = self.request(handle).filter(|(_, request)| request.awaits_engine) else {
            return false;
        };
        // The lease runs again from the time at which the next engine goes on.
        self.end_lease(request);
        let (number, received) = (request.number(), request.received);
        let (rid, record) = (rid.to_owned(), request.record.and_then(|place| self.stored(place)));
        let sent = match (&self.links.interrupted, record) {
            (Some(send), Some(record)) => {
                send(Interruption::Began(Interrupted { rid, number, received, record }))
            }
            _ => false,
        };
        if let Some(request) = self.requests.get_mut(handle) {
            request.awaits_engine = sent;
        }
        sent
    }

    /// Before a record is accounted: if a request with its rid waits for an engine, and the record does not continue it, it is another
    /// request, and the one that waits ends. Returns its number.
    pub fn lose_for(
        &mut self,
        decoded: &DecodedBarrier,
        held_rows: &mut HeldRows,
        records: &mut Records,
    ) -> Vec<u64> {
        let BarrierKind::Request { record: Ok(record) } = &decoded.barrier().kind else { return Vec::new() };
        let Some(handle) = self.requests.find(stored_rid(record.rid.as_bytes()).as_bytes()) else {
            return Vec::new();
        };
        let Some(request) = self.requests.get(handle).filter(|it| it.awaits_engine) else {
            return Vec::new();
        };
        if record.prompt_tokens == Some(request.prompt_tokens + request.received) {
            return Vec::new();
        }
        self.refuse_migration(handle, "another request has its rid", held_rows, records)
    }

    /// Lets the request go on with the engine of this record.
    pub(super) fn migrate_to(
        &mut self,
        handle: JournalRequest,
        record: &RequestRecord,
        persisted: &Persisted,
        records: &mut Records,
    ) {
        let Some(request) = self.requests.get_mut(handle).filter(|request| request.awaits_engine) else {
            return;
        };
        request.awaits_engine = false;
        request.begin_again(request.received);
        request.reader = ReaderKey::of_record(record);
        (request.has_row, request.reader_has_row) = (false, false);
        request.set(RequestRecord::MIGRATED_AT, request.received.to_string());
        if !request.has(RequestRecord::CLIENT_LEFT) {
            let now_ms = persisted.at().unix_ns / 1_000_000;
            request.set(RequestRecord::CLIENT_LEFT, now_ms.to_string());
        }
        let (tokens, number) = (request.received, request.number());
        self.refresh_attributes(handle);
        self.record_attributes(handle, records);
        self.begin_lease(handle);
        if let Some(send) = &self.links.interrupted {
            send(Interruption::Taken(number));
        }
        let (stream, rid) = (self.telemetry.stream.clone(), record.rid.clone());
        self.telemetry.counters.requests_migrated.add(1);
        self.telemetry.publish(RequestMigrated { stream, rid, tokens });
    }

    /// Ends the request with this number, if it waits for an engine and none goes on with it. Returns its number.
    pub fn not_migrated(
        &mut self,
        number: u64,
        why: &str,
        held_rows: &mut HeldRows,
        records: &mut Records,
    ) -> Vec<u64> {
        match self.numbered(number) {
            Some(handle) => self.refuse_migration(handle, why, held_rows, records),
            None => Vec::new(),
        }
    }

    fn refuse_migration(
        &mut self,
        handle: JournalRequest,
        why: &str,
        held_rows: &mut HeldRows,
        records: &mut Records,
    ) -> Vec<u64> {
        let Some(request) = self.requests.get_mut(handle).filter(|request| request.awaits_engine) else {
            return Vec::new();
        };
        request.set(RequestRecord::NOT_MIGRATED, why.to_owned());
        let at = request.last_row_at;
        self.record_attributes(handle, records);
        self.give_up(vec![(at, handle)], held_rows, records, |_, _| {})
    }

    /// Says that a request that waited for an engine has ended.
    pub(super) fn forget_interrupted(&self, request: &Request) {
        if let Some(send) = self.links.interrupted.as_ref().filter(|_| request.awaits_engine) {
            send(Interruption::Ended(request.number()));
        }
    }
}
