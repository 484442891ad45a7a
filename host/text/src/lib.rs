//! Where a request's text stands after each row of token ids: whole, or inside a character that is spread over several
//! tokens. SGLang's detokenizer repeats text where a joined row ends inside a character, so the outbox asks here before
//! it joins.
//!
//! A [`Vocabulary`] is read once from a model's `tokenizer.json`. Of every token it keeps what the token does to each
//! state a text can be in, 16 bytes that many tokens share; a request's [`Progress`] is two bytes. This crate knows
//! tokens, bytes and what the reader's `decode` makes of them; what a row or a batch is, it does not.
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
mod spelling;

// every token becomes its effect,
mod effect;
mod utf8;
mod vocabulary;

// and rows of ids move a request's text on.
mod progress;

pub use error::VocabularyError;
pub use file::{MAX_FILE_BYTES, MAX_TOKENS};
pub use progress::{Ending, Progress};
pub use spelling::Kind;
pub use vocabulary::Vocabulary;
