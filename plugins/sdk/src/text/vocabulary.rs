//! The bytes of the model's tokens, read once from the host.

use crate::{ConfigureError, Row, TokenId, missing, tokenizer};

/// The number of tokens in one call of `token_bytes`.
const TOKENS_PER_CALL: u32 = 4096;

/// The bytes of all tokens of the stream's model, in one buffer with 4 more bytes for each token: about 1.5 MB
/// for 150,000 tokens. A look-up reads two neighbouring entries of the buffer.
///
/// Special tokens have no bytes, like unknown ids: the text of a stream continues over them.
#[derive(Clone, Debug)]
pub struct Vocabulary {
    bytes: Vec<u8>,
    /// The end of each token's bytes, by id.
    ends: Vec<u32>,
    /// The token whose only byte is the index, or -1.
    of_byte: Box<[TokenId; 256]>,
}

impl Vocabulary {
    /// Reads the vocabulary from the host. Call this in [`Plugin::new`](crate::Plugin::new). Grant:
    /// `tokenizer`.
    ///
    /// # Errors
    /// If the host has no tokens, or if the tokens have 4 GiB of text or more.
    pub fn load() -> Result<Self, ConfigureError> {
        let size = tokenizer::size();
        if size == 0 {
            return Err(missing("the stream's tokenizer has no tokens"));
        }
        let (mut bytes, mut ends) = (Vec::new(), Vec::with_capacity(size as usize));
        let mut of_byte = Box::new([-1; 256]);
        let mut first = 0;
        while first < size {
            let count = TOKENS_PER_CALL.min(size - first);
            let mut tokens = tokenizer::token_bytes(TokenId::from(first), count);
            tokens.resize(count as usize, Vec::new());
            for token in tokens {
                if let &[byte] = &token[..]
                    && of_byte[usize::from(byte)] == -1
                {
                    of_byte[usize::from(byte)] = ends.len() as TokenId;
                }
                bytes.extend_from_slice(&token);
                let end = u32::try_from(bytes.len());
                ends.push(end.map_err(|_| missing("the tokens have 4 GiB of text or more"))?);
            }
            first += count;
        }
        bytes.shrink_to_fit();
        Ok(Self { bytes, ends, of_byte })
    }

    /// The number of ids.
    #[must_use]
    pub fn size(&self) -> usize {
        self.ends.len()
    }

    /// The bytes of a token. Empty for a special token and for an unknown id.
    #[must_use]
    #[inline]
    pub fn bytes(&self, id: TokenId) -> &[u8] {
        let Ok(id) = usize::try_from(id) else { return &[] };
        let Some(&end) = self.ends.get(id) else { return &[] };
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        &self.bytes[start as usize..end as usize]
    }

    /// The pieces of a row's text: its [`Row::text`] after the detokenizer, and the bytes of each token before
    /// the detokenizer. The plugin reads the columns [`Columns::TEXTS`](crate::Columns::TEXTS) and
    /// [`Columns::OUTPUT_IDS`](crate::Columns::OUTPUT_IDS).
    pub fn pieces<'a>(&'a self, row: Row<'a>) -> impl Iterator<Item = &'a [u8]> {
        let text = row.text().map(str::as_bytes);
        let ids = if text.is_some() { &[] } else { row.ids() };
        text.into_iter().chain(ids.iter().map(|id| self.bytes(*id)))
    }

    /// Appends a row's text to `text`.
    pub fn append(&self, row: Row<'_>, text: &mut Vec<u8>) {
        self.pieces(row).for_each(|piece| text.extend_from_slice(piece));
    }

    /// The ids of a text. The text of the ids is exactly this text: where the model's tokenizer would add a
    /// space or make a special token of a part, and where the bytes are not UTF-8, each byte becomes a token.
    /// A byte that has no token is left out.
    #[must_use]
    pub fn encode(&self, text: &[u8]) -> Vec<TokenId> {
        let mut ids = Vec::new();
        for chunk in text.utf8_chunks() {
            self.encode_text(chunk.valid(), &mut ids);
            self.encode_bytes(chunk.invalid(), &mut ids);
        }
        ids
    }

