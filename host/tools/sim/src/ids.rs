//! Names and tokens that can be recomputed. A simulated request's ids follow from its rid and a token's
//! position, so that a reader in another process can tell lost, repeated, moved and changed tokens apart.

/// The number of ids, like a common vocabulary.
pub const VOCABULARY: u64 = 128_000;

/// The position at which the tokens of the next request with the same rid begin.
pub const POSITIONS: u64 = 1 << 32;

const RID_PREFIX: &str = "sim-";
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

const WORDS: [&str; 32] = [
    " water", " river", " stone", " lake", " the", " a", " of", " over", " und", " los", " 水", " 川",
    " été", "!", " into", " basin", " gate", " flow", " slow", " rain", ",", " dam", " mill", " fish", " 🌊",
    " one", " two", " until", " and", ".", " light", " turbine",
];

/// The seed of a simulated request's tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed(u64);

/// A running digest over ids in order. Two requests with equal counts and digests have equal ids.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digest(u64);

/// The rid of a request of a load.
pub fn rid(seed: u64, index: u64) -> String {
    format!("{RID_PREFIX}{seed}-{index:010}")
}

/// The text of a token, for outputs with text.
pub fn word(id: i64) -> &'static str {
    WORDS[id.rem_euclid(WORDS.len() as i64) as usize]
}

/// Spreads a number over all 64 bits (the last step of splitmix64).
pub(crate) fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// The hash of a name, equal in every process and version: FNV-1a, mixed.
pub(crate) fn name_hash(name: &str) -> u64 {
    let fnv = name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    mix(fnv)
}

impl Seed {
    /// The seed of a simulated request; `None` for any other rid.
    pub fn of_simulated(rid: &str) -> Option<Seed> {
        rid.starts_with(RID_PREFIX).then(|| Seed::of(rid))
    }

    pub(crate) fn of(rid: &str) -> Seed {
        Seed(name_hash(rid))
    }

    /// The token id at a position, counted from 0.
    pub fn id(self, position: u64) -> i64 {
        (mix(self.0.wrapping_add(position.wrapping_add(1).wrapping_mul(GOLDEN))) % VOCABULARY) as i64
    }

    /// The id of a token of the prompt's end, which a request's first row carries for the detokenizer.
    pub fn prompt_id(self, position: u64) -> i64 {
        self.id(u64::MAX / 2 + position)
    }
}

impl Digest {
    /// Adds an id.
    pub fn push(&mut self, id: i64) {
        self.0 = mix(self.0.rotate_left(7) ^ (id as u64).wrapping_add(GOLDEN));
    }

    /// Adds several ids.
    pub fn extend(&mut self, ids: &[i64]) {
        for &id in ids {
            self.push(id);
        }
    }

    pub(crate) fn value(self) -> u64 {
        self.0
    }
}

/// A random generator (splitmix64) that makes a load equal on every machine and version.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// A generator for one purpose of one request.
    pub(crate) fn new(seed: u64, stream: u64) -> Random {
        Random(mix(seed ^ mix(stream.wrapping_add(GOLDEN))))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        mix(self.0)
    }

    /// A number from `low` to `high`, both included. Requires `low <= high`.
    pub(crate) fn between(&mut self, low: u32, high: u32) -> u32 {
        low + (self.next() % (u64::from(high - low) + 1)) as u32
    }

    /// A number in `(0, 1]`.
    pub(crate) fn unit(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ids_of_a_rid_are_the_same_in_every_version() {
        let seed = Seed::of_simulated(&rid(7, 42)).unwrap();
        let ids: Vec<i64> = (0..4).map(|position| seed.id(position)).collect();
        assert_eq!(
            ids,
            [21041, 31561, 100200, 18236],
            "a reader and a scheduler of different versions must agree"
        );
    }

    #[test]
    fn a_digest_depends_on_order_and_count() {
        let digest = |ids: &[i64]| {
            let mut digest = Digest::default();
            digest.extend(ids);
            digest
        };
        assert_eq!(digest(&[1, 2, 3]), digest(&[1, 2, 3]));
        assert_ne!(digest(&[1, 2, 3]), digest(&[2, 1, 3]));
        assert_ne!(digest(&[1, 2, 3]), digest(&[1, 2]));
        assert_ne!(digest(&[0]), digest(&[0, 0]));
    }

    #[test]
    fn no_rid_is_the_prefix_of_another() {
        let rids: Vec<String> = [0, 1, 10, 9_999_999_999].map(|index| rid(1, index)).into();
        for a in &rids {
            assert!(rids.iter().filter(|b| b.starts_with(a.as_str())).count() == 1, "{a}");
        }
    }
}
