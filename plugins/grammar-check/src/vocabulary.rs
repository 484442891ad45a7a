//! The model's tokens, as bytes.

use afterbay_plugin::TokenId;

/// Where a vocabulary is read from: what the host's interface `tokenizer` has.
pub trait Tokenizer {
    /// How many ids there are: each id is less.
    fn size(&self) -> u32;
    /// The bytes of each of `count` tokens from `first` on; empty for a special one.
    fn token_bytes(&self, first: TokenId, count: u32) -> Vec<Vec<u8>>;
    /// The ids of the special tokens, ascending. Each ends a text, unless the grammar names it (`<[128010]>` in Lark).
    fn special(&self) -> Vec<TokenId>;
    /// More ids that end a text, though they are text themselves. None, unless the host knows better.
    fn eos(&self) -> Vec<TokenId> {
        Vec::new()
    }
    /// The special token that is written so, if there is one.
    fn special_of(&self, text: &str) -> Option<TokenId>;
}

/// How many tokens are asked for at a time.
const AT_A_TIME: u32 = 4096;

/// The model's tokens: their bytes, and 4 more for each.
#[derive(Clone, Debug)]
pub struct Vocabulary {
    bytes: Vec<u8>,
    /// By id: where its bytes end.
    ends: Vec<u32>,
    special: Vec<TokenId>,
    eos: Vec<TokenId>,
}

impl Vocabulary {
    /// Reads all of it.
    ///
    /// # Errors
    /// It has no tokens, or `token_bytes` does not give as many as it was asked for.
    pub fn read(tokenizer: &impl Tokenizer) -> Result<Self, String> {
        let size = tokenizer.size();
        if size == 0 {
            return Err("the tokenizer has no tokens".into());
        }
        let (mut bytes, mut ends) = (Vec::new(), Vec::with_capacity(size as usize));
        let mut first = 0;
        while first < size {
            let count = AT_A_TIME.min(size - first);
            let tokens = tokenizer.token_bytes(TokenId::from(first), count);
            if tokens.len() != count as usize {
                let had = tokens.len();
                return Err(format!("the tokenizer gave {had} tokens from {first} on, asked for {count}"));
            }
            for token in tokens {
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
        Ok(Self { bytes, ends, special, eos })
    }

    /// How many ids there are.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.ends.len() as u32
    }

    /// A token's bytes; empty if it is special, or no token.
    #[must_use]
    pub fn bytes(&self, id: TokenId) -> &[u8] {
        let Ok(id) = usize::try_from(id) else { return &[] };
        let Some(end) = self.ends.get(id) else { return &[] };
        let start = id.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start as usize..*end as usize]
    }

    /// The ids of the special tokens, ascending.
    #[must_use]
    pub fn special(&self) -> &[TokenId] {
        &self.special
    }

    /// Whether a token is special.
    #[must_use]
    pub fn is_special(&self, id: TokenId) -> bool {
        self.special.binary_search(&id).is_ok()
    }

    /// Whether the model's files say that a token ends a text.
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

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The 256 bytes as ids of their own, these words behind them, then `<end>` and `<tool>`, which are special.
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

        /// Longest words first.
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

    /// A tokenizer of so many tokens, each its id in hexadecimal, that gives less than it is asked for if told to.
    struct Counted {
        size: u32,
        short: usize,
    }

    impl Tokenizer for Counted {
        fn size(&self) -> u32 {
            self.size
        }

        fn token_bytes(&self, first: TokenId, count: u32) -> Vec<Vec<u8>> {
            assert!(count <= AT_A_TIME && first + TokenId::from(count) <= TokenId::from(self.size));
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
    fn all_tokens_are_read_in_a_few_calls_and_ids_that_are_none_have_no_bytes() {
        let size = 2 * AT_A_TIME + 5;
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
    fn a_tokenizer_without_tokens_or_that_gives_too_few_is_refused() {
        let refused = |size, short| Vocabulary::read(&Counted { size, short }).unwrap_err();
        assert_eq!(refused(0, 0), "the tokenizer has no tokens");
        assert_eq!(refused(5000, 1), "the tokenizer gave 4095 tokens from 0 on, asked for 4096");
    }
}
