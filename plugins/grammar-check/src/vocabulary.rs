//! The model's tokens as bytes.

use afterbay_plugin::TokenId;
use llguidance::toktrie::TokTrie;

/// The source of a vocabulary: the functions of the host's interface `tokenizer`.
pub trait Tokenizer {
    /// The number of ids. Every id is lower than this number.
    fn size(&self) -> u32;
    /// The bytes of each of `count` tokens, starting at id `first`; empty for a special token.
    fn token_bytes(&self, first: TokenId, count: u32) -> Vec<Vec<u8>>;
    /// The ids of the special tokens, in ascending order. Each ends a text, unless the grammar names it
    /// (`<[128010]>` in Lark).
    fn special(&self) -> Vec<TokenId>;
    /// Ids of ordinary tokens that end a text. None by default.
    fn eos(&self) -> Vec<TokenId> {
        Vec::new()
    }
    /// The special token with this text, if there is one.
    fn special_of(&self, text: &str) -> Option<TokenId>;
}

/// The number of tokens in one call of `token_bytes`.
const TOKENS_PER_CALL: u32 = 4096;

/// The model's tokens: their bytes, and 5 more bytes for each.
#[derive(Clone, Debug)]
pub struct Vocabulary {
    bytes: Vec<u8>,
    /// The end of each token's bytes, by id.
    ends: Vec<u32>,
    special: Vec<TokenId>,
    eos: Vec<TokenId>,
    /// Whether each token may stand in a JSON string and changes nothing there.
    plain: Vec<bool>,
}

impl Vocabulary {
    /// Reads the whole vocabulary.
    ///
    /// # Errors
    /// If there are no tokens, or if `token_bytes` returns fewer tokens than requested.
    pub fn read(tokenizer: &impl Tokenizer) -> Result<Self, String> {
        let size = tokenizer.size();
        if size == 0 {
            return Err("the tokenizer has no tokens".into());
        }
        let (mut bytes, mut ends) = (Vec::new(), Vec::with_capacity(size as usize));
        let mut plain = Vec::with_capacity(size as usize);
        let mut first = 0;
        while first < size {
            let count = TOKENS_PER_CALL.min(size - first);
            let tokens = tokenizer.token_bytes(TokenId::from(first), count);
            if tokens.len() != count as usize {
                let received = tokens.len();
                return Err(format!(
                    "the tokenizer gave {received} tokens from id {first} on instead of {count}"
                ));
            }
            for token in tokens {
                plain.push(is_plain(&token));
                bytes.extend(token);
                ends.push(u32::try_from(bytes.len()).map_err(|_| "the tokens have over 4 GiB of text")?);
            }
            first += count;
        }
        let sorted = |mut ids: Vec<TokenId>| {
            ids.retain(|id| (0..TokenId::from(size)).contains(id));
            ids.sort_unstable();
            ids
        };
        let (special, eos) = (sorted(tokenizer.special()), sorted(tokenizer.eos()));
        Ok(Self { bytes, ends, special, eos, plain })
    }

    /// The number of ids.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.ends.len() as u32
    }

    /// The bytes of a token; empty for a special token and for an unknown id.
    #[must_use]
    pub fn bytes(&self, id: TokenId) -> &[u8] {
        let Ok(id) = usize::try_from(id) else { return &[] };
        let Some(end) = self.ends.get(id) else { return &[] };
        let start = id.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start as usize..*end as usize]
    }

    /// Whether a token consists of whole characters that may stand in a JSON string as they are.
    #[must_use]
    pub(crate) fn is_plain(&self, id: TokenId) -> bool {
        usize::try_from(id).ok().and_then(|id| self.plain.get(id)).is_some_and(|plain| *plain)
    }

    /// The ids of the special tokens, in ascending order.
    #[must_use]
    pub fn special(&self) -> &[TokenId] {
        &self.special
    }

    /// Whether a token is special.
    #[must_use]
    pub fn is_special(&self, id: TokenId) -> bool {
        self.special.binary_search(&id).is_ok()
    }

    /// Whether the model's files name the token as an end of the text.
    #[must_use]
    pub fn is_eos(&self, id: TokenId) -> bool {
        self.eos.binary_search(&id).is_ok()
    }

    /// Whether a token ends a text.
    #[must_use]
    pub fn is_end(&self, id: TokenId) -> bool {
        self.is_special(id) || self.is_eos(id)
    }
}

fn is_plain(token: &[u8]) -> bool {
    let is_text = |byte: &u8| *byte >= 0x20 && *byte != b'"' && *byte != b'\\';
    !token.is_empty() && token.iter().all(is_text) && (token.is_ascii() || std::str::from_utf8(token).is_ok())
}

