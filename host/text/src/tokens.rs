//! The bytes of every token of a model, and which tokens are no text.

use std::path::Path;
use std::sync::Arc;

use hashbrown::HashMap;
use serde::Deserialize;

use crate::file::{self, TokenizerFiles};
use crate::spelling::Kind;
use crate::{MAX_FILE_BYTES, VocabularyError};

/// The tokens of a model, as bytes. Cheap to clone; the bytes themselves and 4 more for each id.
///
/// A token's bytes are those that stand for it in the middle of a text: what a decoder does to a text's first token (a
/// space cut off) is not done. They need not be whole characters. Special tokens have none, since readers leave them out,
/// and neither has an id whose token is not known for certain: an id of two tokens, or an added token that the reader's
/// library numbers otherwise than is written.
///
/// Where a decoder takes a run of byte tokens (`<0xE6>`) that are no UTF-8, readers see U+FFFD for each; here they are
/// the bytes.
#[derive(Clone, Debug)]
pub struct Tokens {
    table: Arc<Table>,
}

#[derive(Debug)]
struct Table {
    /// All tokens' bytes, by id.
    bytes: Vec<u8>,
    /// By id: where its bytes end.
    ends: Vec<u32>,
    special: Vec<i64>,
    eos: Vec<i64>,
    kind: Kind,
}

/// What an id is.
#[derive(Clone, Copy)]
enum Slot<'a> {
    None,
    /// Of two tokens, or of one that the reader's library numbers otherwise.
    Doubtful,
    Special,
    Text(&'a str),
}

impl Tokens {
    /// Reads `path`: a `tokenizer.json`, or a model's directory that holds one, and the files beside it.
    ///
    /// # Errors
    /// As of [`TokenizerFiles::read`] and [`TokenizerFiles::tokens`].
    pub fn load(path: &Path) -> Result<Tokens, VocabularyError> {
        TokenizerFiles::read(path)?.tokens()
    }

    pub(crate) fn of(files: &TokenizerFiles) -> Result<Tokens, VocabularyError> {
        let spelling = files.spelling()?;
        let slots = slots(files)?;
        let (mut bytes, mut ends) = (Vec::new(), Vec::with_capacity(slots.len()));
        // As many as the file may have: a decoder that makes more of its tokens is no real one.
        let limit = usize::try_from(MAX_FILE_BYTES).unwrap_or(usize::MAX);
        for slot in &slots {
            if let Slot::Text(token) = slot
                && !spelling.append(token, limit, &mut bytes)
            {
                return Err(VocabularyError::TextTooLarge { path: files.path.clone() });
            }
            ends.push(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
        }
        bytes.shrink_to_fit();
        let is_special = |(_, slot): &(i64, &Slot)| matches!(slot, Slot::Special);
        let special = (0..).zip(&slots).filter(is_special).map(|(id, _)| id).collect();
        let eos = ends_of_text(files, slots.len())?;
        Ok(Tokens { table: Arc::new(Table { bytes, ends, special, eos, kind: spelling.kind }) })
    }

    /// How many ids there are, added tokens included: each id is less. Not every one need have a token. (A model may
    /// have more ids than its tokenizer: those stand for nothing.)
    pub fn size(&self) -> u32 {
        u32::try_from(self.table.ends.len()).unwrap_or(u32::MAX)
    }

    /// The bytes of a token, as they stand in the middle of a text. Empty for a special token, and for an id that is no
    /// token.
    pub fn bytes(&self, id: i64) -> &[u8] {
        let Ok(id) = usize::try_from(id) else { return &[] };
        let Some(end) = self.table.ends.get(id) else { return &[] };
        let start =
            id.checked_sub(1).and_then(|before| self.table.ends.get(before)).copied().unwrap_or_default();
        let place = |place: u32| usize::try_from(place).unwrap_or_default();
        self.table.bytes.get(place(start)..place(*end)).unwrap_or_default()
    }

    /// The bytes of these tokens, one after another.
    pub fn decode(&self, ids: &[i64]) -> Vec<u8> {
        ids.iter().flat_map(|id| self.bytes(*id)).copied().collect()
    }

    /// The ids of the special tokens, ascending: those that `tokenizer.json` calls special, and those that
    /// `tokenizer_config.json` and `special_tokens_map.json` name (`eos_token`, `additional_special_tokens` and such).
    pub fn special(&self) -> &[i64] {
        &self.table.special
    }

    /// The ids that end a text, ascending: `eos_token_id` of `config.json` and `generation_config.json`, as SGLang reads
    /// them, and the `eos_token` of `tokenizer_config.json` and `special_tokens_map.json`. Empty if none of them is
    /// there. They need not be special tokens.
    pub fn eos(&self) -> &[i64] {
        &self.table.eos
    }

    /// How its tokens become text.
    pub fn kind(&self) -> Kind {
        self.table.kind
    }
}

fn slots(files: &TokenizerFiles) -> Result<Vec<Slot<'_>>, VocabularyError> {
    let mut slots = vec![Slot::None; files.largest()?.map_or(0, |largest| largest + 1)];
    let of = |token, special| {
        if special || files.named.special.contains(token) { Slot::Special } else { Slot::Text(token) }
    };
    for (token, id) in &files.written.model.vocab.kept {
        set(&mut slots, *id, of(token, false), false);
    }
    for file::Added { id, token } in files.added() {
        if id == token.id {
            set(&mut slots, id, of(&token.content, token.special), true);
        } else {
            set(&mut slots, id, Slot::Doubtful, true);
            set(&mut slots, token.id, Slot::Doubtful, true);
        }
    }
    Ok(slots)
}

/// An id's slot; one that has one already is doubtful, but for what `replaces` it.
fn set<'a>(slots: &mut [Slot<'a>], id: u32, slot: Slot<'a>, replaces: bool) {
    // Past the largest that is written is only an added token that the library numbers on: not trusted anyway.
    if let Some(at) = usize::try_from(id).ok().and_then(|id| slots.get_mut(id)) {
        *at = if replaces || matches!(at, Slot::None) { slot } else { Slot::Doubtful };
    }
}

/// What is read of a `config.json` or a `generation_config.json`.
#[derive(Deserialize)]
struct Ends {
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
        match file::read_beside::<Ends>(&beside)?.and_then(|file| file.eos_token_id) {
            Some(OneOrMore::One(id)) => ends.push(id),
            Some(OneOrMore::More(ids)) => ends.extend(ids),
            None => {}
        }
    }
    if !files.named.ends.is_empty() {
        let mut ids: HashMap<&str, u32, foldhash::fast::RandomState> = HashMap::default();
        let model = files.written.model.vocab.kept.iter().map(|(token, id)| (token.as_str(), *id));
        ids.extend(model.filter(|(token, _)| files.named.ends.contains(*token)));
        ids.extend(files.added().iter().map(|added| (added.token.content.as_str(), added.id)));
        ends.extend(files.named.ends.iter().filter_map(|end| ids.get(end.as_str())).map(|id| i64::from(*id)));
    }
    ends.sort_unstable();
    ends.dedup();
    ends.retain(|id| usize::try_from(*id).is_ok_and(|id| id < size));
    Ok(ends)
}
