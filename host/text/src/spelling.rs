//! How the reader's decoder spells a token: which bytes or text it stands for. Read from `decoder` of a
//! `tokenizer.json`; what is not known to leave the text of one row independent of its neighbours is refused.

use std::fmt;

use serde_json::Value;

use crate::{TokenizerFiles, VocabularyError};

/// What becomes U+FFFD in a decoder's text is bytes that are no character; a vocabulary may also spell it out.
pub(crate) const REPLACEMENT: char = '\u{fffd}';

/// How a vocabulary's tokens become text, for logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// Every token is bytes, written as characters by GPT-2's map (GPT, Qwen, Llama 3, DeepSeek).
    ByteLevel,
    /// Tokens are text, and tokens such as `<0xE6>` are single bytes of what has no token (Llama 2, Mistral, Gemma).
    ByteFallback,
    /// Every token is text, `▁` a space (T5, XLNet): never inside a character.
    SentencePiece,
    /// Every token is a word or, with `##`, the rest of one: never inside a character.
    WordPiece,
    /// No decoder: every token is a word.
    Words,
}

impl fmt::Display for Kind {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str(match self {
            Kind::ByteLevel => "byte-level",
            Kind::ByteFallback => "byte fallback",
            Kind::SentencePiece => "SentencePiece",
            Kind::WordPiece => "WordPiece",
            Kind::Words => "words",
        })
    }
}

/// What a token stands for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Spelled {
    /// Bytes that are text only together with those before and after (byte-level).
    Bytes(Vec<u8>),
    /// One byte of a run (byte fallback).
    Byte(u8),
    /// Text of its own; whether it ends with U+FFFD.
    Text { replaced: bool },
    /// Text or nothing, as its place says: a leading space is cut.
    Blank,
}

/// A decoder, as far as it says what a token stands for.
#[derive(Debug)]
pub(crate) struct Spelling {
    pub kind: Kind,
    replace: Vec<(char, String)>,
    /// Words in the middle of a text have a space before them: with or without a [`WordPiece`].
    spaced: bool,
    word_piece: Option<WordPiece>,
}

/// A WordPiece decoder.
#[derive(Debug)]
struct WordPiece {
    /// What a token begins with that goes on a word.
    prefix: String,
    /// Whether spaces before punctuation are taken out, token by token.
    cleanup: bool,
}

impl TokenizerFiles {
    pub(crate) fn spelling(&self) -> Result<Spelling, VocabularyError> {
        Spelling::read(self.written.decoder.as_ref())
            .map_err(|decoder| VocabularyError::Decoder { path: self.path.clone(), decoder })
    }
}

impl Spelling {
    /// Reads a decoder; the step that is not supported is the error.
    pub fn read(decoder: Option<&Value>) -> Result<Spelling, String> {
        let mut steps = Vec::new();
        if let Some(decoder) = decoder.filter(|decoder| !decoder.is_null()) {
            flatten(decoder, &mut steps)?;
        }
        let spaced = steps.is_empty();
        let mut found = Spelling { kind: Kind::Words, replace: Vec::new(), spaced, word_piece: None };
        let (mut fused, mut stripped) = (false, 0);
        for (at, (name, step)) in steps.iter().enumerate() {
            let refused = || Err(format!("{name} (step {} of {})", at + 1, steps.len()));
            let alone = steps.iter().enumerate().all(|(other, (name, _))| other == at || *name == "Fuse");
            match *name {
                "ByteLevel" if alone && !fused => found.kind = Kind::ByteLevel,
                "WordPiece" if alone => {
                    found.kind = Kind::WordPiece;
                    found.spaced = true;
                    found.word_piece = Some(word_piece(step));
                }
                "ByteFallback" if !fused => found.kind = Kind::ByteFallback,
                "Fuse" => fused = true,
                "Metaspace" if !fused => {
                    found.replace.extend(replacement(step).map(|from| (from, " ".to_owned())))
                }
                "Replace" => match replaces(step) {
                    Some(pair) => found.replace.push(pair),
                    None => return refused(),
                },
                // Of a window's first token, that the reader has had before. More than one could be of the second.
                "Strip" if strips(step).is_some_and(|cut| cut + stripped <= 1) => stripped += 1,
                _ => return refused(),
            }
            if found.kind == Kind::Words && *name != "Fuse" {
                found.kind = Kind::SentencePiece;
            }
        }
        Ok(found)
    }

