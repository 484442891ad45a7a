//! Options of a journal and their bounds.

use std::time::Duration;

use crate::bounds::{FRAME_BYTES_MAX, SEGMENT_BYTES_MAX};
use crate::confirmed::Follower;
use crate::error::OpenError;

/// Durability of frames across a power cut. Appended frames survive the death of the process under every
/// policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncPolicy {
    /// Nothing is synced: only what the kernel happened to write survives.
    None,
    /// Syncs after each interval: all but about the last interval survives.
    Interval(Duration),
    /// Syncs after each write: every frame up to `JournalWriter::durable` survives. The stream waits for that
    /// before it forwards a frame.
    Always,
}

/// Options of a journal.
#[derive(Clone, Debug)]
pub struct JournalOptions {
    /// Durability across a power cut.
    pub sync: SyncPolicy,
    /// Size of a segment. A frame that would exceed it begins a new segment.
    pub segment_bytes: u64,
    /// Size of the directory past which the oldest segments are removed. Checked once a second.
    pub retain_bytes: Option<u64>,
    /// Age of a segment's last write past which the segment is removed. A segment also ends at an eighth of
    /// this age.
    pub retain_age: Option<Duration>,
    /// Time without a row after which a request counts as abandoned. An abandoned request no longer keeps
    /// segments from being removed.
    pub abandon_after: Duration,
    /// Size of the largest frame.
    pub max_frame_bytes: usize,
    /// Followers whose files say what may be removed.
    pub followers: Vec<Follower>,
    /// The reaction if the directory reaches `retain_bytes` and followers need the oldest segments. True: the oldest
    /// segments are removed, published as `BackgroundNotice::RemovedUnconfirmed`. False: `append` refuses frames with
    /// `WriteError::HeldBack`.
    pub removes_unconfirmed: bool,
}

impl JournalOptions {
    pub(crate) fn abandon_after_ns(&self) -> u64 {
        u64::try_from(self.abandon_after.as_nanos()).unwrap_or(u64::MAX)
    }
}

impl Default for JournalOptions {
    fn default() -> JournalOptions {
        JournalOptions {
            sync: SyncPolicy::Interval(Duration::from_millis(50)),
            segment_bytes: 256 << 20,
            retain_bytes: None,
            retain_age: None,
            abandon_after: Duration::from_secs(3600),
            max_frame_bytes: 256 << 20,
            followers: Vec::new(),
            removes_unconfirmed: false,
        }
    }
}

/// Threads for syncing, summaries and retention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Background {
    /// The journal runs one thread for retention and one per stream.
    Threads,
    /// The caller runs `JournalDirectory::tend` and `JournalWriter::tend`, for tests that own time and disk.
    Caller,
}

pub(crate) fn check(options: &JournalOptions) -> Result<(), OpenError> {
    let within = |option, value: u64, least: u64, most: u64| match (least..=most).contains(&value) {
        true => Ok(()),
        false => Err(OpenError::Option { option, value, allowed: format!("{least} to {most}") }),
    };
    within("segment_bytes", options.segment_bytes, 4096, SEGMENT_BYTES_MAX)?;
    within("max_frame_bytes", options.max_frame_bytes as u64, 1, FRAME_BYTES_MAX as u64)
}
