//! Compares the scheduler's record with the reader's record, request by request.

use std::time::Duration;

use serde::Serialize;

use crate::record::Record;

/// The comparison of two records of one stream.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// The number of requests that the scheduler ended.
    pub requests: u64,
    /// The number of requests with equal tokens, ids and end reasons, among those that both records store one by one: all of
    /// them up to [`MAX_STORED_REQUESTS`](crate::bounds::MAX_STORED_REQUESTS).
    pub whole: u64,
    /// Whether the digests over all requests are equal.
    pub same_requests: bool,
    /// Whether the reader received exactly the sent frames, in order.
    pub same_frames: bool,
    /// Whether the numbers of health checks, idle batches and control messages are equal.
    pub same_barriers: bool,
    /// The time from sending a request's first token to its receipt.
    pub first_token: Option<Percentiles>,
}

/// Percentiles of durations, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Percentiles {
    /// The number of durations.
    pub count: u64,
    /// The 50th percentile.
    pub p50_ns: u64,
    /// The 90th percentile.
    pub p90_ns: u64,
    /// The 95th percentile.
    pub p95_ns: u64,
    /// The 99th percentile.
    pub p99_ns: u64,
    /// The longest duration.
    pub max_ns: u64,
}

impl Comparison {
    /// Compares a sent and a received record. Both must be from this process, because times are compared too.
    pub fn of(sent: &Record, received: &Record) -> Comparison {
        let (mut whole, mut waits) = (0, Vec::new());
        for (rid, sent) in sent.shared_with(received) {
            let Some(received) = received.get(rid) else { continue };
            let same =
                (sent.tokens, sent.ids, sent.ending) == (received.tokens, received.ids, received.ending);
            whole += u64::from(same);
            if let (Some(sent), Some(received)) = (sent.first, received.first) {
                waits.push(received.saturating_duration_since(sent));
            }
        }
        let barriers = |record: &Record| (record.health_checks, record.idle, record.controls);
        Comparison {
            requests: sent.requests,
            whole,
            same_requests: (sent.requests, sent.requests_digest)
                == (received.requests, received.requests_digest),
            same_frames: (sent.frames, sent.frames_digest) == (received.frames, received.frames_digest),
            same_barriers: barriers(sent) == barriers(received),
            first_token: Percentiles::of(waits),
        }
    }

    /// Whether every request arrived exactly as it was sent, and nothing else arrived.
    pub fn is_exact(&self) -> bool {
        self.same_requests && self.same_barriers
    }
}

impl Percentiles {
    /// The percentiles of durations; `None` if there are none.
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
    use crate::load::EndReason;
    use crate::record::EndedRequest;
    use std::time::Instant;

    fn record(requests: &[(&str, &[i64], EndReason)]) -> Record {
        let mut record = Record::new();
        for (rid, ids, ending) in requests {
            let mut digest = Digest::default();
            digest.extend(ids);
            let request = EndedRequest {
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
        let a = record(&[("a", &[1, 2], EndReason::Length), ("b", &[3], EndReason::Abort)]);
        let b = record(&[("b", &[3], EndReason::Abort), ("a", &[1, 2], EndReason::Length)]);
        let comparison = Comparison::of(&a, &b);
        assert!(comparison.is_exact(), "{comparison:?}");
        assert_eq!(comparison.first_token.map(|first| first.count), Some(2));
    }

    #[test]
    fn moved_ids_other_ends_missing_and_unknown_requests_are_not_exact() {
        let all = [("moved", &[1, 2][..], EndReason::Length), ("ending", &[3], EndReason::Length)];
        for others in [
            &[("moved", &[2, 1][..], EndReason::Length), ("ending", &[3], EndReason::Length)][..],
            &[("moved", &[1, 2], EndReason::Length), ("ending", &[3], EndReason::StopToken)],
            &[("moved", &[1, 2], EndReason::Length)],
            &[("moved", &[1, 2], EndReason::Length), ("unknown", &[3], EndReason::Length)],
        ] {
            let comparison = Comparison::of(&record(&all), &record(others));
            assert!(!comparison.is_exact() && comparison.whole == 1, "{others:?}: {comparison:?}");
        }
    }

    #[test]
    fn a_lost_control_message_is_not_exact() {
        let mut sent = record(&[("a", &[1], EndReason::Length)]);
        sent.controls = 1;
        assert!(!Comparison::of(&sent, &record(&[("a", &[1], EndReason::Length)])).is_exact());
    }

    #[test]
    fn percentiles_use_the_nearest_rank() {
        let waits: Vec<Duration> = (1..=200).rev().map(Duration::from_nanos).collect();
        let expected =
            Percentiles { count: 200, p50_ns: 100, p90_ns: 180, p95_ns: 190, p99_ns: 198, max_ns: 200 };
        assert_eq!(Percentiles::of(waits), Some(expected));
        assert_eq!(Percentiles::of(Vec::new()), None);
    }
}
