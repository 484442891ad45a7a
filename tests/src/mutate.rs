//! Seeded mutations of valid inputs, for the bodies of fuzz targets in tests. `AFTERBAY_FUZZ_ITERATIONS` sets their number, and
//! `AFTERBAY_FUZZ_SEED` selects one. Crates with bodies of their own include this file in their tests.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// The inputs of a test.
const ITERATIONS: u64 = 3000;

/// splitmix64, from a seed.
pub struct Random(pub u64);

impl Random {
    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`; 0 if that is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.number() % bound.max(1) as u64) as usize
    }
}

/// Applies one to eight changes to a valid input: flipped bits, special bytes, cuts, and pieces that are removed, repeated or taken from
/// another input.
fn mutate(random: &mut Random, valid: &[Vec<u8>]) -> Vec<u8> {
    const SPECIAL: [u8; 12] = [0, 1, 0x7f, 0x80, 0xff, 0xfe, 0xc0, 0xdd, 0xdf, b'(', b'.', b'R'];
    let mut bytes = valid[random.below(valid.len())].clone();
    for _ in 0..=random.below(8) {
        let at = random.below(bytes.len());
        let length = random.below(64).min(bytes.len().saturating_sub(at));
        match random.below(7) {
            0 if !bytes.is_empty() => bytes[at] ^= 1 << random.below(8),
            1 if !bytes.is_empty() => bytes[at] = SPECIAL[random.below(SPECIAL.len())],
            2 => drop(bytes.drain(at..at + length)),
            3 => bytes.truncate(at),
            4 => {
                let piece = bytes[at..at + length].to_vec();
                bytes.splice(at..at, piece);
            }
            5 => {
                let other = &valid[random.below(valid.len())];
                let from = random.below(other.len());
                let piece = other[from..other.len().min(from + length)].to_vec();
                bytes.splice(at..at, piece);
            }
            _ if bytes.len() >= at + 4 => {
                bytes[at..at + 4].copy_from_slice(&(random.number() as u32).to_le_bytes())
            }
            _ => {}
        }
    }
    bytes
}

/// Calls `body` with each valid input, and with 3,000 / `share` mutations of them.
///
/// # Panics
/// `body` panics. The message names the seed of the input.
pub fn run(body: &dyn Fn(&[u8]), valid: &[Vec<u8>], share: u64) {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let iterations = number("AFTERBAY_FUZZ_ITERATIONS").unwrap_or(ITERATIONS) / share;
    let seeds = number("AFTERBAY_FUZZ_SEED").map_or(0..iterations, |seed| seed..seed + 1);
    valid.iter().for_each(|bytes| body(bytes));
    for seed in seeds {
        let bytes = mutate(&mut Random(seed), valid);
        let survived = catch_unwind(AssertUnwindSafe(|| body(&bytes)));
        assert!(survived.is_ok(), "AFTERBAY_FUZZ_SEED={seed}: {} bytes", bytes.len());
    }
}
