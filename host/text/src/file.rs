//! A `tokenizer.json` as written, and the files beside it, as far as they say what a token's text is. Merges,
//! normalizers and pre-tokenizers concern only who makes tokens of text: they are skipped, unread, until an
//! [`Encoder`] is asked for.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use hashbrown::{HashMap, HashSet};
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use crate::named::Named;
use crate::{Encoder, Tokens, Vocabulary, VocabularyError};

/// The longest file that is read: 256 MiB. The largest known (Gemma's, 262,144 tokens) has 33 MB.
pub const MAX_FILE_BYTES: u64 = 256 << 20;

/// The most tokens of a vocabulary; all ids are below it.
pub const MAX_TOKENS: usize = 4_000_000;

/// A model's `tokenizer.json`, read once, and what the files beside it add: a [`Vocabulary`], the [`Tokens`] and an
/// [`Encoder`] are made of the same bytes. It holds the whole file, so it is to be let go once they are made.
#[derive(Debug)]
pub struct TokenizerFiles {
    /// The `tokenizer.json`.
    pub(crate) path: PathBuf,
    /// All of it.
    pub(crate) bytes: Vec<u8>,
    /// What it says.
    pub(crate) written: Written,
    /// Every string of the files beside it: `transformers` makes some of them special tokens. More than those are here,
    /// which costs nothing: such a token is only trusted less.
    pub(crate) maybe_special: HashSet<String, foldhash::fast::RandomState>,
    /// Those that `transformers` makes special tokens.
    pub(crate) named: Named,
    /// The file that asks for clean-up, if one does.
    pub(crate) cleans_up: Option<PathBuf>,
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
    #[serde(default)]
    pub special: bool,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Model {
    #[serde(rename = "type", default)]
    kind: Option<String>,
    /// Files from before 2020 have no type.
    #[serde(default)]
    merges: Option<IgnoredAny>,
    pub vocab: ModelTokens,
}

impl Model {
    fn is_bpe(&self) -> bool {
        self.kind.as_deref().map_or(self.merges.is_some(), |kind| kind == "BPE")
    }
}

/// The model's tokens with their ids; past [`MAX_TOKENS`] they are only counted.
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
        struct Read;
        impl<'de> Visitor<'de> for Read {
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

            // Unigram: a token's id is its place.
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<ModelTokens, A::Error> {
                let mut tokens = ModelTokens::default();
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

impl TokenizerFiles {
    /// Reads `path`, a `tokenizer.json` or a model's directory that holds one. `tokenizer_config.json` and
    /// `special_tokens_map.json` beside it are read too, where they are.
    ///
    /// # Errors
    /// The file cannot be read, is no tokenizer, or is too large ([`MAX_FILE_BYTES`], [`MAX_TOKENS`]).
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
        let written: Written = parse(&path, &bytes)?;
        let tokens = written.model.vocab.count + written.added_tokens.len();
        if tokens > MAX_TOKENS {
            return Err(VocabularyError::TooManyTokens { path, tokens });
        }
        let (mut maybe_special, mut named, mut cleans_up) = (HashSet::default(), Named::default(), None);
        for name in ["tokenizer_config.json", "special_tokens_map.json"] {
            let beside = path.with_file_name(name);
            if let Some(value) = read_beside::<Value>(&beside)? {
                if cleans_up.is_none() && self::cleans_up(&value, written.model.is_bpe()) {
                    cleans_up = Some(beside);
                }
                named.add(&value);
                strings(value, &mut maybe_special);
            }
        }
        Ok(TokenizerFiles { path, bytes, written, maybe_special, named, cleans_up })
    }

    /// What each token does to a text.
    ///
    /// # Errors
    /// Tokens become text in a way that is not known here, or that makes a row's text depend on its neighbours.
    pub fn vocabulary(&self) -> Result<Vocabulary, VocabularyError> {
        Vocabulary::of(self)
    }

    /// The bytes of each token. `generation_config.json` and `config.json` beside the file are read too, where they
    /// are, for the ids that end a text.
    ///
    /// # Errors
    /// Tokens become text in a way that is not known here, their text is too large, or a file beside is no JSON.
    pub fn tokens(&self) -> Result<Tokens, VocabularyError> {
        Tokens::of(self)
    }

    /// What makes ids of a text.
    ///
    /// # Errors
    /// The library that SGLang encodes with does not take the file.
    pub fn encoder(&self) -> Result<Encoder, VocabularyError> {
        Encoder::of(self)
    }

    /// The ids of the added tokens, in the file's order. The reader's library does not take them as written: one that
    /// the model has keeps the model's, the others are numbered on from the model's size.
    pub(crate) fn added(&self) -> Vec<Added<'_>> {
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
            Added { id, token }
        });
        added.collect()
    }

    /// The largest id, if there is any.
    ///
    /// # Errors
    /// It is too large.
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

/// An added token.
#[derive(Debug)]
pub(crate) struct Added<'a> {
    /// The id that the reader's library gives it.
    pub id: u32,
    /// As written, with an id of its own.
    pub token: &'a AddedToken,
}

/// A JSON file beside a tokenizer; none if it is not there.
pub(crate) fn read_beside<T: serde::de::DeserializeOwned>(path: &Path) -> Result<Option<T>, VocabularyError> {
    bytes(path)?.map(|bytes| parse(path, &bytes)).transpose()
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
