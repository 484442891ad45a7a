//! The plugin against a second, simple matcher.

use std::collections::BTreeSet;

use regex_syntax::hir::{Class, Hir, HirKind, Look, Repetition};

use super::random::Random;
use super::tokens::{Tokens, rows_of_ids, rows_of_text, run};
use crate::automaton::joins_words;

/// The ends of all matches of `hir` in `text` from `start`.
fn ends(hir: &Hir, text: &[u8], start: usize) -> BTreeSet<usize> {
    match hir.kind() {
        HirKind::Empty => [start].into(),
        HirKind::Literal(literal) => match text[start..].starts_with(&literal.0) {
            true => [start + literal.0.len()].into(),
            false => BTreeSet::new(),
        },
        HirKind::Class(Class::Bytes(class)) => {
            let byte = text
                .get(start)
                .filter(|byte| class.iter().any(|range| (range.start()..=range.end()).contains(*byte)));
            byte.map(|_| start + 1).into_iter().collect()
        }
        HirKind::Class(Class::Unicode(class)) => {
            let character = str::from_utf8(&text[start..]).ok().and_then(|text| text.chars().next());
            let fits = |character: &char| {
                class.iter().any(|range| (range.start()..=range.end()).contains(character))
            };
            character.filter(fits).map(|character| start + character.len_utf8()).into_iter().collect()
        }
        HirKind::Look(look) => {
            let joins = |at: usize| {
                let mut joins = false;
                text[..at].iter().for_each(|byte| joins = joins_words(*byte, joins));
                joins
            };
            let before = joins(start);
            let after = start < text.len() && joins_words(text[start], before);
            let holds = match look {
                Look::Start => start == 0,
                Look::End => start == text.len(),
                Look::StartLF => start == 0 || text[start - 1] == b'\n',
                Look::EndLF => start == text.len() || text[start] == b'\n',
                Look::WordUnicode => before != after,
                Look::WordUnicodeNegate => before == after,
                Look::WordStartHalfUnicode => !before,
                Look::WordEndHalfUnicode => !after,
                look => panic!("{look:?}"),
            };
            if holds { [start].into() } else { BTreeSet::new() }
        }
        HirKind::Capture(capture) => ends(&capture.sub, text, start),
        HirKind::Concat(parts) => parts.iter().fold([start].into(), |starts: BTreeSet<usize>, part| {
            starts.iter().flat_map(|start| ends(part, text, *start)).collect()
        }),
        HirKind::Alternation(parts) => parts.iter().flat_map(|part| ends(part, text, start)).collect(),
        HirKind::Repetition(Repetition { min, max, sub, .. }) => {
            let mut last: BTreeSet<usize> = [start].into();
            let mut all = BTreeSet::new();
            for count in 0.. {
                if count >= *min {
                    let known = all.len();
                    all.extend(&last);
                    if all.len() == known && count > *min {
                        break;
                    }
                }
                if max.is_some_and(|max| count >= max) || last.is_empty() {
                    break;
                }
                last = last.iter().flat_map(|start| ends(sub, text, *start)).collect();
            }
            all
        }
    }
}

/// The text with a mask in place of all matches. Overlapping matches become one mask.
fn masked(patterns: &[Hir], text: &str) -> String {
    let bytes = text.as_bytes();
    let mut spans: Vec<(usize, usize)> = Vec::new();
    for start in 0..bytes.len() {
        let end = patterns.iter().filter_map(|pattern| ends(pattern, bytes, start).last().copied()).max();
        match (spans.last_mut(), end) {
            (Some((_, last)), Some(end)) if start < *last => *last = end.max(*last),
            (_, Some(end)) => spans.push((start, end)),
            (_, None) => {}
        }
    }
    let (mut masked, mut at) = (String::new(), 0);
    for (start, end) in spans {
        masked.push_str(&text[at..start]);
        masked.push('#');
        at = end;
    }
    masked + &text[at..]
}

const PATTERNS: [&str; 22] = [
    "ab",
    "a+b",
    "ab*",
    "(?:ab|ba)+c",
    r"\bab\b",
    r"\Bb+",
    "a.c",
    "a{2,4}",
    "(?:a|ab|abc)d?",
    "^a+",
    "b+$",
    "(?m)^b",
    "(?m)c$",
    "a[^a]*a",
    "é+",
    r"\bä",
    "[a-c]é",
    "(?i)AB",
    "a?b?c",
    "abcabd",
    "cab|b",
    r"ab\b|\bc",
];

#[test]
fn random_patterns_mask_the_same_text_as_a_simple_matcher_in_any_split() {
    let tokens = Tokens::new(["ab", "abc", "ba", "éa", " a", "b b", "ca\n"]);
    for seed in 0..600 {
        let mut random = Random::new(seed);
        let patterns: Vec<&str> = (0..=random.below(3)).map(|_| random.pick(&PATTERNS)).collect();
        let hirs: Vec<Hir> = patterns.iter().map(|pattern| regex_syntax::parse(pattern).unwrap()).collect();
        let settings = format!(r##"{{"patterns": {patterns:?}, "mask": "#"}}"##);
        let mut plugin = tokens.plugin(&settings);
        for request in 0..8 {
            let length = random.below(24);
            let text = random.text("aaabbbccéä \n.d", length);
            let wanted = masked(&hirs, &text);
            let ids = tokens.encode_at_random(&text, &mut random);
            let cuts: Vec<usize> = (1..ids.len()).filter(|_| random.below(2) == 0).collect();
            let received = run(&mut plugin, request, &rows_of_ids(request, &ids, &cuts));
            assert_eq!(
                tokens.text(&received.ids),
                wanted,
                "seed {seed}: {patterns:?} in {text:?}, rows {cuts:?}"
            );
            let cuts: Vec<usize> =
                (1..text.len()).filter(|at| text.is_char_boundary(*at) && random.below(2) == 0).collect();
            let received = run(&mut plugin, request, &rows_of_text(request, &text, &cuts));
            assert_eq!(received.text, wanted, "seed {seed}: {patterns:?} in {text:?}, rows {cuts:?}");
        }
    }
}
