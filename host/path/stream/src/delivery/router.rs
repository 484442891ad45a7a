//! Routing: which sink gets which rows of a frame.
//!
//! With several readers, routing does what SGLang's MultiDetokenizerRouter does, so that Afterbay can take its place. A row
//! goes to the reader with index `crc32(front end, or rid) % N`, in the order of the configuration. Messages without
//! rows go to all readers.
//!
//! If a front end has a sink of its own, the rows that name it go there. Frames without such a name go to the
//! first reader, because SGLang's MultiTokenizerRouter knows the other tokenizers. Sinks that are no readers get the rows that
//! plugins send them. The sinks of a stream and their order never change while the stream runs.

use afterbay_batch::records::Records;
use afterbay_batch::{Content, Destination, RoutingTable, SettledContent, SinkTarget, reader_key};
use afterbay_config::Takes;
use afterbay_events::StreamTelemetry;
use afterbay_events::event::{BatchUnsplit, RowsNotSkipped};
use afterbay_journal::FrameNo;
use afterbay_wire::Batch;
use std::sync::Arc;

/// The router of one stream.
pub struct Router {
    table: Arc<RoutingTable>,
    /// The sinks' names in the journal.
    names: Vec<String>,
    telemetry: StreamTelemetry,
    /// The sink of each row of the last frame. Empty if the frame has no rows or the stream has one sink.
    targets: Vec<u32>,
    /// The request of each row of the last frame.
    requests: Vec<u64>,
    /// Scratch space: rows of one sink.
    selected: Vec<u32>,
}

impl Router {
    /// Routes by this table.
    pub fn new(table: Arc<RoutingTable>, telemetry: StreamTelemetry) -> Router {
        let names = table.sinks.iter().map(|sink| sink.journal_name.clone()).collect();
        let (targets, requests, selected) = (Vec::new(), Vec::new(), Vec::new());
        Router { table, names, telemetry, targets, requests, selected }
    }

    /// Splits a frame among the sinks, and records the split in the journal. Returns the content for each sink.
    pub fn route(&mut self, frame: FrameNo, content: SettledContent, records: &mut Records) -> Vec<Content> {
        let contents = self.split(frame, content);
        self.record(frame, records);
        contents
    }

    /// The content of a frame for one sink.
    pub fn content_for(&mut self, frame: FrameNo, content: SettledContent, sink: usize) -> Content {
        let mut contents = self.split(frame, content);
        if sink < contents.len() { contents.swap_remove(sink) } else { Content::Nothing }
    }

    /// Records the sink of each row of the frame that was split last.
    pub fn record(&self, frame: FrameNo, records: &mut Records) {
        if !self.targets.is_empty() {
            records.record_routes(frame, &self.names, &self.requests, &self.targets);
        }
    }

    fn split(&mut self, frame: FrameNo, settled: SettledContent) -> Vec<Content> {
        self.targets.clear();
        let SettledContent { content, to_all, redirected } = settled;
        if self.table.sinks.len() == 1 {
            return vec![content];
        }
        let first = self.table.readers.first().copied().unwrap_or(0);
        match content {
            Content::Rows { batch, requests } => {
                self.find_targets(&batch, &requests, &redirected);
                self.split_rows(frame, batch, &requests)
            }
            Content::Whole { bytes, counted, .. } if to_all => {
                let content = |sink: &SinkTarget| match sink.takes {
                    Takes::Share => Content::undecoded(bytes.clone(), counted),
                    _ => Content::Nothing,
                };
                self.table.sinks.iter().map(content).collect()
            }
            content => self.only(first, content),
        }
    }

    /// The content for one sink, and nothing for the others.
    fn only(&self, sink: u32, content: Content) -> Vec<Content> {
        let mut contents: Vec<Content> = self.table.sinks.iter().map(|_| Content::Nothing).collect();
        if let Some(only) = contents.get_mut(sink as usize) {
            *only = content;
        }
        contents
    }

