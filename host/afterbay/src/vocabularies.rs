//! The tokenizers' files of a process: each is read once a start, though `check` looks at it first and several sinks name it.

use crate::grants::Model;
use afterbay_text::{Vocabulary, VocabularyError};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// By path.
#[derive(Default)]
pub(crate) struct Vocabularies(Mutex<HashMap<PathBuf, Read>>);

/// What was asked for of a file.
#[derive(Default)]
struct Read {
    vocabulary: Option<Vocabulary>,
    model: Option<Arc<Model>>,
}

impl Vocabularies {
    /// What the file holds.
    pub(crate) fn load(&self, path: &Path) -> Result<Vocabulary, VocabularyError> {
        if let Some(known) = self.lock().get(path).and_then(|read| read.vocabulary.clone()) {
            return Ok(known);
        }
        let vocabulary = Vocabulary::load(path)?;
        self.lock().entry(path.to_owned()).or_default().vocabulary = Some(vocabulary.clone());
        Ok(vocabulary)
    }

    /// The same for plugins.
    pub(crate) fn model(&self, path: &Path) -> Result<Arc<Model>, VocabularyError> {
        if let Some(known) = self.lock().get(path).and_then(|read| read.model.clone()) {
            return Ok(known);
        }
        let model = Arc::new(Model::load(path)?);
        self.lock().entry(path.to_owned()).or_default().model = Some(model.clone());
        Ok(model)
    }

    /// Another SGLang may come with other files under the same names.
    pub(crate) fn forget(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<PathBuf, Read>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
