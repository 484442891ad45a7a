//! The configuration of a source.

use std::path::PathBuf;
use std::time::Duration;

/// The source, and the age at which its readings are stale.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadConfig {
    /// The source.
    pub source: LoadSource,
    /// The scheduler's data parallel rank.
    pub dp_rank: u32,
    /// A reading older than this is stale.
    pub stale_after: Duration,
    /// The time between two reads of the LoadSnapshot file, each a few system calls on memory.
    pub load_snapshot_every: Duration,
}

/// The place of the scheduler's load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadSource {
    /// SGLang's LoadSnapshot file in shared memory (0.5.13 and later, always written), at this path.
    File(PathBuf),
    /// The statistics in vLLM's frames, which the owner of the stream hands on: see [`crate::signals::LoadReader::frames`].
    Frames,
}

impl LoadConfig {
    /// Reads this source for rank 0: stale after 5 s; the file every 20 ms.
    pub fn new(source: LoadSource) -> LoadConfig {
        LoadConfig {
            source,
            dp_rank: 0,
            stale_after: Duration::from_secs(5),
            load_snapshot_every: Duration::from_millis(20),
        }
    }
}
