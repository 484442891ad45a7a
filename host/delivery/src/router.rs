//! Which of a stream's sinks gets what of a frame.
//!
//! With several readers, as SGLang's MultiDetokenizerRouter does it, so that Afterbay can stand in its place: a row goes to
//! the reader at `crc32(http_worker_ipc, or rid) % N`, in the order of the configuration; messages without rows go to all.
//! Where a tokenizer has a sink of its own, its rows go there by their `http_worker_ipc`, and to the readers what names none
//! of them: SGLang's MultiTokenizerRouter knows the others. Other sinks get what plugins send them. The sinks of a stream and
//! their order are the same from its start to its end.

use afterbay_batch::{Destination, RoutingTable, SettledContent, SinkTarget, reader_key};
use afterbay_config::Takes;
use afterbay_events::StreamTelemetry;
use afterbay_events::event::{BatchUnsplit, RowsNotSkipped};
use afterbay_journal::FrameNo;
use afterbay_outbox::Content;
use afterbay_persist::Persister;
use afterbay_wire::Batch;
use std::sync::Arc;

/// What a sink gets that gets everything.
fn whole(content: SettledContent) -> Content {
    match content {
        SettledContent::Nothing => Content::Nothing,
        // Rows that cannot be taken apart cannot be counted either: they are one.
        SettledContent::Whole { bytes, counted, .. } => {
            Content::Whole { bytes, counted, rows: u32::from(counted) }
        }
        SettledContent::Rows { batch, requests, alone, .. } => rows(batch, requests, alone),
    }
}

fn rows(batch: Batch, requests: Box<[u64]>, alone: bool) -> Content {
    match alone {
        true => Content::Whole { bytes: batch.bytes().clone(), counted: true, rows: batch.rows() },
        false => Content::Rows { batch, requests },
    }
}

/// How frames are shared out.
pub struct Router {
    /// In the path's order.
    table: Arc<RoutingTable>,
    /// Their names in the journal.
    names: Vec<String>,
    telemetry: StreamTelemetry,
    /// The sink of each row of the frame in hand, and its request; none where there are no rows, or one sink.
    targets: Vec<u32>,
    requests: Vec<u64>,
    some: Vec<u32>,
}

impl Router {
    /// Routes by this table.
    pub fn new(table: Arc<RoutingTable>, telemetry: StreamTelemetry) -> Router {
        let names = table.sinks.iter().map(|sink| sink.journal_name.clone()).collect();
        let (targets, requests, some) = (Vec::new(), Vec::new(), Vec::new());
        Router { table, names, telemetry, targets, requests, some }
    }

    /// A frame's share for each sink, in their order.
    pub fn shares(&mut self, frame: FrameNo, content: SettledContent, shares: &mut Vec<Content>) {
        shares.clear();
        self.targets.clear();
        if self.table.sinks.len() == 1 {
            return shares.push(whole(content));
        }
        match content {
            SettledContent::Rows { batch, requests, alone, redirected } => {
                self.aim(&batch, &requests, &redirected);
                self.split(frame, batch, &requests, alone, shares);
            }
            SettledContent::Whole { bytes, counted, to_all } => {
                let first = self.table.readers.first();
                let share = |(place, sink): (u32, &SinkTarget)| match first == Some(&place)
                    || (to_all && sink.takes == Takes::Share)
                {
                    true => Content::Whole { bytes: bytes.clone(), counted, rows: u32::from(counted) },
                    false => Content::Nothing,
                };
                shares.extend((0..).zip(&self.table.sinks).map(share));
            }
            SettledContent::Nothing => shares.extend(self.table.sinks.iter().map(|_| Content::Nothing)),
        }
    }

    /// Tells the journal to which sinks the rows went of the frame that was shared out last.
    pub fn tell(&self, frame: FrameNo, persister: &mut Persister) {
        if !self.targets.is_empty() {
            persister.record_routes(frame, &self.names, &self.requests, &self.targets);
        }
    }

    /// One sink's share of a frame.
    pub fn share(&mut self, frame: FrameNo, content: SettledContent, sink: usize) -> Content {
        let mut shares = Vec::new();
        self.shares(frame, content, &mut shares);
        if sink < shares.len() { shares.swap_remove(sink) } else { Content::Nothing }
    }

    /// The reader of a row.
    fn reader_of(&self, batch: &Batch, row: u32) -> u32 {
        let worker = self.table.worker(|| batch.http_worker_ipc(row));
        worker.unwrap_or_else(|| self.table.reader(|| reader_key(batch, row)))
    }

    /// Finds the sink of each row.
    fn aim(&mut self, batch: &Batch, requests: &[u64], redirected: &[(u32, Destination)]) {
        self.requests.clear();
        self.requests.extend_from_slice(requests);
        let mut targets = std::mem::take(&mut self.targets);
        targets.extend((0..batch.rows()).map(|row| self.reader_of(batch, row)));
        for (row, way) in redirected {
            let sink = match way {
                Destination::To(name) => self.table.routed(name),
                Destination::SkipDetokenizer => self.table.skipped,
            };
            // The sinks may be others than in the run that said so: then it goes to its reader.
            if let (Some(sink), Some(target)) = (sink, targets.get_mut(*row as usize)) {
                *target = sink;
            }
        }
        self.targets = targets;
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
            shares.extend(self.table.sinks.iter().map(|_| Content::Nothing));
            if let Some(share) = shares.get_mut(first as usize) {
                *share = rows(batch, requests.into(), alone);
            }
            return;
        }
        for sink in 0..self.table.sinks.len() as u32 {
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

    /// The rows past the detokenizer, and their sink. Where they cannot be written, they go to their reader.
    fn past_detokenizer(&mut self, frame: FrameNo, batch: &Batch) -> Option<(u32, Batch)> {
        let sink = self.table.skipped?;
        self.of_sink(sink);
        if self.some.is_empty() {
            return None;
        }
        match batch.without_detokenizing(&self.some) {
            Ok(past) => Some((sink, past)),
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
        let reader = match self.table.readers.first() {
            Some(first) if !self.table.workers.is_empty() => *first,
            _ => self.reader_of(batch, 0),
        };
        self.targets.fill(reader);
        shares.extend((0..self.table.sinks.len() as u32).map(|sink| match sink == reader {
            true => Content::Whole { bytes: batch.bytes().clone(), counted: true, rows: batch.rows() },
            false => Content::Nothing,
        }));
        let (stream, rows) = (self.telemetry.stream.clone(), u64::from(batch.rows()));
        self.telemetry.publish(BatchUnsplit { stream, frame: frame.0, rows, why });
    }
}
