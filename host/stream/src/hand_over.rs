//! The state of a stream that another process takes over. The journal has the rest.

use afterbay_chain::ChainState;
use afterbay_delivery::StartError;
use afterbay_hold::HoldTimes;
use afterbay_journal::FrameNo;
use serde::{Deserialize, Serialize};

/// The version of [`StreamState`]. A process takes over from the versions up to its own.
pub const STREAM_STATE_VERSION: u32 = 1;

/// The state of a stream at a hand-over: what neither the journal nor the memories of the connections have.
///
/// The plugins' part is bounded by [`HANDED_BYTES_MAX`](afterbay_chain::HANDED_BYTES_MAX), the held rows by
/// [`BYTES_MAX`](afterbay_hold::BYTES_MAX): one number of at most 20 digits per row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamState {
    /// [`STREAM_STATE_VERSION`] of the process that made it.
    pub version: u32,
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
    /// A later version wrote the state.
    #[error(
        "stream {stream:?}: its state has version {version}, this Afterbay knows versions up to {STREAM_STATE_VERSION}"
    )]
    Version {
        /// The stream.
        stream: String,
        /// The version of the state.
        version: u32,
    },
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
        let StreamState { version, last_frame: expected, .. } = *self;
        let stream = self.stream.clone();
        if version > STREAM_STATE_VERSION {
            return Err(PrepareError::Version { stream, version });
        }
        if last_frame.0 != expected {
            return Err(PrepareError::Journal { stream, found: last_frame.0, expected });
        }
        Ok(())
    }
}
