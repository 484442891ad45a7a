//! The reasons why the archive cannot go on for now. Every one is tried again.

use std::error::Error as _;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use afterbay_journal::{OpenError, ReadError};

use crate::tables::TableError;

/// The reason why the archive cannot be started.
#[derive(Debug, thiserror::Error)]
#[error("archive: {0}")]
pub struct ArchiveError(pub(crate) String);

/// Characters of a reason in an event.
const WHY_CHARS_MAX: usize = 600;

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
    #[error(transparent)]
    Instance(#[from] OpenError),
    #[error("manifest {name}: {why}")]
    Manifest { name: String, why: String },
    /// Another process may own the journal. Nothing is wrong.
    #[error("the journal is handed over")]
    HandedOver,
}

impl Failure {
    pub(crate) fn local(path: &Path, source: io::Error) -> Failure {
        Failure::Local { path: path.to_owned(), source }
    }

    /// Whether the object store is the reason: other streams would fail as well.
    pub(crate) fn is_of_store(&self) -> bool {
        matches!(self, Failure::Store(_) | Failure::NoAnswer(_) | Failure::HandedOver)
    }

    /// The reason with those behind it, on one line.
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
        why.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(WHY_CHARS_MAX).collect()
    }
}
