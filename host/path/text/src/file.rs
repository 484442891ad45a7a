//! A `tokenizer.json` and the files beside it, as far as they define the tokens' text. Merges, normalizers and
//! pre-tokenizers only serve encoding. They are skipped unless an [`Encoder`](crate::Encoder) is made.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use hashbrown::{HashMap, HashSet};
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use crate::bounds::{MAX_FILE_BYTES, MAX_TOKENS};
use crate::error::VocabularyError;
use crate::special_tokens::SpecialTokens;

/// A model's `tokenizer.json` and the data of the files beside it, read once. A `Vocabulary`, the `TokenBytes` and an
/// `Encoder` are made from it. It holds the whole file, so drop it afterwards.
#[derive(Debug)]
pub struct TokenizerFiles {
    /// The path of `tokenizer.json`.
    pub(crate) path: PathBuf,
    /// The file's bytes.
    pub(crate) bytes: Vec<u8>,
    /// The file's content.
    pub(crate) written: TokenizerJson,
    /// Every string of the files beside it. `transformers` makes some of them special tokens. The additional ones are
    /// harmless: their tokens are trusted less.
    pub(crate) maybe_special: HashSet<String, foldhash::fast::RandomState>,
    /// The tokens that `transformers` makes special.
    pub(crate) special_tokens: SpecialTokens,
    /// The file that requests clean-up, if one does.
    pub(crate) cleans_up: Option<PathBuf>,
}

/// The parts of a `tokenizer.json` that are read.
#[derive(Debug, Deserialize)]
pub(crate) struct TokenizerJson {
    #[serde(default)]
    pub added_tokens: Vec<AddedToken>,
    #[serde(default)]
    pub decoder: Option<Value>,
    pub model: ModelJson,
}

/// A token besides the model's: a special token, or a word that stays in one piece.
#[derive(Debug, Deserialize)]
pub(crate) struct AddedToken {
    pub id: u32,
    pub content: String,
    #[serde(default)]
    pub special: bool,
}

#[derive(Debug, Deserialize)]
pub(crate) struct ModelJson {
    #[serde(rename = "type", default)]
    kind: Option<String>,
    /// Files from before 2020 have no type.
    #[serde(default)]
    merges: Option<IgnoredAny>,
    pub vocab: ModelTokens,
}

impl ModelJson {
    fn is_bpe(&self) -> bool {
        self.kind.as_deref().map_or(self.merges.is_some(), |kind| kind == "BPE")
    }
}

/// The model's tokens with their ids. Past [`MAX_TOKENS`] they are only counted.
#[derive(Debug, Default)]
pub(crate) struct ModelTokens {
    pub kept: Vec<(String, u32)>,
    pub count: usize,
}

impl ModelTokens {
    fn push(&mut self, token: String, id: u32) {
        self.count += 1;
        if self.count <= MAX_TOKENS {
            self.kept.push((token, id));
        }
    }
}

impl<'de> Deserialize<'de> for ModelTokens {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TokensVisitor;
        impl<'de> Visitor<'de> for TokensVisitor {
            type Value = ModelTokens;

            fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
                formatter.write_str("a map of tokens to ids, or a list of tokens with scores")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ModelTokens, A::Error> {
                let mut tokens = ModelTokens::default();
                while let Some((token, id)) = map.next_entry()? {
                    tokens.push(token, id);
                }
                Ok(tokens)
            }

            // Unigram: a token's id is its index.
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<ModelTokens, A::Error> {
                let mut tokens = ModelTokens::default();
                while let Some((token, _score)) = list.next_element::<(String, f64)>()? {
                    let id = u32::try_from(tokens.count).unwrap_or(u32::MAX);
                    tokens.push(token, id);
                }
                Ok(tokens)
            }
        }
        deserializer.deserialize_any(TokensVisitor)
    }
}

