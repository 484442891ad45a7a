//! The frames of SGLang (msgpack and pickle), vLLM (msgpack) and SMG's wire for SGLang (msgpack) as rows and columns.
//!
//! A [`Decoder`] decodes the bytes of a frame into a [`Batch`] of rows, or into a [`Barrier`] that is forwarded unchanged.
//! [`Layouts`] say which engine wrote the frame; a batch has the same questions and operations for each.
//! An unchanged batch is sent as the received bytes. Rows can be [taken](Batch::take) out of a batch,
//! [joined](Batch::join), [edited](Batch::edit), and of SGLang sent [past the
//! detokenizer](Batch::without_detokenizing). Each of these writes a frame that the engine's reader handles like one of
//! the engine's. No pickle is executed, and values that the crate does not understand are copied byte for byte.
//!
//! All that is one engine's stands in `sglang`, `smg` or [`vllm`], behind the trait of a batch (`batch.rs`). The crate does not know sockets, the journal,
//! plugins, or when rows are to be joined. From here a batch goes to the plugins and then to the outbox.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod pickle;
pub mod bounds;
mod error;
mod kind;

// Values in place.
mod blank;
mod finish;
mod ids;
mod pack;
mod packed;
mod tensor;
mod value;

// The engines.
mod sglang;
mod smg;
pub mod vllm;

// Batches, and the message to the scheduler.
mod abort;
mod batch;
mod edit;
mod frame;
mod rows;

// Frames.
mod decode;
mod erase;
mod introduction;
mod json;
mod json_values;
mod again;
mod layouts;
mod migration;
mod request;
mod signals;
mod facts;
mod token_facts;

pub use abort::{AbortForm, read_abort};
pub use afterbay_types::{Engine, TopLogprobs};
pub use again::NotMigrated;
pub use batch::{Batch, BatchPart, EngineLoad, RidCells, Unread, is_first};
pub use decode::{Decoder, decode, is_internal};
pub use edit::{BlankRow, Edit, FinishReason, TokenEdit};
pub use erase::ErasedFrame;
pub use error::{AbortError, EraseError, PackError, RowsError, WireError};
pub use facts::{Drafts, RoutedExperts, SamplingMask, WeightSpan};
pub use finish::{Finish, FinishKind, Matched};
pub use frame::{Barrier, BarrierKind, DecodedFrame};
pub use ids::Ids;
pub use introduction::{Introduction, IntroductionError};
pub use json_values::Wrapped;
pub use kind::{AbortShape, BatchKind, Wire};
pub use layouts::Layouts;
pub use migration::MigrationCall;
pub use request::{
    Bootstrap, Grammar, Logprobs, Multimodal, RequestRecord, RequestRecordError, Sampling, Trace,
};
pub use sglang::{columns, is_health_check, synth};
pub use signals::{read_signals, signals_frame};
