//! The tokenizers' files of a process: each is read once a start, though `check` looks at it first and several sinks name it.

use afterbay_text::{Vocabulary, VocabularyError};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// By path.
#[derive(Default)]
pub(crate) struct Vocabularies(Mutex<HashMap<PathBuf, Vocabulary>>);

impl Vocabularies {
    /// What the file holds.
    pub(crate) fn load(&self, path: &Path) -> Result<Vocabulary, VocabularyError> {
        if let Some(known) = self.lock().get(path) {
            return Ok(known.clone());
        }
        let vocabulary = Vocabulary::load(path)?;
        self.lock().insert(path.to_owned(), vocabulary.clone());
        Ok(vocabulary)
    }

    /// Another SGLang may come with other files under the same names.
    pub(crate) fn forget(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<PathBuf, Vocabulary>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
