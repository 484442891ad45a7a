//! The bytes of every token of a model, and the tokens without text.

use std::path::Path;
use std::sync::Arc;

use hashbrown::HashMap;
use serde::Deserialize;

use crate::bounds::MAX_FILE_BYTES;
use crate::error::VocabularyError;
use crate::file::{self, TokenizerFiles};
use crate::spelling::DecoderKind;

/// The tokens of a model as bytes. Cheap to clone. The memory is that of the bytes and 4 bytes per id.
///
/// A token's bytes are those in the middle of a text: the decoder's treatment of a text's first token (cutting a space)
/// is left out. They may be parts of characters. Special tokens have no bytes, because readers skip them. An id whose
/// token is uncertain has none either: an id of two tokens, or an added token that the reader's library numbers
/// otherwise.
///
/// If a run of byte tokens (`<0xE6>`) is not UTF-8, readers show U+FFFD for each; here they are the bytes.
#[derive(Clone, Debug)]
pub struct TokenBytes {
    table: Arc<ByteTable>,
}

#[derive(Debug)]
struct ByteTable {
    /// The bytes of all tokens, by id.
    bytes: Vec<u8>,
    /// The end of each id's bytes.
    ends: Vec<u32>,
    special: Vec<i64>,
    eos: Vec<i64>,
    kind: DecoderKind,
}

/// The use of an id.
#[derive(Clone, Copy)]
enum IdSlot<'a> {
    None,
    /// Two tokens have the id, or the reader's library numbers its token otherwise.
    Doubtful,
    Special,
    Text(&'a str),
}

impl TokenizerFiles {
    /// Makes the table of the tokens' bytes. Also reads `generation_config.json` and `config.json` beside the file, if
    /// they exist, for the ids that end a text.
    ///
    /// # Errors
    /// The decoder is unknown, the tokens' text is too large, or a file beside it is not JSON.
    pub fn tokens(&self) -> Result<TokenBytes, VocabularyError> {
        let spelling = self.spelling()?;
        let slots = slots(self)?;
        let (mut bytes, mut ends) = (Vec::new(), Vec::with_capacity(slots.len()));
        // The limit of the file's size: no real decoder makes more of its tokens.
        let limit = usize::try_from(MAX_FILE_BYTES).unwrap_or(usize::MAX);
        for slot in &slots {
            if let IdSlot::Text(token) = slot
                && !spelling.append(token, limit, &mut bytes)
            {
                return Err(VocabularyError::TextTooLarge { path: self.path.clone() });
            }
            ends.push(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
        }
        bytes.shrink_to_fit();
        let is_special = |(_, slot): &(i64, &IdSlot)| matches!(slot, IdSlot::Special);
        let special = (0..).zip(&slots).filter(is_special).map(|(id, _)| id).collect();
        let eos = ends_of_text(self, slots.len())?;
        Ok(TokenBytes { table: Arc::new(ByteTable { bytes, ends, special, eos, kind: spelling.kind }) })
    }
}

impl TokenBytes {
    /// Reads `path`: a `tokenizer.json`, or a model's directory with one, and the files beside it.
    ///
    /// # Errors
    /// Those of [`TokenizerFiles::read`] and [`TokenizerFiles::tokens`].
    pub fn load(path: &Path) -> Result<TokenBytes, VocabularyError> {
        TokenizerFiles::read(path)?.tokens()
    }

    /// The number of ids, including added tokens: every id is smaller. Some ids may have no token. (A model may have
    /// more ids than its tokenizer; those have no token.)
    pub fn size(&self) -> u32 {
        u32::try_from(self.table.ends.len()).unwrap_or(u32::MAX)
    }

    /// The bytes of a token in the middle of a text. Empty for a special token and for an id without a token.
    pub fn bytes(&self, id: i64) -> &[u8] {
        let Ok(id) = usize::try_from(id) else { return &[] };
        let Some(end) = self.table.ends.get(id) else { return &[] };
        let start =
            id.checked_sub(1).and_then(|before| self.table.ends.get(before)).copied().unwrap_or_default();
        let place = |place: u32| usize::try_from(place).unwrap_or_default();
        self.table.bytes.get(place(start)..place(*end)).unwrap_or_default()
    }

