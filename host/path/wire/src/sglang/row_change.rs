//! The changes that an edit makes to a row of SGLang, by column.

use super::batch::Columns;
use crate::batch::Batch;
use crate::edit::{Edit, FinishReason, TokenEdit, abort_message, retained};
use crate::error::RowsError;
use crate::finish::{Finish, Matched};
use crate::sglang::columns::Neutral;
use crate::sglang::joining::SourcedCell;
use crate::sglang::layouts::KnownField;
use crate::sglang::mask::Mask;
use crate::sglang::value_writer::ValueWriter;
use crate::value::RawValue;

/// The changes of an edit, by column.
#[derive(Debug, Default)]
pub(crate) struct RowChange {
    finish: Option<FinishReason>,
    /// The request's count of tokens, including this row, for the finish reason `length`.
    length: i64,
    completion_tokens: Option<i64>,
    output_ids: Option<Vec<i64>>,
    decode_ids: Option<Vec<i64>>,
    /// Set if the row's tokens change.
    tokens: Option<NewTokens>,
    text: Option<String>,
}

#[derive(Debug)]
struct NewTokens {
    /// The number of old tokens.
    before: usize,
    ids: Vec<i64>,
    /// For each new token, the position of the old token that it retains.
    kept: Vec<Option<usize>>,
}

impl RowChange {
    /// Whether the row gets all ids of its request so far.
    pub(crate) fn is_cumulative(&self) -> bool {
        self.output_ids.is_some() && self.tokens.is_none()
    }

    /// Computes the changes that the edit makes to this row.
    pub(crate) fn new(batch: &Batch, row: u32, edit: &Edit) -> Result<RowChange, RowsError> {
        let columns = batch.columns()?;
        let has = |known: KnownField| columns.cell(known, row).is_some() || row >= batch.rows;
        let (finish, text) = (edit.finish.clone(), edit.text.clone());
        let mut change = RowChange { finish, text, ..RowChange::default() };
        if let Some(count) = edit.completion_tokens {
            if !has(KnownField::CompletionTokens) {
                return Err(RowsError::NoColumn { name: KnownField::CompletionTokens.name() });
            }
            change.completion_tokens = Some(i64::try_from(count).unwrap_or(i64::MAX));
        }
        if change.finish == Some(FinishReason::Length) {
            let counted = batch.completion_tokens(row).and_then(|count| i64::try_from(count).ok());
            change.length = change.completion_tokens.or(counted).unwrap_or_else(|| batch.tokens(row).into());
        }
        let no_ids = RowsError::NoColumn { name: KnownField::OutputIds.name() };
        let ids = match &edit.tokens {
            TokenEdit::Keep | TokenEdit::Drop => return Ok(change),
            TokenEdit::Cumulative(_) if !has(KnownField::OutputIds) => return Err(no_ids),
            TokenEdit::Cumulative(ids) => {
                change.output_ids = Some(ids.clone());
                return Ok(change);
            }
            _ if !has(KnownField::OutputIds) && !has(KnownField::DecodeIds) => return Err(no_ids),
            TokenEdit::Delta(ids) => ids.clone(),
            TokenEdit::Empty => {
                change.text.get_or_insert_default();
                Vec::new()
            }
        };
        let mut before = Vec::new();
        batch.row_ids(row, &mut before);
        change.decode_ids = Some(decode_ids(batch, columns, row, edit, &ids, &before));
        change.output_ids = Some(ids.clone());
        let kept = retained(&before, &ids);
        change.tokens = Some(NewTokens { before: before.len(), ids, kept });
        Ok(change)
    }

    /// Whether changes can affect the column `name`.
    pub(crate) fn touches(name: &str, per_token: Option<Neutral>) -> bool {
        let touched = [
            KnownField::OutputIds,
            KnownField::DecodeIds,
            KnownField::CompletionTokens,
            KnownField::FinishedReasons,
            KnownField::OutputStrs,
        ];
        per_token.is_some() || touched.iter().any(|known| known.name() == name)
    }

    /// The row's edited sampling mask. `None`: the lengths of its arrays are inconsistent.
    pub(crate) fn mask(&self, mask: Mask) -> Option<Mask> {
        match &self.tokens {
            Some(tokens) => tokens.mask(&mask),
            None => Some(mask),
        }
    }

