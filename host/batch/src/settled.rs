//! What is to leave of a frame once the ledger has settled it.

use crate::decision::Destination;
use crate::persisted::Persisted;
use afterbay_wire::{Barrier, BarrierKind, Batch};
use bytes::Bytes;

/// What goes on to the sinks.
pub struct Settled {
    pub persisted: Persisted,
    pub content: SettledContent,
}

/// What is to leave of a frame.
#[expect(clippy::large_enum_variant, reason = "one a frame: a box would cost more than the move")]
pub enum SettledContent {
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
        aside: Vec<(u32, Destination)>,
    },
}

impl SettledContent {
    pub fn of_barrier(barrier: &Barrier) -> SettledContent {
        // What is not understood may hold rows, and must not come twice.
        let to_all = !matches!(barrier.kind, BarrierKind::NotUnderstood { .. });
        SettledContent::Whole { bytes: barrier.bytes().clone(), counted: barrier.counted(), to_all }
    }
}

/// What says which reader a request has.
#[derive(Debug, Default)]
pub struct ReaderKey {
    /// [`reader_key`] of its first row; `None`: it is not known, of a request of an earlier run.
    pub key: Option<u32>,
    /// Its `http_worker_ipc`; empty where there is none, or it is not known.
    pub worker: Box<str>,
}

impl ReaderKey {
    /// As its first row says.
    pub fn of(batch: &Batch, row: u32) -> ReaderKey {
        let worker = batch.http_worker_ipc(row).unwrap_or_default().into();
        ReaderKey { key: Some(reader_key(batch, row)), worker }
    }
}

/// What shares out the requests: that of a row's.
pub fn reader_key(batch: &Batch, row: u32) -> u32 {
    let worker = batch.http_worker_ipc(row).map(str::as_bytes);
    crc32fast::hash(worker.or_else(|| batch.rid_of(row)).unwrap_or_default())
}
