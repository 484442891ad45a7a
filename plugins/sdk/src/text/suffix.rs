//! The part of a request's text that its reader does not have, and the verdicts that send it.

use std::ops::Range;
use std::time::Duration;

use super::Vocabulary;
use crate::{Columns, FinishReason, Row, TokenId, Verdicts};

/// A plugin that must keep less than all held rows, and has at least this many held rows before the text that it
/// keeps, replaces the rows instead of holding them.
const ROWS_BEHIND_MAX: usize = 8;

/// A replacement of a part of a request's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edit<'a> {
    from: u64,
    to: u64,
    text: &'a str,
}

impl<'a> Edit<'a> {
    /// Replaces the text at these positions. Positions count the bytes of the request's text.
    #[must_use]
    pub fn new(range: Range<u64>, text: &'a str) -> Self {
        Self { from: range.start, to: range.end, text }
    }
}

/// The text of one request from the first byte that its reader does not have.
///
/// For each row of the request call [`SuffixHold::add`], look at the text, and call [`SuffixHold::settle`]
/// or [`SuffixHold::finish_before`] or [`SuffixHold::release_before`] once.
///
/// Rows are the unit of a hold: if a row ends in text that must wait, the whole row waits. Three cases need
/// more than a hold, and then the verdict replaces tokens:
///
/// - An edit ends in the held text, and later text must wait: the text up to there leaves, and the plugin
///   *withholds* the rest. Withheld text leaves with later rows. A time limit does not apply to it.
/// - The text that must wait begins inside the held rows, 8 rows or more after their beginning: the same.
/// - An edit's border is inside a token: the rest of the token and the new text are encoded again. All other
///   tokens stay as they are, with their logprobs. Encoded and withheld tokens have the logprob 0.
///
/// If a held row leaves although the plugin did not release it (`limits.hold` has passed, or the host had no
/// room), [`SuffixHold::sent`] moves past it. The text stays readable as long as the plugin keeps it, and an
/// edit changes only the part that the reader does not have.
///
/// If an instance faults or is replaced while it withholds text, the text may be missing in the output.
#[derive(Clone, Debug, Default)]
pub struct SuffixHold {
    /// The text from position `start` on.
    text: Vec<u8>,
    start: u64,
    /// The reader has the text before this position, as it was or edited.
    sent: u64,
    /// The position at which the present row begins.
    row_start: u64,
    /// The tokens from position `sent` on.
    units: Vec<Unit>,
    /// The held rows.
    rows: Vec<RowEnd>,
    /// Set if the text before the present row is not in held rows: its rows have left without it.
    is_withheld: bool,
}

/// A token, or text without a token.
#[derive(Clone, Copy, Debug)]
struct Unit {
    /// `None` for the text of a row after the detokenizer, and for the rest of a token.
    id: Option<TokenId>,
    /// The position after its last byte.
    end: u64,
}

/// The end of a held row.
#[derive(Clone, Copy, Debug)]
struct RowEnd {
    /// The position after the row's text.
    text: u64,
    /// The number of units from `sent` to the row's end.
    units: usize,
}

/// The tokens and the text of a row after edits.
struct Output {
    ids: Vec<TokenId>,
    /// `None` before the detokenizer.
    text: Option<String>,
    /// The number of units that are in it.
    units: usize,
}

impl SuffixHold {
    /// The columns that a plugin with suffix holds reads.
    pub const COLUMNS: Columns =
        Columns::OUTPUT_IDS.union(Columns::TEXTS).union(Columns::WAITING).union(Columns::FINISHED);

    /// The state of a request of which no text was received.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the text of the request's next row.
    pub fn add(&mut self, row: Row<'_>, vocabulary: &Vocabulary) {
        self.forget_rows_that_left(row.waiting().unwrap_or(0) as usize);
        self.row_start = self.end();
        match row.text() {
            Some(text) => {
                self.text.extend_from_slice(text.as_bytes());
                self.units.push(Unit { id: None, end: self.end() });
            }
            None => {
                for &id in row.ids() {
                    self.text.extend_from_slice(vocabulary.bytes(id));
                    self.units.push(Unit { id: Some(id), end: self.end() });
                }
            }
        }
    }

