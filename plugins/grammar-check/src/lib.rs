//! Checks each request's tokens against a grammar as they arrive: a JSON schema, a regex or a Lark grammar,
//! matched by [`llguidance`]. The plugin reports the token at which an output leaves the grammar, an output
//! that ends too early, and a loop of whitespace.
//!
//! # How the check works
//!
//! A scheduler with a grammar computes which of all tokens may come next, and walks a trie of the whole
//! vocabulary for it. This plugin already has the token and only asks for its bytes: it makes no trie, and a
//! vocabulary costs only its bytes.
//!
//! # Limits of the check
//!
//! - **Stop strings** are in a request's ids but not in its text. The plugin reports a stop string that the
//!   grammar does not allow as a violation. A stop *token* is no violation.
//! - **Order**: like SGLang's grammar backends, `llguidance` takes a schema's properties in the order of the
//!   schema. The settings therefore hold a schema as JSON text, which keeps its order.
//! - **Grammars of requests**: the plugin does not see the grammar that a request gave to the scheduler. The
//!   request's attributes can name it.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod settings;

mod grammar;
mod grammars;
mod vocabulary;

mod lark;
mod literal;
mod matcher;
mod paths;
mod regex;
mod schema;

mod calls;

mod rules;

mod check;

mod plugin;

pub use check::{FindingKind, GrammarCheck, Judgement, REQUEST_TOKENS_MAX, RowAction};
pub use grammar::{Compiler, GRAMMAR_BYTES_MAX, Grammar, GrammarText, REQUEST_GRAMMAR_BYTES_MAX};
pub use matcher::{Finding, Marker, Matcher};
pub use settings::{
    Engine, GRAMMARS_MAX, OnEarlyEnd, OnViolation, RULES_MAX, ReasoningFormat, Rule, Settings, ToolCallFormat,
};
pub use vocabulary::{Tokenizer, Vocabulary};

#[cfg(test)]
mod tests;
