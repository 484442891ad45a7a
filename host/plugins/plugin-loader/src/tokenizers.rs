//! The tokenizer files of a process. Each is read once, although the check before a start and several sinks need it.

use afterbay_runtime::{EncodeError, Tokens};
use afterbay_text::{Encoder, MAX_TEXT_BYTES, TokenBytes, TokenizerFiles, Vocabulary, VocabularyError};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A cache of tokenizer files, by path.
#[derive(Default)]
pub struct Tokenizers(Mutex<HashMap<PathBuf, Cached>>);

#[derive(Default)]
struct Cached {
    vocabulary: Option<Vocabulary>,
    tokens: Option<Arc<ModelTokens>>,
    bytes: Option<TokenBytes>,
}

impl Tokenizers {
    /// The vocabulary for a sink: where a request's text is whole.
    ///
    /// # Errors
    /// The files cannot be read.
    pub fn vocabulary(&self, path: &Path) -> Result<Vocabulary, VocabularyError> {
        if let Some(cached) = self.lock().get(path).and_then(|cached| cached.vocabulary.clone()) {
            return Ok(cached);
        }
        let vocabulary = Vocabulary::load(path)?;
        self.lock().entry(path.to_owned()).or_default().vocabulary = Some(vocabulary.clone());
        Ok(vocabulary)
    }

    /// The model's tokens for plugins.
    ///
    /// # Errors
    /// The files cannot be read.
    pub fn tokens(&self, path: &Path) -> Result<Arc<ModelTokens>, VocabularyError> {
        if let Some(cached) = self.lock().get(path).and_then(|cached| cached.tokens.clone()) {
            return Ok(cached);
        }
        let tokens = Arc::new(ModelTokens::load(path)?);
        self.lock().entry(path.to_owned()).or_default().tokens = Some(tokens.clone());
        Ok(tokens)
    }

    /// The bytes of the model's tokens, for people.
    ///
    /// # Errors
    /// The files cannot be read.
    pub fn token_bytes(&self, path: &Path) -> Result<TokenBytes, VocabularyError> {
        let of_plugins = |cached: &Cached| cached.tokens.as_ref().map(|tokens| tokens.tokens.clone());
        let cached =
            self.lock().get(path).and_then(|cached| cached.bytes.clone().or_else(|| of_plugins(cached)));
        if let Some(cached) = cached {
            return Ok(cached);
        }
        let bytes = TokenBytes::load(path)?;
        self.lock().entry(path.to_owned()).or_default().bytes = Some(bytes.clone());
        Ok(bytes)
    }

    /// Forgets every file: another engine may use other files under the same names.
    pub fn forget(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<PathBuf, Cached>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A model's tokens, as a plugin asks for them.
///
/// The encoder takes some tenths of a second to make, so loading makes it.
pub struct ModelTokens {
    tokens: TokenBytes,
    /// The error is kept: a plugin that encodes nothing does not need the encoder.
    encoder: Result<Encoder, String>,
}

impl ModelTokens {
    /// Reads a tokenizer.json, or the one in a directory.
    ///
    /// # Errors
    /// The files cannot be read.
    pub fn load(path: &Path) -> Result<ModelTokens, VocabularyError> {
        let files = TokenizerFiles::read(path)?;
        let encoder = files.encoder().map_err(|error| error.to_string());
        Ok(ModelTokens { tokens: files.tokens()?, encoder })
    }
}

impl Tokens for ModelTokens {
    fn size(&self) -> u32 {
        self.tokens.size()
    }

    fn bytes(&self, id: i64) -> &[u8] {
        self.tokens.bytes(id)
    }

    fn special(&self) -> &[i64] {
        self.tokens.special()
    }

    fn end_of_text(&self) -> &[i64] {
        self.tokens.eos()
    }

    fn encode(&self, text: &str) -> Result<Vec<i64>, EncodeError> {
        let encoder = self.encoder.as_ref().map_err(|why| EncodeError::Failed(why.clone()))?;
        encoder.encode(text).map_err(|error| match error {
            afterbay_text::EncodeError::TooLong { .. } => EncodeError::TooLong(MAX_TEXT_BYTES as u32),
            error => EncodeError::Failed(error.to_string()),
        })
    }
}