    /// The position after the last byte.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.start + self.text.len() as u64
    }

    /// The position up to which the reader has the text.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// The text of the present row.
    #[must_use]
    pub fn row_text(&self) -> &[u8] {
        &self.text[(self.row_start - self.start) as usize..]
    }

    /// The position at which the present row begins.
    #[must_use]
    pub fn row_start(&self) -> u64 {
        self.row_start
    }

    /// The byte at a position. `None` for text that the plugin no longer keeps.
    #[must_use]
    pub fn byte(&self, at: u64) -> Option<u8> {
        self.text.get(usize::try_from(at.checked_sub(self.start)?).ok()?).copied()
    }

    /// The text between two positions, without the part that the plugin no longer keeps.
    #[must_use]
    pub fn text(&self, range: Range<u64>) -> &[u8] {
        let at = |position: u64| (position.clamp(self.start, self.end()) - self.start) as usize;
        let (from, to) = (at(range.start), at(range.end));
        &self.text[from.min(to)..to]
    }

    /// Sends the text before `keep_from` with these edits, and keeps the rest back. Gives the row's verdict,
    /// if the row does not leave unchanged.
    ///
    /// `keep_from` is [`SuffixHold::end`] if nothing has to wait. The edits are in order, do not overlap and
    /// end at or before `keep_from`. The last row of a request keeps nothing back.
    pub fn settle(
        &mut self,
        row: Row<'_>,
        keep_from: u64,
        edits: &[Edit<'_>],
        time: Duration,
        vocabulary: &Vocabulary,
        verdicts: &mut Verdicts,
    ) {
        let end = self.end();
        let keep = if row.is_last() { end } else { keep_from.clamp(self.sent, end) };
        let is_edited = edits.iter().any(|edit| edit.to > self.sent);
        if !is_edited && !self.is_withheld {
            let held_units = self.rows.last().map_or(0, |held| held.units);
            if keep == end {
                if self.has_held_rows(row) {
                    verdicts.release(row);
                }
                return self.sent_up_to(end, self.units.len(), keep_from);
            }
            if keep >= self.row_start && self.has_held_rows(row) {
                verdicts.release_and_hold(row, time);
                self.sent_up_to(self.row_start, held_units, keep_from);
                return self.rows.push(RowEnd { text: end, units: self.units.len() });
            }
            if self.rows.iter().filter(|held| held.text <= keep).count() < ROWS_BEHIND_MAX {
                verdicts.hold(row, time);
                return self.rows.push(RowEnd { text: end, units: self.units.len() });
            }
        }
        let keep = self.to_border(keep, edits, row);
        self.send(row, keep, edits, vocabulary, verdicts);
        self.is_withheld = keep < end;
        // A match that began in text that has left needs the text.
        self.forget(keep_from);
    }

    /// Sends the text before `at` with these edits, and discards the rest.
    pub fn release_before(
        &mut self,
        row: Row<'_>,
        at: u64,
        edits: &[Edit<'_>],
        vocabulary: &Vocabulary,
        verdicts: &mut Verdicts,
    ) {
        self.send(row, at.clamp(self.sent, self.end()), edits, vocabulary, verdicts);
        self.discard();
    }

    /// Ends the request before `at` and discards the rest. Returns false if the request goes on, because it
    /// had held rows: the text before `at` has left, and the plugin must finish the request at its next row,
    /// without that row's tokens.
    pub fn finish_before(
        &mut self,
        row: Row<'_>,
        at: u64,
        edits: &[Edit<'_>],
        reason: impl Into<FinishReason>,
        vocabulary: &Vocabulary,
        verdicts: &mut Verdicts,
    ) -> bool {
        if self.has_held_rows(row) {
            self.release_before(row, at, edits, vocabulary, verdicts);
            return false;
        }
        let Output { ids, text, .. } = self.output(at.clamp(self.sent, self.end()), edits, row, vocabulary);
        match text {
            Some(text) => verdicts.finish_with_text(row, reason, ids, text),
            None => verdicts.finish_with(row, reason, ids),
        }
        self.discard();
        true
    }

    /// Forgets all text that the reader does not have.
    fn discard(&mut self) {
        self.is_withheld = false;
        self.sent_up_to(self.end(), self.units.len(), self.end());
    }

    /// Sends the text before `to` with edits, in place of the held rows and the present row.
    fn send(
        &mut self,
        row: Row<'_>,
        to: u64,
        edits: &[Edit<'_>],
        vocabulary: &Vocabulary,
        verdicts: &mut Verdicts,
    ) {
        let Output { ids, text, units } = self.output(to, edits, row, vocabulary);
        match (self.has_held_rows(row), text) {
            (false, None) => verdicts.replace(row, ids),
            (false, Some(text)) => verdicts.replace_with_text(row, ids, text),
            (true, None) => verdicts.release_as(row, ids),
            (true, Some(text)) => verdicts.release_as_with_text(row, ids, text),
        }
        self.rows.clear();
        self.sent_up_to(to, units, self.start);
    }

    /// Whether rows of the request are held. A row without a verdict would wait behind them.
    fn has_held_rows(&self, row: Row<'_>) -> bool {
        !self.rows.is_empty() || row.waiting().is_some_and(|waiting| waiting > 0)
    }

    /// Removes the first rows if the host no longer holds them: they have left unchanged.
    fn forget_rows_that_left(&mut self, waiting: usize) {
        let Some(last) = self.rows.len().checked_sub(waiting + 1) else { return };
        let RowEnd { text, units } = self.rows[last];
        self.rows.drain(..=last);
        self.sent_up_to(text, units, self.start);
    }

    /// Moves `sent` over this number of units, and forgets the text before `needed` that the reader has.
    fn sent_up_to(&mut self, sent: u64, units: usize, needed: u64) {
        self.sent = sent;
        if units == self.units.len() {
            self.units.clear();
            self.rows.clear();
        } else {
            self.units.drain(..units);
            self.rows.retain(|held| held.units > units);
            self.rows.iter_mut().for_each(|held| held.units -= units);
        }
        self.forget(needed);
    }

    fn forget(&mut self, needed: u64) {
        let (end, start) = (self.end(), self.sent.min(needed).max(self.start));
        if start >= end {
            self.text.clear();
            self.start = end;
        } else {
            self.text.drain(..(start - self.start) as usize);
            self.start = start;
        }
    }

    /// The unit that has a border inside of it at this position, with its begin.
    fn unit_around(&self, at: u64) -> Option<(usize, u64)> {
        let index = self.units.iter().position(|unit| unit.end > at)?;
        let begin = index.checked_sub(1).map_or(self.sent, |before| self.units[before].end);
        (begin < at).then_some((index, begin))
    }

    /// Moves the position to the left, so that the text that leaves ends with a token, or with a character after
    /// the detokenizer. A position in a token in which an edit ends stays.
    fn to_border(&self, keep: u64, edits: &[Edit<'_>], row: Row<'_>) -> u64 {
        if row.text().is_some() {
            let is_inside = |at: u64| self.byte(at).is_some_and(|byte| byte & 0b1100_0000 == 0b1000_0000);
            return (self.sent..=keep).rev().find(|at| !is_inside(*at)).unwrap_or(keep);
        }
        match self.unit_around(keep) {
            Some((_, begin)) if edits.iter().all(|edit| edit.to <= begin) => begin,
            _ => keep,
        }
    }

    /// Makes two units of the unit around the position.
    fn split(&mut self, at: u64) {
        if let Some((index, _)) = self.unit_around(at) {
            self.units[index].id = None;
            self.units.insert(index, Unit { id: None, end: at });
            // Rows end at units' borders.
            self.rows.iter_mut().filter(|held| held.units > index).for_each(|held| held.units += 1);
        }
    }

    /// The text before `to` with edits.
    fn output(&mut self, to: u64, edits: &[Edit<'_>], row: Row<'_>, vocabulary: &Vocabulary) -> Output {
        let sent = self.sent;
        let edits = edits.iter().filter(|edit| edit.to > sent && edit.from < to);
        let edits: Vec<Edit<'_>> = edits.map(|edit| Edit { from: edit.from.max(sent), ..*edit }).collect();
        for border in edits.iter().flat_map(|edit| [edit.from, edit.to]).chain([to]) {
            self.split(border);
        }
        let mut edits = edits.into_iter().peekable();
        let mut ids = Vec::new();
        // Text to encode. After the detokenizer no unit has an id, and this is all text.
        let mut run = Vec::new();
        let (mut begin, mut units) = (sent, 0);
        for unit in self.units.iter().take_while(|unit| unit.end <= to) {
            units += 1;
            let end = unit.end;
            let (is_empty, from) = (begin == end, begin);
            begin = end;
            while edits.next_if(|edit| edit.to <= from).is_some() {}
            if let Some(edit) = edits.peek().filter(|edit| edit.from < from || edit.from == from && !is_empty)
            {
                if edit.from == from {
                    run.extend_from_slice(edit.text.as_bytes());
                }
                continue;
            }
            match unit.id {
                None => run.extend_from_slice(self.text(from..end)),
                Some(id) => {
                    ids.extend(vocabulary.encode(&run));
                    run.clear();
                    ids.push(id);
                }
            }
        }
        ids.extend(vocabulary.encode(&run));
        let text = row.text().map(|_| String::from_utf8_lossy(&run).into_owned());
        Output { ids, text, units }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Harness, Readers, TestRow};
    use crate::{Action, Batch, ConfigureError, FinishKind, NoSettings, Opened, Plugin, Requests};

    /// Replaces `<…>` by `_`: text from a `<` on waits for its `>`. A `!` ends the request.
    struct Brackets {
        vocabulary: Vocabulary,
        requests: Requests<(SuffixHold, Option<u64>)>,
    }

    impl Plugin for Brackets {
        type Settings = NoSettings;
        const COLUMNS: Columns = SuffixHold::COLUMNS;

        fn new(_: NoSettings) -> Result<Self, ConfigureError> {
            Ok(Self { vocabulary: Vocabulary::load()?, requests: Requests::new() })
        }

        fn opened(&mut self, request: &Opened) {
            self.requests.insert(request.request, (SuffixHold::new(), None));
        }

        fn process(&mut self, batch: &Batch<'_>, verdicts: &mut Verdicts) {
            for row in batch {
                let Some((hold, begin)) = self.requests.get_mut(row.request()) else { continue };
                hold.add(row, &self.vocabulary);
                let mut edits = Vec::new();
                for at in hold.row_start()..hold.end() {
                    match (hold.byte(at), *begin) {
                        (Some(b'<'), None) => *begin = Some(at),
                        (Some(b'>'), Some(from)) => {
                            edits.push(Edit::new(from..at + 1, "_"));
                            *begin = None;
                        }
                        (Some(b'!'), _) => {
                            hold.finish_before(row, at, &edits, "end", &self.vocabulary, verdicts);
                            return;
                        }
                        _ => {}
                    }
                }
                let keep_from = begin.unwrap_or(hold.end());
                hold.settle(row, keep_from, &edits, Duration::from_secs(1), &self.vocabulary, verdicts);
            }
        }
    }

    /// The special token.
    const SPECIAL: TokenId = 256;
    /// The token `x<y`.
    const WIDE: TokenId = 257;

    fn readers() -> Readers<Brackets> {
        let bytes = (0..=255).map(|byte| Some(vec![byte]));
        let tokens = bytes.chain([None, Some(b"x<y".to_vec())]).collect();
        let mut readers = Readers::new(Harness::with_tokens("{}", tokens).unwrap());
        readers.open(1);
        readers
    }

    fn row(text: &str) -> TestRow {
        TestRow::new(1).ids(text.bytes().map(TokenId::from).collect::<Vec<_>>())
    }

    #[test]
    fn text_waits_from_its_row_on_and_leaves_edited() {
        let mut readers = readers();
        for (text, sent) in [("a", "a"), ("b<", "a"), ("c", "a"), ("d>e", "ab_e"), ("f<", "ab_e")] {
            readers.process(&[row(text)]);
            assert_eq!(readers.text(1), sent);
        }
        readers.process(&[row("g").finish(FinishKind::Length)]);
        assert_eq!(readers.text(1), "ab_ef<g", "the last row keeps nothing back");
    }

    #[test]
    fn text_behind_an_edit_is_kept_back_and_leaves_with_a_later_row() {
        let mut readers = readers();
        readers.process(&[row("a<b>c<d")]);
        assert_eq!(readers.text(1), "a_c");
        readers.process(&[row("e")]);
        readers.time_out(1);
        assert_eq!(readers.text(1), "a_c", "a time limit releases no text that is kept back");
        readers.process(&[row(">f")]);
        assert_eq!(readers.text(1), "a_c_f");
    }

    #[test]
    fn the_rest_of_a_token_around_an_edit_is_encoded_and_special_tokens_stay() {
        let mut readers = readers();
        readers.process(&[TestRow::new(1).ids([SPECIAL, WIDE, SPECIAL])]);
        readers.process(&[TestRow::new(1).ids([i64::from(b'>'), SPECIAL])]);
        let ids: Vec<TokenId> = vec![SPECIAL, b'x'.into(), b'_'.into(), SPECIAL];
        assert_eq!(readers.received(1).ids, ids);
    }

    #[test]
    fn after_a_time_out_only_the_rest_is_edited() {
        let mut readers = readers();
        readers.process(&[row("a<b")]);
        readers.time_out(1);
        readers.process(&[row("c")]);
        assert_eq!(readers.text(1), "a<b");
        readers.process(&[row("d>e")]);
        assert_eq!(readers.text(1), "a<b_e");
    }

    #[test]
    fn a_request_with_held_rows_ends_one_row_later() {
        let mut readers = readers();
        readers.process(&[row("a!b")]);
        let received = readers.received(1);
        assert!(received.end.is_some() && received.ids == [i64::from(b'a')], "{received:?}");
        readers.open(1);
        readers.process(&[row("a<")]);
        readers.process(&[row("b!c")]);
        assert_eq!((readers.text(1).as_str(), readers.received(1).end), ("a<b", None));
    }

    #[test]
    fn a_row_without_own_text_that_waits_releases_the_rows_that_the_host_still_holds() {
        let mut readers = readers();
        let verdicts = readers.plugin().process(&[row("a").waiting(2)]);
        assert_eq!(verdicts[0].action, Action::Release);
    }
}
