//! From bytes to rows and columns. What is not understood goes on as it came, in its place.
//!
//! Owns the layouts. A [`Kept`] comes in; rows go on to the ledger, a barrier straight to the outbox.

use crate::keep::Kept;
use afterbay_wire as wire;
use bytes::Bytes;

/// A frame that was looked at.
#[expect(clippy::large_enum_variant, reason = "one a frame: a box would cost more than the move")]
pub(crate) enum Decoded {
    /// Rows.
    Batch(Kept, wire::Batch),
    /// What goes on as it is.
    Barrier(Kept, wire::Barrier),
}

impl Decoded {
    pub(crate) fn kept(&self) -> &Kept {
        match self {
            Decoded::Batch(kept, _) | Decoded::Barrier(kept, _) => kept,
        }
    }
}

/// The decoder of a stream.
pub(crate) struct Decode(wire::Decoder);

impl Decode {
    pub(crate) fn new(layouts: wire::Layouts) -> Decode {
        Decode(wire::Decoder::new(layouts))
    }

    /// What a frame is, without its place in the path.
    pub(crate) fn look(&mut self, bytes: Bytes) -> wire::Decoded {
        self.0.decode(bytes)
    }

    pub(crate) fn decode(&mut self, kept: Kept) -> Decoded {
        match self.0.decode(kept.bytes.clone()) {
            wire::Decoded::Batch(batch) => Decoded::Batch(kept, batch),
            wire::Decoded::Barrier(barrier) => Decoded::Barrier(kept, barrier),
        }
    }
}
