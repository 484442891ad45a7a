//! What a token costs, in ns, and a vocabulary to load: `cargo run --release -p afterbay-text --example cost`.
//! The least of many runs, so that a busy machine shows less. Made up: 152,000 tokens, as Qwen has, and ids all over
//! them; 4,096 requests in turn, a row each.

#![allow(clippy::unwrap_used, missing_docs)]

use std::hint::black_box;
use std::time::{Duration, Instant};

use afterbay_text::{Progress, Vocabulary};

const TOKENS: u64 = 152_000;
const REQUESTS: usize = 4096;

/// A fifth of the tokens are pieces of characters.
fn tokenizer() -> String {
    let pieces = ['æ', '¥', 'Ĺ', 'ð', 'Ł', 'ĺ'];
    let token = |at: u64| match at % 5 {
        0 => format!("{at}{}", pieces[(at / 5 % 6) as usize]),
        _ => format!("Ġ{at}"),
    };
    let vocab: serde_json::Map<String, serde_json::Value> =
        (0..TOKENS).map(|at| (token(at), at.into())).collect();
    let merges: Vec<String> = (0..TOKENS).map(|at| format!("{} {}", token(at / 2), token(at))).collect();
    serde_json::json!({"decoder": {"type": "ByteLevel"}, "model": {"type": "BPE", "vocab": vocab, "merges": merges}})
        .to_string()
}

/// The least of all runs in about a second.
fn least(mut run: impl FnMut()) -> Duration {
    let begun = Instant::now();
    let mut least = Duration::MAX;
    while begun.elapsed() < Duration::from_secs(1) {
        let start = Instant::now();
        run();
        least = least.min(start.elapsed());
    }
    least
}

fn main() {
    let path = std::env::temp_dir().join(format!("afterbay-text-cost-{}.json", std::process::id()));
    std::fs::write(&path, tokenizer()).unwrap();
    let bytes = std::fs::metadata(&path).unwrap().len();
    let load = least(|| drop(black_box(Vocabulary::load(&path).unwrap())));
    let vocabulary = Vocabulary::load(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    println!("load, {} tokens of {} kB: {load:?}", vocabulary.tokens(), bytes / 1000);
    for ids in [1, 4, 16] {
        let mut seed = 1_u64;
        let mut id = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((seed >> 33) % TOKENS) as i64
        };
        let rows: Vec<Vec<i64>> = (0..REQUESTS).map(|_| (0..ids).map(|_| id()).collect()).collect();
        let mut requests = vec![Progress::default(); REQUESTS];
        let least = least(|| {
            for (progress, row) in requests.iter_mut().zip(&rows) {
                let _ = black_box(progress.advance(&vocabulary, row));
            }
        });
        let row = least.as_nanos() as f64 / REQUESTS as f64;
        println!("rows of {ids:2}: {row:6.2} ns a row, {:5.2} ns a token", row / f64::from(ids));
    }
}
