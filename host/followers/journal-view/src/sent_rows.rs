//! The output of a request as it left, row by row: as its reader gets it, after every plugin. Reads rows of a history, and rows of outcomes as they
//! are recorded.

use crate::ended::frames::FrameContents;
use crate::sent::{SentIds, UNKNOWN_ID};
use afterbay_journal::reader::{JournalRow, StreamReader};
use afterbay_journal::{FrameNo, Outcome, PluginAction, Position, ReadError, Verdict, row_effects};
use afterbay_wire::{Decoder, Layouts};
use bytes::Bytes;

/// A row of a request as it left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SentRow {
    /// The frame of the row.
    pub frame: FrameNo,
    /// The ids that left.
    pub ids: Vec<i64>,
    /// Whether `ids` stand in place of all ids of the request so far.
    pub is_cumulative: bool,
    /// The text of the ids. Only rows behind a detokenizer have one.
    pub text: Option<String>,
    /// Tokens that left and that the journal does not have. Then there is no id.
    pub missing: u64,
    /// Whether the reader gets no further row of the request.
    pub is_last: bool,
}

/// Reads what left of the rows of a stream.
pub struct SentReader<'s> {
    stream: &'s StreamReader,
    decoder: Decoder,
}

impl<'s> SentReader<'s> {
    /// A reader of a stream's rows, whose msgpack frames have one of these layouts.
    pub fn new(stream: &'s StreamReader, layouts: Layouts) -> SentReader<'s> {
        SentReader { stream, decoder: Decoder::new(layouts) }
    }

    /// A row of a history as it left.
    ///
    /// # Errors
    /// The disk.
    pub fn row(&mut self, rid: &str, row: &JournalRow) -> Result<SentRow, ReadError> {
        let changed = match &row.changed {
            None => None,
            Some(place) => match self.stream.changed(place) {
                Ok(bytes) => Some(Bytes::from(bytes)),
                Err(error @ ReadError::Io(_)) => return Err(error),
                Err(_) => None,
            },
        };
        let of_outcome = (&row.passage, None, changed);
        let contents =
            FrameContents::read(self.stream, row.position.as_ref(), of_outcome, &mut self.decoder)?;
        let place = (row.frame, row.row, rid);
        Ok(sent(&contents, place, row.tokens, &row.actions, row.finish.is_some()))
    }

    /// The rows of an outcome as they left, of the requests for which `rid_of` gives a rid: the row of the request in the outcome, and
    /// what left. `place` is that of the outcome's frame.
    ///
    /// # Errors
    /// The disk.
    pub fn outcome<'r>(
        &mut self,
        outcome: &Outcome<'_>,
        place: Option<&Position>,
        rid_of: impl Fn(u64) -> Option<&'r str>,
    ) -> Result<Vec<(usize, SentRow)>, ReadError> {
        let wanted: Vec<(usize, &str)> = (0..)
            .zip(outcome.requests.iter())
            .filter_map(|(row, request)| Some((row, rid_of(request.0)?)))
            .collect();
        if wanted.is_empty() || outcome.is_record() {
            return Ok(Vec::new());
        }
        let of_outcome = (&outcome.passage, Some(outcome.requests.len()), outcome.changed.clone());
        let contents = FrameContents::read(self.stream, place, of_outcome, &mut self.decoder)?;
        let read = wanted.into_iter().map(|(row, rid)| {
            let of_row = |of: u32| of as usize == row;
            let actions: Vec<PluginAction<'_>> =
                outcome.actions.iter().filter(|action| of_row(action.row)).cloned().collect();
            let received = outcome.tokens.get(row).copied().unwrap_or_default();
            let has_finish = outcome.finished.iter().any(|finish| of_row(finish.row));
            (row, sent(&contents, (outcome.frame, row as u32, rid), received, &actions, has_finish))
        });
        Ok(read.collect())
    }
}

fn sent(
    contents: &FrameContents,
    (frame, row, rid): (FrameNo, u32, &str),
    received: u32,
    actions: &[PluginAction<'_>],
    has_finish: bool,
) -> SentRow {
    let is_held = actions.last().is_some_and(|last| last.verdict == Verdict::Hold);
    let effect = row_effects(actions).next();
    let is_last = !is_held && (has_finish || actions.iter().any(PluginAction::ends_request));
    let (ids, is_cumulative) = match contents.sent(rid, actions) {
        SentIds::AsReceived => (contents.received_ids(row, received), false),
        SentIds::Row(ids) => (ids, false),
        SentIds::Cumulative(ids) => (ids, true),
    };
    if ids.contains(&UNKNOWN_ID) {
        let missing = effect.map_or(received, |effect| effect.forwarded).into();
        return SentRow { frame, missing, is_last, ..SentRow::default() };
    }
    let text = contents.sent_text(rid, row, actions).map(str::to_owned);
    SentRow { frame, ids, is_cumulative, text, missing: 0, is_last }
}
