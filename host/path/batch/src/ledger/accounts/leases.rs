//! Requests with a lease: the engine goes on with them after their client has left.
//!
//! Owns that the client has left, which the journal has as an attribute. Does not know how long a lease is, or who ends the request
//! when it is over.

use super::{Ledger, Request};
use crate::records::Records;
use crate::{Persisted, Timestamp};
use afterbay_journal::JournalRequest;
use afterbay_wire::RequestRecord;

/// A change of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseChange<'a> {
    /// The client of this live request has left. After a restart, it left in the earlier run.
    Begun {
        /// The rid.
        rid: &'a str,
        /// The request's number in the journal.
        number: u64,
        /// The engine's own attributes of the request.
        of_engine: &'a [(String, String)],
    },
    /// The request with this number has ended.
    Ended(u64),
}

/// Takes changes of leases. The call must not block.
pub type LeaseSender = Box<dyn Fn(LeaseChange<'_>) + Send>;

impl Request {
    /// Whether the engine goes on with the request although its client has left.
    fn is_leased(&self) -> bool {
        self.of_engine.iter().any(|(name, _)| name == RequestRecord::CLIENT_LEFT)
    }
}

impl Ledger {
    /// Notes that the client of a live request has left. The journal has it with the next write.
    pub(super) fn note_left(&mut self, rid: &str, persisted: &Persisted, records: &mut Records) {
        let Some(handle) = self.requests.find(rid.as_bytes()) else { return };
        let Some(request) = self.requests.get_mut(handle).filter(|request| !request.is_leased()) else {
            return;
        };
        let Timestamp { unix_ns, .. } = persisted.at();
        request.of_engine.push((RequestRecord::CLIENT_LEFT.to_owned(), (unix_ns / 1_000_000).to_string()));
        self.refresh_attributes(handle);
        self.record_attributes(handle, records);
        self.begin_lease(handle);
    }

    /// Begins the lease of a live request whose client has left.
    pub(super) fn begin_lease(&self, handle: JournalRequest) {
        let (Some(send), Some((rid, request))) = (&self.links.leases, self.request(handle)) else { return };
        if request.is_leased() {
            send(LeaseChange::Begun { rid, number: request.number(), of_engine: &request.of_engine });
        }
    }

    /// Ends the lease of a request that has ended, if it had one.
    pub(super) fn end_lease(&self, request: &Request) {
        if let Some(send) = self.links.leases.as_ref().filter(|_| request.is_leased()) {
            send(LeaseChange::Ended(request.number()));
        }
    }
}
