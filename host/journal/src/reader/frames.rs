//! Frames in order, each with the outcome that was written some time after it.

use std::collections::VecDeque;

use super::{Frame, Outcome, Record, Tail};
use crate::error::ReadError;
use crate::position::RequestNo;

/// Frames that are held back for their outcome. Past either bound the first goes without.
const AHEAD_FRAMES: usize = 1024;
const AHEAD_BYTES: usize = 64 << 20;

/// Frames in order, each with its outcome where there is one.
pub struct Frames {
    tail: Tail,
    ahead: VecDeque<(Frame, Option<Outcome>)>,
    ahead_bytes: usize,
    ended: bool,
}

impl Frames {
    pub(super) fn new(tail: Tail) -> Result<Frames, ReadError> {
        Ok(Frames { tail, ahead: VecDeque::new(), ahead_bytes: 0, ended: false })
    }

    /// The rid of a request that an outcome named.
    pub fn rid(&self, request: RequestNo) -> Option<&str> {
        self.tail.rid(request)
    }

    fn is_ready(&self) -> bool {
        let known = self.ahead.front().is_some_and(|(_, outcome)| outcome.is_some());
        known || self.ended || self.ahead.len() >= AHEAD_FRAMES || self.ahead_bytes >= AHEAD_BYTES
    }
}

fn changed_bytes(outcome: &Outcome) -> usize {
    outcome.changed.as_ref().map_or(0, |bytes| bytes.len())
}

impl Iterator for Frames {
    type Item = Result<(Frame, Option<Outcome>), ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.is_ready() {
            match self.tail.next() {
                Ok(Some(Record::Frame(frame))) => {
                    self.ahead_bytes += frame.bytes.len();
                    self.ahead.push_back((frame, None));
                }
                Ok(Some(Record::Outcome(outcome))) => {
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
