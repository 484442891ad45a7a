//! A frame once the ledger has recorded its outcome: only the router and the sinks are left.

use crate::decision::Destination;
use crate::persisted::Persisted;
use afterbay_wire::{Barrier, BarrierKind, Batch};
use bytes::Bytes;

/// A frame with the content that is sent for it.
pub struct Settled {
    pub(crate) persisted: Persisted,
    pub(crate) content: SettledContent,
}

impl Settled {
    /// Settles a frame that was not decoded: a release marker, or a poison frame (each try to handle it panics).
    pub fn undecoded(persisted: Persisted, content: SettledContent) -> Settled {
        Settled { persisted, content }
    }

    /// The same frame with nothing to send, because every sink has the frame.
    pub fn without_content(self) -> Settled {
        Settled { content: SettledContent::Nothing, ..self }
    }

    /// The frame, and the content to send.
    pub fn into_parts(self) -> (Persisted, SettledContent) {
        (self.persisted, self.content)
    }
}

/// The content that is sent for a frame.
pub enum SettledContent {
    /// No bytes.
    Nothing,
    /// A message without rows that can be read.
    Whole {
        /// The message.
        bytes: Bytes,
        /// Whether readers count the message as one frame with rows.
        counted: bool,
        /// Whether every reader gets the message. Otherwise only the first reader does.
        to_all: bool,
    },
    /// A message without rows that other messages may overtake: an engine's statistics. The first reader gets it.
    Aside {
        /// The message.
        bytes: Bytes,
    },
    /// Rows.
    Rows {
        /// The rows.
        batch: Batch,
        /// The request's number for each row; 0 if the number is not known.
        requests: Box<[u64]>,
        /// Whether the batch is not joined with others: each row has all ids so far, or the requests are not known.
        alone: bool,
        /// The rows that are not sent to their reader, ascending.
        redirected: Vec<(u32, Destination)>,
    },
}

impl SettledContent {
    /// Sends what a frame says besides its rows, all of which plugins dropped. Not every frame says more.
    pub fn without_rows(batch: &Batch) -> SettledContent {
        match batch.without_rows() {
            Some(bytes) => SettledContent::Whole { bytes, counted: true, to_all: false },
            None => SettledContent::Nothing,
        }
    }

    /// Sends the barrier unchanged.
    pub fn from_barrier(barrier: &Barrier) -> SettledContent {
        if barrier.is_of_connector() {
            return SettledContent::Nothing;
        }
        if barrier.may_be_overtaken() {
            return SettledContent::Aside { bytes: barrier.bytes().clone() };
        }
        // A message that cannot be read may contain rows: a second reader would send these rows twice.
        let to_all = !matches!(barrier.kind, BarrierKind::NotUnderstood { .. });
        SettledContent::Whole { bytes: barrier.bytes().clone(), counted: barrier.counted(), to_all }
    }
}

/// A batch compared with the frame received.
pub enum BatchChange {
    /// The frame is sent unchanged.
    Unchanged,
    /// This batch is sent in place of the frame.
    Changed(Batch),
    /// No row is left to send.
    Dropped,
}

impl From<Option<Batch>> for BatchChange {
    /// An edit returns `None` if no row is left.
    fn from(edited: Option<Batch>) -> BatchChange {
        edited.map_or(BatchChange::Dropped, BatchChange::Changed)
    }
}
