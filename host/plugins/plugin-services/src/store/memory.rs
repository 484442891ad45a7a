//! A store's values with the changes that are in no file yet.

use crate::store::bounds::{PENDING_BYTES_MAX, WRITERS_MAX};
use crate::store::format::{Operation, snapshot};
use crate::store::values::{StoreError, Value, Values};
use std::sync::Arc;

/// One writer of a store.
#[derive(Debug)]
struct Writer {
    name: String,
    /// The last finished batch; 0 for none.
    committed: u64,
    /// Whether the writer has made changes since its last finished batch.
    is_unfinished: bool,
}

/// The values, the writers, and the operations that wait for the file.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    pub(crate) values: Values,
    writers: Vec<Writer>,
    /// The operations that wait for the file, and how many bytes of operations there were ever.
    pending: Vec<u8>,
    appended: u64,
    /// Whether operations are recorded. False without a file, and while the disk fails: then a snapshot follows.
    pub(crate) is_recording: bool,
}

impl Memory {
    pub(crate) fn new(values: Values, writers: Vec<(String, u64)>) -> Memory {
        let writer = |(name, committed)| Writer { name, committed, is_unfinished: false };
        Memory { values, writers: writers.into_iter().map(writer).collect(), ..Memory::default() }
    }

    /// The writer of this name; the same one for each call.
    pub(crate) fn writer(&mut self, name: &str) -> u16 {
        let known = self.writers.iter().position(|writer| writer.name == name);
        let place = known.unwrap_or_else(|| {
            let place = self.writers.len().min(WRITERS_MAX - 1);
            if place == self.writers.len() {
                self.writers.push(Writer { name: name.to_owned(), committed: 0, is_unfinished: false });
                self.record(Operation::Writer { writer: place as u16, name, committed: 0 });
            }
            place
        });
        place as u16 // The cast is safe: there are at most WRITERS_MAX writers.
    }

    pub(crate) fn committed(&self, writer: u16) -> u64 {
        self.writers[usize::from(writer)].committed
    }

    pub(crate) fn set(&mut self, writer: u16, key: &str, value: &[u8]) -> Result<(), StoreError> {
        self.values.check(key, value.len())?;
        self.values.put(key, Value::Bytes(Arc::from(value)));
        self.change(writer, Operation::Set { writer, key, value });
        Ok(())
    }

    pub(crate) fn delete(&mut self, writer: u16, key: &str) {
        if self.values.remove(key) {
            self.change(writer, Operation::Delete { writer, key });
        }
    }

    pub(crate) fn increment(&mut self, writer: u16, key: &str, delta: i64) -> Result<i64, StoreError> {
        self.values.number(key)?;
        self.values.check(key, size_of::<i64>())?;
        let sum = self.values.add(key, delta);
        self.change(writer, Operation::Add { writer, key, delta });
        Ok(sum)
    }

    fn change(&mut self, writer: u16, operation: Operation<'_>) {
        self.record(operation);
        self.writers[usize::from(writer)].is_unfinished = true;
    }

    fn record(&mut self, operation: Operation<'_>) {
        if self.is_recording {
            let before = self.pending.len();
            operation.put(&mut self.pending);
            self.appended += (self.pending.len() - before) as u64;
        }
    }

    /// Finishes a batch of a writer. Returns the bytes of operations so far, or `None` if the batch changed nothing.
    pub(crate) fn commit(&mut self, writer: u16, number: u64) -> Option<u64> {
        let known = &mut self.writers[usize::from(writer)];
        if !std::mem::replace(&mut known.is_unfinished, false) {
            return None;
        }
        known.committed = number;
        self.record(Operation::Commit { writer, number });
        Some(self.appended)
    }

    /// Whether every writer has finished its batch.
    pub(crate) fn is_quiet(&self) -> bool {
        self.writers.iter().all(|writer| !writer.is_unfinished)
    }

    /// Takes the operations that wait for the file. The number is that of [`Memory::commit`].
    pub(crate) fn take_pending(&mut self) -> (Vec<u8>, u64) {
        (std::mem::take(&mut self.pending), self.appended)
    }

    /// Whether more operations wait than the file takes at once.
    pub(crate) fn is_overfull(&self) -> bool {
        self.pending.len() > PENDING_BYTES_MAX
    }

    /// Stops recording: the file has to begin again with a snapshot.
    pub(crate) fn stop_recording(&mut self) {
        self.is_recording = false;
        self.pending = Vec::new();
    }

    /// A whole file with the present values. Later operations belong behind it.
    pub(crate) fn snapshot(&mut self) -> Vec<u8> {
        self.is_recording = true;
        let writers = (0..).zip(&self.writers);
        snapshot(&self.values, writers.map(|(place, writer)| (place, &*writer.name, writer.committed)))
    }
}
