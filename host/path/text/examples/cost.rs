//! Measures in ns the cost of a token, of loading a vocabulary, and of encoding a text: `cargo run --release -p
//! afterbay-text --example cost`. It prints the minimum of many runs, which depends less on the machine's load. The
//! vocabulary is synthetic: 152,000 tokens, as many as Qwen's. 4,096 requests have a row each in turn.

#![allow(clippy::unwrap_used, missing_docs)]

use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

use afterbay_text::{Encoder, TextProgress, TokenBytes, TokenizerFiles, Vocabulary};

const TOKENS: u64 = 152_000;
const REQUESTS: usize = 4096;

/// A fifth of the tokens are parts of characters.
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

/// As many tokens with all their merges, as the encoding library requires: every word of up to three letters and many
/// of four, each made of a shorter word and a letter.
fn mergeable() -> String {
    let letters = (b'!'..=b'~').map(|letter| char::from(letter).to_string());
    let mut tokens: Vec<String> = letters.chain(["Ġ".to_owned(), "Ċ".to_owned()]).collect();
    let (mut merges, mut from) = (Vec::new(), 0);
    while tokens.len() < TOKENS as usize {
        let before = tokens[from].clone();
        from += 1;
        for letter in b'a'..=b'z' {
            let letter = char::from(letter);
            merges.push(format!("{before} {letter}"));
            tokens.push(format!("{before}{letter}"));
        }
    }
    let vocab: serde_json::Map<String, serde_json::Value> =
        tokens.into_iter().zip(0..).map(|(token, id)| (token, id.into())).collect();
    let pattern = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    let split = serde_json::json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
    let bytes = serde_json::json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false});
    serde_json::json!({"decoder": bytes, "model": {"type": "BPE", "vocab": vocab, "merges": merges},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, bytes]}})
    .to_string()
}

/// The process's resident memory in kB.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4
}

fn tokens_and_encoder(path: &Path) {
    std::fs::write(path, mergeable()).unwrap();
    let bytes = std::fs::metadata(path).unwrap().len();
    let files = least(|| drop(black_box(TokenizerFiles::read(path).unwrap())));
    let files_read = TokenizerFiles::read(path).unwrap();
    let tokens = least(|| drop(black_box(files_read.tokens().unwrap())));
    let before = resident();
    let kept: TokenBytes = files_read.tokens().unwrap();
    println!("read, {} kB: {files:?}; tokens of it: {tokens:?}, {} kB", bytes / 1000, resident() - before);
    let before = resident();
    let begun = Instant::now();
    let encoder: Encoder = files_read.encoder().unwrap();
    println!("encoder: {:?}, {} kB", begun.elapsed(), resident() - before);
    let text = "The quick brown fox jumps over 13 lazy dogs; and so on, and so on.\n".repeat(100);
    let took = least(|| drop(black_box(encoder.encode(&text).unwrap())));
    let ids = encoder.encode(&text).unwrap();
    assert_eq!(kept.decode(&ids), text.as_bytes());
    println!(
        "encode: {:.0} ns a byte, {} bytes as {} ids",
        took.as_nanos() as f64 / text.len() as f64,
        text.len(),
        ids.len()
    );
}

/// The shortest of all runs in about a second.
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
    tokens_and_encoder(&path);
    std::fs::remove_file(&path).unwrap();
    println!("load, {} tokens of {} kB: {load:?}", vocabulary.tokens(), bytes / 1000);
    for ids in [1, 4, 16] {
        let mut seed = 1_u64;
        let mut id = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((seed >> 33) % TOKENS) as i64
        };
        let rows: Vec<Vec<i64>> = (0..REQUESTS).map(|_| (0..ids).map(|_| id()).collect()).collect();
        let mut requests = vec![TextProgress::default(); REQUESTS];
        let least = least(|| {
            for (progress, row) in requests.iter_mut().zip(&rows) {
                let _ = black_box(progress.advance(&vocabulary, row));
            }
        });
        let row = least.as_nanos() as f64 / REQUESTS as f64;
        println!("rows of {ids:2}: {row:6.2} ns a row, {:5.2} ns a token", row / f64::from(ids));
    }
}
