//! Compares with the results of the Python library that `tests/make_fixtures.py` recorded.

use std::collections::BTreeSet;

use afterbay_text::{DecoderKind, TextEnd, TextProgress};
use serde::Deserialize;

use crate::{FIXTURES, fixture, vocabulary};

/// For every id, `1` if the text so far does not end with U+FFFD: with special tokens skipped, and kept.
#[derive(Deserialize)]
struct Expected {
    ids: Vec<i64>,
    skip: String,
    keep: String,
}

/// The special tokens of all fixtures: `<s>`, `</s>`, `<|im_end|>`.
const SPECIAL: i64 = 3;

fn expected(name: &str) -> Vec<Expected> {
    serde_json::from_str(&std::fs::read_to_string(fixture(name).join("expected.json")).unwrap()).unwrap()
}

fn bits(text: &str) -> Vec<bool> {
    text.chars().map(|bit| bit == '1').collect()
}

#[test]
fn every_fixture_is_in_the_list() {
    let found: BTreeSet<String> = std::fs::read_dir(fixture(""))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(found, FIXTURES.iter().map(|(name, _)| (*name).to_owned()).collect());
}

#[test]
fn a_row_is_whole_only_where_python_decodes_no_replacement_at_the_end() {
    for (name, kind) in FIXTURES {
        let vocabulary = vocabulary(name);
        assert_eq!(vocabulary.kind(), kind, "{name}");
        let (mut clean, mut whole) = (0, 0);
        for one in expected(name) {
            let mut progress = TextProgress::default();
            let (skip, keep) = (bits(&one.skip), bits(&one.keep));
            for (at, id) in one.ids.iter().enumerate() {
                let ending = progress.advance(&vocabulary, &[*id]);
                let so_far = &one.ids[..=at];
                assert!(!progress.is_whole() || skip[at] && keep[at], "{name} {so_far:?}");
                assert!(ending != TextEnd::Whole || progress.is_whole(), "{name} {so_far:?}");
                let certain = !so_far.iter().any(|id| *id < SPECIAL);
                if kind == DecoderKind::ByteLevel && certain {
                    assert_eq!(progress.is_whole(), skip[at], "{name} {so_far:?}");
                }
                clean += usize::from(skip[at] && keep[at]);
                whole += usize::from(progress.is_whole());
            }
        }
        // `cargo test -p afterbay-text -- --nocapture` shows how often rows stay single.
        println!("{name}: {whole} of {clean} clean rows are whole");
        let least = if kind == DecoderKind::ByteFallback { 50 } else { 95 };
        assert!(whole * 100 >= clean * least, "{name}: {whole} of {clean}");
    }
}

#[test]
fn rows_of_several_ids_end_as_rows_of_one() {
    for (name, _) in FIXTURES {
        let vocabulary = vocabulary(name);
        for one in expected(name) {
            let mut single = TextProgress::default();
            for id in &one.ids {
                let _ = single.advance(&vocabulary, &[*id]);
            }
            let mut together = TextProgress::default();
            let _ = together.advance(&vocabulary, &one.ids);
            assert_eq!(single.is_whole(), together.is_whole(), "{name} {:?}", one.ids);
        }
    }
}

#[test]
fn an_unknown_id_is_not_whole_until_the_next_character() {
    for (name, _) in FIXTURES {
        let vocabulary = vocabulary(name);
        let texts = (SPECIAL..i64::try_from(vocabulary.tokens()).unwrap()).rev();
        let is_text = |id: &i64| {
            let mut progress = TextProgress::default();
            let _ = progress.advance(&vocabulary, &[-1]);
            progress.advance(&vocabulary, &[*id]) == TextEnd::Whole
        };
        let text = texts.clone().find(is_text).unwrap();
        for unknown in [-1, i64::MIN, i64::MAX, i64::try_from(vocabulary.tokens()).unwrap()] {
            let mut progress = TextProgress::default();
            assert_eq!(progress.advance(&vocabulary, &[unknown]), TextEnd::Broken, "{name}");
            assert_eq!(
                progress.advance(&vocabulary, &[1]),
                TextEnd::Broken,
                "{name}: a special token says nothing"
            );
            assert_eq!(progress.advance(&vocabulary, &[text]), TextEnd::Whole, "{name}");
        }
    }
}
