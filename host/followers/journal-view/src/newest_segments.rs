//! Follows the newest segment of a stream as it grows, and every segment that is begun after it.

use afterbay_journal::reader::{SegmentRequests, StreamReader};
use afterbay_journal::{ReadError, SegmentId};

/// The newest segment of a stream.
pub struct NewestSegments {
    reader: StreamReader,
    /// Whether the records about sinks are read, too.
    has_deliveries: bool,
    /// Whether every segment is new: the stream had none at an earlier look.
    is_new: bool,
    current: Option<SegmentRequests>,
    /// The segments before the first `current`, oldest first. `None` before there was one.
    older: Option<Vec<SegmentId>>,
}

impl NewestSegments {
    /// Follows a stream. `has_deliveries`: the segments give the records about sinks
    /// ([`StreamReader::segment_records`]). `is_new`: the stream was not there at an earlier look, so that its oldest segment is
    /// read first.
    pub fn new(reader: StreamReader, has_deliveries: bool, is_new: bool) -> NewestSegments {
        NewestSegments { reader, has_deliveries, is_new, current: None, older: None }
    }

    /// The stream.
    pub fn reader(&self) -> &StreamReader {
        &self.reader
    }

    /// The segments before the first one that was read, which the caller may take from. `None` before the first one was read.
    pub(crate) fn older(&mut self) -> Option<&mut Vec<SegmentId>> {
        self.older.as_mut()
    }

    /// Has the newest segment read to its end, and every segment that was begun since.
    ///
    /// # Errors
    /// The journal cannot be read, or `read` failed. Call it again later.
    pub fn advance(
        &mut self,
        read: &mut dyn FnMut(&mut SegmentRequests) -> Result<(), ReadError>,
    ) -> Result<(), ReadError> {
        if self.current.is_none() {
            let mut listed = self.reader.segments()?;
            let first = match self.is_new {
                true => std::mem::take(&mut listed).into_iter().next(),
                false => listed.pop(),
            };
            self.is_new |= first.is_none();
            self.current = match first {
                Some(first) => self.open(first)?,
                None => None,
            };
            self.older = self.current.is_some().then_some(listed);
        }
        while let Some(current) = &mut self.current {
            // Listed first: the writer has left a segment before it begins the next.
            let next = self.reader.segments()?.into_iter().find(|id| *id > current.id());
            read(current)?;
            let Some(next) = next else { break };
            match self.open(next)? {
                Some(next) => self.current = Some(next),
                // Retention was faster, or its header is not complete yet.
                None => break,
            }
        }
        Ok(())
    }

    fn open(&self, id: SegmentId) -> Result<Option<SegmentRequests>, ReadError> {
        match self.has_deliveries {
            true => self.reader.segment_records(id),
            false => self.reader.segment_requests(id),
        }
    }
}