    /// What `token` stands for.
    pub fn spell(&self, token: &str) -> Spelled {
        match self.kind {
            Kind::ByteLevel => Spelled::Bytes(byte_level(token)),
            Kind::ByteFallback => byte_token(token).map_or_else(|| self.text(token), Spelled::Byte),
            Kind::SentencePiece | Kind::WordPiece | Kind::Words => self.text(token),
        }
    }

    /// Puts behind `bytes` those that `token` stands for in the middle of a text; what is done to a text's first token
    /// is not. False, with `bytes` as they were, where there would be more than `limit` of them.
    pub fn append(&self, token: &str, limit: usize, bytes: &mut Vec<u8>) -> bool {
        let room = limit.saturating_sub(bytes.len());
        let text = match self.kind {
            Kind::ByteLevel => byte_level(token),
            Kind::ByteFallback if let Some(byte) = byte_token(token) => vec![byte],
            _ => match self.in_text(token, room) {
                Some(text) => text.into_bytes(),
                None => return false,
            },
        };
        if text.len() > room {
            return false;
        }
        bytes.extend(text);
        true
    }

    /// A token's text; none if it would have more bytes than `room`.
    fn in_text(&self, token: &str, room: usize) -> Option<String> {
        let mut text = match &self.word_piece {
            Some(WordPiece { prefix, .. }) if let Some(rest) = token.strip_prefix(prefix.as_str()) => {
                rest.to_owned()
            }
            _ if self.spaced => format!(" {token}"),
            _ => token.to_owned(),
        };
        if self.word_piece.as_ref().is_some_and(|decoder| decoder.cleanup) {
            text = CLEANUP.iter().fold(text, |text, (from, to)| text.replace(from, to));
        }
        for (from, to) in &self.replace {
            let found = text.chars().filter(|char| char == from).count();
            // Before it is made: a few steps could make anything of a short token.
            if found.saturating_mul(to.len()).saturating_add(text.len()) > room {
                return None;
            }
            if found > 0 {
                text = text.replace(*from, to);
            }
        }
        Some(text)
    }

    fn text(&self, token: &str) -> Spelled {
        let is_blank = |char: char| {
            char == ' ' || self.replace.iter().any(|(from, to)| *from == char && (to.is_empty() || to == " "))
        };
        if token.chars().all(is_blank) {
            return Spelled::Blank;
        }
        // Anywhere in it, to be sure: what follows may be taken away.
        Spelled::Text { replaced: token.contains(REPLACEMENT) }
    }
}

/// What the library's WordPiece decoder takes out of a token's text, in its order (`cleanup` of tokenizers 0.23).
const CLEANUP: [(&str, &str); 11] = [
    (" .", "."),
    (" ?", "?"),
    (" !", "!"),
    (" ,", ","),
    (" ' ", "'"),
    (" n't", "n't"),
    (" 'm", "'m"),
    (" do not", " don't"),
    (" 's", "'s"),
    (" 've", "'ve"),
    (" 're", "'re"),
];

/// A decoder's steps in order, sequences in sequences too.
fn flatten<'a>(decoder: &'a Value, steps: &mut Vec<(&'a str, &'a Value)>) -> Result<(), String> {
    let name = decoder.get("type").and_then(Value::as_str).ok_or("without a type")?;
    match decoder.get("decoders").and_then(Value::as_array) {
        Some(decoders) if name == "Sequence" => decoders.iter().try_for_each(|step| flatten(step, steps)),
        _ => {
            steps.push((name, decoder));
            Ok(())
        }
    }
}

/// The one character of a string value.
fn character(value: Option<&Value>) -> Option<char> {
    let mut chars = value?.as_str()?.chars();
    chars.next().filter(|_| chars.next().is_none())
}

fn word_piece(step: &Value) -> WordPiece {
    let prefix = step.get("prefix").and_then(Value::as_str).unwrap_or("##").to_owned();
    WordPiece { prefix, cleanup: step.get("cleanup").and_then(Value::as_bool).unwrap_or(true) }
}

fn replacement(metaspace: &Value) -> Option<char> {
    character(metaspace.get("replacement")).or(Some('▁'))
}

/// One character for a text without U+FFFD. A longer pattern could match across tokens, an ASCII one in `<0xE6>`.
fn replaces(step: &Value) -> Option<(char, String)> {
    let from = character(step.get("pattern")?.get("String"))?;
    let to = step.get("content")?.as_str()?;
    ((!from.is_ascii() || from == ' ') && !to.contains(REPLACEMENT)).then(|| (from, to.to_owned()))
}

