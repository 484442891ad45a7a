//! vLLM's messages: everything that belongs to this engine alone.
//!
//! A message is `EngineCoreOutputs`, an array of fields, of which one is the array of rows. A row is
//! `EngineCoreOutput`: one request in one step. Both are arrays, and `layout` says which field stands where; fields that
//! are not known are carried. Arrays of numbers are copied and never read.

use afterbay_types::Engine;

mod abort;
mod again;
mod arrays;
mod batch;
mod decode;
mod erase;
pub mod fields;
mod frame;
mod json;
mod layout;
mod outputs;
mod rows;
mod stats;
mod synth;
mod write;

pub(crate) const ENGINE: Engine = Engine::Vllm;

pub(crate) use abort::{abort, read_abort};
pub(crate) use again::again;
pub(crate) use decode::{decode, is_own};
pub(crate) use layout::OutputsLayouts;
pub use synth::{SynthOutput, SynthOutputs};
