//! vLLM's messages: everything that belongs to this engine alone.
//!
//! A message is `EngineCoreOutputs`, an array of fields, of which one is the array of rows. A row is
//! `EngineCoreOutput`: one request in one step. Both are arrays whose lengths tell the version ([`fields`]); a longer
//! array than any known one is read as the longest known one, and its further elements are carried. Arrays of numbers
//! are copied and never read.

mod arrays;
mod erase;
pub mod fields;
mod frame;
mod json;
mod outputs;
mod stats;
mod synth;
mod write;

pub(crate) use erase::erase;
pub use frame::EngineLoad;
pub(crate) use json::to_json;
pub(crate) use outputs::{CLASS, Outputs};
pub use synth::{SynthOutput, SynthOutputs};
pub(crate) use write::{OutputsWriter, PartRow};
