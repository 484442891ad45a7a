//! The messages of SMG's wire for SGLang: everything that belongs to this engine alone.
//!
//! SMG's plugin runs in SGLang's scheduler and sends a *slim* struct of columns in place of SGLang's own: msgpack, one list per field
//! with an entry per request, beside fields of the frame. The fields of an end stand in columns of their own. `columns` has the fields
//! and their meaning. SMG appends fields and never moves one.

use afterbay_types::Engine;

mod batch;
mod columns;
mod decode;
mod erase;
mod synth;
mod write;

pub(crate) const ENGINE: Engine = Engine::Smg;

pub(crate) use columns::SlimLayouts;
pub(crate) use decode::{decode, is_own};
pub(crate) use synth::{SlimEnd, SlimRow, encode};
