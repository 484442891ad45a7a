//! Runs the bodies of the fuzz targets on seeded mutations of valid inputs. `AFTERBAY_FUZZ_ITERATIONS` sets their number and
//! `AFTERBAY_FUZZ_SEED` selects one. The targets in `tests/fuzz` run without end.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use afterbay_tests::{fixtures, fuzz, vllm_fixtures};

const ITERATIONS: u64 = 3000;

/// splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
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
                bytes[at..at + 4].copy_from_slice(&(random.next() as u32).to_le_bytes())
            }
            _ => {}
        }
    }
    bytes
}

fn run(body: fn(&[u8]), valid: &[Vec<u8>], share: u64) {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let iterations = number("AFTERBAY_FUZZ_ITERATIONS").unwrap_or(ITERATIONS) / share;
    let seeds = number("AFTERBAY_FUZZ_SEED").map_or(0..iterations, |seed| seed..seed + 1);
    valid.iter().for_each(|bytes| body(bytes));
    for seed in seeds {
        let bytes = mutate(&mut Random(seed), valid);
        let survived = std::panic::catch_unwind(|| body(&bytes));
        assert!(survived.is_ok(), "AFTERBAY_FUZZ_SEED={seed}: {} bytes", bytes.len());
    }
}

/// Frames of up to 8 KB. Larger frames only repeat the same fields.
fn frames(extensions: &[&str]) -> Vec<Vec<u8>> {
    let frames = fixtures().into_iter();
    let frames = frames.filter(|(name, bytes)| {
        bytes.len() <= 8192 && extensions.iter().any(|extension| name.ends_with(extension))
    });
    frames.map(|(_, bytes)| bytes).collect()
}

#[test]
fn any_frame_is_decoded_or_a_barrier() {
    run(fuzz::wire_decode, &frames(&[".msgpack", ".pickle", ".bin"]), 1);
}

#[test]
fn any_frame_of_vllm_is_decoded_or_a_barrier() {
    let frames = vllm_fixtures().into_iter().map(|(_, bytes)| bytes);
    run(fuzz::vllm_decode, &frames.filter(|bytes| bytes.len() <= 8192).collect::<Vec<_>>(), 1);
}

#[test]
fn any_configuration_is_accepted_or_its_problems_have_a_place() {
    let golden = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../host/config/tests/golden");
    let cases = std::fs::read_dir(golden).unwrap().map(|case| case.unwrap().path().join("afterbay.toml"));
    let valid: Vec<Vec<u8>> = cases.filter_map(|case| std::fs::read(case).ok()).collect();
    assert!(valid.len() > 30, "{} configurations", valid.len());
    run(fuzz::config, &valid, 1);
}

#[test]
fn any_pickle_is_a_tree_or_an_error() {
    run(fuzz::pickle, &frames(&[".pickle"]), 1);
}

#[test]
fn any_segment_is_readable_or_an_error_and_recovers() {
    run(fuzz::journal_reader, &[fuzz::a_segment()], 10);
}
