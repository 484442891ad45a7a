//! The output of a request on one stream: what left for the reader, and what was received where the two differ.
//!
//! Rows that left are read from the bytes that were sent in place of their frames, so held, joined and replaced rows are exact.

use crate::content::{Absent, Content, ContentReader};
use crate::sent::{Changed, SentIds, UNKNOWN_ID};
use crate::wording::verdict;
use afterbay_journal::reader::{JournalRow, RequestHistory};
use afterbay_journal::{FrameNo, PluginAction, Verdict};
use afterbay_text::TokenBytes;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Ids, and the bytes of their text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutputText {
    /// Token ids.
    pub ids: Vec<i64>,
    bytes: Vec<u8>,
}

/// A part of an output in which the reader got something else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The frame of the first row.
    pub first: FrameNo,
    /// The frame of the last row.
    pub last: FrameNo,
    /// The plugins and their verdicts that made the difference, each once.
    pub actions: Vec<(String, Verdict)>,
    /// Everything that was received in these rows.
    pub received: OutputText,
    /// Everything that left for them.
    pub sent: OutputText,
}

/// A part of an output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Left as it was received.
    Same(OutputText),
    /// Something else left.
    Other(Difference),
    /// Rows without content: their number, and the reason for the first.
    Absent(u64, Absent),
}

/// The output of a request on one stream so far.
#[derive(Debug)]
pub struct LegOutput {
    /// The parts, in order.
    pub parts: Vec<Part>,
    /// Whether the text of ids is known: from the rows or from a tokenizer.
    pub has_text: bool,
    /// Rows whose content the journal does not have.
    pub rows_missing: u64,
}

impl OutputText {
    /// The text. Bytes that are no UTF-8 are U+FFFD.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }

    fn extend(&mut self, more: &OutputText) {
        self.ids.extend(&more.ids);
        self.bytes.extend(&more.bytes);
    }

    fn json(&self, has_text: bool) -> Value {
        json!({"text": has_text.then(|| self.text()), "ids": self.ids})
    }
}

impl Difference {
    fn new(frame: FrameNo) -> Difference {
        let (received, sent) = (OutputText::default(), OutputText::default());
        Difference { first: frame, last: frame, actions: Vec::new(), received, sent }
    }

    fn add(&mut self, row: &JournalRow, received: &OutputText, sent: &OutputText) {
        self.last = row.frame;
        row.actions.iter().filter(|action| action.verdict != Verdict::Annotate).for_each(|action| {
            let made = (action.plugin.to_string(), action.verdict);
            if !self.actions.contains(&made) {
                self.actions.push(made);
            }
        });
        self.received.extend(received);
        self.sent.extend(sent);
    }

    fn is_none(&self, has_text: bool) -> bool {
        match has_text {
            true => self.received.bytes == self.sent.bytes,
            false => self.received.ids == self.sent.ids,
        }
    }

    /// Whether a side ends inside a character.
    fn is_cut(&self) -> bool {
        [&self.received, &self.sent].into_iter().any(|side| open_bytes(&side.bytes) > 0)
    }

    /// The ids at the begin and at the end that are equal on both sides, and end with a character.
    fn equal_ids(&self, tokens: Option<&TokenBytes>) -> (usize, usize) {
        let (received, sent) = (&self.received.ids, &self.sent.ids);
        let decode = |ids: &[i64]| tokens.map(|tokens| tokens.decode(ids)).unwrap_or_default();
        let mut begin = received.iter().zip(sent).take_while(|(one, other)| one == other).count();
        while open_bytes(&decode(&received[..begin])) > 0 {
            begin -= 1;
        }
        let (rest, rest_sent) = (&received[begin..], &sent[begin..]);
        let pairs = rest.iter().rev().zip(rest_sent.iter().rev());
        let mut end = pairs.take_while(|(one, other)| one == other).count();
        // A byte inside of a character begins with the bits 10.
        while decode(&rest[rest.len() - end..]).first().is_some_and(|byte| byte >> 6 == 0b10) {
            end -= 1;
        }
        (begin, end)
    }

