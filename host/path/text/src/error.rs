//! The errors of loading a vocabulary and of encoding. Without a vocabulary, rows before a detokenizer are not joined.

use std::path::PathBuf;

use thiserror::Error;

use crate::bounds::{MAX_FILE_BYTES, MAX_TEXT_BYTES, MAX_TOKENS};

/// The reason why a vocabulary cannot be loaded.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum VocabularyError {
    /// The file does not exist or cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The model's directory has no `tokenizer.json`. It may have another format: `tekken.json`, `tokenizer.model` or
    /// `tiktoken.model`.
    #[error("{}: holds no tokenizer.json, the only format that is read", path.display())]
    NoTokenizer {
        /// The directory.
        path: PathBuf,
    },
    /// The file is too large.
    #[error("{}: over the limit of {MAX_FILE_BYTES} bytes (has {bytes})", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its length, as far as it was read.
        bytes: u64,
    },
    /// The file is not JSON, or not a tokenizer's JSON.
    #[error("{}: not a tokenizer: {source}", path.display())]
    NotATokenizer {
        /// The file.
        path: PathBuf,
        /// The expected content, and its position.
        source: serde_json::Error,
    },
    /// The vocabulary has too many tokens.
    #[error("{}: vocabulary of {tokens} tokens is over the limit of {MAX_TOKENS}", path.display())]
    TooManyTokens {
        /// The file.
        path: PathBuf,
        /// The number of tokens, including added ones.
        tokens: usize,
    },
    /// An id would make the table of ids too large.
    #[error("{}: token id {id} is not below the limit of {MAX_TOKENS}", path.display())]
    IdTooLarge {
        /// The file.
        path: PathBuf,
        /// The largest id.
        id: u32,
    },
    /// The decoder is unknown, so the tokens' text is unknown.
    #[error("{}: decoder {decoder} is not supported", path.display())]
    Decoder {
        /// The file.
        path: PathBuf,
        /// The decoder, or its step.
        decoder: String,
    },
    /// The reader removes spaces from the text of each decoded window (`clean_up_tokenization_spaces`), so a row's text
    /// depends on the rows beside it.
    #[error("{}: clean_up_tokenization_spaces makes a row's text depend on the rows beside it", path.display())]
    CleansUp {
        /// The `tokenizer_config.json`.
        path: PathBuf,
    },
    /// The tokens' text is too large.
    #[error("{}: the text of its tokens is over the limit of {MAX_FILE_BYTES} bytes", path.display())]
    TextTooLarge {
        /// The file.
        path: PathBuf,
    },
    /// SGLang's library for encoding refuses the file.
    #[error("{}: cannot be used to encode: {reason}", path.display())]
    NotForEncoding {
        /// The file.
        path: PathBuf,
        /// The library's error.
        reason: String,
    },
}

/// The reason why a text was not encoded.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// The text is too long.
    #[error("text of {bytes} bytes is over the limit of {MAX_TEXT_BYTES}")]
    TooLong {
        /// The text's length in bytes.
        bytes: usize,
    },
    /// The library fails on the text.
    #[error("the tokenizers library does not encode this text: {0}")]
    Library(String),
}
