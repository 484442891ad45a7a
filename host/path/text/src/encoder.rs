//! Encodes texts with the library that SGLang uses. The library's tables are several times larger than the file, so an
//! encoder is made only on request.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use tokenizers::Tokenizer;

use crate::bounds::MAX_TEXT_BYTES;
use crate::error::{EncodeError, VocabularyError};
use crate::file::TokenizerFiles;

/// Encodes texts. Cheap to clone; one encoder serves any number of threads.
#[derive(Clone)]
pub struct Encoder {
    tokenizer: Arc<Tokenizer>,
}

impl std::fmt::Debug for Encoder {
    fn fmt(&self, formatter: &mut std::fmt::Formatter) -> std::fmt::Result {
        formatter.debug_struct("Encoder").finish_non_exhaustive()
    }
}

impl TokenizerFiles {
    /// Makes the encoder of texts.
    ///
    /// # Errors
    /// SGLang's library for encoding refuses the file.
    pub fn encoder(&self) -> Result<Encoder, VocabularyError> {
        let refused = |reason: String| VocabularyError::NotForEncoding { path: self.path.clone(), reason };
        // The library can panic on a file that it has not checked enough.
        let read = catch_unwind(|| Tokenizer::from_bytes(&self.bytes));
        let mut tokenizer = read
            .map_err(|_| refused("the tokenizers library panicked".into()))?
            .map_err(|error| refused(error.to_string()))?;
        // The file may request padding and truncation.
        tokenizer.with_padding(None);
        tokenizer.with_truncation(None).map_err(|error| refused(error.to_string()))?;
        Ok(Encoder { tokenizer: Arc::new(tokenizer) })
    }
}

impl Encoder {
    /// Reads `path`: a `tokenizer.json`, or a model's directory with one.
    ///
    /// # Errors
    /// Those of [`TokenizerFiles::read`] and [`TokenizerFiles::encoder`].
    pub fn load(path: &Path) -> Result<Encoder, VocabularyError> {
        TokenizerFiles::read(path)?.encoder()
    }

    /// Returns the ids of a text of at most [`MAX_TEXT_BYTES`]. No special tokens (`<s>`) are added; special tokens
    /// written in the text are encoded as such, as in SGLang.
    ///
    /// # Errors
    /// The text is too long, or the library fails on it.
    pub fn encode(&self, text: &str) -> Result<Vec<i64>, EncodeError> {
        if text.len() > MAX_TEXT_BYTES {
            return Err(EncodeError::TooLong { bytes: text.len() });
        }
        let encoded = catch_unwind(AssertUnwindSafe(|| self.tokenizer.encode_fast(text, false)));
        let encoded = encoded
            .map_err(|_| EncodeError::Library("it panicked".into()))?
            .map_err(|error| EncodeError::Library(error.to_string()))?;
        Ok(encoded.get_ids().iter().map(|id| i64::from(*id)).collect())
    }
}