    /// The difference without so many ids at its begin and end, between the parts that are equal.
    fn split(
        self,
        (begin, end): (usize, usize),
        text: impl Fn(&[i64]) -> OutputText,
    ) -> impl Iterator<Item = Difference> {
        let (received, sent) = (&self.received.ids, &self.sent.ids);
        if (begin, end) == (0, 0) || received.len() == sent.len() && begin + end == received.len() {
            return vec![self].into_iter();
        }
        let same =
            |ids: &[i64]| Difference { received: text(ids), sent: text(ids), ..Difference::new(self.first) };
        let parts = [
            same(&received[..begin]),
            Difference {
                received: text(&received[begin..received.len() - end]),
                sent: text(&sent[begin..sent.len() - end]),
                ..self.clone()
            },
            same(&received[received.len() - end..]),
        ];
        parts
            .into_iter()
            .filter(|part| part.received != OutputText::default() || part.sent != OutputText::default())
            .collect::<Vec<_>>()
            .into_iter()
    }

    /// The plugins with their verdicts, in words: `pii: hold, replace`.
    pub fn by(&self) -> String {
        let of_one = self.actions.chunk_by(|one, next| one.0 == next.0).map(|of_one| {
            let verdicts: Vec<&str> = of_one.iter().map(|(_, it)| verdict(*it)).collect();
            format!("{}: {}", of_one[0].0, verdicts.join(", "))
        });
        of_one.collect::<Vec<_>>().join("; ")
    }

    fn json(&self, has_text: bool) -> Value {
        let action =
            |(plugin, made): &(String, Verdict)| json!({"plugin": plugin, "verdict": verdict(*made)});
        json!({
            "first_frame": self.first.0,
            "last_frame": self.last.0,
            "actions": self.actions.iter().map(action).collect::<Vec<_>>(),
            "received": self.received.json(has_text),
            "sent": self.sent.json(has_text),
        })
    }
}

impl LegOutput {
    /// Reads what left. `contents` has the received content of each row.
    pub(crate) fn read(
        reader: &ContentReader<'_>,
        life: &RequestHistory,
        contents: &[Result<Content, Absent>],
        tokens: Option<&TokenBytes>,
    ) -> LegOutput {
        let has_row_texts = contents.iter().flatten().any(|content| content.text.is_some());
        let text = |ids: Vec<i64>, text: Option<&str>| OutputText {
            bytes: match text {
                Some(text) => text.into(),
                None if has_row_texts => Vec::new(),
                None => tokens.map(|tokens| tokens.decode(&ids)).unwrap_or_default(),
            },
            ids,
        };
        let has_text = has_row_texts || tokens.is_some();
        let rows_missing = life.request.rows.saturating_sub(life.rows.len() as u64);
        let mut output = LegOutput { parts: Vec::new(), has_text, rows_missing };
        let mut open: Option<Difference> = None;
        let mut held: BTreeMap<&str, usize> = BTreeMap::new();
        let mut sent_ids: Vec<i64> = Vec::new();
        for (row, content) in life.rows.iter().zip(contents) {
            let content = match content {
                Ok(content) => content,
                Err(why) => {
                    output.add_absent(open.take(), *why);
                    continue;
                }
            };
            let received = text(content.ids.clone(), content.text.as_deref());
            // A row of a release marker has no tokens of its own.
            let changed = match row.actions.is_empty() && row.tokens > 0 {
                true => Changed::AsReceived,
                false => reader.changed(row),
            };
            let sent = match changed.ids(&life.request.rid, &row.actions, row.tokens) {
                SentIds::AsReceived => received.clone(),
                SentIds::Row(ids) | SentIds::Cumulative(ids) if ids.contains(&UNKNOWN_ID) => {
                    output.add_absent(open.take(), Absent::Unreadable);
                    continue;
                }
                SentIds::Row(ids) => text(ids, changed.text(&life.request.rid)),
                SentIds::Cumulative(ids) => match ids.strip_prefix(&*sent_ids) {
                    Some(rest) => text(rest.to_vec(), None),
                    None => {
                        open = Some(output.take_all(open.take(), row.frame));
                        sent_ids.clear();
                        text(ids, None)
                    }
                },
            };
            sent_ids.extend(&sent.ids);
            row.actions.iter().for_each(|action| hold(&mut held, action));
            let mut difference = open.take().unwrap_or_else(|| Difference::new(row.frame));
            difference.add(row, &received, &sent);
            let is_any_held = held.values().any(|rows| *rows > 0);
            let is_settled = !difference.is_cut() && (!is_any_held || difference.is_none(has_text));
            if !is_settled {
                open = Some(difference);
                continue;
            }
            // The text of a detokenizer's rows is not that of single ids.
            let equal = if has_row_texts { (0, 0) } else { difference.equal_ids(tokens) };
            difference.split(equal, |ids| text(ids.to_vec(), None)).for_each(|part| output.add(part));
        }
        open.into_iter().for_each(|difference| output.add(difference));
        output
    }

