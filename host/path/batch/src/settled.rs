//! A frame once the ledger has recorded its outcome: only the router and the sinks are left.

use crate::content::Content;
use crate::decision::Destination;
use crate::persisted::Persisted;
use afterbay_wire::{Barrier, BarrierKind, Batch};

/// A frame with the content that is sent for it.
pub struct Settled {
    pub(crate) persisted: Persisted,
    pub(crate) content: SettledContent,
}

impl Settled {
    /// Settles a frame that was not decoded: a release marker, or a poison frame (each try to handle it panics).
    pub fn undecoded(persisted: Persisted, content: Content) -> Settled {
        Settled { persisted, content: content.into() }
    }

    /// The same frame with nothing to send, because every sink has the frame.
    pub fn without_content(self) -> Settled {
        Settled { content: Content::Nothing.into(), ..self }
    }

    /// The frame, and the content to send.
    pub fn into_parts(self) -> (Persisted, SettledContent) {
        (self.persisted, self.content)
    }
}

/// The content that is sent for a frame, and the readers that get it.
pub struct SettledContent {
    /// The content. Its rows go to the readers of their requests, and other content to the first reader.
    pub content: Content,
    /// Whether every reader gets content without rows.
    pub to_all: bool,
    /// The rows that are not sent to their reader, ascending.
    pub redirected: Vec<(u32, Destination)>,
}

impl From<Content> for SettledContent {
    /// For the usual readers.
    fn from(content: Content) -> SettledContent {
        SettledContent { content, to_all: false, redirected: Vec::new() }
    }
}

impl SettledContent {
    /// Sends what a frame says besides its rows, all of which plugins dropped. Not every frame says more.
    pub fn without_rows(batch: &Batch) -> SettledContent {
        let bytes = batch.without_rows();
        bytes.map_or(Content::Nothing, |bytes| Content::undecoded(bytes, true)).into()
    }

    /// Sends the barrier unchanged.
    pub fn from_barrier(barrier: &Barrier) -> SettledContent {
        if barrier.is_internal() {
            return Content::Nothing.into();
        }
        if barrier.may_be_overtaken() {
            return Content::Aside { bytes: barrier.bytes().clone() }.into();
        }
        // A message that cannot be read may contain rows: a second reader would send these rows twice.
        let to_all = !matches!(barrier.kind, BarrierKind::NotUnderstood { .. });
        let content = Content::undecoded(barrier.bytes().clone(), barrier.counted());
        SettledContent { content, to_all, redirected: Vec::new() }
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
