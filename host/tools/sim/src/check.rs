//! The reader's check of a stream: each request has all tokens in order and exactly one end, with nothing
//! after it. This module stores the state of live requests and a [`Record`] of ended ones. It must not know
//! sockets or costs.

use std::collections::HashMap;
use std::ops::Range;
use std::time::Instant;

use afterbay_wire::{BarrierKind, Batch, DecodedFrame, Decoder, Finish, Layouts, Matched};
use bytes::Bytes;
use serde::Serialize;

use crate::bounds::{MAX_MISSING_RANGES, MAX_SAMPLES};
use crate::ids::{Digest, Seed, word};
use crate::load::EndReason;
use crate::record::{EndedRequest, Record};

/// The way in which a reader uses the rows of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// All rows count. They carry only new tokens, as SGLang's scheduler sends them.
    Deltas,
    /// Only the last row of a request among those that the reader finds together counts, as for SGLang's
    /// TokenizerManager before sgl-project/sglang#19976. New tokens in the other rows are lost, unless the last
    /// row carries all ids.
    Overwriting,
}

/// The expected ids of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// Requests of a simulated scheduler, recognized by their rid, carry the ids that follow from the rid.
    /// Other requests are checked like [`Expect::Counts`].
    Simulated,
    /// Only the number of ids is checked, by the scheduler's own count (`completion_tokens`). For streams
    /// that a plugin changes.
    Counts,
}

/// The faults of a stream. All zero if there are none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Faults {
    /// Tokens that the scheduler counted and the reader did not receive.
    pub lost_tokens: u64,
    /// Tokens that the reader received twice.
    pub repeated_tokens: u64,
    /// Rows with tokens that were missing because later tokens arrived first.
    pub late_rows: u64,
    /// Tokens with another id than the scheduler sent.
    pub wrong_ids: u64,
    /// Rows whose text does not match their ids.
    pub wrong_texts: u64,
    /// Rows with more new tokens than the scheduler counted in all.
    pub wrong_counts: u64,
    /// Rows of a request that had ended.
    pub rows_after_end: u64,
    /// Rows that ended a request again; also part of `rows_after_end`.
    pub ended_again: u64,
    /// Frames that are no message of the engine.
    pub not_understood: u64,
    /// Descriptions of the first [`MAX_SAMPLES`] faults.
    pub samples: Vec<String>,
}

/// Checks a stream frame by frame.
#[derive(Debug)]
pub struct Checker {
    reading: Reading,
    expect: Expect,
    decoder: Decoder,
    live: HashMap<Box<str>, LiveRequest>,
    started: u64,
    record: Record,
    faults: Faults,
    ids: Vec<i64>,
    /// The last row of each request among those found together, for [`Reading::Overwriting`].
    unused: HashMap<Box<str>, UnusedRow>,
    overwritten: u64,
}

/// A row that waits to be used.
#[derive(Debug)]
struct UnusedRow {
    completion_tokens: Option<u64>,
    ending: Option<EndReason>,
    text: Option<String>,
    ids: Vec<i64>,
}

/// The state of a request that has not ended.
#[derive(Debug)]
struct LiveRequest {
    /// The number of received ids.
    tokens: u64,
    /// The digest over these ids in the order of receipt.
    digest: Digest,
    /// One past the highest received position.
    next: u64,
    /// Missing positions below `next`, ascending. At most [`MAX_MISSING_RANGES`].
    missing: Vec<Range<u64>>,
    seed: Option<Seed>,
    first: Option<Instant>,
}

struct CheckedRow<'a> {
    rid: &'a str,
    completion_tokens: Option<u64>,
    ending: Option<EndReason>,
    text: Option<&'a str>,
    at: Instant,
}

impl Checker {
    /// Creates a checker that has seen nothing.
    pub fn new(reading: Reading, expect: Expect) -> Checker {
        Checker {
            reading,
            expect,
            decoder: Decoder::new(Layouts::builtin()),
            live: HashMap::new(),
            started: 0,
            record: Record::new(),
            faults: Faults::default(),
            ids: Vec::new(),
            unused: HashMap::new(),
            overwritten: 0,
        }
    }