/// How many spaces are cut from the front; none is if any is from the end, which is a row's end.
fn strips(step: &Value) -> Option<u64> {
    let (start, stop) = (step.get("start")?.as_u64()?, step.get("stop")?.as_u64()?);
    (stop == 0 && character(step.get("content")) == Some(' ')).then_some(start)
}

/// A token of GPT-2's map, or, with a character that is not of it, its own text.
fn byte_level(token: &str) -> Vec<u8> {
    let bytes: Option<Vec<u8>> = token.chars().map(byte_of).collect();
    bytes.unwrap_or_else(|| token.as_bytes().to_vec())
}

/// `<0xE6>`, read as the reader's decoder reads it.
fn byte_token(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    (token.len() == 6).then(|| u8::from_str_radix(digits, 16).ok())?
}

/// The byte that GPT-2's map writes as `char`: printable ones as themselves, the others from U+0100 on in order.
fn byte_of(char: char) -> Option<u8> {
    let printable = |byte: u8| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let code = u32::from(char);
    match u8::try_from(code) {
        Ok(byte) => Some(byte).filter(|byte| printable(*byte)),
        Err(_) => {
            let place = usize::try_from(code.checked_sub(0x100)?).ok()?;
            // 68 of them.
            (place < 68).then(|| (0..=u8::MAX).filter(|byte| !printable(*byte)).nth(place))?
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn gpt2s_map_is_one_to_one_over_all_bytes() {
        let chars = (0..0x300).filter_map(char::from_u32);
        let mut bytes: Vec<u8> = chars.filter_map(byte_of).collect();
        bytes.sort_unstable();
        assert_eq!(bytes, (0..=255).collect::<Vec<u8>>());
        assert_eq!((byte_of('Ġ'), byte_of('Ċ'), byte_of(' ')), (Some(b' '), Some(b'\n'), None));
    }

    #[test]
    fn a_byte_level_token_that_is_not_of_the_map_is_its_own_text() {
        let spelling = Spelling::read(Some(&json!({"type": "ByteLevel"}))).unwrap();
        assert_eq!(spelling.spell("Ġæ"), Spelled::Bytes(vec![b' ', 0xe6]));
        assert_eq!(spelling.spell("日"), Spelled::Bytes("日".as_bytes().to_vec()));
        assert_eq!(spelling.spell("<a b>"), Spelled::Bytes(b"<a b>".to_vec()));
    }

    #[test]
    fn llamas_decoder_spells_bytes_text_and_blanks() {
        let llama = json!({"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]});
        let spelling = Spelling::read(Some(&llama)).unwrap();
        assert_eq!(spelling.kind, Kind::ByteFallback);
        assert_eq!(spelling.spell("<0xE6>"), Spelled::Byte(0xe6));
        assert_eq!(spelling.spell("<0xE6>▁"), Spelled::Text { replaced: false });
        assert_eq!(spelling.spell("▁"), Spelled::Blank);
        assert_eq!(spelling.spell("\u{fffd}a"), Spelled::Text { replaced: true });
    }

    #[test]
    fn a_decoder_whose_text_could_depend_on_the_next_row_is_refused_by_name() {
        let strip_end = json!({"type": "Strip", "content": " ", "start": 0, "stop": 1});
        let words = json!({"type": "Replace", "pattern": {"String": " ."}, "content": "."});
        let regex = json!({"type": "Replace", "pattern": {"Regex": "▁"}, "content": " "});
        for (decoder, named) in
            [(json!({"type": "CTC"}), "CTC"), (strip_end, "Strip"), (words, "Replace"), (regex, "Replace")]
        {
            let refused = Spelling::read(Some(&decoder)).unwrap_err();
            assert!(refused.starts_with(named), "{refused}");
        }
        let late = json!({"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "ByteFallback"}]});
        assert_eq!(Spelling::read(Some(&late)).unwrap_err(), "ByteFallback (step 2 of 2)");
    }

    #[test]
    fn no_decoder_is_words() {
        assert_eq!(Spelling::read(None).unwrap().kind, Kind::Words);
        assert_eq!(Spelling::read(Some(&Value::Null)).unwrap().kind, Kind::Words);
    }
}
