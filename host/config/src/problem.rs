//! What is wrong with a config: all of it at once, each with file, line, column and key, as `file:line:column: key: message`.

use std::fmt;
use std::path::PathBuf;

use crate::bounds::PROBLEMS_MAX;

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// As it was given to [`Config::load`](crate::Config::load).
    pub file: PathBuf,
    /// From 1; 0 where the file could not be read at all.
    pub line: usize,
    /// In characters, from 1.
    pub column: usize,
    /// Like `stream[0].sink[0].connect`; empty where TOML itself is broken.
    pub key: String,
    /// Lower case, with the value and the limit.
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

/// All that is wrong, in the order of the file; never empty. `Display` writes one a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems {
    found: Vec<Problem>,
    left_out: usize,
}

impl Problems {
    /// Sorts them; past [`PROBLEMS_MAX`] they are counted only.
    pub(crate) fn new(mut found: Vec<Problem>) -> Problems {
        found.sort_by_key(|problem| (problem.line, problem.column));
        let left_out = found.len().saturating_sub(PROBLEMS_MAX);
        found.truncate(PROBLEMS_MAX);
        Problems { found, left_out }
    }

    /// Each problem, in the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = &Problem> {
        self.found.iter()
    }

    /// How many were found beyond those that [`iter`](Problems::iter) gives.
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
