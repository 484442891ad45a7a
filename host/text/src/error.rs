//! Why a vocabulary cannot be had. Without one, rows before a detokenizer are not joined.

use std::path::PathBuf;

use thiserror::Error;

use crate::encoder::MAX_TEXT_BYTES;
use crate::file::{MAX_FILE_BYTES, MAX_TOKENS};

/// Why a vocabulary cannot be had.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum VocabularyError {
    /// The file is not there, or cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A model's directory without a `tokenizer.json`; there may be one of another format, as `tekken.json`,
    /// `tokenizer.model` or `tiktoken.model`.
    #[error("{}: holds no tokenizer.json, the only format that is read", path.display())]
    NoTokenizer {
        /// The directory.
        path: PathBuf,
    },
    /// More bytes than a file may have.
    #[error("{}: over the limit of {MAX_FILE_BYTES} bytes (has {bytes})", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its length, as far as it is known.
        bytes: u64,
    },
    /// Not JSON, or not a tokenizer's.
    #[error("{}: not a tokenizer: {source}", path.display())]
    NotATokenizer {
        /// The file.
        path: PathBuf,
        /// What was expected, and where.
        source: serde_json::Error,
    },
    /// More tokens than a vocabulary may have.
    #[error("{}: vocabulary of {tokens} tokens is over the limit of {MAX_TOKENS}", path.display())]
    TooManyTokens {
        /// The file.
        path: PathBuf,
        /// How many it has, added ones included.
        tokens: usize,
    },
    /// An id so large that the table of ids would be.
    #[error("{}: token id {id} is not below the limit of {MAX_TOKENS}", path.display())]
    IdTooLarge {
        /// The file.
        path: PathBuf,
        /// The largest id.
        id: u32,
    },
    /// Tokens become text in a way that is not known here.
    #[error("{}: decoder {decoder} is not supported", path.display())]
    Decoder {
        /// The file.
        path: PathBuf,
        /// The decoder, or the step of it.
        decoder: String,
    },
    /// The reader takes spaces out of the text of each window that it decodes (`clean_up_tokenization_spaces`), so that
    /// a row's text depends on the rows beside it.
    #[error("{}: clean_up_tokenization_spaces makes a row's text depend on the rows beside it", path.display())]
    CleansUp {
        /// The `tokenizer_config.json`.
        path: PathBuf,
    },
    /// The tokens stand for more text than is kept.
    #[error("{}: the text of its tokens is over the limit of {MAX_FILE_BYTES} bytes", path.display())]
    TextTooLarge {
        /// The file.
        path: PathBuf,
    },
    /// The library that SGLang encodes with does not take the file.
    #[error("{}: cannot be used to encode: {reason}", path.display())]
    NotForEncoding {
        /// The file.
        path: PathBuf,
        /// What the library says.
        reason: String,
    },
}

/// Why a text has no ids.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// More bytes than are encoded at once.
    #[error("text of {bytes} bytes is over the limit of {MAX_TEXT_BYTES}")]
    TooLong {
        /// How many it has.
        bytes: usize,
    },
    /// The library fails at it.
    #[error("the tokenizers library does not encode this text: {0}")]
    Library(String),
}
