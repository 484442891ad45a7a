//! The tokens of a model, read from its `tokenizer.json` ([`TokenizerFiles`]), as three who ask need them:
//!
//! - Where a request's text stands after each row of token ids ([`Vocabulary`], [`Progress`]): whole, or inside a
//!   character that is spread over several tokens. SGLang's detokenizer repeats text where a joined row ends inside a
//!   character, so the outbox asks here before it joins.
//! - The bytes of each token, the special ones and those that end a text ([`Tokens`]), for plugins.
//! - The ids of a text ([`Encoder`]), for plugins.
//!
//! Of every token a [`Vocabulary`] keeps what the token does to each state a text can be in, 16 bytes that many tokens
//! share; a request's [`Progress`] is two bytes. This crate knows tokens, bytes and what the reader's `decode` makes of
//! them; what a row, a batch or a plugin is, it does not.
//!
//! # The reader
//!
//! SGLang's `DetokenizerManager._decode_batch_token_id_output` (0.5.23) decodes a window of ids from the row before the
//! last one whose text it took as final, and takes a row's text as final if it is not empty and does not end with
//! U+FFFD. Until then it sends what `find_printable_text` lets through, and remembers how much. Joined rows give the
//! text of single ones if every joined row ends where a single one would have been final ([`Ending::Whole`]), if what
//! was let through in between never shrinks, and if a later token cannot change what the window already holds. Where
//! one of the last two could fail, a row is [`Ending::Broken`].

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

// A tokenizer.json is read,
mod error;
mod file;
mod named;
mod spelling;

// every token becomes its effect,
mod effect;
mod utf8;
mod vocabulary;

// rows of ids move a request's text on,
mod progress;

// and plugins have every token's bytes, and a text's ids.
mod encoder;
mod tokens;

pub use encoder::{Encoder, MAX_TEXT_BYTES};
pub use error::{EncodeError, VocabularyError};
pub use file::{MAX_FILE_BYTES, MAX_TOKENS, TokenizerFiles};
pub use progress::{Ending, Progress};
pub use spelling::Kind;
pub use tokens::Tokens;
pub use vocabulary::Vocabulary;
