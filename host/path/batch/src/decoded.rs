//! Decoding: from a frame's bytes to rows and columns, or to a barrier.
//!
//! A barrier is a frame without rows that can be read. It is forwarded unchanged and in order. Batches go to the ledger.

use crate::persisted::Persisted;
use crate::settled::{Settled, SettledContent};
use afterbay_wire as wire;
use bytes::Bytes;

/// A decoded frame. Only [`FrameDecoder::decode`] makes the contents.
pub enum Decoded {
    /// A batch.
    Batch(DecodedBatch),
    /// A barrier.
    Barrier(DecodedBarrier),
}

/// A frame and its rows.
pub struct DecodedBatch {
    pub(crate) persisted: Persisted,
    pub(crate) batch: wire::Batch,
}

/// A frame without rows that can be read.
pub struct DecodedBarrier {
    persisted: Persisted,
    barrier: wire::Barrier,
}

impl Decoded {
    /// The frame.
    pub fn persisted(&self) -> &Persisted {
        match self {
            Decoded::Batch(decoded) => &decoded.persisted,
            Decoded::Barrier(decoded) => &decoded.persisted,
        }
    }
}

impl DecodedBatch {
    /// The frame.
    pub fn persisted(&self) -> &Persisted {
        &self.persisted
    }

    /// The rows.
    pub fn batch(&self) -> &wire::Batch {
        &self.batch
    }
}

impl DecodedBarrier {
    /// The frame.
    pub fn persisted(&self) -> &Persisted {
        &self.persisted
    }

    /// The kind of barrier, and the rows that are only known by name.
    pub fn barrier(&self) -> &wire::Barrier {
        &self.barrier
    }

    /// Sends this content for the barrier.
    pub fn into_settled(self, content: SettledContent) -> Settled {
        Settled { persisted: self.persisted, content }
    }
}

/// The decoder of a stream.
pub struct FrameDecoder(wire::Decoder);

impl FrameDecoder {
    /// A decoder that knows these layouts.
    pub fn new(layouts: wire::Layouts) -> FrameDecoder {
        FrameDecoder(wire::Decoder::new(layouts))
    }

    /// Decodes the bytes of a frame that is read back from the journal. An introduction there is of frames long past.
    pub fn decode_bytes(&mut self, bytes: Bytes) -> wire::DecodedFrame {
        if wire::is_internal(&bytes) {
            return wire::decode(bytes, self.layouts());
        }
        self.0.decode(bytes)
    }

    /// The layouts of the frames that come next.
    pub fn layouts(&self) -> &wire::Layouts {
        self.0.layouts()
    }

    /// Decodes a frame.
    pub fn decode(&mut self, persisted: Persisted) -> Decoded {
        match self.0.decode(persisted.bytes().clone()) {
            wire::DecodedFrame::Batch(batch) => Decoded::Batch(DecodedBatch { persisted, batch }),
            wire::DecodedFrame::Barrier(barrier) => Decoded::Barrier(DecodedBarrier { persisted, barrier }),
        }
    }
}
