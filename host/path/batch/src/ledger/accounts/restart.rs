//! Frames that were lost between the end of the last run and this start.
//!
//! Owns the requests of the last run without a row since the start, and the count of the tokens that are missing before the first
//! rows of the other requests. One event reports the missing tokens of all requests. When a connection ends, ZeroMQ loses the
//! frames that the sender's library has taken out of its queue.

use super::Ledger;
use afterbay_events::Name;
use afterbay_events::event::FramesMissing;
use afterbay_journal::{FrameNo, LiveRequest};
use std::collections::HashSet;
use std::time::{Duration, Instant};

/// Time after the first batch in which the requests of the last run are expected to have a row. Then the event is published.
const COLLECT_MAX: Duration = Duration::from_secs(5);

/// The tokens that were lost around a start. The count is complete when every request of the last run has had a row or has
/// closed, and 5 seconds after the first batch at the latest. Then one event is published if tokens are missing. Later gaps have
/// events of their own.
#[derive(Default)]
pub struct RestartGap {
    /// `None` once the count is complete.
    open: Option<Collecting>,
}

struct Collecting {
    /// The last frame of the last run.
    last_frame: FrameNo,
    /// Numbers of the requests of the last run without a row since.
    silent: HashSet<u64>,
    /// The time at which the first batch since the start was received.
    since: Option<Instant>,
    /// Requests with missing tokens.
    requests: u64,
    /// Missing tokens of all requests.
    tokens: u64,
    /// The largest number of missing tokens of one request.
    tokens_max: u64,
    /// The largest number of tokens in a row since the start.
    row_tokens: u64,
}

impl RestartGap {
    /// A start after a run that ended with this frame and these requests. With frame 0 there was no earlier run.
    pub fn new(last_frame: FrameNo, live: &[LiveRequest]) -> RestartGap {
        let silent = live.iter().map(|request| request.request.number().0).collect();
        let open = Collecting {
            last_frame,
            silent,
            since: None,
            requests: 0,
            tokens: 0,
            tokens_max: 0,
            row_tokens: 0,
        };
        RestartGap { open: (last_frame > FrameNo(0)).then_some(open) }
    }

    /// Adds the tokens that are missing before a row of a request. Returns false, and adds nothing, if the gap is not one of the
    /// start: the request has had a row since, or no token is missing.
    pub(super) fn add_gap(&mut self, frame: FrameNo, number: u64, is_first: bool, tokens: u64) -> bool {
        let Some(open) = self.open.as_mut().filter(|open| frame > open.last_frame) else { return false };
        if tokens == 0 || !(is_first || open.silent.contains(&number)) {
            return false;
        }
        open.requests += 1;
        open.tokens += tokens;
        open.tokens_max = open.tokens_max.max(tokens);
        true
    }

    /// Notes the rows of an accounted batch, as request number and tokens.
    pub(super) fn batch(&mut self, frame: FrameNo, now: Instant, rows: impl Iterator<Item = (u64, u32)>) {
        let Some(open) = self.open.as_mut().filter(|open| frame > open.last_frame) else { return };
        open.since.get_or_insert(now);
        for (number, tokens) in rows {
            open.silent.remove(&number);
            open.row_tokens = open.row_tokens.max(u64::from(tokens));
        }
    }

    /// Does not wait for a row of this request.
    pub(super) fn forget(&mut self, number: u64) {
        if let Some(open) = &mut self.open {
            open.silent.remove(&number);
        }
    }

    fn is_complete(&self, now: Instant) -> bool {
        let is_over = |since: Instant| now.saturating_duration_since(since) >= COLLECT_MAX;
        let is_complete =
            |open: &Collecting| open.since.is_some_and(|since| open.silent.is_empty() || is_over(since));
        self.open.as_ref().is_some_and(is_complete)
    }

    /// Ends the count. Returns the event if tokens are missing.
    fn close(&mut self, stream: &Name) -> Option<FramesMissing> {
        let open = self.open.take().filter(|open| open.requests > 0)?;
        let Collecting { silent, requests, tokens, tokens_max, row_tokens, .. } = open;
        // A frame has one row per request, so one request's missing tokens give the least number of missing frames.
        let frames = tokens_max.div_ceil(row_tokens.max(1));
        let (stream, silent) = (stream.clone(), silent.len() as u64);
        Some(FramesMissing { stream, frames, requests, tokens, row_tokens, silent })
    }
}

impl Ledger {
    /// Publishes the tokens that were lost around the start once their count is complete.
    pub fn report_restart_gap(&mut self, now: Instant) {
        if self.restart.is_complete(now) {
            self.close_restart_gap();
        }
    }

    /// Publishes the tokens that are known to be lost around the start, because the stream ends or is rebuilt after a panic.
    pub fn close_restart_gap(&mut self) {
        if let Some(missing) = self.restart.close(&self.telemetry.stream) {
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
    fn a_restart_gap_is_complete_when_each_request_of_the_last_run_has_had_a_row_or_has_closed() {
        let (mut restart, now) = (open(&[1, 2, 3]), Instant::now());
        // Frames of the last run do not count.
        assert!(!restart.add_gap(FrameNo(7), 1, false, 5));
        restart.batch(FrameNo(7), now, [(1, 1), (2, 1), (3, 1)].into_iter());
        assert!(restart.add_gap(FrameNo(8), 1, false, 2));
        assert!(restart.add_gap(FrameNo(8), 9, true, 1), "the first rows of a request are missing");
        restart.batch(FrameNo(8), now, [(1, 1), (9, 1)].into_iter());
        assert!(
            !restart.add_gap(FrameNo(9), 1, false, 2),
            "a gap before the second row is not one of the restart"
        );
        restart.forget(2);
        assert!(!restart.is_complete(now));
        restart.batch(FrameNo(9), now, [(3, 1)].into_iter());
        assert!(restart.is_complete(now));
        let missing = restart.close(&"s".into()).unwrap();
        let FramesMissing { frames, requests, tokens, row_tokens, silent, .. } = missing;
        assert_eq!((frames, requests, tokens, row_tokens, silent), (2, 2, 3, 1, 0));
        assert!(!restart.add_gap(FrameNo(10), 1, true, 2), "the count is closed once");
    }

    #[test]
    fn a_restart_gap_is_complete_after_five_seconds_and_counts_requests_without_a_row() {
        let (mut restart, now) = (open(&[1, 2]), Instant::now());
        assert!(!restart.is_complete(now + COLLECT_MAX), "no batch was received");
        assert!(restart.add_gap(FrameNo(8), 1, false, 5));
        restart.batch(FrameNo(8), now, [(1, 3)].into_iter());
        assert!(!restart.is_complete(now));
        assert!(restart.is_complete(now + COLLECT_MAX));
        let FramesMissing { frames, silent, .. } = restart.close(&"s".into()).unwrap();
        assert_eq!((frames, silent), (2, 1), "five tokens are at least two frames of three tokens");
    }

    #[test]
    fn a_restart_without_missing_tokens_has_no_event() {
        let (mut restart, now) = (open(&[1]), Instant::now());
        restart.batch(FrameNo(8), now, [(1, 1)].into_iter());
        assert!(restart.is_complete(now) && restart.close(&"s".into()).is_none());
        let mut first = RestartGap::new(FrameNo(0), &[]);
        assert!(!first.add_gap(FrameNo(1), 1, true, 3), "there was no earlier run");
    }
}
