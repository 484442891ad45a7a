//! Random schedules of batches, decisions, releases and restarts: a reader's rows and the counts are those of a simple model.

use crate::stream::{Decide, SentRow, Stream, last, row};
use afterbay_events::EndCause;
use proptest::prelude::*;
use std::collections::BTreeMap;

#[derive(Clone, Debug)]
enum Step {
    /// For each row: the request, its tokens, whether the scheduler ends it, and the decision.
    Rows(Vec<(u8, u8, bool, Verdict)>),
    /// Held rows leave in a frame of Afterbay's own.
    Release,
    /// The process ends and starts again, with a sealed journal or without.
    Restart(bool),
}

#[derive(Clone, Copy, Debug)]
enum Verdict {
    Pass,
    Replace(u8),
    Drop,
    Finish,
    ReplaceAndFinish,
    DropAndFinish,
    Hold,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let verdict = prop_oneof![
        6 => Just(Verdict::Pass),
        2 => (0..4u8).prop_map(Verdict::Replace),
        2 => Just(Verdict::Drop),
        1 => Just(Verdict::Finish),
        1 => Just(Verdict::ReplaceAndFinish),
        1 => Just(Verdict::DropAndFinish),
        4 => Just(Verdict::Hold),
    ];
    let row = (0..6u8, 1..4u8, prop::bool::weighted(0.15), verdict);
    let step = prop_oneof![
        12 => prop::collection::vec(row, 1..6).prop_map(Step::Rows),
        2 => Just(Step::Release),
        1 => any::<bool>().prop_map(Step::Restart),
    ];
    prop::collection::vec(step, 1..30)
}

/// A live request.
#[derive(Default)]
struct Request {
    number: u64,
    life: u32,
    /// The scheduler's tokens.
    count: u64,
    /// The reader's tokens.
    reader: u64,
    /// The ids of the held rows, and the number of these rows.
    held: (Vec<i64>, u64),
    has_row: bool,
    is_finished: bool,
    /// The scheduler has ended the request. Its last row is held.
    is_ending: bool,
}

/// The rows and tokens of one account.
#[derive(Debug, Default, PartialEq)]
struct Counts {
    received: (u64, u64),
    forwarded: (u64, u64),
    replaced_rows: u64,
    dropped: (u64, u64),
    swallowed: (u64, u64),
    opened: u64,
    /// By the scheduler, and by a plugin.
    ended: [u64; 2],
    imbalances: u64,
    gaps: u64,
}

#[derive(Default)]
struct Model {
    requests: BTreeMap<u8, Request>,
    lives: BTreeMap<u8, u32>,
    counts: Counts,
    next_id: i64,
}

impl Model {
    fn rid(&self, request: u8) -> String {
        format!("req-{request}-{}", self.lives.get(&request).copied().unwrap_or(0))
    }
}

fn counts(stream: &Stream) -> Counts {
    let counters = stream.counters();
    Counts {
        received: (counters.rows_received.get(), counters.tokens_received.get()),
        forwarded: (counters.rows_forwarded.get(), counters.tokens_forwarded.get()),
        replaced_rows: counters.rows_replaced.get(),
        dropped: (counters.rows_dropped.get(), counters.tokens_dropped.get()),
        swallowed: (counters.rows_swallowed.get(), counters.tokens_swallowed.get()),
        opened: counters.requests_opened.get(),
        ended: [EndCause::Limit, EndCause::Plugin].map(|cause| counters.requests_ended.get(cause)),
        imbalances: counters.request_imbalances.get(),
        gaps: counters.request_gaps.get(),
    }
}

