//! A vocabulary as a table from ids to effects.

use std::path::Path;
use std::sync::Arc;

use hashbrown::HashMap;

use crate::bounds::MAX_TOKENS;
use crate::calls::{CallRole, CallRoles};
use crate::effect::{self, TokenEffect, UNKNOWN};
use crate::error::VocabularyError;
use crate::file::{NumberedToken, TokenizerFiles};
use crate::spelling::{DecoderKind, Spelling};

/// The effect of each token of a model on a text. Cheap to clone; two bytes per token, and a few KiB of effects.
#[derive(Clone, Debug)]
pub struct Vocabulary {
    table: Arc<EffectTable>,
}

#[derive(Debug)]
struct EffectTable {
    /// The index of each id's effect. Ids without a token have [`NONE`].
    effect_indices: Vec<u16>,
    effects: Vec<TokenEffect>,
    call_roles: CallRoles,
    tokens: usize,
    kind: DecoderKind,
}

/// No token has this id.
const NONE: u16 = 0;
/// The token of this id is uncertain.
const DOUBTFUL: u16 = 1;

impl TokenizerFiles {
    /// Makes the table of the tokens' effects on a text.
    ///
    /// # Errors
    /// The decoder is unknown, or makes a row's text depend on its neighbours.
    pub fn vocabulary(&self) -> Result<Vocabulary, VocabularyError> {
        if let Some(path) = self.cleans_up.clone() {
            return Err(VocabularyError::CleansUp { path });
        }
        let spelling = self.spelling()?;
        let mut table = EffectTableBuilder::new(self.largest()?);
        for (token, id) in &self.written.model.vocab.kept {
            let added = self.maybe_special.contains(token);
            table.set(*id, &effect::effect(&spelling.spell(token), added));
        }
        table.added(self, &spelling);
        let EffectTableBuilder { effect_indices, effects, .. } = table;
        let tokens = effect_indices.iter().filter(|effect_index| **effect_index != NONE).count();
        Ok(Vocabulary {
            table: Arc::new(EffectTable {
                effect_indices,
                effects,
                call_roles: self.call_roles(&spelling),
                tokens,
                kind: spelling.kind,
            }),
        })
    }
}

impl Vocabulary {
    /// Reads `path`: a `tokenizer.json`, or a model's directory with one. Also reads `tokenizer_config.json` and
    /// `special_tokens_map.json` beside it, if they exist.
    ///
    /// # Errors
    /// The file cannot be read, is not a tokenizer, is too large ([`MAX_FILE_BYTES`](crate::MAX_FILE_BYTES),
    /// [`MAX_TOKENS`]), or has an unknown decoder.
    pub fn load(path: &Path) -> Result<Vocabulary, VocabularyError> {
        TokenizerFiles::read(path)?.vocabulary()
    }

    /// The number of ids with a token.
    pub fn tokens(&self) -> usize {
        self.table.tokens
    }

    /// The kind of decoder.
    pub fn kind(&self) -> DecoderKind {
        self.table.kind
    }

    /// The meaning of an id for the start of a tool call. `None`: text.
    pub(crate) fn call_role(&self, id: i64) -> Option<CallRole> {
        self.table.call_roles.get(&u32::try_from(id).ok()?).copied()
    }

    pub(crate) fn effect(&self, id: i64) -> &TokenEffect {
        let effect_index = usize::try_from(id).ok().and_then(|id| self.table.effect_indices.get(id)).copied();
        self.table.effects.get(usize::from(effect_index.unwrap_or(NONE))).unwrap_or(&UNKNOWN)
    }
}

struct EffectTableBuilder {
    effect_indices: Vec<u16>,
    effects: Vec<TokenEffect>,
    known: HashMap<TokenEffect, u16, foldhash::fast::RandomState>,
    largest: Option<usize>,
}

impl EffectTableBuilder {
    fn new(largest: Option<usize>) -> EffectTableBuilder {
        EffectTableBuilder {
            effect_indices: Vec::new(),
            effects: vec![UNKNOWN; 2],
            known: HashMap::default(),
            largest,
        }
    }

    fn effect_index(&mut self, id: u32) -> Option<&mut u16> {
        let id = usize::try_from(id).ok().filter(|id| *id < MAX_TOKENS)?;
        if self.effect_indices.len() <= id {
            self.effect_indices.resize(self.largest.unwrap_or_default().max(id) + 1, NONE);
        }
        self.effect_indices.get_mut(id)
    }

    /// Sets an id's effect. An id of two tokens becomes doubtful.
    fn set(&mut self, id: u32, effect: &TokenEffect) {
        let effect_index = self.intern(effect);
        if let Some(at) = self.effect_index(id) {
            *at = if *at == NONE { effect_index } else { DOUBTFUL };
        }
    }

    fn replace(&mut self, id: u32, effect_index: u16) {
        if let Some(at) = self.effect_index(id) {
            *at = effect_index;
        }
    }

    /// Real vocabularies have a few dozen effects. Tokens past the range of u16 become doubtful.
    fn intern(&mut self, effect: &TokenEffect) -> u16 {
        if let Some(effect_index) = self.known.get(effect) {
            return *effect_index;
        }
        let Ok(effect_index) = u16::try_from(self.effects.len()) else { return DOUBTFUL };
        self.effects.push(*effect);
        self.known.insert(*effect, effect_index);
        effect_index
    }

    /// Sets the added tokens. If the reader's library assigns another id than written, neither id is trusted.
    fn added(&mut self, files: &TokenizerFiles, spelling: &Spelling) {
        for NumberedToken { id, token } in files.added() {
            let effect_index = self.intern(&effect::effect(&spelling.spell(&token.content), true));
            if id == token.id {
                self.replace(id, effect_index);
            } else {
                self.replace(id, DOUBTFUL);
                self.replace(token.id, DOUBTFUL);
            }
        }
    }
}
