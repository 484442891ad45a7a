//! The state of a stream that another process takes over. The journal has the rest.

use crate::delivery::StartError;
use afterbay_batch::hold::HoldTimes;
use afterbay_chain::ChainState;
use afterbay_journal::FrameNo;
use serde::{Deserialize, Serialize};

/// The state of a stream at a hand-over: what neither the journal nor the memories of the connections have.
///
/// The plugins' part is bounded by [`HANDED_BYTES_MAX`](afterbay_chain::HANDED_BYTES_MAX), the held rows by
/// [`BYTES_MAX`](afterbay_batch::hold::BYTES_MAX): one number of at most 20 digits per row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamState {
    /// The stream's name in the configuration.
    pub stream: String,
    /// The last frame of the journal.
    pub last_frame: u64,
    pub(crate) plugins: ChainState,
    pub(crate) holds: Vec<HoldTimes>,
}

/// The reason why a stream cannot be started or continued.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    /// The sockets cannot be set up.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The journal is not the one that the stream wrote.
    #[error(
        "stream {stream:?}: its journal ends with frame {found}, and the process before wrote up to frame {expected}"
    )]
    Journal {
        /// The stream.
        stream: String,
        /// The last frame of the journal.
        found: u64,
        /// The last frame that the process before wrote.
        expected: u64,
    },
}

impl StreamState {
    /// Checks that this process can continue the stream with a journal that ends with this frame.
    pub(crate) fn check(&self, last_frame: FrameNo) -> Result<(), PrepareError> {
        let expected = self.last_frame;
        if last_frame.0 != expected {
            return Err(PrepareError::Journal { stream: self.stream.clone(), found: last_frame.0, expected });
        }
        Ok(())
    }
}