    /// The reader of a row.
    fn reader_of(&self, batch: &Batch, row: u32) -> u32 {
        let own_sink = self.table.front_end(|| batch.front_end(row));
        own_sink.unwrap_or_else(|| self.table.reader(|| reader_key(batch, row)))
    }

    /// Fills `self.targets` and `self.requests`.
    fn find_targets(&mut self, batch: &Batch, requests: &[u64], redirected: &[(u32, Destination)]) {
        self.requests.clear();
        self.requests.extend_from_slice(requests);
        let mut targets = std::mem::take(&mut self.targets);
        targets.extend((0..batch.rows()).map(|row| self.reader_of(batch, row)));
        for (row, destination) in redirected {
            let sink = match destination {
                Destination::To(name) => self.table.routed(name),
                Destination::SkipText => self.table.skipped,
            };
            // A frame of an earlier run may name a sink that no longer exists. The row then goes to its reader.
            if let (Some(sink), Some(target)) = (sink, targets.get_mut(*row as usize)) {
                *target = sink;
            }
        }
        self.targets = targets;
    }

    /// Puts the rows of a sink into `self.selected`.
    fn select(&mut self, sink: u32) {
        self.selected.clear();
        let of_sink = (0..).zip(&self.targets).filter(|(_, target)| **target == sink);
        self.selected.extend(of_sink.map(|(row, _)| row));
    }

    fn split_rows(&mut self, frame: FrameNo, batch: Batch, requests: &[u64]) -> Vec<Content> {
        let mut skipping = self.skip_text(frame, &batch);
        let first = self.targets.first().copied().unwrap_or(0);
        if skipping.is_none() && self.targets.iter().all(|target| *target == first) {
            return self.only(first, Content::Rows { batch, requests: requests.into() });
        }
        let mut contents = Vec::with_capacity(self.table.sinks.len());
        for sink in 0..self.table.sinks.len() as u32 {
            self.select(sink);
            let request = |row: &u32| requests.get(*row as usize).copied().unwrap_or(0);
            let requests = self.selected.iter().map(request).collect();
            contents.push(match skipping.take_if(|(skipped, _)| *skipped == sink) {
                Some((_, batch)) => Content::Rows { batch, requests },
                None if self.selected.is_empty() => Content::Nothing,
                None => match batch.take(&self.selected) {
                    Ok(batch) => Content::Rows { batch, requests },
                    Err(error) => return self.unsplit(frame, &batch, error.to_string()),
                },
            });
        }
        contents
    }

    /// The rows that skip the detokenizer, written for a tokenizer, and their sink. Rows that cannot be written so go to their
    /// reader.
    fn skip_text(&mut self, frame: FrameNo, batch: &Batch) -> Option<(u32, Batch)> {
        let sink = self.table.skipped?;
        self.select(sink);
        if self.selected.is_empty() {
            return None;
        }
        match batch.without_detokenizing(&self.selected) {
            Ok(batch) => Some((sink, batch)),
            Err(error) => {
                let (stream, rows) = (self.telemetry.stream.clone(), self.selected.len() as u64);
                let why = error.to_string();
                self.telemetry.publish(RowsNotSkipped { stream, frame: frame.0, rows, why });
                for row in std::mem::take(&mut self.selected) {
                    self.targets[row as usize] = self.reader_of(batch, row);
                }
                None
            }
        }
    }

    /// Sends a batch that cannot be split to one reader, so that no token is lost or arrives twice: to the reader of its first
    /// row, or if tokenizers have sinks, to the first reader, which can reach every tokenizer.
    fn unsplit(&mut self, frame: FrameNo, batch: &Batch, why: String) -> Vec<Content> {
        let reader = match self.table.readers.first() {
            Some(first) if !self.table.front_ends.is_empty() => *first,
            _ => self.reader_of(batch, 0),
        };
        self.targets.fill(reader);
        let (stream, rows) = (self.telemetry.stream.clone(), u64::from(batch.rows()));
        self.telemetry.publish(BatchUnsplit { stream, frame: frame.0, rows, why });
        self.only(reader, Content::whole(batch))
    }
}
