//! Frames that did not arrive between the end of the last run and this start.
//!
//! Owns which requests of the last run have had no row yet, and the sum of what their first rows lack. That is one event for
//! the start, instead of one for each request. ZeroMQ loses what a sender's library had taken out of its queue when a
//! connection ends.

use super::Ledger;
use super::destinations::read_batch;
use afterbay_batch::FrameDecoder;
use afterbay_events::Name;
use afterbay_events::event::FramesMissing;
use afterbay_journal::{FrameNo, JournalWriter, LiveRequest};
use std::collections::HashSet;
use std::time::{Duration, Instant};

/// From the first batch on, requests of the last run have so long for their first rows. Then the event says what is known.
const SETTLE_MAX: Duration = Duration::from_secs(5);

/// The sum over a start. It is settled, and the event published if anything is missing, when every request that was live at
/// the end of the last run has had a row or is no more; at the latest [`SETTLE_MAX`] after the first batch. Gaps after that
/// are events of their own.
#[derive(Default)]
pub struct RestartGap {
    /// `None`: settled.
    open: Option<Open>,
}

struct Open {
    /// The last frame of the last run.
    last_frame: FrameNo,
    /// Requests of the last run without a row since, by their numbers in the journal.
    silent: HashSet<u64>,
    /// When the first batch since the start came.
    since: Option<Instant>,
    /// Requests whose first rows lack tokens.
    requests: u64,
    /// Tokens that they lack.
    tokens: u64,
    /// The most that one of them lacks.
    tokens_max: u64,
    /// The most tokens in a row of the batches since.
    row_tokens: u64,
}

impl RestartGap {
    /// A start with what the last run has left. A journal without frames has no last run.
    pub fn new(last_frame: FrameNo, live: &[LiveRequest]) -> RestartGap {
        let silent = live.iter().map(|request| request.request.number().0).collect();
        let open =
            Open { last_frame, silent, since: None, requests: 0, tokens: 0, tokens_max: 0, row_tokens: 0 };
        RestartGap { open: (last_frame > FrameNo(0)).then_some(open) }
    }

    /// Takes in that the row of a request in this frame lacks tokens. False where that is no matter of the start: the request
    /// has had a row since, or lacks none.
    pub fn lacks(&mut self, frame: FrameNo, number: u64, is_first: bool, tokens: u64) -> bool {
        let Some(open) = self.open.as_mut().filter(|open| frame > open.last_frame) else { return false };
        if tokens == 0 || !(is_first || open.silent.contains(&number)) {
            return false;
        }
        open.requests += 1;
        open.tokens += tokens;
        open.tokens_max = open.tokens_max.max(tokens);
        true
    }

    /// A batch is accounted: these rows, as the number of their request and their tokens.
    pub fn batch(&mut self, frame: FrameNo, now: Instant, rows: impl Iterator<Item = (u64, u32)>) {
        let Some(open) = self.open.as_mut().filter(|open| frame > open.last_frame) else { return };
        open.since.get_or_insert(now);
        for (number, tokens) in rows {
            open.silent.remove(&number);
            open.row_tokens = open.row_tokens.max(u64::from(tokens));
        }
    }

    /// The request is no more.
    pub fn forget(&mut self, number: u64) {
        if let Some(open) = &mut self.open {
            open.silent.remove(&number);
        }
    }

    /// It is known what is missing, or the time for it is over.
    fn is_settled(&self, now: Instant) -> bool {
        let is_over = |since: Instant| now.saturating_duration_since(since) >= SETTLE_MAX;
        let is_settled =
            |open: &Open| open.since.is_some_and(|since| open.silent.is_empty() || is_over(since));
        self.open.as_ref().is_some_and(is_settled)
    }

    /// Settles it with what is known. `None`: nothing is missing.
    fn settle(&mut self, stream: &Name) -> Option<FramesMissing> {
        let open = self.open.take().filter(|open| open.requests > 0)?;
        let Open { silent, requests, tokens, tokens_max, row_tokens, .. } = open;
        // A frame has one row of a request, so the tokens of one request say how many frames are missing at least.
        let frames = tokens_max.div_ceil(row_tokens.max(1));
        let (stream, silent) = (stream.clone(), silent.len() as u64);
        Some(FramesMissing { stream, frames, requests, tokens, row_tokens, silent })
    }
}

