//! From bytes to rows and columns. What is not understood goes on as it came, in its place.
//!
//! Owns the layouts. A [`Persisted`] comes in; rows go on to the ledger, a barrier straight to the outbox.

use crate::persisted::Persisted;
use afterbay_wire as wire;
use bytes::Bytes;

/// A frame that was looked at.
#[expect(clippy::large_enum_variant, reason = "one a frame: a box would cost more than the move")]
pub enum Decoded {
    /// Rows.
    Batch(Persisted, wire::Batch),
    /// What goes on as it is.
    Barrier(Persisted, wire::Barrier),
}

impl Decoded {
    pub fn persisted(&self) -> &Persisted {
        match self {
            Decoded::Batch(persisted, _) | Decoded::Barrier(persisted, _) => persisted,
        }
    }
}

/// The decoder of a stream.
pub struct FrameDecoder(wire::Decoder);

impl FrameDecoder {
    pub fn new(layouts: wire::Layouts) -> FrameDecoder {
        FrameDecoder(wire::Decoder::new(layouts))
    }

    /// What a frame is, without its place in the path.
    pub fn look(&mut self, bytes: Bytes) -> wire::DecodedFrame {
        self.0.decode(bytes)
    }

    pub fn decode(&mut self, persisted: Persisted) -> Decoded {
        match self.0.decode(persisted.bytes.clone()) {
            wire::DecodedFrame::Batch(batch) => Decoded::Batch(persisted, batch),
            wire::DecodedFrame::Barrier(barrier) => Decoded::Barrier(persisted, barrier),
        }
    }
}