impl Model {
    /// A batch passes. Returns the rows that the reader gets.
    fn rows(&mut self, stream: &mut Stream, rows: &[(u8, u8, bool, Verdict)]) {
        let mut batch = Vec::new();
        let mut expected: Vec<SentRow> = Vec::new();
        let mut decisions = Vec::new();
        let mut seen = Vec::new();
        for (name, tokens, ends, verdict) in rows {
            // The scheduler sends no row of a request that it has ended.
            if seen.contains(name) || self.requests.get(name).is_some_and(|request| request.is_ending) {
                continue;
            }
            seen.push(*name);
            let rid = self.rid(*name);
            let ids: Vec<i64> = (0..*tokens).map(|_| self.id()).collect();
            let replacement: Vec<i64> = match verdict {
                Verdict::Replace(count) => (0..*count).map(|_| self.id()).collect(),
                _ => vec![self.id(), self.id()],
            };
            let is_new = !self.requests.contains_key(name);
            let request = self.requests.entry(*name).or_default();
            request.life += u32::from(is_new);
            self.counts.opened += u64::from(is_new);
            request.count += u64::from(*tokens);
            batch.push(if *ends { last(&rid, &ids, request.count) } else { row(&rid, &ids, request.count) });
            let decide = match verdict {
                Verdict::Pass => Decide::Pass,
                Verdict::Replace(_) => Decide::Replace(replacement.clone()),
                Verdict::Drop => Decide::Drop,
                Verdict::Finish => Decide::Finish,
                Verdict::ReplaceAndFinish => Decide::ReplaceAndFinish(replacement.clone()),
                Verdict::DropAndFinish => Decide::DropAndFinish,
                Verdict::Hold => Decide::Hold,
            };
            decisions.push((*name, decide));
            let received = u64::from(*tokens);
            self.counts.received.0 += 1;
            self.counts.received.1 += received;
            let sent = request.send(*verdict, &ids, &replacement, *ends, &mut self.counts);
            if let Some((ids, is_last)) = sent {
                expected.push(SentRow { rid, ids, count: Some(request.reader), is_last, request: 0 });
            }
            self.counts.ended[0] += u64::from(*ends && !request.is_ending && !request.is_finished);
        }
        if batch.is_empty() {
            return;
        }
        let mut output = stream.account(batch);
        let numbers: Vec<u64> = output.accounted().rows().iter().map(|row| row.number()).collect();
        for (name, number) in seen.iter().zip(&numbers) {
            let request = self.requests.get_mut(name).unwrap();
            assert!(request.number == 0 || request.number == *number, "a request keeps its number");
            request.number = *number;
        }
        for (index, (_, decide)) in (0..).zip(&decisions) {
            stream.apply(&mut output, index, decide);
        }
        output.verdicts.sort();
        let settled = stream.settle(output);
        self.compare(crate::stream::sent_rows(settled), expected);
        for (name, (_, _, ends, _)) in seen.iter().zip(rows_of(rows, &seen)) {
            if ends && !self.requests[name].is_ending {
                self.close(*name);
            }
        }
    }

    fn close(&mut self, name: u8) {
        self.requests.remove(&name);
        *self.lives.entry(name).or_default() += 1;
    }

    fn compare(&self, sent: Vec<SentRow>, expected: Vec<SentRow>) {
        let number = |rid: &str| {
            let of = self.requests.iter().find(|(name, _)| self.rid(**name) == rid);
            of.map_or(0, |(_, request)| request.number)
        };
        let expected: Vec<SentRow> =
            expected.into_iter().map(|row| SentRow { request: number(&row.rid), ..row }).collect();
        assert_eq!(sent, expected);
    }

