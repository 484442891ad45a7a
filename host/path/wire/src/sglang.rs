//! SGLang's messages: everything that belongs to this engine alone.
//!
//! A message is a struct of columns: one list per field, with an entry per request. It is msgpack, or a pickle. The names of a
//! msgpack frame's fields are not in it; [`layouts`] has them. [`columns`] has their meaning, the same in every version.

use afterbay_types::Engine;

mod abort;
mod again;
pub mod columns;
mod layouts;

// Values in place.
mod mask;
mod pickled;

// Rows.
mod batch;
mod decode;
mod probe;

// Writing.
mod blank;
mod erase;
mod joining;
mod json;
mod plan;
mod row_change;
mod rows;
pub mod synth;
mod textless;
mod value_writer;

pub(crate) const ENGINE: Engine = Engine::Sglang;

pub(crate) use abort::{AbortReq, read_abort};
pub(crate) use again::again;
pub(crate) use decode::FrameDecoder;
pub(crate) use layouts::Messages;
pub use probe::is_health_check;
pub(crate) use probe::may_be_health_check;
