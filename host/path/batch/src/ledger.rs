//! The live requests of a stream, and where every token of each request goes.

mod requests;
mod roster;
mod accounts;

pub use accounts::{
    ABORTED, AbortSender, AttributesOf, FindRecord, FinishedEarly, Interrupted, Interruption,
    InterruptionSender, LeaseChange, LeaseSender, Ledger, LedgerLinks, LiveStatus, RecordLinks, Request,
    RequestStatus, RestartGap, StoredRecord,
};
