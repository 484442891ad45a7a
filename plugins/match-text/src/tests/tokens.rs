//! A tokenizer for tests, and runs of a text through the plugin.

use std::collections::HashMap;

use afterbay_plugin::testing::{Harness, Readers, Received, TestRow};
use afterbay_plugin::{FinishKind, TokenId};

use crate::MatchText;
use crate::tests::random::Random;

/// A vocabulary of all bytes and the pieces of some texts, in the way of GPT-4: words with the space before, up to
/// three digits, and runs of punctuation.
pub struct Tokens {
    pub all: Vec<Option<Vec<u8>>>,
    ids: HashMap<Vec<u8>, TokenId>,
}

/// A special token, in every [`Tokens`].
pub const SPECIAL: TokenId = 256;

impl Tokens {
    pub fn new<'a>(texts: impl IntoIterator<Item = &'a str>) -> Self {
        let bytes = (0..=u8::MAX).map(|byte| vec![byte]);
        let mut all: Vec<Option<Vec<u8>>> = bytes.map(Some).chain([None]).collect();
        let mut ids: HashMap<Vec<u8>, TokenId> =
            (0..=u8::MAX).map(|byte| (vec![byte], byte.into())).collect();
        for piece in texts.into_iter().flat_map(pieces) {
            ids.entry(piece.as_bytes().to_vec()).or_insert_with(|| {
                all.push(Some(piece.as_bytes().to_vec()));
                (all.len() - 1) as TokenId
            });
        }
        Self { all, ids }
    }

    /// Adds a token. Texts are never encoded with it.
    pub fn add(&mut self, bytes: &[u8]) -> TokenId {
        self.all.push(Some(bytes.to_vec()));
        (self.all.len() - 1) as TokenId
    }

    /// The ids of a text: pieces, or bytes for unknown pieces.
    pub fn encode(&self, text: &str) -> Vec<TokenId> {
        let piece = |piece: &str| match self.ids.get(piece.as_bytes()) {
            Some(&id) => vec![id],
            None => piece.bytes().map(TokenId::from).collect(),
        };
        pieces(text).into_iter().flat_map(piece).collect()
    }

    /// The ids of a text that is cut at random places, each piece being a token or bytes.
    pub fn encode_at_random(&self, text: &str, random: &mut Random) -> Vec<TokenId> {
        let mut ids = Vec::new();
        for id in self.encode(text) {
            match random.below(4) {
                0 => ids.extend(self.bytes(id).iter().map(|byte| TokenId::from(*byte))),
                _ => ids.push(id),
            }
            if random.below(64) == 0 {
                ids.push(SPECIAL);
            }
        }
        ids
    }

    pub fn bytes(&self, id: TokenId) -> &[u8] {
        self.all[id as usize].as_deref().unwrap_or_default()
    }

    pub fn text(&self, ids: &[TokenId]) -> String {
        let bytes: Vec<u8> = ids.iter().flat_map(|id| self.bytes(*id)).copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    pub fn plugin(&self, settings: &str) -> Readers<MatchText> {
        let plugin = Harness::with_tokens(settings, self.all.clone());
        Readers::new(plugin.unwrap_or_else(|error| panic!("{settings}: {}", error.message())))
    }
}

fn pieces(text: &str) -> Vec<&str> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let kind = |character: char| match character {
            '0'..='9' => 0,
            _ if character.is_alphabetic() => 1,
            _ if character.is_whitespace() => 2,
            _ => 3,
        };
        // A space belongs to the word after it.
        let second = rest[first.len_utf8()..].chars().next();
        let skip = usize::from(first == ' ' && second.is_some_and(|second| matches!(kind(second), 1 | 3)));
        let of = kind(rest[skip..].chars().next().unwrap_or(' '));
        let longest = [3, 7, 4, 3][of];
        let length: usize = rest[skip..]
            .chars()
            .take(longest)
            .take_while(|character| kind(*character) == of)
            .map(char::len_utf8)
            .sum();
        let (piece, after) = rest.split_at(skip + length);
        pieces.push(piece);
        rest = after;
    }
    pieces
}

/// The rows of a text: the ids are cut at these places. The last row ends the request.
pub fn rows_of_ids(request: u64, ids: &[TokenId], cuts: &[usize]) -> Vec<TestRow> {
    let ends = cuts.iter().copied().chain([ids.len()]);
    let mut begin = 0;
    let mut rows: Vec<TestRow> = ends
        .map(|end| {
            let row = TestRow::new(request).ids(&ids[begin..end]);
            begin = end;
            row
        })
        .collect();
    finish(&mut rows);
    rows
}

/// The rows of a text after the detokenizer, cut at these places.
pub fn rows_of_text(request: u64, text: &str, cuts: &[usize]) -> Vec<TestRow> {
    let ends = cuts.iter().copied().chain([text.len()]);
    let mut begin = 0;
    let mut rows: Vec<TestRow> = ends
        .map(|end| {
            let row = TestRow::new(request).ids([SPECIAL]).text(&text[begin..end]);
            begin = end;
            row
        })
        .collect();
    finish(&mut rows);
    rows
}

fn finish(rows: &mut [TestRow]) {
    if let Some(last) = rows.last_mut() {
        *last = last.clone().finish(FinishKind::Stop);
    }
}

/// The output of a request with these rows, each in its own batch.
pub fn run(plugin: &mut Readers<MatchText>, request: u64, rows: &[TestRow]) -> Received {
    plugin.open(request);
    for row in rows {
        plugin.process(std::slice::from_ref(row));
    }
    plugin.close(request)
}
