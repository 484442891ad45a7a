//! Checks each request's tokens against a grammar as they come: a JSON schema, a regex or a Lark grammar, by
//! [`llguidance`]. It says at which token an output cannot be continued, when one ends too early, and when one has gone
//! into a loop of whitespace.
//!
//! This is the plugin's core, complete and tested natively. What it is not yet is a component, and so it is not bundled:
//! `llguidance` reads a clock where it compiles a grammar, and a plugin has none. The [`Tokenizer`] that it reads its
//! [`Vocabulary`] from has what the SDK's `tokenizer` has.
//!
//! # How it checks
//!
//! A scheduler with a grammar asks which of all tokens may come next, for which a trie of the whole vocabulary is walked.
//! Here the token is known, and only its bytes are asked for: no trie is made, and a vocabulary costs its bytes.
//!
//! # What it cannot know
//!
//! - **Stop strings** are in a request's ids, though not in its text: one that the grammar does not allow is told as a
//!   violation. A stop *token* is not.
//! - **Order**: `llguidance`, as SGLang's grammar backends, takes a schema's properties in the order of the schema. So a
//!   schema is given as JSON text, whose order nobody changes on the way.
//! - What the request itself asked for: the grammar is the stream's.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

// Settings name a grammar,
mod settings;

// which is compiled over the model's tokens,
mod grammar;
mod vocabulary;

// each request is matched against it,
mod matcher;

// and what is found is judged.
mod check;

pub use check::{Action, GrammarCheck, Judgement};
pub use grammar::{GRAMMAR_BYTES_MAX, Grammar, GrammarText, LEXER_STATES_MAX};
pub use matcher::{Finding, Matcher};
pub use settings::{GrammarSetting, OnEarlyEnd, OnViolation, Settings};
pub use vocabulary::{Tokenizer, Vocabulary};

#[cfg(test)]
mod tests;
