//! Frames in order, each with its outcome, which stands later in the journal.

use std::collections::VecDeque;

use super::{JournalRecord, StoredFrame, Tail};
use crate::error::ReadError;
use crate::outcome::Outcome;
use crate::position::RequestNo;

/// Bounds on frames that wait for their outcome. Past either bound the first frame is returned without one.
const AHEAD_FRAMES: usize = 1024;
const AHEAD_BYTES: usize = 64 << 20;

/// Frames in order, each with its outcome if there is one.
pub struct FramesWithOutcomes {
    tail: Tail,
    ahead: VecDeque<(StoredFrame, Option<Outcome<'static>>)>,
    ahead_bytes: usize,
    ended: bool,
}

impl FramesWithOutcomes {
    pub(super) fn new(tail: Tail) -> Result<FramesWithOutcomes, ReadError> {
        Ok(FramesWithOutcomes { tail, ahead: VecDeque::new(), ahead_bytes: 0, ended: false })
    }

    /// Rid of a request in the outcomes.
    pub fn rid(&self, request: RequestNo) -> Option<&str> {
        self.tail.rid(request)
    }

    fn is_ready(&self) -> bool {
        let known = self.ahead.front().is_some_and(|(_, outcome)| outcome.is_some());
        known || self.ended || self.ahead.len() >= AHEAD_FRAMES || self.ahead_bytes >= AHEAD_BYTES
    }
}

fn changed_bytes(outcome: &Outcome<'_>) -> usize {
    outcome.changed.as_ref().map_or(0, |bytes| bytes.len())
}

impl Iterator for FramesWithOutcomes {
    type Item = Result<(StoredFrame, Option<Outcome<'static>>), ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.is_ready() {
            match self.tail.next() {
                Ok(Some(JournalRecord::Frame(frame))) => {
                    self.ahead_bytes += frame.bytes.len();
                    self.ahead.push_back((frame, None));
                }
                Ok(Some(JournalRecord::Outcome(outcome))) => {
                    let place =
                        self.ahead.iter_mut().find(|(frame, _)| frame.position.frame == outcome.frame);
                    if let Some((_, known)) = place {
                        self.ahead_bytes += changed_bytes(&outcome);
                        *known = Some(outcome);
                    }
                }
                Ok(Some(_)) => {}
                Ok(None) => self.ended = true,
                Err(error) => {
                    self.ended = true;
                    return Some(Err(error));
                }
            }
        }
        let next = self.ahead.pop_front()?;
        self.ahead_bytes -= next.0.bytes.len() + next.1.as_ref().map_or(0, changed_bytes);
        Some(Ok(next))
    }
}
