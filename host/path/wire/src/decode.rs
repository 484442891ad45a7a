//! Decodes a frame into a batch of rows or a barrier. The layouts say which engine wrote the frame, or the frame itself. Plugins
//! and the outbox come next; they see batches.

use afterbay_types::Engine;
use bytes::Bytes;

use crate::frame::{Barrier, BarrierKind, DecodedFrame};
use crate::introduction::{Introduction, is_introduction};
use crate::layouts::Layouts;
use crate::request::{RequestRecord, is_end, is_left, is_record, read_rid};
use crate::sglang;
use crate::signals::is_signals;
use crate::smg;
use crate::vllm;

/// Decodes frames. It keeps memory and layouts from one frame to the next.
#[derive(Debug)]
pub struct Decoder {
    layouts: Layouts,
    sglang: sglang::FrameDecoder,
}

/// Whether the frame is a message of the engine's connector, or a record of Afterbay's own. No reader gets it.
pub fn is_internal(frame: &[u8]) -> bool {
    is_introduction(frame) || is_record(frame) || is_end(frame) || is_left(frame) || is_signals(frame)
}

/// Decodes one frame. A stream uses a [`Decoder`] instead.
pub fn decode(frame: Bytes, layouts: &Layouts) -> DecodedFrame {
    Decoder::new(layouts.clone()).decode(frame)
}

/// The engine that a frame shows.
fn engine_of(frame: &Bytes) -> Engine {
    match () {
        () if vllm::is_own(frame) => vllm::ENGINE,
        () if smg::is_own(frame) => smg::ENGINE,
        () => sglang::ENGINE,
    }
}

impl Decoder {
    /// Makes a decoder of the frames that have these layouts.
    pub fn new(layouts: Layouts) -> Decoder {
        Decoder { sglang: sglang::FrameDecoder::new(layouts.messages.clone()), layouts }
    }

    /// The layouts of the frames that come next: those that an engine introduced last.
    pub fn layouts(&self) -> &Layouts {
        &self.layouts
    }

    /// Decodes a frame. A frame that cannot be read becomes a barrier. The frames behind an introduction are read by it.
    pub fn decode(&mut self, frame: Bytes) -> DecodedFrame {
        if is_introduction(&frame) {
            let read = Introduction::read(&frame);
            let layouts = read.as_ref().map_err(Clone::clone).and_then(Layouts::introduced);
            let introduction = layouts.and_then(|layouts| {
                *self = Decoder::new(layouts);
                read.map(Box::new)
            });
            let kind = BarrierKind::Introduction { introduction };
            return DecodedFrame::Barrier(Barrier::new(kind, frame, false, None));
        }
        if is_record(&frame) {
            let kind = BarrierKind::Request { record: RequestRecord::read(&frame).map(Box::new) };
            return DecodedFrame::Barrier(Barrier::new(kind, frame, false, None));
        }
        if is_end(&frame) {
            let kind = BarrierKind::End { rid: read_rid(&frame) };
            return DecodedFrame::Barrier(Barrier::new(kind, frame, false, None));
        }
        if is_left(&frame) {
            let kind = BarrierKind::Left { rid: read_rid(&frame) };
            return DecodedFrame::Barrier(Barrier::new(kind, frame, false, None));
        }
        if is_signals(&frame) {
            return DecodedFrame::Barrier(Barrier::new(BarrierKind::Signals, frame, false, None));
        }
        match self.layouts.engine.unwrap_or_else(|| engine_of(&frame)) {
            Engine::Vllm => vllm::decode(frame, &self.layouts.outputs),
            Engine::Smg => smg::decode(frame, &self.layouts.slim),
            Engine::Sglang => self.sglang.decode(frame),
        }
    }
}
