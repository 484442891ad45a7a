//! Tests against SGLang's library for decoding: its recorded results for the fixtures, and its results for any ids and
//! any joins.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod calls;
mod detokenizer;
mod expected;
mod joined;
mod load;
mod tokens;

use std::path::PathBuf;

use afterbay_text::{DecoderKind, Vocabulary};

/// Every directory of tests/fixtures.
const FIXTURES: [(&str, DecoderKind); 7] = [
    ("byte-level", DecoderKind::ByteLevel),
    ("byte-level-crossing", DecoderKind::ByteLevel),
    ("byte-fallback", DecoderKind::ByteFallback),
    ("byte-fallback-no-strip", DecoderKind::ByteFallback),
    ("unigram-byte-fallback", DecoderKind::ByteFallback),
    ("unigram", DecoderKind::SentencePiece),
    ("word-piece", DecoderKind::WordPiece),
];

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn vocabulary(name: &str) -> Vocabulary {
    Vocabulary::load(&fixture(name)).unwrap()
}
