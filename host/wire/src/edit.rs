//! Editing rows: what a plugin's verdict does to a row, in all of the columns that must agree with each other.

use std::iter;

use crate::batch::Batch;
use crate::columns::Neutral;
use crate::error::RowsError;
use crate::joining::Cell;
use crate::layouts::Known;
use crate::mask::Mask;
use crate::row::{Finish, Matched};
use crate::rows::Plan;
use crate::sink::Sink;
use crate::value::Value;

/// What is to be done with one row. What is not said stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edit {
    /// The row.
    pub row: u32,
    /// What becomes of its tokens.
    pub tokens: Tokens,
    /// The row's new text, where it has one ([`Kind::Str`](crate::Kind::Str)); elsewhere it is not looked at, since the
    /// text is made of the ids.
    pub text: Option<String>,
    /// The row becomes its request's last, with this reason.
    pub finish: Option<FinishReason>,
    /// The request's count of tokens, this row's included. It is the caller's to keep in step with what was replaced
    /// in this row and in those before it.
    pub completion_tokens: Option<u64>,
}

/// A finish reason to be written, as SGLang's classes of that name give it to JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// `{"type": "stop", "matched": <this>}`: a stop text was met (`FINISH_MATCHED_STR`).
    Stop(String),
    /// `{"type": "abort", "message": …, "status_code": …, "err_type": …}` (`FINISH_ABORT`).
    Abort {
        /// Why. As with SGLang, an empty one is `Aborted`.
        message: String,
        /// The HTTP status that the request is answered with: from 400 on it is an error for its client instead of an
        /// output. `None`: what came so far is answered, with this reason.
        status_code: Option<u16>,
        /// The kind of error, in SGLang's words.
        err_type: Option<String>,
    },
}

/// What becomes of a row's tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Tokens {
    /// They stay.
    #[default]
    Keep,
    /// These new tokens instead, in all columns: ids, and in lists with an entry per token a token that was there (see
    /// below) keeps its entry and another gets a neutral one ([`crate::columns::Neutral`]). The text of a
    /// [`Kind::Str`](crate::Kind::Str) row stays as it is, unless [`Edit::text`] says another.
    ///
    /// A token was there if it stands where it stood, counted from the front, or where the number of tokens has
    /// changed from whichever end the two rows agree.
    Delta(Vec<i64>),
    /// These ids in `output_ids`, all of the request's so far; the other columns stay.
    Cumulative(Vec<i64>),
    /// None, in all columns, and no text, unless [`Edit::text`] says one. A request's first row keeps the prompt's tail for the detokenizer.
    Empty,
    /// The row leaves the batch.
    Drop,
}

impl Edit {
    /// An edit that changes nothing yet.
    pub fn new(row: u32) -> Edit {
        Edit { row, ..Edit::default() }
    }
}

impl Batch {
    /// The batch with some rows edited; `None` if none is left. The edits are ascending by row, one a row.
    pub fn edit(&self, edits: &[Edit]) -> Result<Option<Batch>, RowsError> {
        self.edit_instead(edits, &[])
    }

