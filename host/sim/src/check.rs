//! What a reader demands of a stream: each request's tokens in order and complete, one ending, nothing after it. It
//! keeps the live requests' state and a [`Record`] of those that ended; it must not know sockets or costs.

use std::collections::HashMap;
use std::ops::Range;
use std::time::Instant;

use afterbay_wire::{BarrierKind, Batch, Decoded, Decoder, Finish, Layouts, Matched};
use bytes::Bytes;
use serde::Serialize;

use crate::bounds::{MAX_MISSING_RANGES, MAX_SAMPLES};
use crate::ids::{Digest, Seed, word};
use crate::load::Ending;
use crate::record::{Record, Request};

/// How a stream is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// Rows carry new tokens only, as SGLang's scheduler sends them; all rows count.
    Deltas,
    /// Only each request's last row counts, as for a reader that skips what it finds outdated: it must carry every id.
    LastOnly,
    /// Of the rows of a request that the reader finds together only the last counts, as for SGLang's TokenizerManager
    /// before sgl-project/sglang#19976: new tokens in the others are lost, unless the last carries every id.
    Overwriting,
    /// Frames are counted and their bytes digested, nothing is understood. For frames that belong to no whole stream.
    Frames,
}

/// What is known of the ids that should come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// Requests of a simulated scheduler, recognised by their rid, carry the ids that follow from it. Others: as below.
    Simulated,
    /// Only their number, by the scheduler's own count (`completion_tokens`). For streams that a plugin changes.
    Counts,
}

/// What was wrong with a stream. All zero: nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Faults {
    /// Tokens that the scheduler counted and that did not come.
    pub lost_tokens: u64,
    /// Tokens that came again.
    pub repeated_tokens: u64,
    /// Rows with tokens from before those that had come already, and that were missing until then.
    pub late_rows: u64,
    /// Tokens in their place with another id than was sent.
    pub wrong_ids: u64,
    /// Rows whose text is not that of their ids.
    pub wrong_texts: u64,
    /// Rows with more new tokens than the scheduler counted in all.
    pub wrong_counts: u64,
    /// Rows of a request that had ended.
    pub rows_after_end: u64,
    /// Of these: that ended it once more.
    pub ended_again: u64,
    /// Frames that are no message of SGLang's.
    pub not_understood: u64,
    /// The first few, in words.
    pub samples: Vec<String>,
}

/// Checks a stream frame by frame.
#[derive(Debug)]
pub struct Checker {
    reading: Reading,
    expect: Expect,
    decoder: Decoder,
    live: HashMap<Box<str>, Live>,
    started: u64,
    record: Record,
    faults: Faults,
    ids: Vec<i64>,
    /// With [`Reading::Overwriting`]: each request's last row of those found together.
    found: HashMap<Box<str>, Found>,
    overwritten: u64,
}

/// A row that nobody has looked at.
#[derive(Debug)]
struct Found {
    completion_tokens: Option<u64>,
    ending: Option<Ending>,
    text: Option<String>,
    ids: Vec<i64>,
}

/// A request that has begun and not ended.
#[derive(Debug)]
struct Live {
    /// Ids that came.
    tokens: u64,
    /// Over them, in the order they came.
    digest: Digest,
    /// One past the highest place that came.
    next: u64,
    /// Places below `next` that did not come, ascending. At most [`MAX_MISSING_RANGES`].
    missing: Vec<Range<u64>>,
    seed: Option<Seed>,
    first: Option<Instant>,
}

/// What a checked frame means to the one who counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checked {
    /// SGLang's reader counts it among the batches it has finished.
    pub counted: bool,
}

struct Row<'a> {
    rid: &'a str,
    completion_tokens: Option<u64>,
    ending: Option<Ending>,
    text: Option<&'a str>,
    at: Instant,
}

