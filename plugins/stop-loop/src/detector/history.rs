//! The last ids of a request, and the last place of each run of ids.

use super::{DIVERSE, PERIOD_MAX};

/// The ids that are kept.
pub(super) const KEPT: usize = 2 * PERIOD_MAX;

/// The ids of a run that the table knows.
pub(super) const GRAM: usize = 4;

/// The last ids, and a table of runs.
#[derive(Clone, Debug)]
pub(super) struct History {
    ids: Box<[u32; KEPT]>,
    /// The place after the last id of a run, by the hash of the run. A place may be wrong: it is compared.
    places: Box<[u16; KEPT]>,
    /// 16 bits of each of the last four ids.
    gram: u64,
    /// The number of ids so far.
    count: usize,
}

impl History {
    pub(super) fn new() -> Self {
        Self { ids: Box::new([0; KEPT]), places: Box::new([0; KEPT]), gram: 0, count: 0 }
    }

    /// Adds an id. Returns the id that leaves, if the history is full.
    pub(super) fn push(&mut self, id: u32) -> Option<u32> {
        let slot = &mut self.ids[self.count % KEPT];
        let left = (self.count >= KEPT).then_some(*slot);
        *slot = id;
        self.count += 1;
        self.gram = self.gram << 16 | u64::from(id.wrapping_mul(0x9E37_79B1) >> 16);
        left
    }

    /// Whether a piece of text ends here: once in 16 places, by the last four ids.
    pub(super) fn ends_piece(&self) -> bool {
        self.gram_hash() >> 60 == 0
    }

    fn gram_hash(&self) -> u64 {
        self.gram.wrapping_mul(0x9E37_79B9_7F4A_7C15)
    }

    /// The number of ids so far.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// The id that came `back` ids before the last one. At most [`KEPT`] ids are known.
    pub(super) fn id(&self, back: usize) -> u32 {
        self.ids[self.count.wrapping_sub(1 + back) % KEPT]
    }

    /// Whether the last id is also `distance` ids before.
    pub(super) fn repeats(&self, distance: usize) -> bool {
        self.count > distance && self.id(0) == self.id(distance)
    }

    /// Enters the last run into the table. Returns a distance at which the same run may have been before.
    pub(super) fn enter(&mut self) -> Option<usize> {
        // Places are modulo 2^16, which is many times the longest distance.
        let here = self.count as u16;
        let slot = (self.gram_hash() >> 54) as usize % KEPT;
        let slot = &mut self.places[slot];
        let distance = usize::from(here.wrapping_sub(std::mem::replace(slot, here)));
        let is_possible = (1..=PERIOD_MAX).contains(&distance) && self.count >= distance + GRAM;
        is_possible.then_some(distance)
    }

    /// The number of ids, at most `most`, that agree with the ids `distance` before them, from the last id
    /// backwards.
    pub(super) fn agrees(&self, distance: usize, most: usize) -> usize {
        let known = self.count.min(KEPT).saturating_sub(distance);
        (0..most.min(known)).take_while(|&back| self.id(back) == self.id(back + distance)).count()
    }

    /// The number of different ids among the last `length`, counted up to [`DIVERSE`].
    pub(super) fn different(&self, length: usize) -> usize {
        let (mut seen, mut count) = ([0; DIVERSE], 0);
        for back in 0..length.min(self.count).min(KEPT) {
            let id = self.id(back);
            if !seen[..count].contains(&id) {
                seen[count] = id;
                count += 1;
                if count == DIVERSE {
                    break;
                }
            }
        }
        count
    }
}
