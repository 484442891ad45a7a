//! The files of a new plugin project. They are part of the binary: an author needs nothing else of Afterbay.
//!
//! This crate makes the files' contents. It does not write files, build projects or run plugins.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod language;
mod project;

pub use language::Language;
pub use project::{NameError, ProjectFile, project};

mod embedded {
    include!(concat!(env!("OUT_DIR"), "/embedded.rs"));
}