    /// Checks a frame. Returns whether the engine's reader counts it as a finished batch. Calls `work` for each row: it spends
    /// the time that a reader needs for the row, and returns the time at its end.
    pub fn frame(&mut self, bytes: Bytes, work: &mut dyn FnMut() -> Instant) -> bool {
        self.record.frame(&bytes);
        let batch = match self.decoder.decode(bytes) {
            DecodedFrame::Batch(batch) => batch,
            DecodedFrame::Barrier(barrier) => {
                match &barrier.kind {
                    BarrierKind::Control { .. }
                    | BarrierKind::Introduction { .. }
                    | BarrierKind::Request { .. }
                    | BarrierKind::End { .. }
                    | BarrierKind::Left { .. }
                    | BarrierKind::Signals => self.record.controls += 1,
                    BarrierKind::Idle { .. } => self.record.idle += 1,
                    BarrierKind::NotUnderstood { error } => {
                        self.faults.not_understood += 1;
                        self.faults.add_sample(|| format!("a frame is not understood: {error}"));
                    }
                }
                return barrier.counted();
            }
        };
        let mut ids = std::mem::take(&mut self.ids);
        for row in 0..batch.rows() {
            let at = work();
            if batch.is_health_check(row) {
                self.record.health_checks += 1;
                continue;
            }
            ids.clear();
            batch.row_ids(row, &mut ids);
            let row = CheckedRow::of(&batch, row, at);
            match self.reading {
                Reading::Overwriting => self.store_row(&row, &ids),
                Reading::Deltas => self.row(&row, &ids),
            }
        }
        self.ids = ids;
        true
    }

    /// Uses the rows that were found together. Call it when the reader has handled all waiting frames.
    pub fn use_found_rows(&mut self, now: Instant) {
        for (rid, row) in std::mem::take(&mut self.unused) {
            let UnusedRow { completion_tokens, ending, text, ids } = row;
            self.row(
                &CheckedRow { rid: &rid, completion_tokens, ending, text: text.as_deref(), at: now },
                &ids,
            );
        }
    }

    /// The number of requests that have begun and not ended.
    pub fn open(&self) -> u64 {
        self.live.len() as u64
    }

    /// The number of requests that have begun.
    pub fn started(&self) -> u64 {
        self.started
    }

    /// The number of rows that a later row replaced before the reader used them.
    pub fn overwritten(&self) -> u64 {
        self.overwritten
    }

    /// The record of the received stream so far.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// The faults so far.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// Ends the check and returns the record and the faults.
    pub fn finish(self) -> (Record, Faults) {
        (self.record, self.faults)
    }

    fn store_row(&mut self, row: &CheckedRow<'_>, ids: &[i64]) {
        let CheckedRow { completion_tokens, ending, .. } = *row;
        let unused =
            UnusedRow { completion_tokens, ending, text: row.text.map(str::to_owned), ids: ids.to_vec() };
        self.overwritten += u64::from(self.unused.insert(row.rid.into(), unused).is_some());
    }

    fn row(&mut self, row: &CheckedRow<'_>, ids: &[i64]) {
        self.record.rows += 1;
        if !self.live.contains_key(row.rid) {
            if self.record.get(row.rid).is_some() {
                self.after_end(row, ids);
                return;
            }
            self.started += 1;
            let seed = match self.expect {
                Expect::Simulated => Seed::of_simulated(row.rid),
                Expect::Counts => None,
            };
            self.live.insert(row.rid.into(), LiveRequest::new(seed));
        }
        let Some(live) = self.live.get_mut(row.rid) else { return };
        if live.first.is_none() && !ids.is_empty() {
            live.first = Some(row.at);
        }
        let before = live.tokens;
        match self.reading {
            Reading::Overwriting => live.newest(row, ids, &mut self.faults),
            Reading::Deltas => live.delta(row, ids, &mut self.faults),
        }
        self.record.tokens += live.tokens.saturating_sub(before);
        if let (Some(ending), Some(live)) = (row.ending, row.ending.and_then(|_| self.live.remove(row.rid))) {
            let request = EndedRequest { tokens: live.tokens, ids: live.digest, ending, first: live.first };
            self.record.end(row.rid, request);
        }
    }

    fn after_end(&mut self, row: &CheckedRow<'_>, ids: &[i64]) {
        self.record.tokens += ids.len() as u64;
        self.faults.rows_after_end += 1;
        self.faults.ended_again += u64::from(row.ending.is_some());
        self.faults.repeated_tokens += ids.len() as u64;
        self.faults.add_sample(|| {
            format!("request {:?}: a row of {} tokens came after the end", row.rid, ids.len())
        });
    }
}

impl LiveRequest {
    fn new(seed: Option<Seed>) -> LiveRequest {
        LiveRequest { tokens: 0, digest: Digest::default(), next: 0, missing: Vec::new(), seed, first: None }
    }