    /// The held rows leave, each request's as one row.
    fn release(&mut self, stream: &mut Stream) {
        let held: Vec<u8> =
            self.requests.iter().filter(|(_, request)| request.held.1 > 0).map(|(name, _)| *name).collect();
        stream.held().end_all(afterbay_events::HoldEnd::Time);
        let mut expected = Vec::new();
        for name in &held {
            let rid = self.rid(*name);
            let request = self.requests.get_mut(name).unwrap();
            let (ids, rows) = std::mem::take(&mut request.held);
            request.reader += ids.len() as u64;
            request.has_row = true;
            self.counts.forwarded.0 += rows;
            self.counts.forwarded.1 += ids.len() as u64;
            self.counts.ended[0] += u64::from(request.is_ending);
            let is_last = request.is_ending;
            expected.push(SentRow { rid, ids, count: Some(request.reader), is_last, request: 0 });
        }
        let sent = stream.release_due();
        assert_eq!(sent.is_some(), !expected.is_empty());
        let mut sent = sent.unwrap_or_default();
        sent.sort_unstable_by(|one, next| one.rid.cmp(&next.rid));
        expected.sort_unstable_by(|one, next| one.rid.cmp(&next.rid));
        self.compare(sent, expected);
        for name in held {
            if self.requests[&name].is_ending {
                self.close(name);
            }
        }
    }

    fn id(&mut self) -> i64 {
        self.next_id += 1;
        self.next_id
    }

    fn check(&self, stream: &mut Stream) {
        assert_eq!(counts(stream), self.counts);
        let mut live: Vec<(String, u64)> =
            stream.ledger().requests().map(|(rid, request)| (rid.to_owned(), request.received)).collect();
        live.sort_unstable();
        let mut expected: Vec<(String, u64)> =
            self.requests.iter().map(|(name, request)| (self.rid(*name), request.count)).collect();
        expected.sort_unstable();
        assert_eq!(live, expected, "the live requests and their tokens");
        assert_eq!(stream.ledger().live(), self.requests.len());
    }
}

/// Whether each of these requests ends in the step.
fn rows_of<'r>(
    rows: &'r [(u8, u8, bool, Verdict)],
    seen: &'r [u8],
) -> impl Iterator<Item = (u8, u8, bool, Verdict)> + 'r {
    seen.iter().map(|name| *rows.iter().find(|row| row.0 == *name).unwrap())
}

impl Request {
    /// The ids that the reader gets with a row, and whether it is the last. `None` if it gets no row.
    fn send(
        &mut self,
        verdict: Verdict,
        ids: &[i64],
        replacement: &[i64],
        ends: bool,
        counts: &mut Counts,
    ) -> Option<(Vec<i64>, bool)> {
        let tokens = ids.len() as u64;
        if self.is_finished {
            counts.swallowed.0 += 1;
            counts.swallowed.1 += tokens;
            return None;
        }
        if matches!(verdict, Verdict::Hold) {
            self.held.0.extend(ids);
            self.held.1 += 1;
            self.is_ending = ends;
            return None;
        }
        let (mut all, rows) = std::mem::take(&mut self.held);
        all.extend(ids);
        let (rows, received) = (rows + 1, all.len() as u64);
        let finishes =
            matches!(verdict, Verdict::Finish | Verdict::ReplaceAndFinish | Verdict::DropAndFinish);
        self.is_finished = finishes;
        counts.ended[1] += u64::from(finishes);
        let is_last = ends || finishes;
        let sent = match verdict {
            Verdict::Pass | Verdict::Finish | Verdict::Hold => {
                counts.forwarded.0 += rows;
                counts.forwarded.1 += received;
                all
            }
            Verdict::Replace(_) | Verdict::ReplaceAndFinish => {
                counts.replaced_rows += rows;
                replacement.to_vec()
            }
            Verdict::Drop | Verdict::DropAndFinish => {
                counts.dropped.0 += rows;
                counts.dropped.1 += received;
                if self.has_row && !is_last {
                    return None;
                }
                Vec::new()
            }
        };
        self.reader += sent.len() as u64;
        self.has_row = true;
        Some((sent, is_last))
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_reader_gets_what_was_decided_and_every_token_is_accounted_for_also_over_restarts(steps in steps()) {
        let mut stream = Stream::new();
        let mut model = Model::default();
        for step in steps {
            stream.seconds += 1;
            match step {
                Step::Rows(rows) => model.rows(&mut stream, &rows),
                Step::Release => model.release(&mut stream),
                Step::Restart(is_clean) => stream.restart(is_clean),
            }
            model.check(&mut stream);
        }
    }
}