    /// Adds a part, to the last one if both are of the same kind.
    fn add(&mut self, difference: Difference) {
        if difference.is_none(self.has_text) {
            match self.parts.last_mut() {
                Some(Part::Same(text)) => text.extend(&difference.received),
                _ => self.parts.push(Part::Same(difference.received)),
            }
            return;
        }
        match self.parts.last_mut() {
            Some(Part::Other(last)) => {
                last.last = difference.last;
                let new = difference.actions.into_iter().filter(|made| !last.actions.contains(made));
                let new: Vec<_> = new.collect();
                last.actions.extend(new);
                last.received.extend(&difference.received);
                last.sent.extend(&difference.sent);
            }
            _ => self.parts.push(Part::Other(difference)),
        }
    }

    fn add_absent(&mut self, open: Option<Difference>, why: Absent) {
        self.rows_missing += 1;
        open.into_iter().for_each(|difference| self.add(difference));
        match self.parts.last_mut() {
            Some(Part::Absent(rows, known)) if *known == why => *rows += 1,
            _ => self.parts.push(Part::Absent(1, why)),
        }
    }

    /// Takes everything so far as one difference of which nothing was sent: a row takes the place of all rows before.
    fn take_all(&mut self, open: Option<Difference>, frame: FrameNo) -> Difference {
        open.into_iter().for_each(|difference| self.add(difference));
        let all = Difference { received: self.received(), ..Difference::new(frame) };
        self.parts.retain(|part| matches!(part, Part::Absent(..)));
        all
    }

    /// Everything that was received.
    pub fn received(&self) -> OutputText {
        self.whole(|difference| &difference.received)
    }

    /// Everything that left.
    pub fn sent(&self) -> OutputText {
        self.whole(|difference| &difference.sent)
    }

    fn whole(&self, side: impl Fn(&Difference) -> &OutputText) -> OutputText {
        let mut whole = OutputText::default();
        for part in &self.parts {
            match part {
                Part::Same(text) => whole.extend(text),
                Part::Other(difference) => whole.extend(side(difference)),
                Part::Absent(..) => {}
            }
        }
        whole
    }

    /// The differences, in order.
    pub fn differences(&self) -> impl Iterator<Item = &Difference> {
        self.parts.iter().filter_map(|part| match part {
            Part::Other(difference) => Some(difference),
            Part::Same(_) | Part::Absent(..) => None,
        })
    }

    /// `sent`, `received`, `differences` and `rows_missing` as JSON.
    pub fn json(&self) -> Value {
        json!({
            "sent": self.sent().json(self.has_text),
            "received": self.received().json(self.has_text),
            "differences": self.differences().map(|it| it.json(self.has_text)).collect::<Vec<_>>(),
            "rows_missing": self.rows_missing,
        })
    }
}

/// Counts the rows that each plugin holds.
fn hold<'a>(held: &mut BTreeMap<&'a str, usize>, action: &'a PluginAction<'_>) {
    let rows = held.entry(&action.plugin).or_default();
    match action.verdict {
        Verdict::Hold => *rows += 1,
        Verdict::Release => *rows = rows.saturating_sub(action.released().unwrap_or(usize::MAX)),
        _ => {}
    }
}

/// The bytes at the end that begin a character which is not complete.
pub fn open_bytes(bytes: &[u8]) -> usize {
    let is_open = |count: &usize| {
        let end = bytes.len().checked_sub(*count).and_then(|from| bytes.get(from..)).unwrap_or_default();
        std::str::from_utf8(end).is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
    };
    (1..=3).find(is_open).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_no_character_do_not_hide_one_that_begins_at_the_end() {
        // Models with random weights make such bytes.
        for (bytes, open) in [
            (&b""[..], 0),
            (b"a\xff", 0),
            (b"a\xcd\xbd", 0),
            (b"a\xcd", 1),
            (b"a\xff\xcd", 1),
            (b"\xff\xe2\x82", 2),
        ] {
            assert_eq!(open_bytes(bytes), open, "{bytes:?}");
        }
    }

    #[test]
    fn a_character_that_is_not_complete_stays_open() {
        for (bytes, open) in [
            (&b""[..], 0),
            (b"abc", 0),
            ("é".as_bytes(), 0),
            (&"é".as_bytes()[..1], 1),
            (&"a€".as_bytes()[..3], 2),
            (&"😀".as_bytes()[..3], 3),
            (b"a\xff", 0),
            (b"\x80\x80", 0),
        ] {
            assert_eq!(open_bytes(bytes), open, "{bytes:?}");
        }
    }
}
