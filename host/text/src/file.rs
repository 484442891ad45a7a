//! A `tokenizer.json` as written, and the files beside it, as far as they say what a token's text is. Merges,
//! normalizers and pre-tokenizers concern only who makes tokens of text: they are skipped, unread.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use hashbrown::HashSet;
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use crate::VocabularyError;

/// The longest file that is read: 256 MiB. The largest known (Gemma's, 262,144 tokens) has 33 MB.
pub const MAX_FILE_BYTES: u64 = 256 << 20;

/// The most tokens of a vocabulary; all ids are below it.
pub const MAX_TOKENS: usize = 4_000_000;

/// A `tokenizer.json`, and what the files beside it add.
#[derive(Debug)]
pub(crate) struct Source {
    /// The `tokenizer.json`.
    pub path: PathBuf,
    /// What it says.
    pub written: Written,
    /// Every string of the files beside it: `transformers` makes some of them special tokens. More than those are here,
    /// which costs nothing: such a token is only trusted less.
    pub maybe_special: HashSet<String, foldhash::fast::RandomState>,
}

/// What is read of a `tokenizer.json`.
#[derive(Debug, Deserialize)]
pub(crate) struct Written {
    #[serde(default)]
    pub added_tokens: Vec<AddedToken>,
    #[serde(default)]
    pub decoder: Option<Value>,
    pub model: Model,
}

/// A token beside the model's: special, or a word that is kept in one piece.
#[derive(Debug, Deserialize)]
pub(crate) struct AddedToken {
    pub id: u32,
    pub content: String,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Model {
    #[serde(rename = "type", default)]
    kind: Option<String>,
    /// Files from before 2020 have no type.
    #[serde(default)]
    merges: Option<IgnoredAny>,
    pub vocab: Tokens,
}

impl Model {
    fn is_bpe(&self) -> bool {
        self.kind.as_deref().map_or(self.merges.is_some(), |kind| kind == "BPE")
    }
}

/// The model's tokens with their ids; past [`MAX_TOKENS`] they are only counted.
#[derive(Debug, Default)]
pub(crate) struct Tokens {
    pub kept: Vec<(String, u32)>,
    pub count: usize,
}

impl Tokens {
    fn push(&mut self, token: String, id: u32) {
        self.count += 1;
        if self.count <= MAX_TOKENS {
            self.kept.push((token, id));
        }
    }
}

impl<'de> Deserialize<'de> for Tokens {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = Tokens;

            fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
                formatter.write_str("a map of tokens to ids, or a list of tokens with scores")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Tokens, A::Error> {
                let mut tokens = Tokens::default();
                while let Some((token, id)) = map.next_entry()? {
                    tokens.push(token, id);
                }
                Ok(tokens)
            }

            // Unigram: a token's id is its place.
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Tokens, A::Error> {
                let mut tokens = Tokens::default();
                while let Some((token, _score)) = list.next_element::<(String, f64)>()? {
                    let id = u32::try_from(tokens.count).unwrap_or(u32::MAX);
                    tokens.push(token, id);
                }
                Ok(tokens)
            }
        }
        deserializer.deserialize_any(Read)
    }
}

impl Source {
    /// Reads `path`, a `tokenizer.json` or a directory that holds one, and what stands beside it.
    pub fn read(path: &Path) -> Result<Source, VocabularyError> {
        let path = if path.is_dir() { path.join("tokenizer.json") } else { path.to_owned() };
        let Some(bytes) = bytes(&path)? else {
            return Err(match path.parent() {
                Some(parent) if parent.is_dir() && path.ends_with("tokenizer.json") => {
                    VocabularyError::NoTokenizer { path: parent.to_owned() }
                }
                _ => {
                    let source =
                        std::io::Error::new(std::io::ErrorKind::NotFound, "no such file or directory");
                    VocabularyError::Read { path, source }
                }
            });
        };
        let written: Written = parse(&path, &bytes)?;
        drop(bytes);
        let tokens = written.model.vocab.count + written.added_tokens.len();
        if tokens > MAX_TOKENS {
            return Err(VocabularyError::TooManyTokens { path, tokens });
        }
        let mut maybe_special = HashSet::default();
        for name in ["tokenizer_config.json", "special_tokens_map.json"] {
            let beside = path.with_file_name(name);
            if let Some(bytes) = self::bytes(&beside)? {
                let value: Value = parse(&beside, &bytes)?;
                if cleans_up(&value, written.model.is_bpe()) {
                    return Err(VocabularyError::CleansUp { path: beside });
                }
                strings(value, &mut maybe_special);
            }
        }
        Ok(Source { path, written, maybe_special })
    }
}

/// For BPE, `transformers` 5 ignores the wish, as it would spoil the text, unless a second key insists.
fn cleans_up(config: &Value, is_bpe: bool) -> bool {
    let says = |key: &str| config.get(key).and_then(Value::as_bool) == Some(true);
    let insists = says("clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output");
    says("clean_up_tokenization_spaces") && (!is_bpe || insists)
}

fn strings(value: Value, found: &mut HashSet<String, foldhash::fast::RandomState>) {
    match value {
        Value::String(text) => {
            found.insert(text);
        }
        Value::Array(values) => values.into_iter().for_each(|value| strings(value, found)),
        Value::Object(fields) => {
            // Tokens are also keys, in some.
            for (key, value) in fields {
                found.insert(key);
                strings(value, found);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// A file's bytes; none if it is not there.
fn bytes(path: &Path) -> Result<Option<Vec<u8>>, VocabularyError> {
    let failed = |source| VocabularyError::Read { path: path.to_owned(), source };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let long = file.metadata().map_err(failed)?.len();
    let too_large = |bytes| VocabularyError::TooLarge { path: path.to_owned(), bytes };
    if long > MAX_FILE_BYTES {
        return Err(too_large(long));
    }
    // It may grow meanwhile, or be a device whose length nobody knows.
    let mut bytes = Vec::with_capacity(usize::try_from(long).unwrap_or_default());
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
    let read = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
    if read > MAX_FILE_BYTES { Err(too_large(read)) } else { Ok(Some(bytes)) }
}

fn parse<T: serde::de::DeserializeOwned>(path: &Path, bytes: &[u8]) -> Result<T, VocabularyError> {
    serde_json::from_slice(bytes)
        .map_err(|source| VocabularyError::NotATokenizer { path: path.to_owned(), source })
}
