//! Which of a stream's sinks gets what of a frame.
//!
//! With several readers, as SGLang's MultiDetokenizerRouter does it, so that Afterbay can stand in its place: a row goes to
//! the reader at `crc32(http_worker_ipc, or rid) % N`, in the order of the configuration; messages without rows go to all.
//! Where each of several tokenizers has a sink, a row goes to the one that waits for it by its `http_worker_ipc`, and to the
//! readers what names none of them: SGLang's MultiTokenizerRouter knows the others. Other sinks get what plugins send them.

use crate::judge::Way;
use crate::keep::Keep;
use crate::telemetry::Telemetry;
use afterbay_config::Takes;
use afterbay_events::event::{BatchUnsplit, RowsNotSkipped};
use afterbay_journal::FrameNo;
use afterbay_outbox::Content;
use afterbay_wire::{Barrier, BarrierKind, Batch};
use bytes::Bytes;
use std::collections::HashMap;

/// What is to leave of a frame.
#[expect(clippy::large_enum_variant, reason = "one a frame: a box would cost more than the move")]
pub(crate) enum Leaves {
    /// Nothing.
    Nothing,
    /// Bytes in their place.
    Whole {
        bytes: Bytes,
        /// Readers count it.
        counted: bool,
        /// Every sink gets it; else the first.
        to_all: bool,
    },
    /// Rows, each with the number of its request.
    Rows {
        batch: Batch,
        requests: Box<[u64]>,
        /// Not to be joined with others: all ids so far stand in each row, or the requests' numbers are not known.
        alone: bool,
        /// Rows that do not go to their reader, ascending.
        aside: Vec<(u32, Way)>,
    },
}

impl Leaves {
    pub(crate) fn of_barrier(barrier: &Barrier) -> Leaves {
        // What is not understood may hold rows, and must not come twice.
        let to_all = !matches!(barrier.kind, BarrierKind::NotUnderstood { .. });
        Leaves::Whole { bytes: barrier.bytes().clone(), counted: barrier.counted(), to_all }
    }

    /// What a sink gets that gets everything.
    fn whole(self) -> Content {
        match self {
            Leaves::Nothing => Content::Nothing,
            Leaves::Whole { bytes, counted, .. } => Content::Whole { bytes, counted },
            Leaves::Rows { batch, requests, alone, .. } => rows(batch, requests, alone),
        }
    }
}

fn rows(batch: Batch, requests: Box<[u64]>, alone: bool) -> Content {
    match alone {
        true => Content::Whole { bytes: batch.bytes().clone(), counted: true },
        false => Content::Rows { batch, requests },
    }
}

/// A sink, as frames are shared out.
pub(crate) struct Target {
    /// In the configuration, and in the journal.
    pub(crate) name: String,
    pub(crate) kept_as: String,
    pub(crate) takes: Takes,
    /// The tokenizer that it is, as rows name it.
    pub(crate) worker: Option<String>,
}

/// How frames are shared out.
pub(crate) struct Route {
    /// In the order of the configuration.
    sinks: Vec<Target>,
    /// Their names in the journal.
    names: Vec<String>,
    /// The places of those that share the requests.
    readers: Vec<u32>,
    /// The places of tokenizers that have a sink each, as rows name them.
    workers: HashMap<String, u32>,
    telemetry: Telemetry,
    /// The sink of each row of the frame in hand, and its request; none where there are no rows, or one sink.
    targets: Vec<u32>,
    requests: Vec<u64>,
    some: Vec<u32>,
}

impl Route {
    pub(crate) fn new(sinks: Vec<Target>, telemetry: Telemetry) -> Route {
        let readers = (0..).zip(&sinks).filter(|(_, sink)| sink.takes == Takes::Share);
        let readers = readers.map(|(place, _)| place).collect();
        let workers = (0..).zip(&sinks).filter_map(|(place, sink)| Some((sink.worker.clone()?, place)));
        let workers = workers.collect();
        let names = sinks.iter().map(|sink| sink.kept_as.clone()).collect();
        let (targets, requests, some) = (Vec::new(), Vec::new(), Vec::new());
        Route { sinks, names, readers, workers, telemetry, targets, requests, some }
    }

    /// A frame's share for each sink, in their order.
    pub(crate) fn shares(&mut self, frame: FrameNo, leaves: Leaves, shares: &mut Vec<Content>) {
        shares.clear();
        self.targets.clear();
        if self.sinks.len() == 1 {
            return shares.push(leaves.whole());
        }
        match leaves {
            Leaves::Rows { batch, requests, alone, aside } => {
                self.aim(&batch, &requests, &aside);
                self.split(frame, batch, &requests, alone, shares);
            }
            Leaves::Whole { bytes, counted, to_all } => {
                let first = self.readers.first();
                let share = |sink: u32| match first == Some(&sink) || (to_all && self.readers.contains(&sink))
                {
                    true => Content::Whole { bytes: bytes.clone(), counted },
                    false => Content::Nothing,
                };
                shares.extend((0..self.sinks.len() as u32).map(share));
            }
            Leaves::Nothing => shares.extend(self.sinks.iter().map(|_| Content::Nothing)),
        }
    }

