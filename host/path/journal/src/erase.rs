//! Erases requests: overwrites their tokens, texts and notes in the segments, on disk, while the writer continues.
//!
//! An ended segment is copied to a `.part`, the request's records are overwritten there at their length, and the `.part` takes
//! the segment's name. So a crash leaves each segment as before or as after, and an erasure can be repeated. The records keep
//! their offsets: no other segment and no reader's position changes.

mod expired;
mod plan;
mod rewrite;

pub use expired::EraseRule;
pub(crate) use expired::Expired;

use std::sync::Arc;

use bytes::Bytes;
use serde::Serialize;

use crate::background::StreamShared;
use crate::error::{IoError, OpenError, ReadError};
use crate::mutex::lock;
use crate::pause::Pause;
use crate::position::{FrameNo, RequestNo, SegmentId};
use crate::recovery;
use crate::request::{ErasedBy, Erasure, RequestInfo};
use crate::root::Root;
use crate::segment::Segment;
use crate::segment_files;
use plan::Plan;

/// Frames that may still hold content and that a report names. Further ones are counted.
const LEFT_MAX: usize = 1000;

/// Overwrites rows in frames, which the journal does not decode.
pub trait EraseRows {
    /// Overwrites the rows with these rids in a frame of a stream. The frame keeps its length.
    ///
    /// # Errors
    /// The rows cannot be found or overwritten, with the reason. The frame stays as it is, and the report names it.
    fn erase(
        &mut self,
        stream: &str,
        frame: &Bytes,
        is_erased: &dyn Fn(&[u8]) -> bool,
    ) -> Result<RewrittenFrame, String>;

    /// As [`EraseRows::erase`], of a part of the rows of a frame in which all rows were erased before: what was checked then may be
    /// left out.
    ///
    /// # Errors
    /// As [`EraseRows::erase`].
    fn erase_part(
        &mut self,
        stream: &str,
        frame: &Bytes,
        is_erased: &dyn Fn(&[u8]) -> bool,
    ) -> Result<RewrittenFrame, String> {
        self.erase(stream, frame, is_erased)
    }
}

/// A frame with overwritten rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RewrittenFrame {
    /// Bytes of the frame, as many as before.
    pub bytes: Bytes,
    /// Parts that could not be overwritten.
    pub left: Vec<String>,
}

/// A frame that may still hold content of an erased request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LeftFrame {
    /// Number of the frame.
    pub frame: FrameNo,
    /// The reason.
    pub why: String,
}

/// Frames that hold content which could not be overwritten.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LeftFrames {
    /// The first 1000 of them.
    #[serde(rename = "left")]
    pub first: Vec<LeftFrame>,
    /// Number of all.
    #[serde(rename = "left_frames")]
    pub count: u64,
}

impl LeftFrames {
    pub(crate) fn push(&mut self, frame: u64, why: String) {
        self.count += 1;
        if self.first.len() < LEFT_MAX {
            self.first.push(LeftFrame { frame: FrameNo(frame), why });
        }
    }
}

/// The requests that were erased in a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ErasedRequests {
    /// Name of the stream.
    pub stream: String,
    /// Numbers of the requests.
    pub requests: Vec<RequestNo>,
    /// Time of this erasure, unix nanoseconds.
    #[serde(skip)]
    pub unix_ns: u64,
    /// Rows of the requests.
    pub rows: u64,
    /// Tokens received in these rows.
    pub tokens: u64,
    /// Segments that were written again, and their bytes. 0 if everything was erased before.
    pub segments: u64,
    /// Bytes of these segments.
    pub bytes: u64,
    /// Frames that may still hold content.
    #[serde(flatten)]
    pub left: LeftFrames,
}

/// The reason why nothing was erased.
#[derive(Debug, thiserror::Error)]
pub enum NotErased {
    /// More rows may follow.
    #[error("request {rid:?} is live on stream {stream:?}: it can be erased after its end")]
    Live {
        /// Rid of the request.
        rid: String,
        /// Name of the stream.
        stream: String,
    },
    /// A sink has not taken all rows.
    #[error("sink {sink:?} of stream {stream:?} has not taken the rows of {rid:?} up to frame {frame}")]
    NotTaken {
        /// Rid of the request.
        rid: String,
        /// Name of the stream.
        stream: String,
        /// Name of the sink.
        sink: String,
        /// Last frame with a row of the request.
        frame: FrameNo,
    },
    /// A plugin holds a row.
    #[error("a plugin on stream {stream:?} holds a row of {rid:?}")]
    Held {
        /// Rid of the request.
        rid: String,
        /// Name of the stream.
        stream: String,
    },
    /// The segment is still written, gets its summary, or is being sealed. Its stream was asked to end it: call again.
    #[error("segment {segment} of stream {stream:?} is still being written, ended or sealed")]
    Busy {
        /// Name of the stream.
        stream: String,
        /// The segment.
        segment: SegmentId,
    },
    /// Another process is about to own the journal.
    #[error("a new process takes the journal over: erase the request there")]
    HandOver,
    /// The segment has no summary, so that the erasure cannot be recorded in it.
    #[error("segment {segment} of stream {stream:?} has no summary: the disk refused it, or it is damaged")]
    NoSummary {
        /// Name of the stream.
        stream: String,
        /// The segment.
        segment: SegmentId,
    },
    /// The stream cannot be recovered.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The journal cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The disk refuses the new segment. Segments that were written again before stay so: call again.
    #[error(transparent)]
    Io(#[from] IoError),
}

/// Erases requests in a journal whose lock this process has.
pub(crate) struct Eraser<'a> {
    pub root: &'a Root,
    /// Held while a segment is written again.
    pub pause: &'a Pause,
    pub by: ErasedBy,
}