impl Checker {
    /// With nothing seen.
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
            found: HashMap::new(),
            overwritten: 0,
        }
    }

    /// Takes a frame. `work` is called for each row with its tokens, does what a reader does with a row, and gives the
    /// time at which it is done.
    pub fn frame(&mut self, bytes: Bytes, work: &mut dyn FnMut(u32) -> Instant) -> Checked {
        self.record.frame(&bytes);
        if self.reading == Reading::Frames {
            work(0);
            return Checked { counted: true };
        }
        let batch = match self.decoder.decode(bytes) {
            Decoded::Batch(batch) => batch,
            Decoded::Barrier(barrier) => {
                match &barrier.kind {
                    BarrierKind::Control { .. } => self.record.controls += 1,
                    BarrierKind::Idle { .. } => self.record.idle += 1,
                    BarrierKind::NotUnderstood { error } => {
                        self.faults.not_understood += 1;
                        self.faults.tell(|| format!("a frame is not understood: {error}"));
                    }
                }
                return Checked { counted: barrier.counted() };
            }
        };
        let mut ids = std::mem::take(&mut self.ids);
        for row in 0..batch.rows() {
            let at = work(batch.tokens(row));
            if batch.is_health_check(row) {
                self.record.health_checks += 1;
                continue;
            }
            ids.clear();
            batch.row_ids(row, &mut ids);
            let row = Row::of(&batch, row, at);
            match self.reading {
                Reading::Overwriting => self.find(&row, &ids),
                _ => self.row(&row, &ids),
            }
        }
        self.ids = ids;
        Checked { counted: true }
    }

    /// The reader has handled all frames that it found together; now whoever waits for them looks.
    pub fn rest(&mut self, now: Instant) {
        for (rid, found) in std::mem::take(&mut self.found) {
            let Found { completion_tokens, ending, text, ids } = found;
            self.row(&Row { rid: &rid, completion_tokens, ending, text: text.as_deref(), at: now }, &ids);
        }
    }

    /// Takes note of a message that is no frame of SGLang's at all.
    pub fn refuse(&mut self, what: &str) {
        self.record.frames += 1;
        self.faults.not_understood += 1;
        self.faults.tell(|| format!("{what} is not understood"));
    }

    /// Requests that have begun and not ended.
    pub fn open(&self) -> u64 {
        self.live.len() as u64
    }

    /// Requests that have begun.
    pub fn started(&self) -> u64 {
        self.started
    }

    /// Rows that a later one took the place of before anybody looked.
    pub fn overwritten(&self) -> u64 {
        self.overwritten
    }

    /// What came so far.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// What was wrong so far.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// Ends: what came and what was wrong.
    pub fn finish(self) -> (Record, Faults) {
        (self.record, self.faults)
    }

    fn find(&mut self, row: &Row<'_>, ids: &[i64]) {
        let Row { completion_tokens, ending, .. } = *row;
        let found = Found { completion_tokens, ending, text: row.text.map(str::to_owned), ids: ids.to_vec() };
        self.overwritten += u64::from(self.found.insert(row.rid.into(), found).is_some());
    }

    fn row(&mut self, row: &Row<'_>, ids: &[i64]) {
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
            self.live.insert(row.rid.into(), Live::new(seed));
        }
        let Some(live) = self.live.get_mut(row.rid) else { return };
        if live.first.is_none() && !ids.is_empty() {
            live.first = Some(row.at);
        }
        let before = live.tokens;
        match self.reading {
            Reading::LastOnly => live.only(row, ids, &mut self.faults),
            Reading::Overwriting => live.newest(row, ids, &mut self.faults),
            Reading::Deltas | Reading::Frames => live.delta(row, ids, &mut self.faults),
        }
        self.record.tokens += live.tokens.saturating_sub(before);
        if let (Some(ending), Some(live)) = (row.ending, row.ending.and_then(|_| self.live.remove(row.rid))) {
            let request = Request { tokens: live.tokens, ids: live.digest, ending, first: live.first };
            self.record.end(row.rid, request);
        }
    }

    fn after_end(&mut self, row: &Row<'_>, ids: &[i64]) {
        self.record.tokens += ids.len() as u64;
        self.faults.rows_after_end += 1;
        self.faults.ended_again += u64::from(row.ending.is_some());
        self.faults.repeated_tokens += ids.len() as u64;
        self.faults.tell(|| format!("request {:?}: a row of {} tokens after its end", row.rid, ids.len()));
    }
}