    /// Checks a row of new tokens. By the scheduler's count, their positions end at `completion_tokens`.
    fn delta(&mut self, row: &CheckedRow<'_>, ids: &[i64], faults: &mut Faults) {
        let count = ids.len() as u64;
        self.tokens += count;
        self.digest.extend(ids);
        let end = row.completion_tokens.unwrap_or(self.next + count);
        let start = self.start(row.rid, end, count, faults);
        if start > self.next {
            let gap = self.next..start;
            faults.lost_tokens += start - self.next;
            faults.add_sample(|| format!("request {:?}: tokens {gap:?} are missing", row.rid));
            if self.missing.len() == MAX_MISSING_RANGES {
                self.missing.remove(0);
            }
            self.missing.push(gap);
        } else if start < self.next {
            let again = start..end.min(self.next);
            let late = self.fill(&again);
            let repeated = again.end.saturating_sub(again.start) - late;
            faults.lost_tokens -= late;
            faults.repeated_tokens += repeated;
            faults.late_rows += u64::from(late > 0);
            faults.add_sample(|| {
                format!(
                    "request {:?}: tokens {again:?} were repeated or late, {late} of them had been missing",
                    row.rid
                )
            });
        }
        self.next = self.next.max(end);
        self.compare(row, start, ids, faults);
    }

    /// Checks a row of new tokens, or of all tokens so far, which stands for all earlier rows.
    fn newest(&mut self, row: &CheckedRow<'_>, ids: &[i64], faults: &mut Faults) {
        let count = ids.len() as u64;
        if row.completion_tokens != Some(count) || count < self.next {
            return self.delta(row, ids, faults);
        }
        faults.lost_tokens -= self.missing.drain(..).map(|range| range.end - range.start).sum::<u64>();
        (self.tokens, self.next) = (count, count);
        self.digest = Digest::default();
        self.digest.extend(ids);
        self.compare(row, 0, ids, faults);
    }

    fn start(&self, rid: &str, end: u64, count: u64, faults: &mut Faults) -> u64 {
        end.checked_sub(count).unwrap_or_else(|| {
            faults.wrong_counts += 1;
            faults.add_sample(|| {
                format!("request {rid:?}: a row has {count} tokens, but the scheduler counts {end} in all")
            });
            0
        })
    }

    /// Removes positions from the missing ones. Returns how many of them were missing.
    fn fill(&mut self, positions: &Range<u64>) -> u64 {
        let mut filled = 0;
        let mut left = Vec::with_capacity(self.missing.len());
        for range in self.missing.drain(..) {
            let (start, end) = (range.start.max(positions.start), range.end.min(positions.end));
            if start >= end {
                left.push(range);
                continue;
            }
            filled += end - start;
            left.extend([range.start..start, end..range.end].into_iter().filter(|rest| !rest.is_empty()));
        }
        left.truncate(MAX_MISSING_RANGES);
        self.missing = left;
        filled
    }

    /// Compares ids and text with those that a simulated scheduler sends for these positions.
    fn compare(&self, row: &CheckedRow<'_>, start: u64, ids: &[i64], faults: &mut Faults) {
        let Some(seed) = self.seed else { return };
        let wrong = (start..).zip(ids).filter(|&(position, &id)| seed.id(position) != id).count() as u64;
        if wrong > 0 {
            faults.wrong_ids += wrong;
            let end = start + ids.len() as u64;
            faults.add_sample(|| {
                format!("request {:?}: {wrong} of tokens {start}..{end} have wrong ids", row.rid)
            });
        }
        let Some(text) = row.text else { return };
        let rest = ids.iter().try_fold(text, |text, &id| text.strip_prefix(word(id)));
        if rest != Some("") {
            faults.wrong_texts += 1;
            faults.add_sample(|| format!("request {:?}: text {text:?} does not match its ids", row.rid));
        }
    }
}

impl Faults {
    /// Whether there are no faults.
    pub fn is_none(&self) -> bool {
        *self == Faults::default()
    }

    fn add_sample(&mut self, sample: impl FnOnce() -> String) {
        if self.samples.len() < MAX_SAMPLES {
            self.samples.push(sample());
        }
    }
}

impl<'a> CheckedRow<'a> {
    fn of(batch: &'a Batch, row: u32, at: Instant) -> CheckedRow<'a> {
        let ending = match batch.finish(row) {
            Finish::Running => None,
            Finish::Length => Some(EndReason::Length),
            Finish::Stop { matched: Matched::Text(_) } => Some(EndReason::StopText),
            Finish::Stop { .. } => Some(EndReason::StopToken),
            Finish::Abort | Finish::Error => Some(EndReason::Abort),
            Finish::Other => Some(EndReason::Other),
        };
        CheckedRow {
            rid: batch.rid(row),
            completion_tokens: batch.completion_tokens(row),
            ending,
            text: batch.text(row),
            at,
        }
    }
}
