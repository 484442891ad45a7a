//! vLLM's frames: those that the real vLLM 0.32.0 wrote, and synthetic ones.

pub mod support;

mod edits;
mod erase;
mod fields;
mod fixtures;
mod hostile;
mod joins;
mod properties;
mod real_vllm;
