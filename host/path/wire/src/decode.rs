//! Decodes a frame into a batch of rows or a barrier. The layouts say which engine wrote the frame, or the frame itself. Plugins
//! and the outbox come next; they see batches.

use bytes::Bytes;

use afterbay_types::Engine;

use crate::frame::DecodedFrame;
use crate::sglang::{self, Layouts};
use crate::vllm;

/// Decodes frames. It keeps memory and layouts from one frame to the next.
#[derive(Debug)]
pub struct Decoder {
    /// The engine whose frames are read. `None`: each frame shows its engine.
    engine: Option<Engine>,
    sglang: sglang::FrameDecoder,
}

/// Decodes one frame. A stream uses a [`Decoder`] instead.
pub fn decode(frame: Bytes, layouts: &Layouts) -> DecodedFrame {
    Decoder::new(layouts.clone()).decode(frame)
}

impl Decoder {
    /// Makes a decoder of the frames of the engine that these layouts are of.
    pub fn new(layouts: Layouts) -> Decoder {
        Decoder { engine: layouts.engine(), sglang: sglang::FrameDecoder::new(layouts) }
    }

    /// Decodes a frame. A frame that cannot be read becomes a barrier.
    pub fn decode(&mut self, frame: Bytes) -> DecodedFrame {
        let is_vllm = self.engine.map_or_else(|| vllm::is_own(&frame), |engine| engine == vllm::ENGINE);
        if is_vllm { vllm::decode(frame) } else { self.sglang.decode(frame) }
    }
}
