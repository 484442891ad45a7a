//! Segments that followers still need: an archive, a replica or a record of usage reads a segment before retention removes it.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::mutex::lock;
use crate::position::SegmentId;

/// Age at which a segment ends if a follower reads only segments that have ended.
pub(crate) const SEGMENT_AGE_MAX: Duration = Duration::from_secs(600);

/// A reader of the whole journal that must have read a segment before retention removes the segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Follower {
    /// Name for messages.
    pub name: &'static str,
    /// Whether the follower reads only segments that have ended: a segment then ends 10 minutes after its first record, also if
    /// the stream is idle.
    pub needs_ended_segments: bool,
}

/// A follower's hold on the segments of a journal. While it exists, retention removes only segments that the follower has
/// confirmed. The journal's limit (`retain_bytes`) overrides the hold with [`JournalOptions::removes_unconfirmed`]. Dropping it ends the hold.
///
/// [`JournalOptions::removes_unconfirmed`]: crate::JournalOptions::removes_unconfirmed
pub struct HoldBack {
    holds: Arc<Holds>,
    hold: Arc<Hold>,
}

/// Segments of a stream that retention removed although a follower had not confirmed them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemovedSegments {
    /// The oldest of the segments.
    pub first: SegmentId,
    /// The newest of the segments.
    pub last: SegmentId,
    /// Number of segments.
    pub segments: u64,
    /// Sum of their sizes.
    pub bytes: u64,
}

impl HoldBack {
    /// Confirms all segments of a stream before this one: the follower does not need them any more. A confirmation is never taken back.
    /// The segments of a stream without a confirmation are all held.
    pub fn confirm(&self, stream: &str, oldest_needed: SegmentId) {
        let mut needed = lock(&self.hold.needed);
        match needed.get_mut(stream) {
            Some(known) => *known = oldest_needed.max(*known),
            None => drop(needed.insert(stream.to_owned(), oldest_needed)),
        }
    }

    /// Whether the segments that this follower has not confirmed take more than half of `retain_bytes`: the follower should
    /// confirm what it can, rather than wait for more.
    pub fn is_pressed(&self) -> bool {
        self.hold.is_pressed.load(SeqCst)
    }

    /// The segments that were removed unconfirmed since the last call, by stream.
    pub fn take_removed(&self) -> BTreeMap<String, RemovedSegments> {
        std::mem::take(&mut lock(&self.hold.removed))
    }
}

impl Drop for HoldBack {
    fn drop(&mut self) {
        lock(&self.holds.list).retain(|hold| !Arc::ptr_eq(hold, &self.hold));
    }
}

/// The holds on a journal.
#[derive(Default)]
pub(crate) struct Holds {
    list: Mutex<Vec<Arc<Hold>>>,
}

pub(crate) struct Hold {
    pub follower: Follower,
    /// Set once the follower runs. Before that, the hold only keeps everything.
    is_taken: AtomicBool,
    /// Oldest segment that is needed, by stream.
    needed: Mutex<HashMap<String, SegmentId>>,
    removed: Mutex<BTreeMap<String, RemovedSegments>>,
    is_pressed: AtomicBool,
}

impl Holds {
    /// Holds everything for these followers, until each takes its hold.
    pub fn of(followers: &[Follower]) -> Holds {
        Holds { list: Mutex::new(followers.iter().map(|follower| Arc::new(Hold::new(*follower))).collect()) }
    }

    /// Takes the hold that waits for the follower, or begins one.
    pub fn take(self: &Arc<Self>, follower: Follower) -> HoldBack {
        let mut list = lock(&self.list);
        let is_waiting = |hold: &&Arc<Hold>| hold.follower == follower && !hold.is_taken.swap(true, SeqCst);
        let hold = match list.iter().find(is_waiting) {
            Some(hold) => hold.clone(),
            None => {
                let hold = Arc::new(Hold::new(follower));
                hold.is_taken.store(true, SeqCst);
                list.push(hold.clone());
                hold
            }
        };
        HoldBack { holds: self.clone(), hold }
    }

    /// The holds now.
    pub fn now(&self) -> Vec<Arc<Hold>> {
        lock(&self.list).clone()
    }
}

impl Hold {
    fn new(follower: Follower) -> Hold {
        Hold {
            follower,
            is_taken: AtomicBool::new(false),
            needed: Mutex::default(),
            removed: Mutex::default(),
            is_pressed: AtomicBool::new(false),
        }
    }

    /// The oldest segment of the stream that is needed. `None`: all are.
    pub fn oldest_needed(&self, stream: &str) -> Option<SegmentId> {
        lock(&self.needed).get(stream).copied()
    }

    /// Whether the follower needs this segment.
    pub fn needs(&self, stream: &str, segment: SegmentId) -> bool {
        self.oldest_needed(stream).is_none_or(|oldest| segment >= oldest)
    }

    pub fn set_pressed(&self, is_pressed: bool) {
        self.is_pressed.store(is_pressed, SeqCst);
    }

    /// Notes that an unconfirmed segment was removed.
    pub fn note_removed(&self, stream: &str, segment: SegmentId, bytes: u64) {
        let mut removed = lock(&self.removed);
        let one = RemovedSegments { first: segment, last: segment, segments: 1, bytes };
        match removed.get_mut(stream) {
            Some(known) => {
                known.last = segment;
                known.segments += 1;
                known.bytes += bytes;
            }
            None => drop(removed.insert(stream.to_owned(), one)),
        }
    }
}