/// The bytes of a special token for the parser, which recognizes it by a first byte that no text has.
pub(crate) fn special_bytes(id: u32) -> Vec<u8> {
    [&[TokTrie::SPECIAL_TOKEN_MARKER][..], format!("<{id}>").as_bytes()].concat()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A tokenizer for tests: the 256 bytes as tokens, then these words, then the special tokens `<end>` and
    /// `<tool>`.
    pub(crate) struct Words(pub(crate) &'static [&'static str]);

    impl Words {
        /// `<end>`.
        pub(crate) fn end(&self) -> TokenId {
            256 + self.0.len() as TokenId
        }

        /// `<tool>`.
        pub(crate) fn tool(&self) -> TokenId {
            self.end() + 1
        }

        /// Takes the longest matching word at each position.
        pub(crate) fn ids(&self, text: &str) -> Vec<TokenId> {
            let (mut ids, mut rest) = (Vec::new(), text);
            while let Some(byte) = rest.bytes().next() {
                let found = self.0.iter().enumerate().filter(|(_, word)| rest.starts_with(**word));
                let (id, len) = match found.max_by_key(|(_, word)| word.len()) {
                    Some((at, word)) => (256 + at as TokenId, word.len()),
                    None if byte.is_ascii() => (TokenId::from(byte), 1),
                    None => {
                        let char = rest.chars().next().unwrap().len_utf8();
                        ids.extend(rest.bytes().take(char).map(TokenId::from));
                        rest = &rest[char..];
                        continue;
                    }
                };
                ids.push(id);
                rest = &rest[len..];
            }
            ids
        }
    }

    impl Tokenizer for Words {
        fn size(&self) -> u32 {
            self.tool() as u32 + 1
        }

        fn token_bytes(&self, first: TokenId, count: u32) -> Vec<Vec<u8>> {
            let of = |id: TokenId| match usize::try_from(id).unwrap() {
                byte @ 0..256 => vec![byte as u8],
                at => self.0.get(at - 256).map_or(Vec::new(), |word| word.as_bytes().to_vec()),
            };
            (first..first + TokenId::from(count)).map(of).collect()
        }

        fn special(&self) -> Vec<TokenId> {
            vec![self.end(), self.tool()]
        }

        fn special_of(&self, text: &str) -> Option<TokenId> {
            (text == "<tool>").then(|| self.tool())
        }
    }

    /// A tokenizer of `size` tokens, each its id in hexadecimal. Each call returns `short` tokens too few.
    struct Counted {
        size: u32,
        short: usize,
    }

    impl Tokenizer for Counted {
        fn size(&self) -> u32 {
            self.size
        }

        fn token_bytes(&self, first: TokenId, count: u32) -> Vec<Vec<u8>> {
            assert!(count <= TOKENS_PER_CALL && first + TokenId::from(count) <= TokenId::from(self.size));
            let ids = first..first + TokenId::from(count);
            ids.map(|id| format!("{id:x}").into_bytes()).skip(self.short).collect()
        }

        fn special(&self) -> Vec<TokenId> {
            vec![7, 3, -1, TokenId::from(self.size)]
        }

        fn eos(&self) -> Vec<TokenId> {
            vec![9]
        }

        fn special_of(&self, _: &str) -> Option<TokenId> {
            None
        }
    }

    #[test]
    fn all_tokens_are_read_in_a_few_calls_and_unknown_ids_have_no_bytes() {
        let size = 2 * TOKENS_PER_CALL + 5;
        let read = Vocabulary::read(&Counted { size, short: 0 }).unwrap();
        assert_eq!(read.size(), size);
        for id in [0, 1, 4095, 4096, 8196] {
            assert_eq!(read.bytes(id), format!("{id:x}").as_bytes());
        }
        for id in [-1, i64::MIN, TokenId::from(size), i64::MAX] {
            assert!(read.bytes(id).is_empty() && !read.is_special(id) && !read.is_end(id));
        }
        assert_eq!(read.special(), [3, 7]);
        assert_eq!(
            [3, 7, 9, 4].map(|id| (read.is_special(id), read.is_end(id))),
            [(true, true), (true, true), (false, true), (false, false)]
        );
    }

    #[test]
    fn a_tokenizer_with_no_or_too_few_tokens_is_refused() {
        let refused = |size, short| Vocabulary::read(&Counted { size, short }).unwrap_err();
        assert_eq!(refused(0, 0), "the tokenizer has no tokens");
        assert_eq!(refused(5000, 1), "the tokenizer gave 4095 tokens from id 0 on instead of 4096");
    }
}
