//! The reader's decoder: the bytes or text of a token, from `decoder` of a `tokenizer.json`. A decoder is refused if
//! the text of one row could depend on its neighbours.

use std::fmt;

use serde_json::Value;

use crate::error::VocabularyError;
use crate::file::TokenizerFiles;

/// The character for invalid bytes in a decoder's text. A vocabulary may also contain it.
pub(crate) const REPLACEMENT: char = '\u{fffd}';

/// The kind of decoder, for logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DecoderKind {
    /// Every token is bytes, written as characters by GPT-2's map (GPT, Qwen, Llama 3, DeepSeek).
    ByteLevel,
    /// Tokens are text, and tokens like `<0xE6>` are single bytes of characters without a token (Llama 2, Mistral,
    /// Gemma).
    ByteFallback,
    /// Every token is text, with `▁` for a space (T5, XLNet). No token is a part of a character.
    SentencePiece,
    /// Every token is a word or, with `##`, the rest of one. No token is a part of a character.
    WordPiece,
    /// There is no decoder: every token is a word.
    Words,
}

impl fmt::Display for DecoderKind {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str(match self {
            DecoderKind::ByteLevel => "byte-level",
            DecoderKind::ByteFallback => "byte fallback",
            DecoderKind::SentencePiece => "SentencePiece",
            DecoderKind::WordPiece => "WordPiece",
            DecoderKind::Words => "words",
        })
    }
}

/// The text of a token.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum TokenText {
    /// Bytes that are text only together with those around them (byte-level).
    Bytes(Vec<u8>),
    /// One byte of a run (byte fallback).
    Byte(u8),
    /// Text of its own. `replaced`: it contains U+FFFD.
    Text { replaced: bool },
    /// Text or nothing, depending on the position: a leading space is cut.
    Blank,
}

/// The parts of a decoder that define the tokens' text.
#[derive(Debug)]
pub(crate) struct Spelling {
    pub kind: DecoderKind,
    replace: Vec<(char, String)>,
    /// Whether words in the middle of a text get a space before them, with or without a [`WordPiece`].
    spaced: bool,
    word_piece: Option<WordPiece>,
}

/// A WordPiece decoder.
#[derive(Debug)]
struct WordPiece {
    /// The prefix of a token that continues a word.
    prefix: String,
    /// Whether spaces before punctuation are removed, token by token.
    cleanup: bool,
}

impl TokenizerFiles {
    pub(crate) fn spelling(&self) -> Result<Spelling, VocabularyError> {
        Spelling::read(self.written.decoder.as_ref())
            .map_err(|decoder| VocabularyError::Decoder { path: self.path.clone(), decoder })
    }
}

impl Spelling {
    /// Reads a decoder. The error is the unsupported step.
    pub fn read(decoder: Option<&Value>) -> Result<Spelling, String> {
        let mut steps = Vec::new();
        if let Some(decoder) = decoder.filter(|decoder| !decoder.is_null()) {
            flatten(decoder, &mut steps)?;
        }
        let spaced = steps.is_empty();
        let mut found = Spelling { kind: DecoderKind::Words, replace: Vec::new(), spaced, word_piece: None };
        let (mut fused, mut stripped) = (false, 0);
        for (at, (name, step)) in steps.iter().enumerate() {
            let refused = || Err(format!("{name} (step {} of {})", at + 1, steps.len()));
            let alone = steps.iter().enumerate().all(|(other, (name, _))| other == at || *name == "Fuse");
            match *name {
                "ByteLevel" if alone && !fused => found.kind = DecoderKind::ByteLevel,
                "WordPiece" if alone => {
                    found.kind = DecoderKind::WordPiece;
                    found.spaced = true;
                    found.word_piece = Some(word_piece(step));
                }
                "ByteFallback" if !fused => found.kind = DecoderKind::ByteFallback,
                "Fuse" => fused = true,
                "Metaspace" if !fused => {
                    found.replace.extend(replacement(step).map(|from| (from, " ".to_owned())))
                }
                "Replace" => match replaces(step) {
                    Some(pair) => found.replace.push(pair),
                    None => return refused(),
                },
                // It applies to a window's first token, which the reader has had before. A second space could be of the
                // second token.
                "Strip" if strips(step).is_some_and(|cut| cut + stripped <= 1) => stripped += 1,
                _ => return refused(),
            }
            if found.kind == DecoderKind::Words && *name != "Fuse" {
                found.kind = DecoderKind::SentencePiece;
            }
        }
        Ok(found)
    }

    /// The text of `token`.
    pub fn spell(&self, token: &str) -> TokenText {
        match self.kind {
            DecoderKind::ByteLevel => TokenText::Bytes(byte_level(token)),
            DecoderKind::ByteFallback => byte_token(token).map_or_else(|| self.text(token), TokenText::Byte),
            DecoderKind::SentencePiece | DecoderKind::WordPiece | DecoderKind::Words => self.text(token),
        }
    }

