//! Mistral's tokenizer Tekken, from the file that the Python package mistral_common brings.

use std::collections::HashMap;
use std::path::Path;

use serde::Deserialize;

/// The ids before the first token of text.
const SPECIAL: u32 = 1_000;
/// The tokens of text.
const TOKENS: u32 = 131_072 - SPECIAL;
/// The bytes that are merged at once. Only a run of one kind of sign is longer.
const MERGED_MAX: usize = 1_000;

#[derive(Deserialize)]
struct File {
    vocab: Vec<Token>,
}

#[derive(Deserialize)]
struct Token {
    rank: u32,
    /// Base64.
    token_bytes: String,
}

pub struct Tekken {
    ranks: HashMap<Vec<u8>, u32>,
}

impl Tekken {
    pub fn load(path: &Path) -> Self {
        let file: File = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        let tokens = file.vocab.into_iter().filter(|token| token.rank < TOKENS);
        Self { ranks: tokens.map(|token| (base64(&token.token_bytes), token.rank)).collect() }
    }

    pub fn encode(&self, text: &str) -> Vec<u32> {
        let (mut ids, mut rest) = (Vec::new(), text);
        while !rest.is_empty() {
            let (piece, then) = rest.split_at(piece(rest));
            piece.as_bytes().chunks(MERGED_MAX).for_each(|bytes| self.merge(bytes, &mut ids));
            rest = then;
        }
        ids
    }

    /// Merges the neighbours with the lowest rank until no merge is a token.
    fn merge(&self, bytes: &[u8], ids: &mut Vec<u32>) {
        if let Some(rank) = self.ranks.get(bytes) {
            ids.push(SPECIAL + rank);
            return;
        }
        let mut cuts: Vec<usize> = (0..=bytes.len()).collect();
        let rank = |cuts: &[usize], at: usize| {
            let end = *cuts.get(at + 2)?;
            self.ranks.get(&bytes[cuts[at]..end]).copied()
        };
        let mut ranks: Vec<Option<u32>> = (0..cuts.len()).map(|at| rank(&cuts, at)).collect();
        while let Some((_, at)) = (0..ranks.len()).filter_map(|at| Some((ranks[at]?, at))).min() {
            cuts.remove(at + 1);
            ranks.remove(at + 1);
            ranks[at] = rank(&cuts, at);
            if at > 0 {
                ranks[at - 1] = rank(&cuts, at - 1);
            }
        }
        ids.extend(cuts.windows(2).map(|cut| SPECIAL + self.ranks[&bytes[cut[0]..cut[1]]]));
    }
}

/// The bytes of the first piece, which no token crosses: a word with the sign before it, a digit, signs, or white space.
fn piece(text: &str) -> usize {
    let count = |from: usize, is: fn(char) -> bool| {
        text[from..].chars().take_while(|char| is(*char)).map(char::len_utf8).sum::<usize>()
    };
    let first = text.chars().next().unwrap();
    let after = first.len_utf8();
    let is_break = |char: char| char == '\r' || char == '\n';
    let letters = if first.is_alphabetic() || first.is_numeric() || is_break(first) { 0 } else { after };
    let upper = count(letters, |char| char.is_alphabetic() && !char.is_lowercase());
    let lower = count(letters + upper, |char| char.is_alphabetic() && !char.is_uppercase());
    if upper + lower > 0 {
        return letters + upper + lower;
    }
    if first.is_numeric() {
        return after;
    }
    let blank = usize::from(first == ' ');
    let signs = count(blank, |char| !char.is_whitespace() && !char.is_alphanumeric());
    if signs > 0 {
        let end = blank + signs;
        return end + count(end, |char| matches!(char, '\r' | '\n' | '/'));
    }
    let white = count(0, char::is_whitespace);
    if let Some(last) = text[..white].rfind(is_break) {
        return last + 1;
    }
    // The last blank goes with the word after it.
    let last = text[..white].chars().next_back().map_or(0, char::len_utf8);
    if white < text.len() && white > last { white - last } else { white }
}

fn base64(text: &str) -> Vec<u8> {
    let digit = |byte: u8| match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let (mut bytes, mut bits, mut count) = (Vec::new(), 0_u32, 0);
    for byte in text.bytes().filter(|byte| *byte != b'=') {
        bits = bits << 6 | u32::from(digit(byte));
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    bytes
}