    /// [Edits](Batch::edit) a batch in which others stand in the place of some of its rows, each a batch of one row of the
    /// same request, as what was held and is now [joined](Batch::join) with it. `instead` is ascending by row, too, one a
    /// row, and an edit is made to what stands there.
    pub fn edit_instead(
        &self,
        edits: &[Edit],
        instead: &[(u32, &Batch)],
    ) -> Result<Option<Batch>, RowsError> {
        let mut changes = Vec::with_capacity(edits.len());
        let mut next = 0;
        for edit in edits {
            if edit.row < next || edit.row >= self.rows {
                return Err(RowsError::Row { row: edit.row, rows: self.rows });
            }
            next = edit.row + 1;
            changes.push(match instead.binary_search_by_key(&edit.row, |(row, _)| *row) {
                Ok(at) => Change::new(instead[at].1, 0, edit)?,
                Err(_) => Change::new(self, edit.row, edit)?,
            });
        }
        let others = instead.iter().map(|(_, other)| *other);
        let mut plan = Plan::new(iter::once(self).chain(others).collect());
        let mut changes = edits.iter().zip(&changes).peekable();
        let mut instead = (1..).zip(instead).peekable();
        for row in 0..self.rows {
            let change = changes.next_if(|(edit, _)| edit.row == row);
            let other = instead.next_if(|(_, (of, _))| *of == row);
            if change.is_none_or(|(edit, _)| edit.tokens != Tokens::Drop) {
                let from = other.map_or((0, row), |(part, _)| (part, 0));
                plan.push(&[from], change.map(|(_, change)| change));
            }
        }
        if let Some((_, (row, _))) = instead.next() {
            return Err(RowsError::Row { row: *row, rows: self.rows });
        }
        match plan.write() {
            Ok(batch) => Ok(Some(batch)),
            Err(RowsError::NoRows) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// What an edit does to each column.
#[derive(Debug, Default)]
pub(crate) struct Change {
    finish: Option<FinishReason>,
    completion_tokens: Option<i64>,
    output_ids: Option<Vec<i64>>,
    decode_ids: Option<Vec<i64>>,
    /// The row's tokens are others.
    tokens: Option<NewTokens>,
    text: Option<String>,
}

#[derive(Debug)]
struct NewTokens {
    /// How many there were.
    before: usize,
    ids: Vec<i64>,
    /// For each, which of those that were there it is.
    kept: Vec<Option<usize>>,
}

impl Change {
    /// The row is given all of its request's ids so far.
    pub(crate) fn is_cumulative(&self) -> bool {
        self.output_ids.is_some() && self.tokens.is_none()
    }

    /// What the edit does to this row.
    pub(crate) fn new(batch: &Batch, row: u32, edit: &Edit) -> Result<Change, RowsError> {
        let has = |known: Known| batch.cell(known, row).is_some() || row >= batch.rows;
        let (finish, text) = (edit.finish.clone(), edit.text.clone());
        let mut change = Change { finish, text, ..Change::default() };
        if let Some(count) = edit.completion_tokens {
            if !has(Known::CompletionTokens) {
                return Err(RowsError::NoColumn { name: Known::CompletionTokens.name() });
            }
            change.completion_tokens = Some(i64::try_from(count).unwrap_or(i64::MAX));
        }
        let no_ids = RowsError::NoColumn { name: Known::OutputIds.name() };
        let ids = match &edit.tokens {
            Tokens::Keep | Tokens::Drop => return Ok(change),
            Tokens::Cumulative(_) if !has(Known::OutputIds) => return Err(no_ids),
            Tokens::Cumulative(ids) => {
                change.output_ids = Some(ids.clone());
                return Ok(change);
            }
            _ if !has(Known::OutputIds) && !has(Known::DecodeIds) => return Err(no_ids),
            Tokens::Delta(ids) => ids.clone(),
            Tokens::Empty => {
                change.text.get_or_insert_default();
                Vec::new()
            }
        };
        let mut before = Vec::new();
        batch.row_ids(row, &mut before);
        change.decode_ids = Some(decode_ids(batch, row, edit, &ids, &before));
        change.output_ids = Some(ids.clone());
        let kept = kept(&before, &ids);
        change.tokens = Some(NewTokens { before: before.len(), ids, kept });
        Ok(change)
    }

    /// Whether a change can be seen in the column `name`.
    pub(crate) fn touches(name: &str, per_token: Option<Neutral>) -> bool {
        let touched = [
            Known::OutputIds,
            Known::DecodeIds,
            Known::CompletionTokens,
            Known::FinishedReasons,
            Known::OutputStrs,
        ];
        per_token.is_some() || touched.iter().any(|known| known.name() == name)
    }

    /// The row's sampling mask. `None`: its arrays' lengths do not go together.
    pub(crate) fn mask(&self, mask: Mask) -> Option<Mask> {
        match &self.tokens {
            Some(tokens) => tokens.mask(&mask),
            None => Some(mask),
        }
    }

    /// Writes the row's cell of the column `name`.
    pub(crate) fn write<'a>(
        &self,
        sink: &mut impl Sink<'a>,
        name: &str,
        per_token: Option<Neutral>,
        (cell, source): Cell<'a>,
    ) -> Result<(), RowsError> {
        let is = |known: Known| known.name() == name;
        if let Some(ids) = self.output_ids.as_ref().filter(|_| is(Known::OutputIds)) {
            return sink.ids(ids, Some(cell));
        }
        if let Some(ids) = self.decode_ids.as_ref().filter(|_| is(Known::DecodeIds)) {
            return sink.ids(ids, Some(cell));
        }
        if let Some(count) = self.completion_tokens.filter(|_| is(Known::CompletionTokens)) {
            sink.int(count);
            return Ok(());
        }
        if let Some(finish) = self.finish.as_ref().filter(|_| is(Known::FinishedReasons)) {
            return finish.write(sink);
        }
        if let Some(text) = self.text.as_ref().filter(|_| is(Known::OutputStrs)) {
            sink.str(text);
            return Ok(());
        }
        match (&self.tokens, per_token) {
            (Some(tokens), Some(neutral)) => tokens.write(sink, name, neutral, (cell, source)),
            _ => sink.copy(cell, source),
        }
    }
}

impl FinishReason {
    fn write<'a>(&self, sink: &mut impl Sink<'a>) -> Result<(), RowsError> {
        match self {
            FinishReason::Stop(matched) => sink.map(2, |sink| {
                ["type", "stop", "matched", matched].into_iter().for_each(|text| sink.str(text));
                Ok(())
            }),
            FinishReason::Abort { message, status_code, err_type } => sink.map(4, |sink| {
                let message = if message.is_empty() { "Aborted" } else { message };
                ["type", "abort", "message", message, "status_code"].into_iter().for_each(|it| sink.str(it));
                match status_code {
                    Some(code) => sink.int((*code).into()),
                    None => sink.nil(),
                }
                sink.str("err_type");
                match err_type {
                    Some(kind) => sink.str(kind),
                    None => sink.nil(),
                }
                Ok(())
            }),
        }
    }
}

impl NewTokens {
    /// Writes a list with an entry per token. What is nil or empty stays so: the request did not ask for it.
    fn write<'a>(
        &self,
        sink: &mut impl Sink<'a>,
        name: &str,
        neutral: Neutral,
        (cell, source): Cell<'a>,
    ) -> Result<(), RowsError> {
        if let Some(mask) = Mask::read(cell) {
            let mask = self.mask(&mask).ok_or_else(|| RowsError::Split { name: name.to_owned() })?;
            return sink.mask(&mask);
        }
        let Some(entries) = cell.list().filter(|entries| !entries.is_empty()) else {
            return sink.copy(cell, source);
        };
        sink.list(self.ids.len(), |sink| {
            self.kept(entries.len()).zip(&self.ids).try_for_each(|(kept, &id)| match (kept, neutral) {
                (Some(token), _) => sink.copy(entries[token], source),
                (None, Neutral::Nil) => {
                    sink.nil();
                    Ok(())
                }
                (None, Neutral::Zero) => {
                    sink.float(0.0);
                    Ok(())
                }
                (None, Neutral::Id) => {
                    sink.int(id);
                    Ok(())
                }
                (None, Neutral::Empty) => sink.list(0, |_| Ok(())),
            })
        })
    }

