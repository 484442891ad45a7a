//! Numbers from a seed.

/// A generator of numbers (splitmix64).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Random(seed.wrapping_mul(0xD134_2543_DE82_EF95) ^ 0x5851_F42D_4C95_7F2D)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = self.0;
        word = (word ^ word >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ word >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        word ^ word >> 31
    }

    /// A number from `least` to `most`.
    pub fn from(&mut self, least: usize, most: usize) -> usize {
        least + (self.next() % (most - least + 1) as u64) as usize
    }

    /// True once in `one_in` times.
    pub fn once_in(&mut self, one_in: u64) -> bool {
        self.next() % one_in == 0
    }

    pub fn of<'a, T: ?Sized>(&mut self, items: &[&'a T]) -> &'a T {
        items[self.next() as usize % items.len()]
    }
}