impl Eraser<'_> {
    /// Erases the selected requests of these streams. Nothing is erased unless all can be. `around`: all their rows are in these
    /// frames.
    pub fn erase(
        &self,
        streams: &[String],
        around: Option<(u64, u64)>,
        select: &dyn Fn(&RequestInfo) -> bool,
        rows: &mut dyn EraseRows,
    ) -> Result<Vec<ErasedRequests>, NotErased> {
        let mut plans = Vec::new();
        for stream in streams {
            let writer = self.writer_or_recovered(stream)?;
            let plan = Plan::new(self.root, stream, writer, around, select)?;
            plans.extend((!plan.requests.is_empty()).then_some(plan));
        }
        for plan in &plans {
            plan.check(self.root)?;
        }
        let erasure = Erasure { unix_ns: self.root.storage.now_unix_ns(), by: self.by };
        plans.into_iter().map(|plan| self.carry_out(&plan, erasure, rows)).collect()
    }

    fn carry_out(
        &self,
        plan: &Plan,
        erasure: Erasure,
        rows: &mut dyn EraseRows,
    ) -> Result<ErasedRequests, NotErased> {
        let mut report = ErasedRequests {
            stream: plan.stream.clone(),
            requests: plan.requests.keys().copied().map(RequestNo).collect(),
            unix_ns: erasure.unix_ns,
            rows: plan.requests.values().map(|info| info.rows).sum(),
            tokens: plan.requests.values().map(|info| info.received).sum(),
            ..ErasedRequests::default()
        };
        for planned in &plan.segments {
            let _working = self.pause.work().ok_or(NotErased::HandOver)?;
            rewrite::segment(self, plan, planned, erasure, rows, &mut report)?;
        }
        Ok(report)
    }

    /// The writer of a stream. Without a writer, gives the last segment its summary, if a process died before it could.
    fn writer_or_recovered(&self, stream: &str) -> Result<Option<Arc<StreamShared>>, NotErased> {
        // Held meanwhile, so that nobody opens the stream.
        let streams = lock(&self.root.streams);
        if let Some(writer) = streams.get(stream) {
            return Ok(Some(writer.clone()));
        }
        let (storage, dir) = (&*self.root.storage, self.root.dir.join(stream));
        let _working = self.pause.work().ok_or(NotErased::HandOver)?;
        let listed = segment_files::list(storage, &dir).map_err(|error| IoError::new("list", &dir, error))?;
        let Some(last) = listed.last() else { return Ok(None) };
        let segment = Segment::open(storage, &dir, last.id, false)?;
        if !segment.is_some_and(|segment| segment.summary().is_ok_and(|summary| summary.is_some())) {
            recovery::recover(storage, &dir, self.root.options.sync)?;
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Background, JournalDirectory, JournalOptions, Outcome, Passage};

    #[test]
    fn a_segment_that_gets_its_summary_while_the_erasure_is_planned_is_busy_and_not_without_summary() {
        let dir = tempfile::tempdir().unwrap();
        let options = JournalOptions::default();
        let disk = Arc::new(crate::storage::Disk);
        let directory = JournalDirectory::open_on(disk, dir.path(), options, Background::Caller).unwrap();
        let (mut writer, _) = directory.stream("s").unwrap();
        let request = writer.open("rid");
        let frame = writer.append(b"frame", 5).unwrap().frame;
        let (requests, tokens) = ([request], [1]);
        let outcome = Outcome::new(frame, 0, Passage::Unchanged);
        writer.outcome(&Outcome {
            requests: (&requests[..]).into(),
            tokens: (&tokens[..]).into(),
            ..outcome
        });
        writer.close(request);
        writer.flush().unwrap();
        let root = directory.root();
        let plan = || {
            let shared = lock(&root.streams).get("s").cloned();
            Plan::new(root, "s", shared, None, &|info| info.rid == "rid").unwrap()
        };
        let is_busy = |plan: Plan| matches!(plan.check(root), Err(NotErased::Busy { .. }));
        assert!(is_busy(plan()), "the writer is asked to end the segment");
        let planned = plan();
        writer.flush().unwrap();
        writer.tend();
        assert!(is_busy(planned), "the segment was ended after it was read");
        assert!(plan().check(root).is_ok());
    }
}
