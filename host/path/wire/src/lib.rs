//! The frames of SGLang (msgpack and pickle) and of vLLM (msgpack) as rows and columns.
//!
//! A [`Decoder`] decodes the bytes of a frame into a [`Batch`] of rows, or into a [`Barrier`] that is forwarded unchanged.
//! [`Layouts`] say which engine wrote the frame; a batch has the same questions and operations for both.
//! An unchanged batch is sent as the received bytes. Rows can be [taken](Batch::take) out of a batch,
//! [joined](Batch::join), [edited](Batch::edit), and of SGLang sent [past the
//! detokenizer](Batch::without_detokenizing). Each of these writes a frame that the engine's reader handles like one of
//! the engine's. No pickle is executed, and values that the crate does not understand are copied byte for byte.
//!
//! The crate knows the messages of SGLang and, in [`vllm`], those of vLLM. It does not know sockets, the journal,
//! plugins, or when rows are to be joined. From here a batch goes to the plugins and then to the outbox.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod pickle;
pub mod bounds;
mod kind;

// The fields of a message.
pub mod columns;
mod error;
mod layouts;

// Values in place.
mod ids;
mod blank;
mod pack;
mod packed;

mod value;

mod finish;
mod mask;
mod pickled;
mod tensor;

// Rows of vLLM.
pub mod vllm;

// Batches, and the message to the scheduler.
mod abort;
mod batch;
mod facts;

mod read;

// Writing.
mod value_writer;

mod joining;

mod edit;
mod plan;
mod row_change;
mod rows;
mod textless;

pub mod synth;

mod ended;

// Frames.
mod decode;
mod erase;
mod json;
mod json_values;

pub use abort::{AbortError, AbortForm, AbortShape, read_abort};
pub use batch::{Batch, Unread, is_first, is_health_check};
pub use decode::{Barrier, BarrierKind, DecodedFrame, Decoder, decode};
pub use edit::{Edit, FinishReason, TokenEdit};
pub use erase::{EraseError, ErasedFrame};
pub use error::{PackError, RowsError, WireError};
pub use finish::{Finish, Matched};
pub use ids::Ids;
pub use json::Wrapped;
pub use kind::{BatchKind, Wire};
pub use layouts::{LayoutError, Layouts};
pub use rows::BatchPart;
