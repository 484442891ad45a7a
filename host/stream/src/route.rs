//! Which of a stream's sinks gets what of a frame.
//!
//! With several, as SGLang's MultiDetokenizerRouter does it, so that Afterbay can stand in its place: a row goes to
//! the sink at `crc32(http_worker_ipc, or rid) % N`, in the order of the configuration; messages without rows go to all.

use crate::keep::Keep;
use crate::telemetry::Telemetry;
use afterbay_events::event::BatchUnsplit;
use afterbay_journal::FrameNo;
use afterbay_outbox::Content;
use afterbay_wire::{Barrier, BarrierKind, Batch};
use bytes::Bytes;

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
            Leaves::Rows { batch, requests, alone } => rows(batch, requests, alone),
        }
    }
}

fn rows(batch: Batch, requests: Box<[u64]>, alone: bool) -> Content {
    match alone {
        true => Content::Whole { bytes: batch.bytes().clone(), counted: true },
        false => Content::Rows { batch, requests },
    }
}

/// How frames are shared out.
pub(crate) struct Route {
    /// Their names in the journal, in the order of the configuration.
    names: Vec<String>,
    sinks: u32,
    telemetry: Telemetry,
    /// The sink of each row of the frame in hand, and its request; none where there are no rows, or one sink.
    targets: Vec<u32>,
    requests: Vec<u64>,
    some: Vec<u32>,
}

impl Route {
    pub(crate) fn new(names: Vec<String>, telemetry: Telemetry) -> Route {
        let sinks = u32::try_from(names.len()).unwrap_or(u32::MAX).max(1);
        let (targets, requests, some) = (Vec::new(), Vec::new(), Vec::new());
        Route { names, sinks, telemetry, targets, requests, some }
    }

    /// A frame's share for each sink, in their order.
    pub(crate) fn shares(&mut self, frame: FrameNo, leaves: Leaves, shares: &mut Vec<Content>) {
        shares.clear();
        self.targets.clear();
        if self.sinks == 1 {
            return shares.push(leaves.whole());
        }
        match leaves {
            Leaves::Rows { batch, requests, alone } => {
                self.split(frame, batch, &requests, alone, shares);
            }
            Leaves::Whole { bytes, counted, to_all } => {
                let share = |sink| match to_all || sink == 0 {
                    true => Content::Whole { bytes: bytes.clone(), counted },
                    false => Content::Nothing,
                };
                shares.extend((0..self.sinks).map(share));
            }
            Leaves::Nothing => shares.extend((0..self.sinks).map(|_| Content::Nothing)),
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

    fn split(
        &mut self,
        frame: FrameNo,
        batch: Batch,
        requests: &[u64],
        alone: bool,
        shares: &mut Vec<Content>,
    ) {
        let sinks = self.sinks;
        let sink_of = |row| {
            let key = batch.http_worker_ipc(row).unwrap_or_else(|| batch.rid(row));
            crc32fast::hash(key.as_bytes()) % sinks
        };
        self.targets.extend((0..batch.rows()).map(sink_of));
        self.requests.clear();
        self.requests.extend_from_slice(requests);
        let first = self.targets.first().copied().unwrap_or(0);
        if self.targets.iter().all(|target| *target == first) {
            shares.extend((0..sinks).map(|_| Content::Nothing));
            if let Some(share) = shares.get_mut(first as usize) {
                *share = rows(batch, requests.into(), alone);
            }
            return;
        }
        for sink in 0..sinks {
            self.some.clear();
            let of_sink = (0..batch.rows()).zip(&self.targets).filter(|(_, target)| **target == sink);
            self.some.extend(of_sink.map(|(row, _)| row));
            let share = match self.some.len() {
                0 => Content::Nothing,
                _ => match batch.take(&self.some) {
                    Ok(part) => {
                        let number = |row: &u32| requests.get(*row as usize).copied().unwrap_or(0);
                        rows(part, self.some.iter().map(number).collect(), alone)
                    }
                    Err(error) => return self.unsplit(frame, &batch, first, error.to_string(), shares),
                },
            };
            shares.push(share);
        }
    }

    /// It cannot be taken apart: all of it goes to the sink of its first row, so that no token is lost or comes twice.
    fn unsplit(&mut self, frame: FrameNo, batch: &Batch, first: u32, why: String, shares: &mut Vec<Content>) {
        shares.clear();
        self.targets.fill(first);
        shares.extend((0..self.sinks).map(|sink| match sink == first {
            true => Content::Whole { bytes: batch.bytes().clone(), counted: true },
            false => Content::Nothing,
        }));
        let (stream, rows) = (self.telemetry.stream.clone(), u64::from(batch.rows()));
        self.telemetry.publish(BatchUnsplit { stream, frame: frame.0, rows, why });
    }
}