    /// Appends the bytes of `token` in the middle of a text, without the treatment of a text's first token. Returns
    /// false, with `bytes` unchanged, if they would exceed `limit`.
    pub fn append(&self, token: &str, limit: usize, bytes: &mut Vec<u8>) -> bool {
        let room = limit.saturating_sub(bytes.len());
        let text = match self.kind {
            DecoderKind::ByteLevel => byte_level(token),
            DecoderKind::ByteFallback if let Some(byte) = byte_token(token) => vec![byte],
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

    /// A token's text. `None` if it has more bytes than `room`.
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
            // Checked before the text is made: a few steps can make a short token very long.
            if found.saturating_mul(to.len()).saturating_add(text.len()) > room {
                return None;
            }
            if found > 0 {
                text = text.replace(*from, to);
            }
        }
        Some(text)
    }

    fn text(&self, token: &str) -> TokenText {
        let is_blank = |char: char| {
            char == ' ' || self.replace.iter().any(|(from, to)| *from == char && (to.is_empty() || to == " "))
        };
        if token.chars().all(is_blank) {
            return TokenText::Blank;
        }
        // Anywhere in the text, to be safe: the text after it may be removed.
        TokenText::Text { replaced: token.contains(REPLACEMENT) }
    }
}

/// The replacements of the library's WordPiece decoder, in its order (`cleanup` of tokenizers 0.23).
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

/// Collects the decoder's steps in order, including nested sequences.
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

/// The character of a string with one character.
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

/// One character and its replacement without U+FFFD. A longer pattern could match across tokens, and an ASCII pattern
/// in `<0xE6>`.
fn replaces(step: &Value) -> Option<(char, String)> {
    let from = character(step.get("pattern")?.get("String"))?;
    let to = step.get("content")?.as_str()?;
    ((!from.is_ascii() || from == ' ') && !to.contains(REPLACEMENT)).then(|| (from, to.to_owned()))
}

/// The number of spaces cut at the front. `None` if spaces are cut at the end, because a row ends there.
fn strips(step: &Value) -> Option<u64> {
    let (start, stop) = (step.get("start")?.as_u64()?, step.get("stop")?.as_u64()?);
    (stop == 0 && character(step.get("content")) == Some(' ')).then_some(start)
}

/// The bytes of a token by GPT-2's map. A token with other characters is its own text.
fn byte_level(token: &str) -> Vec<u8> {
    let bytes: Option<Vec<u8>> = token.chars().map(byte_of).collect();
    bytes.unwrap_or_else(|| token.as_bytes().to_vec())
}

/// The byte of `<0xE6>`, parsed like the reader's decoder.
fn byte_token(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    (token.len() == 6).then(|| u8::from_str_radix(digits, 16).ok())?
}

/// The byte that GPT-2's map writes as `char`: printable bytes as themselves, the others from U+0100 on in order.
fn byte_of(char: char) -> Option<u8> {
    let printable = |byte: u8| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let code = u32::from(char);
    match u8::try_from(code) {
        Ok(byte) => Some(byte).filter(|byte| printable(*byte)),
        Err(_) => {
            let place = usize::try_from(code.checked_sub(0x100)?).ok()?;
            // There are 68 such bytes.
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
    fn a_byte_level_token_outside_the_map_is_its_own_text() {
        let spelling = Spelling::read(Some(&json!({"type": "ByteLevel"}))).unwrap();
        assert_eq!(spelling.spell("Ġæ"), TokenText::Bytes(vec![b' ', 0xe6]));
        assert_eq!(spelling.spell("日"), TokenText::Bytes("日".as_bytes().to_vec()));
        assert_eq!(spelling.spell("<a b>"), TokenText::Bytes(b"<a b>".to_vec()));
    }

    #[test]
    fn llamas_decoder_spells_bytes_text_and_blanks() {
        let llama = json!({"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]});
        let spelling = Spelling::read(Some(&llama)).unwrap();
        assert_eq!(spelling.kind, DecoderKind::ByteFallback);
        assert_eq!(spelling.spell("<0xE6>"), TokenText::Byte(0xe6));
        assert_eq!(spelling.spell("<0xE6>▁"), TokenText::Text { replaced: false });
        assert_eq!(spelling.spell("▁"), TokenText::Blank);
        assert_eq!(spelling.spell("\u{fffd}a"), TokenText::Text { replaced: true });
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
        assert_eq!(Spelling::read(None).unwrap().kind, DecoderKind::Words);
        assert_eq!(Spelling::read(Some(&Value::Null)).unwrap().kind, DecoderKind::Words);
    }
}
