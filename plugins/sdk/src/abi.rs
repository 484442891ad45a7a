//! The types and functions that `wit-bindgen` generates from the contract. For [`export!`](crate::export);
//! not for plugin authors.

#![allow(missing_docs, reason = "generated from wit/transform.wit, where every item is documented")]

wit_bindgen::generate!({
    path: "../../wit",
    world: "transform",
    pub_export_macro: true,
    export_macro_name: "export_transform",
    default_bindings_module: "afterbay_plugin::abi",
    additional_derives: [PartialEq],
});

pub use afterbay::plugin::types::{Batch, Description, Opened, RequestId, Verdict};
pub use exports::afterbay::plugin::plugin::{
    Answer, BadSetting, CallError, ConfigureError, Guest, RequestAction, RequestVerdict, Response, StateError,
};
