//! The data of the stream that every stage of a plugin's life needs.

use afterbay_batch::Timestamp;
use afterbay_batch::ledger::Ledger;

/// The live requests and the time of one call into the chain.
#[derive(Clone, Copy)]
pub struct ChainContext<'a> {
    /// The live requests. A fresh instance is told of each.
    pub ledger: &'a Ledger,
    /// The time of the call.
    pub now: Timestamp,
}
