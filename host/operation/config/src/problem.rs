//! The problems of a config, each with file, line, column and key: `file:line:column: key: message`.

use std::fmt;
use std::path::PathBuf;

use crate::bounds::PROBLEMS_MAX;
use crate::{Place, Stream};

/// One problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The path that was given to [`Config::load`](crate::Config::load).
    pub file: PathBuf,
    /// The line, from 1. 0 if the file could not be read.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
    /// The key, like `stream[0].sink[0].connect`. Empty if the text is not TOML.
    pub key: String,
    /// The message: lower case, with the value and the limit.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.file.display())?;
        if self.line > 0 {
            write!(f, "{}:{}:", self.line, self.column)?;
        }
        if !self.key.is_empty() {
            write!(f, " {}:", self.key)?;
        }
        write!(f, " {}", self.message)
    }
}

impl Place {
    /// A problem at this place.
    pub fn problem(&self, message: String) -> Problem {
        let Place { file, line, column, key } = self.clone();
        Problem { file, line, column, key, message }
    }
}

/// All problems of a config, in the order of the file; never empty. `Display` writes one per line.
#[derive(Clone, Debug, PartialEq)]
pub struct Problems {
    found: Vec<Problem>,
    left_out: usize,
    /// The streams as far as they could be made, so that the caller can try their plugins too.
    pub drafts: Vec<Stream>,
}

impl Problems {
    /// Sorts the problems. Past [`PROBLEMS_MAX`] they are only counted.
    pub(crate) fn new(mut found: Vec<Problem>) -> Problems {
        found.sort_by_key(|problem| (problem.line, problem.column));
        let left_out = found.len().saturating_sub(PROBLEMS_MAX);
        found.truncate(PROBLEMS_MAX);
        Problems { found, left_out, drafts: Vec::new() }
    }

    /// The reported problems, in the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = &Problem> {
        self.found.iter()
    }

    /// Adds problems that the caller found.
    pub fn with(self, more: Vec<Problem>) -> Problems {
        let left_out = self.left_out;
        let mut all = Problems::new(self.found.into_iter().chain(more).collect());
        all.left_out += left_out;
        all
    }

    /// The number of problems beyond [`iter`](Problems::iter).
    pub fn left_out(&self) -> usize {
        self.left_out
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, problem) in self.found.iter().enumerate() {
            let newline = if at == 0 { "" } else { "\n" };
            write!(f, "{newline}{problem}")?;
        }
        if self.left_out > 0 {
            write!(f, "\nand {} more", self.left_out)?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}
