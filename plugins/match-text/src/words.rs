//! A list of words as one pattern: a tree of characters.

use std::collections::BTreeMap;

use afterbay_plugin::{ConfigureError, bad_setting};
use regex_syntax::hir::{Class, ClassUnicode, ClassUnicodeRange, Hir, Look};

use crate::automaton::joins_words;
use crate::settings::Settings;

/// The most words.
pub const WORDS_MAX: usize = 10_000;
/// The most bytes of a word.
pub const WORD_BYTES_MAX: usize = 128;
/// The most bytes of all words.
pub const ALL_WORDS_BYTES_MAX: usize = 256 << 10;

/// The words that go on from one character.
#[derive(Default)]
struct Node {
    next: BTreeMap<char, Node>,
    is_end: bool,
}

/// The pattern of the settings' words. `None` if there are none.
pub fn pattern(settings: &Settings) -> Result<Option<Hir>, ConfigureError> {
    let words = &settings.words;
    if words.is_empty() {
        return Ok(None);
    }
    if words.len() > WORDS_MAX {
        let message = format!("has {} words, must have at most {WORDS_MAX}", words.len());
        return Err(bad_setting("/words", message));
    }
    let bytes: usize = words.iter().map(String::len).sum();
    if bytes > ALL_WORDS_BYTES_MAX {
        let message = format!("has {bytes} bytes, must have at most {ALL_WORDS_BYTES_MAX}");
        return Err(bad_setting("/words", message));
    }
    // Words that begin with a letter, and all others: only the first need a border before them.
    let (mut bordered, mut free) = (Node::default(), Node::default());
    for (index, word) in words.iter().enumerate() {
        if word.is_empty() || word.len() > WORD_BYTES_MAX {
            let message = format!("has {} bytes, must have 1 to {WORD_BYTES_MAX}", word.len());
            return Err(bad_setting(format!("/words/{index}"), message));
        }
        let begins = settings.whole_words && word.bytes().next().is_some_and(|byte| joins_words(byte, false));
        let mut node = if begins { &mut bordered } else { &mut free };
        for character in word.chars() {
            let character = if settings.case_sensitive { character } else { folded(character).0 };
            node = node.next.entry(character).or_default();
        }
        node.is_end = true;
    }
    let mut alternatives = Vec::new();
    if !bordered.next.is_empty() {
        let border = Hir::look(Look::WordStartHalfUnicode);
        alternatives.push(Hir::concat(vec![border, tree(&bordered, settings, false)]));
    }
    if !free.next.is_empty() {
        alternatives.push(tree(&free, settings, false));
    }
    Ok(Some(Hir::alternation(alternatives)))
}

/// The words after a node. `joins` says whether the character before is part of a word.
fn tree(node: &Node, settings: &Settings, joins: bool) -> Hir {
    let mut alternatives: Vec<Hir> = Vec::new();
    for (&character, next) in &node.next {
        let mut buffer = [0; 4];
        let joins =
            character.encode_utf8(&mut buffer).bytes().next().is_some_and(|byte| joins_words(byte, false));
        let class = if settings.case_sensitive {
            Hir::literal(character.encode_utf8(&mut buffer).as_bytes())
        } else {
            Hir::class(Class::Unicode(folded(character).1))
        };
        alternatives.push(Hir::concat(vec![class, tree(next, settings, joins)]));
    }
    if node.is_end {
        let border = joins && settings.whole_words;
        alternatives.push(if border { Hir::look(Look::WordEndHalfUnicode) } else { Hir::empty() });
    }
    Hir::alternation(alternatives)
}

/// The first of the characters that differ only in case, and all of them.
fn folded(character: char) -> (char, ClassUnicode) {
    let mut class = ClassUnicode::new([ClassUnicodeRange::new(character, character)]);
    if class.try_case_fold_simple().is_err() {
        class = ClassUnicode::new([ClassUnicodeRange::new(character, character)]);
    }
    (class.ranges().first().map_or(character, |range| range.start()), class)
}
