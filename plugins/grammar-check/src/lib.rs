//! Checks each request's tokens against a grammar as they come: a JSON schema, a regex or a Lark grammar, by
//! [`llguidance`]. It says at which token an output cannot be continued, when one ends too early, and when one has gone
//! into a loop of whitespace.
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
//! - What the request itself asked the scheduler for: who knows it says so by the request's attributes.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

// Settings, or requests, bring grammars,
mod settings;

// which are compiled over the model's tokens, and kept;
mod grammar;
mod grammars;
mod vocabulary;

// each request is matched against one,
mod matcher;
mod paths;

// by the rule that is for it,
mod rules;

// what is found is judged,
mod check;

// and told.
mod plugin;

pub use check::{Action, GrammarCheck, Judgement, Kind, REQUEST_TOKENS_MAX};
pub use grammar::{
    Compiler, GRAMMAR_BYTES_MAX, Grammar, GrammarText, LEXER_STATES_MAX, REQUEST_GRAMMAR_BYTES_MAX,
};
pub use matcher::{Finding, Marker, Matcher};
pub use settings::{GRAMMARS_MAX, OnEarlyEnd, OnViolation, RULES_MAX, Rule, Settings};
pub use vocabulary::{Tokenizer, Vocabulary};

#[cfg(test)]
mod tests;
