//! Ids of a text, by the library that SGLang encodes with. It makes its own tables of the file, several times the file's
//! size, so an encoder is made only for who asks for one.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use tokenizers::Tokenizer;

use crate::error::EncodeError;
use crate::{TokenizerFiles, VocabularyError};

/// The longest text that is encoded at once: 64 KiB, some 30 ms. Nothing stops the library in the middle.
pub const MAX_TEXT_BYTES: usize = 64 << 10;

/// Makes ids of text. Cheap to clone; one serves any number of threads.
#[derive(Clone)]
pub struct Encoder {
    tokenizer: Arc<Tokenizer>,
}

impl std::fmt::Debug for Encoder {
    fn fmt(&self, formatter: &mut std::fmt::Formatter) -> std::fmt::Result {
        formatter.debug_struct("Encoder").finish_non_exhaustive()
    }
}

impl Encoder {
    /// Reads `path`: a `tokenizer.json`, or a model's directory that holds one.
    ///
    /// # Errors
    /// As of [`TokenizerFiles::read`] and [`TokenizerFiles::encoder`].
    pub fn load(path: &Path) -> Result<Encoder, VocabularyError> {
        TokenizerFiles::read(path)?.encoder()
    }

    pub(crate) fn of(files: &TokenizerFiles) -> Result<Encoder, VocabularyError> {
        let refused = |reason: String| VocabularyError::NotForEncoding { path: files.path.clone(), reason };
        // The library checks less than it relies on.
        let read = catch_unwind(|| Tokenizer::from_bytes(&files.bytes));
        let mut tokenizer = read
            .map_err(|_| refused("the tokenizers library panicked".into()))?
            .map_err(|error| refused(error.to_string()))?;
        // A file may ask for a length of its own.
        tokenizer.with_padding(None);
        tokenizer.with_truncation(None).map_err(|error| refused(error.to_string()))?;
        Ok(Encoder { tokenizer: Arc::new(tokenizer) })
    }

    /// The ids of a text. None are put around it (`<s>`), but what is written in it of special tokens becomes them, as
    /// with SGLang. At most [`MAX_TEXT_BYTES`].
    ///
    /// # Errors
    /// The text is too long, or the library fails at it.
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
