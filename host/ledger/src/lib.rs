//! The live requests of a stream, and where every token of each request goes.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod requests;
mod ledger;

pub use ledger::{
    ABORTED, AbortSender, FinishedEarly, Ledger, LiveStatus, Request, RequestStatus, RestartGap,
    UpstreamAborts,
};
