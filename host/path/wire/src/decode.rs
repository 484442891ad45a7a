//! Decodes a frame into a batch of rows or a barrier. The layouts say which engine wrote the frame. Of SGLang the first
//! bytes determine the encoding, because no field of a message does. Plugins and the outbox come next; they see batches.

use std::fmt;
use std::sync::Arc;

use crate::pickle::Parser;
use afterbay_types::parts;
use bytes::Bytes;

use crate::batch::{Batch, BatchBody};
use crate::bounds::{MAX_FRAME_BYTES, PICKLE_HEAD_BYTES};
use crate::error::WireError;
use crate::kind::BatchKind;
use crate::layouts::{EngineLayouts, Layouts, MessageLayout};
use crate::packed;
use crate::read::{ReadFrame, check, has_rids, read_msgpack, read_outputs, read_pickle};
use crate::textless::find_text_layout;
use crate::vllm::{EngineLoad, Outputs};

/// A decoded frame.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "one a frame: a box would cost more than the move")]
pub enum DecodedFrame {
    /// A message with rows.
    Batch(Batch),
    /// A message that keeps its place in the stream and is forwarded unchanged.
    Barrier(Barrier),
}

impl DecodedFrame {
    /// Whether the reader counts the frame when it has finished it (credit).
    pub fn counted(&self) -> bool {
        match self {
            DecodedFrame::Batch(_) => true,
            DecodedFrame::Barrier(barrier) => barrier.counted(),
        }
    }
}

/// A frame without rows, or with rows that cannot be read.
#[derive(Debug)]
pub struct Barrier {
    /// The kind of barrier.
    pub kind: BarrierKind,
    bytes: Bytes,
    counted: bool,
    /// The fields of a batch without rows, or of a batch that is not understood and whose rids can be read. Other fields
    /// of the latter are not checked.
    pub(crate) columns: Option<Box<Batch>>,
}

/// The reason why a frame is a barrier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BarrierKind {
    /// A message of another class, or of vLLM one that says more than statistics.
    Control {
        /// The class, cut after 128 bytes. For vLLM it is the field that has a value, for example `utility_output`, or
        /// `ENGINE_CORE_DEAD`.
        tag: String,
    },
    /// A batch with no rows. vLLM sends statistics and the names of ended requests so.
    Idle {
        /// The message.
        kind: BatchKind,
    },
    /// A frame that is not understood.
    NotUnderstood {
        /// The reason.
        error: WireError,
    },
}

impl fmt::Display for BarrierKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BarrierKind::Control { tag } => write!(f, "{tag}"),
            BarrierKind::Idle { kind } => write!(f, "idle {kind}"),
            BarrierKind::NotUnderstood { error } => write!(f, "{error}"),
        }
    }
}

/// Decodes frames. It keeps the pickle parser's memory and the last layouts from one frame to the next.
#[derive(Debug)]
pub struct Decoder {
    layouts: Layouts,
    parser: Parser,
    /// The layout of the last pickled batch of each kind.
    pickled: [Option<Arc<MessageLayout>>; BatchKind::SGLANG.len()],
}

impl Barrier {
    /// The frame.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Whether the frame is a batch whose rows cannot be read, according to the class at its head. Other messages have
    /// no rows.
    pub fn hides_rows(&self) -> bool {
        self.counted && matches!(self.kind, BarrierKind::NotUnderstood { .. })
    }

    /// The rows of such a batch, if their rids can be read. Only their rids and [their end](Batch::ended) may be asked
    /// for.
    pub fn named_rows(&self) -> Option<&Batch> {
        self.columns.as_deref().filter(|_| self.hides_rows())
    }

    /// The requests that vLLM's engine says have ended, as [`Batch::finished_requests`].
    pub fn finished_requests(&self) -> impl Iterator<Item = &str> {
        self.columns.iter().flat_map(|batch| batch.finished_requests())
    }

    /// Whether frames with rows may overtake the frame, and the frame them: it is of vLLM, and says nothing but statistics.
    pub fn may_be_overtaken(&self) -> bool {
        let is_idle = self.kind == BarrierKind::Idle { kind: BatchKind::EngineCore };
        is_idle && self.finished_requests().next().is_none()
    }

    /// The load that vLLM's engine sends with a step, as [`Batch::load`].
    pub fn load(&self) -> Option<EngineLoad> {
        self.columns.as_ref()?.load()
    }

    /// Whether the reader counts the frame among its finished batches. SGLang's reader (`_handle_batch_output`) counts
    /// idle batches and no control messages, and a frame that is not understood is counted if its head names a batch.
    /// vLLM's front end counts every message that it decodes, so all but `ENGINE_CORE_DEAD`.
    pub fn counted(&self) -> bool {
        self.counted
    }
}

/// Decodes one frame. A stream uses a [`Decoder`] instead.
pub fn decode(frame: Bytes, layouts: &Layouts) -> DecodedFrame {
    Decoder::new(layouts.clone()).decode(frame)
}

impl Decoder {
    /// Makes a decoder of the frames of the engine that these layouts are of.
    pub fn new(layouts: Layouts) -> Decoder {
        Decoder { layouts, parser: Parser::default(), pickled: Default::default() }
    }

