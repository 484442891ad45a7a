//! The WIT packages as Rust types. They are generated here only: the present version, and each earlier version that this
//! host runs in a module of its own.
//!
//! Lists that go in are borrowed, so that a batch's columns are copied once, straight into the guest's memory.

#![allow(missing_docs, reason = "every item is documented in wit/transform.wit")]

wasmtime::component::bindgen!({
    path: "../../wit",
    world: "transform",
    imports: { default: trappable },
    ownership: Borrowing { duplicate_if_necessary: true },
    additional_derives: [PartialEq],
});

/// Version 0.1.0 of the contract, frozen. The imports have the types of the present version, because their types have not
/// changed.
pub(crate) mod v0_1 {
    wasmtime::component::bindgen!({
        path: "wit/0.1.0",
        world: "transform",
        imports: { default: trappable },
        ownership: Borrowing { duplicate_if_necessary: true },
    });
}
