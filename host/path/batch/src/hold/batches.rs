//! The memory of held rows. A held row keeps its whole batch in memory, which other held rows may share.

use afterbay_wire::Batch;
use foldhash::fast::FixedState;
use std::collections::HashMap;

/// The batches of held rows.
#[derive(Debug, Default)]
pub(super) struct HeldBatches {
    by_address: HashMap<usize, HeldBatch, FixedState>,
    /// The bytes of the batches.
    pub(super) bytes: usize,
    /// The share of the held rows in these bytes.
    of_held_rows: usize,
}

/// A batch of which rows are held.
#[derive(Debug)]
struct HeldBatch {
    /// The number of held rows.
    held: u32,
    /// The number of all rows.
    rows: u32,
    /// The bytes of the batch when its first row was held: columns that are read later are not counted.
    bytes: usize,
}

impl HeldBatch {
    fn bytes_per_row(&self) -> usize {
        self.bytes / self.rows as usize
    }
}

impl HeldBatches {
    /// Adds a held row of the batch.
    pub(super) fn add(&mut self, batch: &Batch) {
        let of_batch = self.by_address.entry(batch.address()).or_insert_with(|| {
            let bytes = batch.memory();
            self.bytes += bytes;
            HeldBatch { held: 0, rows: batch.rows(), bytes }
        });
        of_batch.held += 1;
        self.of_held_rows += of_batch.bytes_per_row();
    }

    /// Removes a held row of the batch.
    pub(super) fn remove(&mut self, batch: &Batch) {
        let Some(of_batch) = self.by_address.get_mut(&batch.address()) else { return };
        of_batch.held -= 1;
        self.of_held_rows -= of_batch.bytes_per_row();
        if of_batch.held == 0 {
            self.bytes -= of_batch.bytes;
            self.by_address.remove(&batch.address());
        }
    }

    /// The bytes of the batches and of this one.
    pub(super) fn bytes_with(&self, batch: &Batch) -> usize {
        self.bytes + if self.by_address.contains_key(&batch.address()) { 0 } else { batch.memory() }
    }

    /// Whether most bytes are of rows that are not held.
    pub(super) fn are_sparse(&self) -> bool {
        self.of_held_rows < self.bytes / 2
    }

    /// Whether most rows of the batch are not held.
    pub(super) fn is_sparse(&self, batch: &Batch) -> bool {
        self.by_address.get(&batch.address()).is_some_and(|of_batch| of_batch.held <= of_batch.rows / 2)
    }
}