    /// Writes the row's cell of the column `name`.
    pub(crate) fn write<'a>(
        &self,
        out: &mut impl ValueWriter<'a>,
        name: &str,
        per_token: Option<Neutral>,
        (cell, source): SourcedCell<'a>,
    ) -> Result<(), RowsError> {
        let is = |known: KnownField| known.name() == name;
        if let Some(ids) = self.output_ids.as_ref().filter(|_| is(KnownField::OutputIds)) {
            return out.ids(ids, Some(cell));
        }
        if let Some(ids) = self.decode_ids.as_ref().filter(|_| is(KnownField::DecodeIds)) {
            return out.ids(ids, Some(cell));
        }
        if let Some(count) = self.completion_tokens.filter(|_| is(KnownField::CompletionTokens)) {
            out.int(count);
            return Ok(());
        }
        if let Some(finish) = self.finish.as_ref().filter(|_| is(KnownField::FinishedReasons)) {
            return finish.write(out, self.length);
        }
        if let Some(text) = self.text.as_ref().filter(|_| is(KnownField::OutputStrs)) {
            out.str(text);
            return Ok(());
        }
        match (&self.tokens, per_token) {
            (Some(tokens), Some(neutral)) => tokens.write(out, name, neutral, (cell, source)),
            _ => out.copy(cell, source),
        }
    }
}

impl FinishReason {
    /// Writes the reason of a request that has `length` tokens.
    pub(crate) fn write<'a>(&self, out: &mut impl ValueWriter<'a>, length: i64) -> Result<(), RowsError> {
        match self {
            FinishReason::Stop(matched) => out.map(2, |out| {
                ["type", "stop", "matched", matched].into_iter().for_each(|text| out.str(text));
                Ok(())
            }),
            FinishReason::Length => out.map(2, |out| {
                ["type", "length", "length"].into_iter().for_each(|text| out.str(text));
                out.int(length);
                Ok(())
            }),
            FinishReason::Abort(message) | FinishReason::Error { message, .. } => out.map(4, |out| {
                let message = abort_message(message);
                ["type", "abort", "message", message, "status_code"].into_iter().for_each(|it| out.str(it));
                match self {
                    FinishReason::Error { status, .. } => out.int((*status).into()),
                    _ => out.nil(),
                }
                out.str("err_type");
                out.nil();
                Ok(())
            }),
        }
    }
}

impl NewTokens {
    /// Writes a list with one entry per token. A nil or empty list stays: the request did not ask for the column.
    fn write<'a>(
        &self,
        out: &mut impl ValueWriter<'a>,
        name: &str,
        neutral: Neutral,
        (cell, source): SourcedCell<'a>,
    ) -> Result<(), RowsError> {
        if let Some(mask) = Mask::read(cell) {
            let mask = self.mask(&mask).ok_or_else(|| RowsError::Split { name: name.to_owned() })?;
            return out.mask(&mask);
        }
        let Some(entries) = cell.list().filter(|entries| !entries.is_empty()) else {
            return out.copy(cell, source);
        };
        out.list(self.ids.len(), |out| {
            self.kept(entries.len()).zip(&self.ids).try_for_each(|(kept, &id)| match (kept, neutral) {
                (Some(token), _) => out.copy(entries[token], source),
                (None, Neutral::Nil) => {
                    out.nil();
                    Ok(())
                }
                (None, Neutral::Zero) => {
                    out.float(0.0);
                    Ok(())
                }
                (None, Neutral::Id) => {
                    out.int(id);
                    Ok(())
                }
                (None, Neutral::Empty) => out.list(0, |_| Ok(())),
            })
        })
    }

    fn mask(&self, mask: &Mask) -> Option<Mask> {
        mask.select(self.kept(mask.tokens()))
    }

    /// The retained entry of each token. If the list's length differs from the number of old tokens, no entry is
    /// retained.
    fn kept(&self, entries: usize) -> impl Iterator<Item = Option<usize>> {
        self.kept.iter().map(move |kept| kept.filter(|_| entries == self.before))
    }
}

/// The ids for the detokenizer: the prompt's tail, if the row has it, and the new ids. The detokenizer removes the last
/// id of a row that ended at a stop token, whatever the id is; so the stop token stays there.
fn decode_ids(
    batch: &Batch,
    columns: &Columns,
    row: u32,
    edit: &Edit,
    ids: &[i64],
    before: &[i64],
) -> Vec<i64> {
    let mut decode = Vec::new();
    if let Some(cell) = columns.cell(KnownField::DecodeIds, row) {
        cell.ids(&mut decode);
    }
    let tail = if batch.is_unread(row) { 0 } else { columns.prompt_tail(row) };
    decode.truncate(tail as usize);
    decode.extend_from_slice(ids);
    let trimmed = !columns.cell(KnownField::NoStopTrim, row).and_then(RawValue::bool).unwrap_or(false);
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
