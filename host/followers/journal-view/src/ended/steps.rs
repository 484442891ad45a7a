//! The steps of the engine in a journal: their rows for the division of the engine's time, and the steps one by one.

use afterbay_journal::reader::StreamReader;
use afterbay_journal::{Outcome, ReadError, SegmentId};
use afterbay_wire::Layouts;

use super::engine_time::StepWork;
use super::types::{EngineStep, FrameUse};
use super::{EndedReader, Fold};

/// The finish reason of a request that was aborted.
const ABORT: &str = "abort";
/// Records that [`each_step`] reads at once.
const RECORDS_AT_ONCE: usize = 2000;

/// Gives the engine's steps of these segments, in order, until `each` returns false.
///
/// # Errors
/// The journal cannot be read.
pub fn each_step(
    stream: StreamReader,
    segments: &[SegmentId],
    each: &mut dyn FnMut(EngineStep) -> bool,
) -> Result<(), ReadError> {
    let layouts = Layouts::of_text(&stream.layout()?);
    let mut reader = EndedReader::new(stream, FrameUse::Facts, &layouts).with_steps();
    for segment in segments {
        // Removed by retention meanwhile, or damaged.
        let mut has_more = reader.open(*segment)?;
        while has_more {
            has_more = reader.read(RECORDS_AT_ONCE)?;
            if !has_more {
                reader.finish_segment();
            }
            reader.requests().for_each(drop);
            if !reader.steps().into_iter().all(&mut *each) {
                return Ok(());
            }
        }
    }
    Ok(())
}

impl Fold {
    /// Whether the time of the stream's frames is the engine's, and its requests are counted.
    pub(super) fn has_time(&self) -> bool {
        !self.is_second_leg && self.frames != FrameUse::None
    }

    /// Whether the frame is a step of the engine: it has a token or an end. A release marker has neither.
    pub(super) fn is_step(&self, outcome: &Outcome<'_>) -> bool {
        let has_any = !outcome.finished.is_empty() || outcome.tokens.iter().any(|tokens| *tokens > 0);
        has_any && !outcome.is_record() && self.has_time()
    }

    /// Adds the rows of a step to those that share its time.
    pub(super) fn end_step(&mut self, outcome: &Outcome<'_>) {
        let mut finished = outcome.finished.iter().peekable();
        for ((row, request), tokens) in (0..).zip(outcome.requests.iter()).zip(outcome.tokens.iter()) {
            let finish = finished.next_if(|finish| finish.row == row);
            let facts = self.live.get(&request.0).and_then(|live| live.facts.as_ref());
            self.time.row(StepWork {
                request: request.0,
                tokens: *tokens,
                prompt_tokens: facts.and_then(|facts| facts.prompt_tokens),
                cached_tokens: facts.and_then(|facts| facts.cached_tokens).unwrap_or(0),
                is_last: finish.is_some(),
                is_abort: finish.is_some_and(|finish| finish.reason == ABORT),
            });
        }
        self.time.divide();
    }
}
