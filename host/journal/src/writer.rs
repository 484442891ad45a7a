//! Appends frames and what became of them. One per stream, on the stream's thread, without locks on the path.

use crate::error::{RequestError, WriteError};
use crate::notice::Notice;
use crate::outcome::{Credit, Outcome};
use crate::position::{FrameNo, Position, Request};

/// The writing end of a stream's journal.
pub struct Writer {}

impl Writer {
    /// Writes what waits, then the frame, with one system call. On an error nothing of the frame is in the journal,
    /// and the same call may be made again at any time; it heals by itself when the disk does.
    pub fn append(&mut self, _frame: &[u8], _received_unix_ns: u64) -> Result<Position, WriteError> {
        todo!()
    }

    /// Gives up numbers for frames that went on without being kept (`on_error = "forward"`); the first of them.
    /// Written when the disk heals, so that `verify` can tell. Their outcomes may be told like any other's.
    pub fn skipped(&mut self, _count: u64, _received_unix_ns: u64) -> FrameNo {
        todo!()
    }

    /// A new request's number. The same rid may come again: each call is a new request.
    pub fn request(&mut self, _rid: &str) -> Result<Request, RequestError> {
        todo!()
    }

    /// What was done with a frame; goes out with the next `append` or `flush`.
    pub fn outcome(&mut self, _outcome: &Outcome<'_>) {
        todo!()
    }

    /// No more rows will come for it. One that had no finish reason is listed as abandoned.
    pub fn close(&mut self, _request: Request) {
        todo!()
    }

    /// The sink's reader (or the kernel, for it) has taken every frame up to this one. Goes out with the next write.
    pub fn taken(&mut self, _sink: &str, _through: FrameNo, _credit: Option<Credit>) {
        todo!()
    }

    /// Retention keeps this frame and all after it (rows that wait in the journal); `None`: as far as the stream is
    /// concerned all may go. Live requests and frames without an outcome are kept by themselves.
    pub fn keep_from(&mut self, _frame: Option<FrameNo>) {
        todo!()
    }

    /// Writes what waits. For when the stream goes idle; cheap when nothing waits.
    pub fn flush(&mut self) -> Result<(), WriteError> {
        todo!()
    }

    /// Every frame up to this one survives a power cut. Stays where it is with `SyncPolicy::None`.
    pub fn durable(&self) -> FrameNo {
        todo!()
    }

    /// Called on the journal's thread after `durable` has moved and when there is a notice: to wake the stream.
    pub fn on_change(&mut self, _wake: Box<dyn Fn() + Send + Sync>) {
        todo!()
    }

    /// What happened off the path, oldest first.
    pub fn next_notice(&mut self) -> Option<Notice> {
        todo!()
    }

    /// Whether the last write worked and no segment waits to be written again.
    pub fn is_healthy(&self) -> bool {
        todo!()
    }

    /// Writes what waits, seals the segment and syncs (unless `SyncPolicy::None`): the next start has nothing to scan.
    /// A writer that is dropped instead leaves its segment to be scanned.
    pub fn finish(self) -> Result<(), WriteError> {
        todo!()
    }
}
