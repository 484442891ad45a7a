//! Outputs of so few different ids that they carry almost no information.

use super::history::KEPT;
use super::{GRACE, Kind, Loop};

/// The ids are counted by a hash with this many values.
const BUCKETS: usize = 128;

/// The entropy is low if the ids are spread less evenly than over this many ids and a half.
const EVEN: usize = 3;

/// How often each id is among the last [`KEPT`].
#[derive(Clone, Debug)]
pub(super) struct Entropy {
    counts: [u16; BUCKETS],
    /// The sum of the counts' squares. `KEPT² / squares` is the number of ids over which the last ids would be
    /// spread evenly: the collision entropy, as a number of ids.
    squares: usize,
    /// The number of ids at which the entropy has been low.
    low: usize,
}

impl Entropy {
    pub(super) fn new() -> Self {
        Self { counts: [0; BUCKETS], squares: 0, low: 0 }
    }

    /// Counts an id, and the id that left the history.
    pub(super) fn push(&mut self, id: u32, left: Option<u32>) {
        let count = &mut self.counts[bucket(id)];
        self.squares += 2 * usize::from(*count) + 1;
        *count += 1;
        let Some(left) = left else {
            // The history fills for the first time.
            self.low += usize::from(self.squares > 0);
            return;
        };
        let count = &mut self.counts[bucket(left)];
        self.squares -= 2 * usize::from(*count) - 1;
        *count -= 1;
        let is_low = 2 * KEPT * KEPT <= (2 * EVEN + 1) * self.squares;
        self.low = if is_low { self.low + 1 } else { KEPT };
    }

    /// The loop, if the entropy was low for long enough.
    pub(super) fn found(&self, turns: usize) -> Option<Loop> {
        let needed = turns * Kind::LowEntropy.turn_min() + GRACE;
        (self.low >= needed).then_some(Loop { kind: Kind::LowEntropy, period: 0, length: self.low })
    }
}

fn bucket(id: u32) -> usize {
    (id.wrapping_mul(0x9E37_79B1) >> 25) as usize % BUCKETS
}
