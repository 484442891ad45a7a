//! The reasons why the archive cannot go on for now. Every one is tried again.

use std::error::Error as _;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use afterbay_journal::ReadError;

use crate::archive::tables::TableError;
use crate::consumer;

/// The reason why the archive cannot go on for now.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("{0}")]
    Store(object_store::Error),
    #[error("no answer in {0:?}")]
    NoAnswer(Duration),
    #[error("{path}: {source}")]
    Local { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Table(#[from] TableError),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("{0}")]
    Layout(String),
    #[error("manifest {name}: {why}")]
    Manifest { name: String, why: String },
}

impl Failure {
    pub(crate) fn local(path: &Path, source: io::Error) -> Failure {
        Failure::Local { path: path.to_owned(), source }
    }

    /// Whether the object store is the reason: other streams would fail as well.
    pub(crate) fn is_of_store(&self) -> bool {
        matches!(self, Failure::Store(_) | Failure::NoAnswer(_))
    }

    /// The reason with those behind it.
    pub(crate) fn why(&self) -> String {
        let mut why = self.to_string();
        let mut source = self.source();
        while let Some(next) = source {
            let text = next.to_string();
            if !why.contains(&text) {
                why = format!("{why}: {text}");
            }
            source = next.source();
        }
        why
    }
}

impl From<Failure> for consumer::Failure {
    /// After an error of the journal or the local disk, the local file may lack rows.
    fn from(failure: Failure) -> consumer::Failure {
        consumer::Failure { why: failure.why(), begins_again: !failure.is_of_store() }
    }
}