    fn mask(&self, mask: &Mask) -> Option<Mask> {
        mask.select(self.kept(mask.tokens()))
    }

    /// The entry that each token keeps. A list of another length than there were tokens goes with none of them.
    fn kept(&self, entries: usize) -> impl Iterator<Item = Option<usize>> {
        self.kept.iter().map(move |kept| kept.filter(|_| entries == self.before))
    }
}

/// The ids that go to the detokenizer: the prompt's tail, if the row has it, and the new ones. Of a row that ended at a
/// stop token the detokenizer leaves out the last id, whatever it is; so there the stop token stays.
fn decode_ids(batch: &Batch, row: u32, edit: &Edit, ids: &[i64], before: &[i64]) -> Vec<i64> {
    let mut decode = Vec::new();
    if let Some(cell) = batch.cell(Known::DecodeIds, row) {
        cell.ids(&mut decode);
    }
    decode.truncate(batch.prompt_tail(row) as usize);
    decode.extend_from_slice(ids);
    let trimmed = !batch.cell(Known::NoStopTrim, row).and_then(Value::bool).unwrap_or(false);
    if let Finish::Stop { matched: Matched::Token(stop) } = batch.finish(row)
        && trimmed
        && edit.finish.is_none()
        && before.last() == Some(&stop)
        && ids.last() != Some(&stop)
    {
        decode.push(stop);
    }
    decode
}

/// For each of the new ids, which of the old ones it is.
fn kept(old: &[i64], new: &[i64]) -> Vec<Option<usize>> {
    if old.len() == new.len() {
        return (0..new.len()).map(|at| (old[at] == new[at]).then_some(at)).collect();
    }
    let shorter = old.len().min(new.len());
    let head = old.iter().zip(new).take_while(|(old, new)| old == new).count();
    let tail = old
        .iter()
        .rev()
        .zip(new.iter().rev())
        .take_while(|(old, new)| old == new)
        .count()
        .min(shorter - head);
    (0..new.len())
        .map(|at| match at {
            _ if at < head => Some(at),
            _ if at >= new.len() - tail => Some(at + old.len() - new.len()),
            _ => None,
        })
        .collect()
}