    /// Tells the journal to which sinks the rows went of the frame that was shared out last.
    pub(crate) fn tell(&self, frame: FrameNo, keep: &mut Keep) {
        if !self.targets.is_empty() {
            keep.routed(frame, &self.names, &self.requests, &self.targets);
        }
    }

    /// One sink's share of a frame.
    pub(crate) fn share(&mut self, frame: FrameNo, leaves: Leaves, sink: usize) -> Content {
        let mut shares = Vec::new();
        self.shares(frame, leaves, &mut shares);
        if sink < shares.len() { shares.swap_remove(sink) } else { Content::Nothing }
    }

    /// The reader of a row.
    fn reader_of(&self, batch: &Batch, row: u32) -> u32 {
        if !self.workers.is_empty()
            && let Some(worker) = batch.http_worker_ipc(row).and_then(|ipc| self.workers.get(ipc))
        {
            return *worker;
        }
        match self.readers[..] {
            [] => 0,
            [only] => only,
            ref readers => {
                let key = batch.http_worker_ipc(row).unwrap_or_else(|| batch.rid(row));
                readers[crc32fast::hash(key.as_bytes()) as usize % readers.len()]
            }
        }
    }

    /// Finds the sink of each row.
    fn aim(&mut self, batch: &Batch, requests: &[u64], aside: &[(u32, Way)]) {
        let mut targets = std::mem::take(&mut self.targets);
        targets.extend((0..batch.rows()).map(|row| self.reader_of(batch, row)));
        for (row, way) in aside {
            let is_it = |sink: &Target| match way {
                Way::To(name) => sink.takes == Takes::Routed && sink.name == *name,
                Way::PastDetokenizer => sink.takes == Takes::Skipped,
            };
            // The sinks may be others than in the run that said so: then it goes to its reader.
            if let (Some(sink), Some(target)) =
                (self.sinks.iter().position(is_it), targets.get_mut(*row as usize))
            {
                *target = sink as u32;
            }
        }
        self.targets = targets;
        self.requests.clear();
        self.requests.extend_from_slice(requests);
    }

    /// The rows of a sink, in `self.some`.
    fn of_sink(&mut self, sink: u32) {
        self.some.clear();
        let of_sink = (0..).zip(&self.targets).filter(|(_, target)| **target == sink);
        self.some.extend(of_sink.map(|(row, _)| row));
    }

    fn split(
        &mut self,
        frame: FrameNo,
        batch: Batch,
        requests: &[u64],
        alone: bool,
        shares: &mut Vec<Content>,
    ) {
        let mut past = self.past_detokenizer(frame, &batch);
        let first = self.targets.first().copied().unwrap_or(0);
        if past.is_none() && self.targets.iter().all(|target| *target == first) {
            shares.extend(self.sinks.iter().map(|_| Content::Nothing));
            if let Some(share) = shares.get_mut(first as usize) {
                *share = rows(batch, requests.into(), alone);
            }
            return;
        }
        for sink in 0..self.sinks.len() as u32 {
            self.of_sink(sink);
            let number = |row: &u32| requests.get(*row as usize).copied().unwrap_or(0);
            let numbers = self.some.iter().map(number).collect();
            let share = match past.take_if(|(skipped, _)| *skipped == sink) {
                Some((_, past)) => rows(past, numbers, alone),
                None if self.some.is_empty() => Content::Nothing,
                None => match batch.take(&self.some) {
                    Ok(part) => rows(part, numbers, alone),
                    Err(error) => return self.unsplit(frame, &batch, error.to_string(), shares),
                },
            };
            shares.push(share);
        }
    }

    /// What goes past the detokenizer, and to which sink. Where that cannot be written, the rows go to their reader.
    fn past_detokenizer(&mut self, frame: FrameNo, batch: &Batch) -> Option<(u32, Batch)> {
        let skipped = self.sinks.iter().position(|sink| sink.takes == Takes::Skipped)? as u32;
        self.of_sink(skipped);
        if self.some.is_empty() {
            return None;
        }
        match batch.without_detokenizing(&self.some) {
            Ok(past) => Some((skipped, past)),
            Err(error) => {
                let (stream, rows) = (self.telemetry.stream.clone(), self.some.len() as u64);
                let why = error.to_string();
                self.telemetry.publish(RowsNotSkipped { stream, frame: frame.0, rows, why });
                for row in std::mem::take(&mut self.some) {
                    self.targets[row as usize] = self.reader_of(batch, row);
                }
                None
            }
        }
    }

    /// It cannot be taken apart: all of it goes to the reader of its first row, so that no token is lost or comes twice. Where
    /// workers have sinks, to the one before them all, which knows the way to each.
    fn unsplit(&mut self, frame: FrameNo, batch: &Batch, why: String, shares: &mut Vec<Content>) {
        shares.clear();
        let reader = match self.readers.first() {
            Some(first) if !self.workers.is_empty() => *first,
            _ => self.reader_of(batch, 0),
        };
        self.targets.fill(reader);
        shares.extend((0..self.sinks.len() as u32).map(|sink| match sink == reader {
            true => Content::Whole { bytes: batch.bytes().clone(), counted: true },
            false => Content::Nothing,
        }));
        let (stream, rows) = (self.telemetry.stream.clone(), u64::from(batch.rows()));
        self.telemetry.publish(BatchUnsplit { stream, frame: frame.0, rows, why });
    }
}
