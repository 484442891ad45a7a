//! Empty: the test of this crate writes and checks `plugins/sdk/src/abi/bindings.rs`.