    /// The bytes of these tokens, in order.
    pub fn decode(&self, ids: &[i64]) -> Vec<u8> {
        ids.iter().flat_map(|id| self.bytes(*id)).copied().collect()
    }

    /// The ids of the special tokens, ascending: those of `tokenizer.json`, and those that `tokenizer_config.json` and
    /// `special_tokens_map.json` name (`eos_token`, `additional_special_tokens` and others).
    pub fn special(&self) -> &[i64] {
        &self.table.special
    }

    /// The ids that end a text, ascending: `eos_token_id` of `config.json` and `generation_config.json`, as SGLang
    /// reads them, and the `eos_token` of `tokenizer_config.json` and `special_tokens_map.json`. They may be empty, and
    /// may be ordinary tokens.
    pub fn eos(&self) -> &[i64] {
        &self.table.eos
    }

    /// The kind of decoder.
    pub fn kind(&self) -> DecoderKind {
        self.table.kind
    }
}

fn slots(files: &TokenizerFiles) -> Result<Vec<IdSlot<'_>>, VocabularyError> {
    let mut slots = vec![IdSlot::None; files.largest()?.map_or(0, |largest| largest + 1)];
    let of = |token, special| {
        if special || files.special_tokens.special.contains(token) {
            IdSlot::Special
        } else {
            IdSlot::Text(token)
        }
    };
    for (token, id) in &files.written.model.vocab.kept {
        set(&mut slots, *id, of(token, false), false);
    }
    for file::NumberedToken { id, token } in files.added() {
        if id == token.id {
            set(&mut slots, id, of(&token.content, token.special), true);
        } else {
            set(&mut slots, id, IdSlot::Doubtful, true);
            set(&mut slots, token.id, IdSlot::Doubtful, true);
        }
    }
    Ok(slots)
}

/// Sets the slot of an id. A slot that is set already becomes doubtful unless `replaces`.
fn set<'a>(slots: &mut [IdSlot<'a>], id: u32, slot: IdSlot<'a>, replaces: bool) {
    // Only an added token that the library numbers otherwise is past the largest written id. It is not trusted anyway.
    if let Some(at) = usize::try_from(id).ok().and_then(|id| slots.get_mut(id)) {
        *at = if replaces || matches!(at, IdSlot::None) { slot } else { IdSlot::Doubtful };
    }
}

/// The parts of a `config.json` or a `generation_config.json` that are read.
#[derive(Deserialize)]
struct EosIds {
    #[serde(default)]
    eos_token_id: Option<OneOrMore>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMore {
    One(i64),
    More(Vec<i64>),
}

fn ends_of_text(files: &TokenizerFiles, size: usize) -> Result<Vec<i64>, VocabularyError> {
    let mut ends = Vec::new();
    for name in ["config.json", "generation_config.json"] {
        let beside = files.path.with_file_name(name);
        match file::read_beside::<EosIds>(&beside)?.and_then(|file| file.eos_token_id) {
            Some(OneOrMore::One(id)) => ends.push(id),
            Some(OneOrMore::More(ids)) => ends.extend(ids),
            None => {}
        }
    }
    if !files.special_tokens.ends.is_empty() {
        let mut ids: HashMap<&str, u32, foldhash::fast::RandomState> = HashMap::default();
        let model = files.written.model.vocab.kept.iter().map(|(token, id)| (token.as_str(), *id));
        ids.extend(model.filter(|(token, _)| files.special_tokens.ends.contains(*token)));
        ids.extend(files.added().iter().map(|added| (added.token.content.as_str(), added.id)));
        ends.extend(
            files.special_tokens.ends.iter().filter_map(|end| ids.get(end.as_str())).map(|id| i64::from(*id)),
        );
    }
    ends.sort_unstable();
    ends.dedup();
    ends.retain(|id| usize::try_from(*id).is_ok_and(|id| id < size));
    Ok(ends)
}
