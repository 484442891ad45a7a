//! The live requests of a stream, and where every token of each request goes.

mod requests;
mod roster;
mod accounts;

pub use accounts::{
    ABORTED, AbortSender, AttributesOf, FinishedEarly, Ledger, LedgerLinks, LiveStatus, Request,
    RequestStatus, RestartGap, StoredRecord,
};
