//! Nothing: what this crate makes is made by its build script.