impl Ledger {
    /// Reads where the scheduler's count stood at the last rows of requests with gaps, so that a gap of an earlier run is not
    /// found again. Where it cannot be read, the count is what was received.
    pub fn read_counts(&mut self, live: &[LiveRequest], writer: &JournalWriter, decode: &mut FrameDecoder) {
        let mut live: Vec<&LiveRequest> = live.iter().filter(|request| request.info.gaps > 0).collect();
        live.sort_by_key(|request| request.info.last_frame);
        let mut backlog = writer.backlog(FrameNo(0)).with_outcomes();
        for of_frame in live.chunk_by(|one, next| one.info.last_frame == next.info.last_frame) {
            let Some((batch, outcome)) = read_batch(&mut backlog, of_frame[0].info.last_frame, decode) else {
                continue;
            };
            let counts: Vec<_> = outcome.requests.iter().zip(batch.completion_counts()).collect();
            for LiveRequest { request, info, .. } in of_frame {
                let count = counts.iter().find(|(number, _)| **number == request.number());
                let slot = self.requests.find(info.rid.as_bytes());
                let (Some((_, Some(count))), Some(slot)) = (count, slot) else { continue };
                if let Some(known) = self.requests.get_mut(slot) {
                    known.counted = *count;
                    known.missing = count.saturating_sub(known.received);
                }
            }
        }
    }

    /// Publishes what is missing since the last run once that is known.
    pub fn settle_restart(&mut self, now: Instant) {
        if self.restart.is_settled(now) {
            self.end_restart();
        }
    }

    /// The stream ends, or goes on after a panic: publishes what is known to be missing since the last run.
    pub fn end_restart(&mut self) {
        if let Some(missing) = self.restart.settle(&self.telemetry.stream) {
            self.telemetry.publish(missing);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(live: &[u64]) -> RestartGap {
        let mut restart = RestartGap::new(FrameNo(7), &[]);
        restart.open.as_mut().unwrap().silent.extend(live);
        restart
    }

    #[test]
    fn a_restart_is_settled_when_each_request_of_the_last_run_has_had_a_row_or_is_no_more() {
        let (mut restart, now) = (open(&[1, 2, 3]), Instant::now());
        // A frame of the last run is no word on this one.
        assert!(!restart.lacks(FrameNo(7), 1, false, 5));
        restart.batch(FrameNo(7), now, [(1, 1), (2, 1), (3, 1)].into_iter());
        assert!(restart.lacks(FrameNo(8), 1, false, 2));
        assert!(restart.lacks(FrameNo(8), 9, true, 1), "a request whose first rows are missing");
        restart.batch(FrameNo(8), now, [(1, 1), (9, 1)].into_iter());
        assert!(!restart.lacks(FrameNo(9), 1, false, 2), "a gap of its second row is none of the restart");
        restart.forget(2);
        assert!(!restart.is_settled(now));
        restart.batch(FrameNo(9), now, [(3, 1)].into_iter());
        assert!(restart.is_settled(now));
        let missing = restart.settle(&"s".into()).unwrap();
        let FramesMissing { frames, requests, tokens, row_tokens, silent, .. } = missing;
        assert_eq!((frames, requests, tokens, row_tokens, silent), (2, 2, 3, 1, 0));
        assert!(!restart.lacks(FrameNo(10), 1, true, 2), "it is settled once");
    }

    #[test]
    fn a_restart_is_settled_after_a_time_and_says_who_had_no_row() {
        let (mut restart, now) = (open(&[1, 2]), Instant::now());
        assert!(!restart.is_settled(now + SETTLE_MAX), "no batch has come");
        assert!(restart.lacks(FrameNo(8), 1, false, 5));
        restart.batch(FrameNo(8), now, [(1, 3)].into_iter());
        assert!(!restart.is_settled(now));
        assert!(restart.is_settled(now + SETTLE_MAX));
        let FramesMissing { frames, silent, .. } = restart.settle(&"s".into()).unwrap();
        assert_eq!((frames, silent), (2, 1), "of rows with three tokens, five are two frames at least");
    }

    #[test]
    fn a_restart_that_lacks_nothing_says_nothing() {
        let (mut restart, now) = (open(&[1]), Instant::now());
        restart.batch(FrameNo(8), now, [(1, 1)].into_iter());
        assert!(restart.is_settled(now) && restart.settle(&"s".into()).is_none());
        let mut first = RestartGap::new(FrameNo(0), &[]);
        assert!(!first.lacks(FrameNo(1), 1, true, 3), "there was no run before");
    }
}
