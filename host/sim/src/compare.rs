//! What the scheduler sent against what the reader saw, request by request.

use std::time::Duration;

use serde::Serialize;

use crate::bounds::MAX_SAMPLES;
use crate::record::Record;

/// Two records of one stream, compared.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// Requests that the scheduler has ended.
    pub requests: u64,
    /// Requests that the reader saw end.
    pub received: u64,
    /// Requests that were compared one by one; all of them unless there were very many.
    pub compared: u64,
    /// Of these: as many tokens, the same ids in the same order, the same ending.
    pub whole: u64,
    /// Of these: seen by the reader, but otherwise.
    pub differ: u64,
    /// Of these: not seen to end by the reader.
    pub missing: u64,
    /// Requests seen by the reader that the scheduler did not send.
    pub unknown: u64,
    /// Whether the digests over all requests are equal, compared one by one or not.
    pub same_requests: bool,
    /// Whether the reader got the very frames that were sent, byte for byte and in order.
    pub same_frames: bool,
    /// Whether no health check, idle batch or control message was lost or repeated.
    pub same_barriers: bool,
    /// From a request's first token being sent to the reader having it.
    pub first_token: Option<Percentiles>,
    /// What differs, the first few.
    pub samples: Vec<String>,
}

/// How a set of durations is spread, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Percentiles {
    /// How many there are.
    pub count: u64,
    /// Half are at or below.
    pub p50_ns: u64,
    /// Nine in ten are at or below.
    pub p90_ns: u64,
    /// 95 in 100 are at or below.
    pub p95_ns: u64,
    /// 99 in 100 are at or below.
    pub p99_ns: u64,
    /// The longest.
    pub max_ns: u64,
}

impl Comparison {
    /// Compares what was sent with what was received. Times are compared too, so both records are of this process.
    pub fn of(sent: &Record, received: &Record) -> Comparison {
        let mut comparison = Comparison {
            requests: sent.requests,
            received: received.requests,
            compared: 0,
            whole: 0,
            differ: 0,
            missing: 0,
            unknown: 0,
            same_requests: sent.requests == received.requests
                && sent.requests_digest == received.requests_digest,
            same_frames: sent.frames == received.frames && sent.frames_digest == received.frames_digest,
            same_barriers: sent.health_checks == received.health_checks
                && sent.idle == received.idle
                && sent.controls == received.controls,
            first_token: None,
            samples: Vec::new(),
        };
        let mut waits = Vec::new();
        for (rid, sent) in sent.kept_with(received) {
            comparison.compared += 1;
            let Some(received) = received.get(rid) else {
                comparison.missing += 1;
                comparison
                    .tell(|| format!("request {rid:?}: {} tokens sent, never seen to end", sent.tokens));
                continue;
            };
            if let (Some(sent), Some(received)) = (sent.first, received.first) {
                waits.push(received.saturating_duration_since(sent));
            }
            if (sent.tokens, sent.ids, sent.ending) == (received.tokens, received.ids, received.ending) {
                comparison.whole += 1;
            } else {
                comparison.differ += 1;
                comparison.tell(|| {
                    let ids = if sent.ids == received.ids { "the same ids" } else { "other ids" };
                    format!(
                        "request {rid:?}: sent {} tokens and {:?}, received {} tokens, {ids} and {:?}",
                        sent.tokens, sent.ending, received.tokens, received.ending
                    )
                });
            }
        }
        for (rid, received) in received.kept_with(sent) {
            if sent.get(rid).is_none() {
                comparison.unknown += 1;
                comparison
                    .tell(|| format!("request {rid:?}: {} tokens received, none sent", received.tokens));
            }
        }
        comparison.first_token = Percentiles::of(waits);
        comparison
    }

    /// Whether every request arrived exactly as it was sent, and nothing else did.
    pub fn is_exact(&self) -> bool {
        self.same_requests && self.same_barriers && self.whole == self.compared && self.unknown == 0
    }

    fn tell(&mut self, sample: impl FnOnce() -> String) {
        if self.samples.len() < MAX_SAMPLES {
            self.samples.push(sample());
        }
    }
}

impl Percentiles {
    /// Of some durations; `None` of none.
    pub fn of(mut durations: Vec<Duration>) -> Option<Percentiles> {
        durations.sort_unstable();
        let count = durations.len();
        let at = |percent: usize| {
            let rank = (count * percent).div_ceil(100).max(1);
            durations.get(rank - 1).map(|duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
        };
        Some(Percentiles {
            count: count as u64,
            p50_ns: at(50)?,
            p90_ns: at(90)?,
            p95_ns: at(95)?,
            p99_ns: at(99)?,
            max_ns: at(100)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Digest;
    use crate::load::Ending;
    use crate::record::Request;
    use std::time::Instant;

    fn record(requests: &[(&str, &[i64], Ending)]) -> Record {
        let mut record = Record::new();
        for (rid, ids, ending) in requests {
            let mut digest = Digest::default();
            digest.extend(ids);
            let request = Request {
                tokens: ids.len() as u64,
                ids: digest,
                ending: *ending,
                first: Some(Instant::now()),
            };
            record.end(rid, request);
        }
        record
    }

    #[test]
    fn records_of_the_same_requests_are_exact_in_any_order() {
        let a = record(&[("a", &[1, 2], Ending::Length), ("b", &[3], Ending::Abort)]);
        let b = record(&[("b", &[3], Ending::Abort), ("a", &[1, 2], Ending::Length)]);
        let comparison = Comparison::of(&a, &b);
        assert!(comparison.is_exact(), "{comparison:?}");
        assert_eq!(comparison.first_token.map(|first| first.count), Some(2));
    }

    #[test]
    fn a_moved_id_another_ending_a_missing_and_an_unknown_request_are_told_apart() {
        let sent = record(&[
            ("moved", &[1, 2], Ending::Length),
            ("ending", &[3], Ending::Length),
            ("missing", &[4], Ending::Length),
            ("whole", &[5], Ending::Length),
        ]);
        let received = record(&[
            ("moved", &[2, 1], Ending::Length),
            ("ending", &[3], Ending::StopToken),
            ("unknown", &[6], Ending::Length),
            ("whole", &[5], Ending::Length),
        ]);
        let comparison = Comparison::of(&sent, &received);
        let Comparison { whole, differ, missing, unknown, same_requests, .. } = comparison;
        assert_eq!((whole, differ, missing, unknown, same_requests), (1, 2, 1, 1, false));
        assert!(!comparison.is_exact());
        assert_eq!(comparison.samples.len(), 4, "{:?}", comparison.samples);
    }

    #[test]
    fn a_lost_control_message_is_not_exact() {
        let mut sent = record(&[("a", &[1], Ending::Length)]);
        sent.controls = 1;
        assert!(!Comparison::of(&sent, &record(&[("a", &[1], Ending::Length)])).is_exact());
    }

    #[test]
    fn percentiles_are_those_of_the_nearest_rank() {
        let waits: Vec<Duration> = (1..=200).rev().map(Duration::from_nanos).collect();
        let expected =
            Percentiles { count: 200, p50_ns: 100, p90_ns: 180, p95_ns: 190, p99_ns: 198, max_ns: 200 };
        assert_eq!(Percentiles::of(waits), Some(expected));
        assert_eq!(Percentiles::of(Vec::new()), None);
    }
}
