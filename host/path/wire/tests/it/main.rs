//! The tests of afterbay-wire's public API, on frames of the real SGLang and vLLM and on synthetic ones.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod samples;
mod value_len;

mod columns;
mod edits;
mod erase;
mod facts;
mod fixtures;
mod future;
mod hostile;
mod joins;
mod properties;
mod real_sglang;
mod replacements;
mod smg;
mod textless;
mod vllm;
