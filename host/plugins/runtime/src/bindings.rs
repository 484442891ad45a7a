//! The WIT package as Rust types. They are generated here only.
//!
//! Lists that go in are borrowed, so that a batch's columns are copied once, straight into the guest's memory.

#![allow(missing_docs, reason = "every item is documented in wit/transform.wit")]

wasmtime::component::bindgen!({
    path: "../../../wit",
    world: "transform",
    imports: { default: trappable },
    ownership: Borrowing { duplicate_if_necessary: true },
    additional_derives: [PartialEq],
});
