//! A vocabulary as a table: for every id, which effect it has.

use std::path::Path;
use std::sync::Arc;

use hashbrown::HashMap;

use crate::VocabularyError;
use crate::effect::{self, Effect, UNKNOWN};
use crate::file::{Added, MAX_TOKENS, TokenizerFiles};
use crate::spelling::{Kind, Spelling};

/// What each token of a model does to a text. Cheap to clone; two bytes a token, and a few KiB of effects.
#[derive(Clone, Debug)]
pub struct Vocabulary {
    table: Arc<Table>,
}

#[derive(Debug)]
struct Table {
    /// By id: the place of its effect. Ids without a token have [`NONE`].
    places: Vec<u16>,
    effects: Vec<Effect>,
    tokens: usize,
    kind: Kind,
}

/// No token has this id.
const NONE: u16 = 0;
/// It is not known which token has this id.
const DOUBTFUL: u16 = 1;

impl Vocabulary {
    /// Reads `path`: a `tokenizer.json`, or a model's directory that holds one. `tokenizer_config.json` and
    /// `special_tokens_map.json` beside it are read too, where they are.
    ///
    /// # Errors
    /// The file cannot be read, is no tokenizer, is too large ([`MAX_FILE_BYTES`](crate::MAX_FILE_BYTES),
    /// [`MAX_TOKENS`]), or makes text in a way that is not known here.
    pub fn load(path: &Path) -> Result<Vocabulary, VocabularyError> {
        TokenizerFiles::read(path)?.vocabulary()
    }

    pub(crate) fn of(files: &TokenizerFiles) -> Result<Vocabulary, VocabularyError> {
        if let Some(path) = files.cleans_up.clone() {
            return Err(VocabularyError::CleansUp { path });
        }
        let spelling = files.spelling()?;
        let mut table = Builder::new(files.largest()?);
        for (token, id) in &files.written.model.vocab.kept {
            let added = files.maybe_special.contains(token);
            table.set(*id, &effect::effect(&spelling.spell(token), added));
        }
        table.added(files, &spelling);
        let Builder { places, effects, .. } = table;
        let tokens = places.iter().filter(|place| **place != NONE).count();
        Ok(Vocabulary { table: Arc::new(Table { places, effects, tokens, kind: spelling.kind }) })
    }

    /// How many ids have a token.
    pub fn tokens(&self) -> usize {
        self.table.tokens
    }

    /// How its tokens become text.
    pub fn kind(&self) -> Kind {
        self.table.kind
    }

    pub(crate) fn effect(&self, id: i64) -> &Effect {
        let place = usize::try_from(id).ok().and_then(|id| self.table.places.get(id)).copied();
        self.table.effects.get(usize::from(place.unwrap_or(NONE))).unwrap_or(&UNKNOWN)
    }
}

struct Builder {
    places: Vec<u16>,
    effects: Vec<Effect>,
    known: HashMap<Effect, u16, foldhash::fast::RandomState>,
    largest: Option<usize>,
}

impl Builder {
    fn new(largest: Option<usize>) -> Builder {
        Builder { places: Vec::new(), effects: vec![UNKNOWN; 2], known: HashMap::default(), largest }
    }

    fn place(&mut self, id: u32) -> Option<&mut u16> {
        let id = usize::try_from(id).ok().filter(|id| *id < MAX_TOKENS)?;
        if self.places.len() <= id {
            self.places.resize(self.largest.unwrap_or_default().max(id) + 1, NONE);
        }
        self.places.get_mut(id)
    }

    /// An id that two tokens have is doubtful.
    fn set(&mut self, id: u32, effect: &Effect) {
        let place = self.intern(effect);
        if let Some(at) = self.place(id) {
            *at = if *at == NONE { place } else { DOUBTFUL };
        }
    }

    fn replace(&mut self, id: u32, place: u16) {
        if let Some(at) = self.place(id) {
            *at = place;
        }
    }

    /// Real vocabularies have some dozens of effects; past what two bytes hold, tokens are doubtful.
    fn intern(&mut self, effect: &Effect) -> u16 {
        if let Some(place) = self.known.get(effect) {
            return *place;
        }
        let Ok(place) = u16::try_from(self.effects.len()) else { return DOUBTFUL };
        self.effects.push(*effect);
        self.known.insert(*effect, place);
        place
    }

    /// Added tokens. Where the reader's library gives one another id than is written, neither is trusted.
    fn added(&mut self, files: &TokenizerFiles, spelling: &Spelling) {
        for Added { id, token } in files.added() {
            let place = self.intern(&effect::effect(&spelling.spell(&token.content), true));
            if id == token.id {
                self.replace(id, place);
            } else {
                self.replace(id, DOUBTFUL);
                self.replace(token.id, DOUBTFUL);
            }
        }
    }
}
