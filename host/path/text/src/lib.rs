//! The tokens of a model, read from its `tokenizer.json` ([`TokenizerFiles`]), for four uses:
//!
//! - The state of a request's text after each row of token ids ([`Vocabulary`], [`TextProgress`]): whole, or inside a
//!   character of several tokens. SGLang's detokenizer repeats text if a joined row ends inside a character, so the
//!   outbox checks here before it joins rows.
//! - The start of a request's first tool call ([`CallProgress`]), for readers whose parser needs single tokens.
//! - The bytes of each token, the special tokens and those that end a text ([`TokenBytes`]), for plugins.
//! - The ids of a text ([`Encoder`]), for plugins.
//!
//! For every token a [`Vocabulary`] has the token's effect on each state of a text: 16 bytes that many tokens share. A
//! request's [`TextProgress`] has two bytes. The crate knows tokens, bytes and the reader's `decode`. It does not know
//! rows, batches or plugins.
//!
//! # The reader
//!
//! SGLang's `DetokenizerManager._decode_batch_token_id_output` (0.5.23) decodes a window of ids. The window begins at
//! the row before the last row whose text was final. A row's text is final if it is not empty and does not end with
//! U+FFFD. Until then the reader sends the prefix that `find_printable_text` returns, and remembers its length. Joined
//! rows give the text of single rows under three conditions. Every joined row ends where a single row would be final
//! ([`TextEnd::Whole`]). The text sent in between never shrinks. A later token cannot change text in the window. Where
//! the second or third condition could fail, a row is [`TextEnd::Broken`].

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod bounds;

// The tokenizer.json.
mod error;
mod special_tokens;

mod file;

mod spelling;

// The effects of tokens, and the state of a text.
mod utf8;

mod effect;

// The tokens that may begin a tool call.
mod calls;

mod vocabulary;

mod progress;

// For plugins.
mod encoder;
mod tokens;

pub use bounds::{MAX_FILE_BYTES, MAX_TEXT_BYTES, MAX_TOKENS};
pub use encoder::Encoder;
pub use error::{EncodeError, VocabularyError};
pub use file::TokenizerFiles;
pub use progress::{CallProgress, TextEnd, TextProgress};
pub use spelling::DecoderKind;
pub use tokens::TokenBytes;
pub use vocabulary::Vocabulary;