    fn encode_text(&self, text: &str, ids: &mut Vec<TokenId>) {
        if text.is_empty() {
            return;
        }
        let encoded = tokenizer::encode(text).unwrap_or_default();
        if self.is_text_of(&encoded, text.as_bytes()) {
            ids.extend(encoded);
        } else if let Some((&space, rest)) = encoded.split_first()
            && self.bytes(space) == b" "
            && self.is_text_of(rest, text.as_bytes())
        {
            // SentencePiece puts a space before a text.
            ids.extend_from_slice(rest);
        } else {
            self.encode_bytes(text.as_bytes(), ids);
        }
    }

    fn encode_bytes(&self, bytes: &[u8], ids: &mut Vec<TokenId>) {
        let of_byte = bytes.iter().map(|byte| self.of_byte[usize::from(*byte)]);
        ids.extend(of_byte.filter(|id| *id >= 0));
    }

    fn is_text_of(&self, ids: &[TokenId], text: &[u8]) -> bool {
        ids.iter().flat_map(|id| self.bytes(*id)).eq(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::columns::{TestRow, batch_of};
    use crate::stand_in::{HOST, StandIn};
    use crate::{Batch, Columns};

    fn vocabulary(tokens: Vec<Option<Vec<u8>>>) -> Result<Vocabulary, ConfigureError> {
        HOST.with_borrow_mut(|host| *host = StandIn { tokens, ..StandIn::default() });
        Vocabulary::load()
    }

    fn tokens(words: &[&str]) -> Vec<Option<Vec<u8>>> {
        words.iter().map(|word| Some(word.as_bytes().to_vec())).collect()
    }

    #[test]
    fn every_token_of_a_large_vocabulary_has_its_bytes_and_unknown_ids_have_none() {
        let size = 2 * TOKENS_PER_CALL as usize + 5;
        let mut all: Vec<Option<Vec<u8>>> =
            (0..size).map(|id| Some(format!("{id:x}").into_bytes())).collect();
        all[9] = None;
        let vocabulary = vocabulary(all).unwrap();
        assert_eq!(vocabulary.size(), size);
        for id in [0, 1, 4095, 4096, 8196] {
            assert_eq!(vocabulary.bytes(id), format!("{id:x}").as_bytes());
        }
        for id in [-1, 9, i64::MIN, size as i64, i64::MAX] {
            assert!(vocabulary.bytes(id).is_empty(), "{id}");
        }
    }

    #[test]
    fn a_host_without_tokens_is_an_error() {
        let error = vocabulary(Vec::new()).unwrap_err();
        assert_eq!(error.message(), "the stream's tokenizer has no tokens");
    }

    #[test]
    fn a_row_has_the_same_text_before_and_after_the_detokenizer() {
        let mut all = tokens(&["ab", "c", "\u{e9}"]);
        all.push(None);
        let vocabulary = vocabulary(all).unwrap();
        let wanted = Columns::OUTPUT_IDS.union(Columns::TEXTS);
        for (row, columns) in [
            (TestRow::new(1).ids([0, 3, 2, 1]), Columns::OUTPUT_IDS),
            (TestRow::new(1).ids([7, 7]).text("ab\u{e9}c"), wanted),
        ] {
            let columns = batch_of(0, &[row], columns);
            let row = Batch::new(&columns).rows().next().unwrap();
            let mut text = Vec::new();
            vocabulary.append(row, &mut text);
            assert_eq!(text, "ab\u{e9}c".as_bytes());
        }
    }

    #[test]
    fn encoded_ids_have_exactly_the_bytes_of_the_text() {
        let mut all: Vec<Option<Vec<u8>>> = (0..=255).map(|byte| Some(vec![byte])).collect();
        all.extend(tokens(&["mask", "[mask]"]));
        let vocabulary = vocabulary(all).unwrap();
        assert_eq!(vocabulary.encode(b"a[mask]b"), [97, 257, 98]);
        // A character's last byte, and a text after it.
        assert_eq!(vocabulary.encode(b"\xa9mask"), [0xa9, 256]);
        assert_eq!(vocabulary.encode(b""), [] as [TokenId; 0]);
    }
}
