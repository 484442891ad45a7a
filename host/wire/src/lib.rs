//! The scheduler's frames as rows and columns, msgpack and pickle.
//!
//! A [`Decoder`] takes the bytes of one frame and gives a [`Batch`] of rows, or a [`Barrier`] that goes on as it came.
//! A batch that nothing changes leaves as the very bytes that came; rows can be [taken](Batch::take) out of it,
//! [joined](Batch::join) with others, [edited](Batch::edit), and sent [past the detokenizer](Batch::without_detokenizing),
//! which writes a frame that SGLang's reader takes as it would the scheduler's own. Nothing is ever unpickled, and what is not understood is carried byte for byte.
//!
//! This crate knows SGLang's messages. It must not know sockets, the journal, plugins, or when rows are to be joined.
//! After it a batch goes to the plugins, then to the outbox.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

// A frame is recognised,
mod decode;
mod kind;

// its columns are found, by its layout, in either encoding,
mod layouts;
mod pack;
mod packed;
mod pickled;
mod value;

// and its rows are read;
mod batch;
mod row;

// rows are taken, joined and edited by what is known of their columns,
pub mod columns;
mod edit;
mod ended;
mod joining;
mod mask;
mod rows;
mod textless;

// and written;
mod sink;
pub mod synth;

// one message goes back to the scheduler;
mod abort;

// people see them as JSON.
mod json;
mod tensor;

pub mod bounds;
mod error;

pub use abort::{AbortError, AbortForm, AbortShape, read_abort};
pub use batch::{Batch, Unread, is_health_check};
pub use decode::{Barrier, BarrierKind, Decoded, Decoder, decode};
pub use edit::{Edit, FinishReason, Tokens};
pub use error::{PackError, RowsError, WireError};
pub use json::Wrapped;
pub use kind::{Kind, Wire};
pub use layouts::{LayoutError, Layouts};
pub use row::{Finish, Ids, Matched};
pub use rows::Part;
