//! The types and functions that `wit-bindgen` generates from the contract. For [`export!`](crate::export);
//! not for plugin authors.

#![allow(missing_docs, reason = "generated from wit/transform.wit, where every item is documented")]
#![allow(clippy::all, clippy::expect_used, clippy::panic, clippy::unwrap_used, reason = "generated")]
#![allow(unsafe_code, reason = "the calls between host and guest pass pointers")]

#[rustfmt::skip]
mod bindings;

pub use bindings::*;

pub use afterbay::plugin::types::{Batch, Description, Opened, RequestId, TopLogprobs, Verdict};
pub use exports::afterbay::plugin::plugin::{
    Answer, BadSetting, CallError, ConfigureError, Guest, RequestAction, RequestVerdict, Response, StateError,
};