    /// Decodes a frame. A frame that cannot be read becomes a barrier.
    pub fn decode(&mut self, frame: Bytes) -> DecodedFrame {
        match self.layouts.engine() {
            EngineLayouts::Any(_) if is_vllm(&frame) => Decoder::new(Layouts::vllm()).decode(frame),
            EngineLayouts::Sglang(_) | EngineLayouts::Any(_) => self.decode_sglang(frame),
            EngineLayouts::Vllm(layout) => decode_vllm(frame, layout),
        }
    }

    fn decode_sglang(&mut self, frame: Bytes) -> DecodedFrame {
        let read = match frame.as_ref() {
            _ if frame.len() > MAX_FRAME_BYTES => Err(WireError::TooLong { bytes: frame.len() }),
            [0x80, 0..=5, ..] => {
                read_pickle(&frame, &mut self.parser, |kind| self.pickled[kind as usize].as_ref())
            }
            [0x90..=0x9f | 0xdc | 0xdd, ..] => {
                read_msgpack(&frame, |kind, fields| self.layouts.find(kind, fields))
            }
            _ => Err(WireError::NotAFrame { head: frame.iter().copied().take(4).collect() }),
        };
        let barrier = |kind, counted| Barrier { kind, bytes: frame.clone(), counted, columns: None };
        match read {
            Ok(ReadFrame::Batch(batch)) if batch.rows == 0 => {
                let kind = BarrierKind::Idle { kind: batch.kind() };
                DecodedFrame::Barrier(Barrier { columns: Some(Box::new(batch)), ..barrier(kind, true) })
            }
            Ok(ReadFrame::Batch(batch)) => match check(&batch, true) {
                Ok(checked) => {
                    let batch = checked.of(batch);
                    if let BatchBody::Pickled(_) = batch.body {
                        find_text_layout(&batch, &self.layouts);
                        self.pickled[batch.kind() as usize] = Some(Arc::clone(&batch.layout));
                    }
                    DecodedFrame::Batch(batch)
                }
                Err(error) => {
                    let columns = has_rids(&batch).then(|| Box::new(batch));
                    let kind = BarrierKind::NotUnderstood { error };
                    DecodedFrame::Barrier(Barrier { columns, ..barrier(kind, true) })
                }
            },
            Ok(ReadFrame::Control(tag)) => {
                DecodedFrame::Barrier(barrier(BarrierKind::Control { tag }, false))
            }
            Err(error) => {
                let counted = names_batch(&frame);
                DecodedFrame::Barrier(barrier(BarrierKind::NotUnderstood { error }, counted))
            }
        }
    }
}

/// Whether the frame can only be vLLM's: it has several parts, is the engine's last message, or is an array that begins with an
/// int. SGLang's begin with the name of a class.
fn is_vllm(frame: &Bytes) -> bool {
    let is_outputs = || match frame.as_ref() {
        [0x98..=0x9f, first, ..] | [0xdc, _, _, first, ..] => matches!(first, 0x00..=0x7f | 0xcc..=0xcf),
        _ => false,
    };
    parts::is_envelope(frame) || is_outputs() || frame == ENGINE_DEAD
}

/// The last message of an engine that dies. It is no msgpack.
const ENGINE_DEAD: &str = "ENGINE_CORE_DEAD";

fn decode_vllm(frame: Bytes, layout: &Arc<MessageLayout>) -> DecodedFrame {
    let barrier = |kind, counted, columns: Option<Batch>| {
        let columns = columns.map(Box::new);
        DecodedFrame::Barrier(Barrier { kind, bytes: frame.clone(), counted, columns })
    };
    if frame == ENGINE_DEAD {
        return barrier(BarrierKind::Control { tag: ENGINE_DEAD.to_owned() }, false, None);
    }
    let read = match frame.len() > MAX_FRAME_BYTES {
        true => Err(WireError::TooLong { bytes: frame.len() }),
        false => read_outputs(&frame, layout),
    };
    match read {
        Ok((batch, _)) if batch.rows == 0 => {
            let kind = match batch.outputs().and_then(Outputs::control) {
                Some(field) => BarrierKind::Control { tag: field.to_owned() },
                None => BarrierKind::Idle { kind: batch.kind() },
            };
            barrier(kind, true, Some(batch))
        }
        Ok((batch, None)) => DecodedFrame::Batch(batch),
        Ok((batch, Some(error))) => {
            let has_rids = batch.outputs().is_some_and(Outputs::has_rids);
            barrier(BarrierKind::NotUnderstood { error }, true, has_rids.then_some(batch))
        }
        Err(error) => barrier(BarrierKind::NotUnderstood { error }, true, None),
    }
}

/// Whether the head of an unreadable frame names a batch.
fn names_batch(frame: &[u8]) -> bool {
    if let Ok(Some(head)) = packed::tagged(frame) {
        return BatchKind::of_class(head.tag).is_some();
    }
    let head = &frame[..frame.len().min(PICKLE_HEAD_BYTES)];
    frame.first() == Some(&0x80)
        && BatchKind::SGLANG.iter().any(|kind| {
            let class = kind.class().as_bytes();
            head.windows(class.len()).any(|window| window == class)
        })
}