impl Live {
    fn new(seed: Option<Seed>) -> Live {
        Live { tokens: 0, digest: Digest::default(), next: 0, missing: Vec::new(), seed, first: None }
    }

    /// A row of new tokens. By the scheduler's count it holds the places that end at `completion_tokens`.
    fn delta(&mut self, row: &Row<'_>, ids: &[i64], faults: &mut Faults) {
        let count = ids.len() as u64;
        self.tokens += count;
        self.digest.extend(ids);
        let end = row.completion_tokens.unwrap_or(self.next + count);
        let start = self.start(row.rid, end, count, faults);
        if start > self.next {
            let gap = self.next..start;
            faults.lost_tokens += start - self.next;
            faults.tell(|| format!("request {:?}: tokens {gap:?} did not come", row.rid));
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
            faults.tell(|| {
                format!(
                    "request {:?}: tokens {again:?} came again or late, {late} of them were missing",
                    row.rid
                )
            });
        }
        self.next = self.next.max(end);
        self.compare(row, start, ids, faults);
    }

    /// A row of all tokens so far: it stands for all rows before. Looked at when it is the last.
    fn only(&mut self, row: &Row<'_>, ids: &[i64], faults: &mut Faults) {
        let count = ids.len() as u64;
        self.tokens = count;
        if row.ending.is_none() {
            return;
        }
        self.digest = Digest::default();
        self.digest.extend(ids);
        let end = row.completion_tokens.unwrap_or(count);
        let start = self.start(row.rid, end, count, faults);
        if start > 0 {
            faults.lost_tokens += start;
            faults.tell(|| format!("request {:?}: its last row has {count} of its {end} tokens", row.rid));
        }
        self.compare(row, start, ids, faults);
    }

    /// A row of new tokens, or of all tokens so far, which stands for all rows before.
    fn newest(&mut self, row: &Row<'_>, ids: &[i64], faults: &mut Faults) {
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
            faults.tell(|| {
                format!("request {rid:?}: a row of {count} tokens where the scheduler counts {end}")
            });
            0
        })
    }

    /// Takes places out of those missing; says how many there were.
    fn fill(&mut self, places: &Range<u64>) -> u64 {
        let mut filled = 0;
        let mut left = Vec::with_capacity(self.missing.len());
        for range in self.missing.drain(..) {
            let (start, end) = (range.start.max(places.start), range.end.min(places.end));
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

    /// Whether the ids and the text are those that a simulated scheduler gave these places.
    fn compare(&self, row: &Row<'_>, start: u64, ids: &[i64], faults: &mut Faults) {
        let Some(seed) = self.seed else { return };
        let wrong = (start..).zip(ids).filter(|&(place, &id)| seed.id(place) != id).count() as u64;
        if wrong > 0 {
            faults.wrong_ids += wrong;
            let end = start + ids.len() as u64;
            faults.tell(|| format!("request {:?}: {wrong} of tokens {start}..{end} have other ids", row.rid));
        }
        let Some(text) = row.text else { return };
        let rest = ids.iter().try_fold(text, |text, &id| text.strip_prefix(word(id)));
        if rest != Some("") {
            faults.wrong_texts += 1;
            faults.tell(|| format!("request {:?}: text {text:?} is not that of its ids", row.rid));
        }
    }
}

impl Faults {
    /// Whether there are none.
    pub fn is_none(&self) -> bool {
        *self == Faults::default()
    }

    fn tell(&mut self, sample: impl FnOnce() -> String) {
        if self.samples.len() < MAX_SAMPLES {
            self.samples.push(sample());
        }
    }
}

impl<'a> Row<'a> {
    fn of(batch: &'a Batch, row: u32, at: Instant) -> Row<'a> {
        let ending = match batch.finish(row) {
            Finish::Running => None,
            Finish::Length => Some(Ending::Length),
            Finish::Stop { matched: Matched::Text(_) } => Some(Ending::StopText),
            Finish::Stop { .. } => Some(Ending::StopToken),
            Finish::Abort => Some(Ending::Abort),
            Finish::Other => Some(Ending::Other),
        };
        Row {
            rid: batch.rid(row),
            completion_tokens: batch.completion_tokens(row),
            ending,
            text: batch.text(row),
            at,
        }
    }
}
