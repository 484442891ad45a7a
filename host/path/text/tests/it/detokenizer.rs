//! The text part of SGLang's DetokenizerManager (`_decode_batch_token_id_output`, 0.5.23), on the library that it uses.

use tokenizers::Tokenizer;

/// A row as the scheduler sends it.
#[derive(Clone, Debug)]
pub struct Row {
    pub decode_ids: Vec<i64>,
    pub finish: Option<Finish>,
}

/// The finish reason, as far as the text depends on it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Finish {
    Length,
    /// The last token is a stop token, which is cut unless `no_stop_trim`.
    StopToken {
        no_stop_trim: bool,
    },
}

pub struct Request<'a> {
    tokenizer: &'a Tokenizer,
    skip_special: bool,
    decode_ids: Vec<u32>,
    surr_offset: usize,
    read_offset: usize,
    sent_offset: usize,
    decoded: Vec<char>,
}

impl<'a> Request<'a> {
    pub fn new(tokenizer: &'a Tokenizer, skip_special: bool, read_offset: usize) -> Request<'a> {
        let (surr_offset, sent_offset) = (0, 0);
        let (decode_ids, decoded) = (Vec::new(), Vec::new());
        Request { tokenizer, skip_special, decode_ids, surr_offset, read_offset, sent_offset, decoded }
    }

    fn decode(&self, ids: &[u32]) -> Vec<char> {
        self.tokenizer.decode(ids, self.skip_special).unwrap().chars().collect()
    }

    /// The text for the client.
    pub fn take(&mut self, row: &Row) -> String {
        let size = self.tokenizer.get_vocab_size(true);
        let clamp = |id: &i64| u32::try_from(*id).ok().filter(|id| (*id as usize) < size).unwrap_or(0);
        self.decode_ids.extend(row.decode_ids.iter().map(clamp));
        let mut read = &self.decode_ids[self.surr_offset..];
        if row.finish == Some(Finish::StopToken { no_stop_trim: false }) {
            read = &read[..read.len() - 1];
        }
        let (surr, read) =
            (self.decode(&self.decode_ids[self.surr_offset..self.read_offset]), self.decode(read));
        let new = read.get(surr.len()..).unwrap_or_default();
        if row.finish.is_some() {
            let all = [&self.decoded, new].concat();
            return all.get(self.sent_offset..).unwrap_or_default().iter().collect();
        }
        let pending = self.sent_offset - self.decoded.len();
        if new.last().is_some_and(|last| *last != '\u{fffd}') {
            self.decoded.extend(new);
            self.surr_offset = self.read_offset;
            self.read_offset = self.decode_ids.len();
            self.sent_offset = self.decoded.len();
            new.get(pending..).unwrap_or_default().iter().collect()
        } else {
            let printable = printable(new);
            self.sent_offset = self.decoded.len() + printable.len();
            printable.get(pending..).unwrap_or_default().iter().collect()
        }
    }
}

/// `sglang.utils.find_printable_text`
fn printable(text: &[char]) -> &[char] {
    match text {
        [.., '\n'] => text,
        [.., last] if is_chinese(*last) => text,
        [before @ .., _] if before.last().is_some_and(|char| is_chinese(*char)) => before,
        _ => &text[..text.iter().rposition(|char| *char == ' ').map_or(0, |at| at + 1)],
    }
}

fn is_chinese(char: char) -> bool {
    matches!(u32::from(char), 0x4e00..=0x9fff | 0x3400..=0x4dbf | 0x20000..=0x2a6df | 0x2a700..=0x2b73f
        | 0x2b740..=0x2b81f | 0x2b820..=0x2ceaf | 0xf900..=0xfaff | 0x2f800..=0x2fa1f)
}
