//! The tracker's state as words in the connection's memory, so that a later process continues the count.
//!
//! A wait that was under way begins anew: the time before the death is not known.

use std::time::Instant;

use super::{Connection, CreditTracker, Doubt, Generation, PageTrust, WriteWait};
use crate::credit::Invalid;
use crate::push::options::CreditOptions;

/// The number of words of [`CreditTracker::saved`].
pub(crate) const TRACKER_WORDS: usize = 7;

/// The tracker's state. The first word is 0 if the connection had no tracker.
pub(crate) type TrackerWords = [u64; TRACKER_WORDS];

/// Bits of the first word. The page's process id is in the upper half.
const SAVED: u64 = 1;
const KNOWN: u64 = 1 << 1;
const PIDS_AGREE: u64 = 1 << 2;
const JOINED_MIDWAY: u64 = 1 << 3;
const SAW_ABSENT: u64 = 1 << 4;
const DOUBT: [u64; 2] = [1 << 5, 1 << 6];
const USABLE: u64 = 1 << 7;
const STALE: u64 = 1 << 8;
const HEALS: u64 = 1 << 9;
const RAN_AHEAD: u64 = 1 << 10;
/// Writing waits for a new generation, or a new generation came before anything was written.
const WAITS: u64 = 1 << 11;
const FOREIGN: u64 = 1 << 12;
const WENT_BACK: u64 = 1 << 13;

impl CreditTracker {
    /// The state for the connection's memory.
    pub(crate) fn saved(&self) -> TrackerWords {
        let bit = |is_set: bool, bit: u64| if is_set { bit } else { 0 };
        let connection = self.connection.as_ref();
        let (waits, foreign) = match connection.and_then(|connection| connection.wait.as_ref()) {
            Some(WriteWait::Generation { foreign, .. }) => (true, *foreign),
            // The page still has the new generation, so the next look leads to the same wait.
            Some(WriteWait::Loss { clean, .. }) => (*clean, false),
            None => (false, false),
        };
        let (trust, other_count) = match &self.trust {
            PageTrust::Invalid(Invalid::WentBack { to, .. }) => (WENT_BACK, Some(*to)),
            // The next look finds an invalid page again.
            PageTrust::Absent | PageTrust::Invalid(_) => (0, None),
            PageTrust::Usable => (USABLE, None),
            PageTrust::Stale { heals } => (STALE | bit(*heals, HEALS), None),
            PageTrust::RanAhead { by } => (RAN_AHEAD, Some(*by)),
        };
        let known = self.known.unwrap_or_default();
        let flags = SAVED
            | trust
            | bit(self.known.is_some(), KNOWN)
            | bit(self.pids_agree, PIDS_AGREE)
            | bit(self.joined_midway, JOINED_MIDWAY)
            | bit(connection.is_some_and(|connection| connection.saw_absent), SAW_ABSENT)
            | self.doubt.map_or(0, |doubt| DOUBT[doubt as usize])
            | bit(waits, WAITS)
            | bit(foreign, FOREIGN)
            | u64::from(known.pid) << 32;
        // Once the count ran ahead or went back, nothing uses the slack until a new generation, which begins with none.
        let last = other_count.unwrap_or(self.slack);
        [flags, known.file.0, known.file.1, known.number, known.count, self.unretained_counts, last]
    }

    /// Continues the tracker of an earlier process, on the connection of that process. `pid`: the reader's process.
    ///
    /// If the earlier process had no tracker, the page's present count says nothing about the frames that this connection
    /// had before. The count is then not used until a new generation.
    pub(crate) fn adopted(
        options: &CreditOptions,
        words: &TrackerWords,
        pid: Option<u32>,
        now: Instant,
    ) -> CreditTracker {
        let [flags, device, inode, number, count, unretained_counts, last] = *words;
        let has = |bit: u64| flags & bit != 0;
        let connection = |wait| Some(Connection { pid, wait, saw_absent: has(SAW_ABSENT) });
        let new = CreditTracker::new(options, now);
        if !has(SAVED) {
            let trust = PageTrust::Stale { heals: false };
            return CreditTracker { trust, connection: connection(None), ..new };
        }
        let known = Generation { file: (device, inode), pid: (flags >> 32) as u32, number, count };
        let until = now + options.generation_wait;
        let has_other_count = has(RAN_AHEAD) || has(WENT_BACK);
        CreditTracker {
            trust: match () {
                () if has(USABLE) => PageTrust::Usable,
                () if has(STALE) => PageTrust::Stale { heals: has(HEALS) },
                () if has(RAN_AHEAD) => PageTrust::RanAhead { by: last },
                () if has(WENT_BACK) => PageTrust::Invalid(Invalid::WentBack { from: count, to: last }),
                () => PageTrust::Absent,
            },
            known: Some(known).filter(|_| has(KNOWN)),
            connection: connection(
                has(WAITS).then_some(WriteWait::Generation { until, foreign: has(FOREIGN) }),
            ),
            pids_agree: has(PIDS_AGREE),
            unretained_counts,
            slack: if has_other_count { 0 } else { last },
            joined_midway: has(JOINED_MIDWAY),
            doubt: [Doubt::Page, Doubt::Loss].into_iter().find(|doubt| has(DOUBT[*doubt as usize])),
            ..new
        }
    }
}
