//! A vocabulary as a table: for every id, which effect it has.

use std::path::Path;
use std::sync::Arc;

use hashbrown::HashMap;

use crate::VocabularyError;
use crate::effect::{self, Effect, UNKNOWN};
use crate::file::{MAX_TOKENS, Source};
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
        let source = Source::read(path)?;
        let path = source.path.clone();
        let spelling = match Spelling::read(source.written.decoder.as_ref()) {
            Ok(spelling) => spelling,
            Err(decoder) => return Err(VocabularyError::Decoder { path, decoder }),
        };
        let mut table = Builder::new(&source);
        if let Some(id) = table.largest.filter(|id| usize::try_from(*id).is_ok_and(|id| id >= MAX_TOKENS)) {
            return Err(VocabularyError::IdTooLarge { path, id });
        }
        for (token, id) in &source.written.model.vocab.kept {
            let added = source.maybe_special.contains(token);
            table.set(*id, &effect::effect(&spelling.spell(token), added));
        }
        table.added(&source, &spelling);
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
    largest: Option<u32>,
}

impl Builder {
    fn new(source: &Source) -> Builder {
        let model = source.written.model.vocab.kept.iter().map(|(_, id)| *id);
        let largest = model.chain(source.written.added_tokens.iter().map(|token| token.id)).max();
        Builder { places: Vec::new(), effects: vec![UNKNOWN; 2], known: HashMap::default(), largest }
    }

    fn place(&mut self, id: u32) -> Option<&mut u16> {
        let id = usize::try_from(id).ok().filter(|id| *id < MAX_TOKENS)?;
        if self.places.len() <= id {
            let whole = self.largest.and_then(|largest| usize::try_from(largest).ok()).unwrap_or_default();
            self.places.resize(whole.max(id) + 1, NONE);
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

    /// Added tokens. The reader's library does not take their ids as written: one that the model has keeps the model's,
    /// the others are numbered on from the model's size. Where that differs, neither id is trusted.
    fn added(&mut self, source: &Source, spelling: &Spelling) {
        let model: HashMap<&str, u32, foldhash::fast::RandomState> =
            source.written.model.vocab.kept.iter().map(|(token, id)| (token.as_str(), *id)).collect();
        let mut next = u32::try_from(model.len()).unwrap_or(u32::MAX);
        let mut given: HashMap<&str, u32, foldhash::fast::RandomState> = HashMap::default();
        for token in source.written.added_tokens.iter().filter(|token| !token.content.is_empty()) {
            let content = token.content.as_str();
            let id = given.get(content).or_else(|| model.get(content)).copied().unwrap_or_else(|| {
                next = next.saturating_add(1);
                next - 1
            });
            given.insert(content, id);
            let place = self.intern(&effect::effect(&spelling.spell(content), true));
            if id == token.id {
                self.replace(id, place);
            } else {
                self.replace(id, DOUBTFUL);
                self.replace(token.id, DOUBTFUL);
            }
        }
    }
}
