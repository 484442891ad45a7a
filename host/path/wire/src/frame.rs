//! A decoded frame: a batch of rows, or a barrier that keeps its place.

use std::fmt;

use bytes::Bytes;

use crate::batch::{Batch, EngineLoad};
use crate::error::WireError;
use crate::introduction::{Introduction, IntroductionError};
use crate::kind::BatchKind;
use crate::request::{RequestRecord, RequestRecordError};

/// A decoded frame.
#[derive(Debug)]
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
#[derive(Clone, Debug, PartialEq)]
pub enum BarrierKind {
    /// A message of another class, or of vLLM one that says more than statistics.
    Control {
        /// The class, cut after 128 bytes. For vLLM it is the field that has a value, for example `utility_output`, or
        /// `ENGINE_CORE_DEAD`.
        tag: String,
    },
    /// The engine's connector describes the engine. No reader gets the message.
    Introduction {
        /// The introduction, or the reason why it cannot be used.
        introduction: Result<Box<Introduction>, IntroductionError>,
    },
    /// The engine's connector says what the scheduler was asked for. No reader gets the message.
    Request {
        /// The record of the request, or the reason why it cannot be used.
        record: Result<Box<RequestRecord>, RequestRecordError>,
    },
    /// The engine's connector says that a request has ended without a last row. No reader gets the message.
    End {
        /// The request's rid, or the reason why it cannot be read.
        rid: Result<String, RequestRecordError>,
    },
    /// The engine's connector says that the client of a request with a lease has left. No reader gets the message.
    Left {
        /// The request's rid, or the reason why it cannot be read.
        rid: Result<String, RequestRecordError>,
    },
    /// Afterbay records the signals that it announced to plugins. No reader gets the message.
    Signals,
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
            BarrierKind::Introduction { introduction: Ok(introduction) } => write!(f, "{introduction}"),
            BarrierKind::Introduction { introduction: Err(error) } => write!(f, "{error}"),
            BarrierKind::Request { record: Ok(record) } => write!(f, "{record}"),
            BarrierKind::Request { record: Err(error) } => write!(f, "{error}"),
            BarrierKind::End { rid: Ok(rid) } => write!(f, "end of request {rid:?}"),
            BarrierKind::Left { rid: Ok(rid) } => write!(f, "client of request {rid:?} left"),
            BarrierKind::End { rid: Err(error) } | BarrierKind::Left { rid: Err(error) } => {
                write!(f, "{error}")
            }
            BarrierKind::Signals => write!(f, "signals"),
            BarrierKind::Idle { kind } => write!(f, "idle {kind}"),
            BarrierKind::NotUnderstood { error } => write!(f, "{error}"),
        }
    }
}

impl Barrier {
    pub(crate) fn new(
        kind: BarrierKind,
        bytes: Bytes,
        counted: bool,
        columns: Option<Box<Batch>>,
    ) -> Barrier {
        Barrier { kind, bytes, counted, columns }
    }

    /// Whether the frame is a message of the engine's connector, or a record of Afterbay's own. No reader gets it.
    pub fn is_internal(&self) -> bool {
        let kind = &self.kind;
        matches!(
            kind,
            BarrierKind::Introduction { .. }
                | BarrierKind::Request { .. }
                | BarrierKind::End { .. }
                | BarrierKind::Left { .. }
                | BarrierKind::Signals
        )
    }

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

    /// The requests that the engine says have ended: vLLM's as [`Batch::finished_requests`], SGLang's by its connector.
    pub fn finished_requests(&self) -> impl Iterator<Item = &str> {
        let ended = match &self.kind {
            BarrierKind::End { rid: Ok(rid) } => Some(rid.as_str()),
            _ => None,
        };
        self.columns.iter().flat_map(|batch| batch.finished_requests()).chain(ended)
    }

    /// Whether frames with rows may overtake the frame, and the frame them: it is of vLLM, and says nothing but statistics.
    pub fn may_be_overtaken(&self) -> bool {
        let is_idle = self.kind == BarrierKind::Idle { kind: BatchKind::Outputs };
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
