//! The output of a request as it left, row by row: as its reader gets it, after every plugin. Reads the rows of outcomes, as they are
//! recorded or later.

use crate::ended::frames::FrameContents;
use crate::sent::{SentIds, UNKNOWN_ID};
use afterbay_journal::reader::{RequestInfo, RequestState, StreamReader};
use afterbay_journal::{FrameNo, Outcome, PluginAction, Position, ReadError, Verdict, row_effects};
use afterbay_wire::{Decoder, Layouts, RequestRecord};

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
    /// The end of the request, if the reader gets no further row of it.
    pub end: Option<ReaderEnd>,
}

/// How a request ended for its reader.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReaderEnd {
    /// The finish reason that the reader got. `None`: it got no last row.
    pub finish_reason: Option<String>,
    /// The text of a plugin or an operator that ended the request: of an error, the status and the message.
    pub text: Option<String>,
}

impl ReaderEnd {
    /// The end of a request that ended with its engine. `None`: it did not.
    pub fn of_dead_engine(info: &RequestInfo) -> Option<ReaderEnd> {
        info.attribute(RequestRecord::ENGINE_DIED).filter(|_| info.state == RequestState::Abandoned)?;
        let why = info.attribute(RequestRecord::NOT_MIGRATED).map_or(String::new(), |why| format!(": {why}"));
        let text = Some(format!("503 afterbay: the engine died{why}"));
        Some(ReaderEnd { finish_reason: Some("error".to_owned()), text })
    }
}

/// Reads what left of the rows of a stream.
pub struct SentReader<'s> {
    stream: &'s StreamReader,
    decoder: Decoder,
}

/// A row of an outcome.
struct OutcomeRow<'a> {
    frame: FrameNo,
    row: u32,
    rid: &'a str,
    received: u32,
    actions: &'a [PluginAction<'static>],
    /// The sender's finish reason.
    finish: Option<&'a str>,
}

impl<'s> SentReader<'s> {
    /// A reader of a stream's rows, whose msgpack frames have one of these layouts.
    pub fn new(stream: &'s StreamReader, layouts: Layouts) -> SentReader<'s> {
        SentReader { stream, decoder: Decoder::new(layouts) }
    }

    /// The rows of an outcome as they left, of the requests for which `rid_of` gives a rid: the row of the request in the outcome, and
    /// what left. `place` is that of the outcome's frame.
    ///
    /// # Errors
    /// The disk.
    pub fn outcome<'r>(
        &mut self,
        outcome: &Outcome<'static>,
        place: Option<&Position>,
        rid_of: impl Fn(u64) -> Option<&'r str>,
    ) -> Result<Vec<(usize, SentRow)>, ReadError> {
        let wanted = (0..).zip(outcome.requests.iter().zip(outcome.tokens.iter()));
        let wanted = wanted.filter_map(|(row, (request, received))| {
            let finish = outcome.finished.iter().find(|finish| finish.row == row);
            Some(OutcomeRow {
                frame: outcome.frame,
                row,
                rid: rid_of(request.0)?,
                received: *received,
                actions: actions_on(&outcome.actions, row),
                finish: finish.map(|finish| &*finish.reason),
            })
        });
        let wanted: Vec<OutcomeRow<'_>> = wanted.collect();
        if wanted.is_empty() || outcome.is_record() {
            return Ok(Vec::new());
        }
        let of_outcome = (&outcome.passage, outcome.requests.len(), outcome.changed.clone());
        let has_actions = wanted.iter().any(|row| !row.actions.is_empty());
        let contents = FrameContents::read(self.stream, place, of_outcome, has_actions, &mut self.decoder)?;
        Ok(wanted.into_iter().map(|row| (row.row as usize, row.sent(&contents))).collect())
    }
}

/// The actions on a row, of actions that are sorted by row.
fn actions_on<'a>(actions: &'a [PluginAction<'static>], row: u32) -> &'a [PluginAction<'static>] {
    let first = actions.partition_point(|action| action.row < row);
    let behind = actions.partition_point(|action| action.row <= row);
    &actions[first..behind]
}

impl OutcomeRow<'_> {
    fn sent(&self, contents: &FrameContents) -> SentRow {
        let OutcomeRow { frame, row, rid, received, actions, .. } = *self;
        let end = self.end();
        let (ids, is_cumulative) = match contents.sent(rid, actions, received) {
            SentIds::AsReceived => (contents.received_ids(row, received), false),
            SentIds::Row(ids) => (ids, false),
            SentIds::Cumulative(ids) => (ids, true),
        };
        if ids.contains(&UNKNOWN_ID) {
            let effect = row_effects(actions).next();
            let missing = effect.map_or(received, |effect| effect.forwarded).into();
            return SentRow { frame, missing, end, ..SentRow::default() };
        }
        let text = contents.sent_text(rid, row, actions).map(str::to_owned);
        SentRow { frame, ids, is_cumulative, text, missing: 0, end }
    }

    /// The end of the request, if this is its last row for the reader.
    fn end(&self) -> Option<ReaderEnd> {
        if self.actions.last().is_some_and(|last| last.verdict == Verdict::Hold) {
            return None;
        }
        let (reason, text) = match self.actions.iter().rfind(|action| action.ends_request()) {
            Some(action) => (action.verdict.finish_reason()?, &*action.text),
            None => (self.finish?, ""),
        };
        let text = Some(text).filter(|text| !text.is_empty()).map(str::to_owned);
        Some(ReaderEnd { finish_reason: Some(reason.to_owned()), text })
    }
}
