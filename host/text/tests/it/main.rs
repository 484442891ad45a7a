//! Tests against SGLang's library for decoding: its recorded results for the fixtures, and its results for any ids and
//! any joins.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod detokenizer;
mod expected;
mod joined;
mod load;
mod tokens;

use std::path::PathBuf;

use afterbay_text::{Kind, Vocabulary};

/// Every directory of tests/fixtures.
const FIXTURES: [(&str, Kind); 7] = [
    ("byte-level", Kind::ByteLevel),
    ("byte-level-crossing", Kind::ByteLevel),
    ("byte-fallback", Kind::ByteFallback),
    ("byte-fallback-no-strip", Kind::ByteFallback),
    ("unigram-byte-fallback", Kind::ByteFallback),
    ("unigram", Kind::SentencePiece),
    ("word-piece", Kind::WordPiece),
];

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn vocabulary(name: &str) -> Vocabulary {
    Vocabulary::load(&fixture(name)).unwrap()
}