impl TokenizerFiles {
    /// Reads `path`, a `tokenizer.json` or a model's directory with one. Also reads `tokenizer_config.json` and
    /// `special_tokens_map.json` beside it, if they exist.
    ///
    /// # Errors
    /// The file cannot be read, is not a tokenizer, or is too large ([`MAX_FILE_BYTES`], [`MAX_TOKENS`]).
    pub fn read(path: &Path) -> Result<TokenizerFiles, VocabularyError> {
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
        let written: TokenizerJson = parse(&path, &bytes)?;
        let tokens = written.model.vocab.count + written.added_tokens.len();
        if tokens > MAX_TOKENS {
            return Err(VocabularyError::TooManyTokens { path, tokens });
        }
        let (mut maybe_special, mut special_tokens, mut cleans_up) =
            (HashSet::default(), SpecialTokens::default(), None);
        for name in ["tokenizer_config.json", "special_tokens_map.json"] {
            let beside = path.with_file_name(name);
            if let Some(value) = read_beside::<Value>(&beside)? {
                if cleans_up.is_none() && self::cleans_up(&value, written.model.is_bpe()) {
                    cleans_up = Some(beside);
                }
                special_tokens.add(&value);
                strings(value, &mut maybe_special);
            }
        }
        Ok(TokenizerFiles { path, bytes, written, maybe_special, special_tokens, cleans_up })
    }

    /// The ids of the added tokens, in the file's order. The reader's library ignores the written ids: a token of the
    /// model keeps the model's id, and the others are numbered from the model's size on.
    pub(crate) fn added(&self) -> Vec<NumberedToken<'_>> {
        let model: HashMap<&str, u32, foldhash::fast::RandomState> =
            self.written.model.vocab.kept.iter().map(|(token, id)| (token.as_str(), *id)).collect();
        let mut next = u32::try_from(model.len()).unwrap_or(u32::MAX);
        let mut given: HashMap<&str, u32, foldhash::fast::RandomState> = HashMap::default();
        let tokens = self.written.added_tokens.iter().filter(|token| !token.content.is_empty());
        let added = tokens.map(|token| {
            let content = token.content.as_str();
            let id = given.get(content).or_else(|| model.get(content)).copied().unwrap_or_else(|| {
                next = next.saturating_add(1);
                next - 1
            });
            given.insert(content, id);
            NumberedToken { id, token }
        });
        added.collect()
    }

    /// The largest id, if there is any token.
    ///
    /// # Errors
    /// The id is too large.
    pub(crate) fn largest(&self) -> Result<Option<usize>, VocabularyError> {
        let model = self.written.model.vocab.kept.iter().map(|(_, id)| *id);
        let added = self.written.added_tokens.iter().map(|token| token.id);
        let Some(id) = model.chain(added).max() else { return Ok(None) };
        let fits = usize::try_from(id).ok().filter(|id| *id < MAX_TOKENS);
        fits.map_or_else(
            || Err(VocabularyError::IdTooLarge { path: self.path.clone(), id }),
            |id| Ok(Some(id)),
        )
    }
}

/// An added token with its id.
#[derive(Debug)]
pub(crate) struct NumberedToken<'a> {
    /// The id that the reader's library assigns.
    pub id: u32,
    /// The token as written, with the written id.
    pub token: &'a AddedToken,
}

/// Reads a JSON file beside a tokenizer, if it exists.
pub(crate) fn read_beside<T: serde::de::DeserializeOwned>(path: &Path) -> Result<Option<T>, VocabularyError> {
    bytes(path)?.map(|bytes| parse(path, &bytes)).transpose()
}

/// Whether the configuration requests clean-up. For BPE, `transformers` 5 ignores the request unless a second key
/// insists.
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
            // In some files the keys are tokens too.
            for (key, value) in fields {
                found.insert(key);
                strings(value, found);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Reads a file, if it exists.
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
    // The file may grow meanwhile, or be a device of unknown length.
    let mut bytes = Vec::with_capacity(usize::try_from(long).unwrap_or_default());
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
    let read = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
    if read > MAX_FILE_BYTES { Err(too_large(read)) } else { Ok(Some(bytes)) }
}

fn parse<T: serde::de::DeserializeOwned>(path: &Path, bytes: &[u8]) -> Result<T, VocabularyError> {
    serde_json::from_slice(bytes)
        .map_err(|source| VocabularyError::NotATokenizer { path: path.to_owned(), source })
}
