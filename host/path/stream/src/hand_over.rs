//! The state of a stream that another process takes over. The journal has the rest.

use afterbay_batch::hold::HoldTimes;
use afterbay_chain::ChainState;
use serde::{Deserialize, Serialize};

/// The state of a stream at a hand-over: what neither the journal nor the memories of the connections have.
///
/// The plugins' part is bounded by [`HANDED_BYTES_MAX`](afterbay_chain::HANDED_BYTES_MAX), the held rows by
/// [`BYTES_MAX`](afterbay_batch::hold::BYTES_MAX): one number of at most 20 digits per row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamState {
    /// The stream's name in the configuration.
    pub stream: String,
    pub(crate) plugins: ChainState,
    pub(crate) holds: Vec<HoldTimes>,
}
