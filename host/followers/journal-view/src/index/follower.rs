//! Reads a journal into the index: the newest segment of each stream as it grows, and beside that older segments, newest
//! first, until the index is full.

use super::RequestIndex;
use afterbay_journal::reader::{JournalReader, RequestChange, SegmentRequests, StreamReader};
use afterbay_journal::{ReadError, SegmentId};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Records that are read at once.
const RECORDS_AT_ONCE: usize = 2000;
/// Changes of the index while it is locked once.
const CHANGES_AT_ONCE: usize = 1000;

/// Follows all streams of a journal.
pub struct Follower {
    dir: PathBuf,
    streams: Vec<FollowedStream>,
}

struct FollowedStream {
    reader: StreamReader,
    /// The number of the stream in the index.
    number: u16,
    /// The newest segment.
    newest: Option<SegmentRequests>,
    /// The segments that were there before the first `newest` and are to be read, oldest first.
    older: Vec<SegmentId>,
    /// The older segment that is being read.
    filling: Option<SegmentRequests>,
}

impl Follower {
    /// A follower of the journal in this directory.
    pub fn new(dir: &Path) -> Follower {
        Follower { dir: dir.to_owned(), streams: Vec::new() }
    }

    /// Reads what is new, and a part of what is old. Returns whether more of the old is to be read.
    ///
    /// # Errors
    /// The journal cannot be read. Call it again later.
    pub fn advance(&mut self, index: &Mutex<RequestIndex>) -> Result<bool, ReadError> {
        self.find_streams(index)?;
        let mut has_more = false;
        for stream in &mut self.streams {
            stream.follow(index)?;
            has_more |= stream.fill(index)?;
        }
        lock(index).is_complete = !has_more;
        Ok(has_more)
    }

    fn find_streams(&mut self, index: &Mutex<RequestIndex>) -> Result<(), ReadError> {
        let journal = JournalReader::open(&self.dir)?;
        for name in journal.streams()? {
            let reader = journal.stream(&name)?;
            let number = lock(index).stream(&name, &reader.after()?);
            if self.streams.iter().all(|known| known.number != number) {
                let (newest, older, filling) = (None, Vec::new(), None);
                self.streams.push(FollowedStream { reader, number, newest, older, filling });
            }
        }
        Ok(())
    }
}

impl FollowedStream {
    /// Reads the newest segment to its end, and every segment that was begun since.
    fn follow(&mut self, index: &Mutex<RequestIndex>) -> Result<(), ReadError> {
        if self.newest.is_none() {
            let mut listed = self.reader.segments()?;
            let Some(newest) = listed.pop() else { return Ok(()) };
            self.newest = self.reader.segment_requests(newest)?;
            self.older = if self.newest.is_some() { listed } else { Vec::new() };
        }
        while let Some(newest) = &mut self.newest {
            // Listed first: the writer has left a segment before it begins the next.
            let next = self.reader.segments()?.into_iter().find(|id| *id > newest.id());
            while newest.read(RECORDS_AT_ONCE)? {
                apply(newest, self.number, index, false);
            }
            apply(newest, self.number, index, false);
            // `None`: retention was faster, or its header is not complete yet.
            let next = next.map(|next| self.reader.segment_requests(next)).transpose()?.flatten();
            let Some(next) = next else { break };
            self.newest = Some(next);
        }
        Ok(())
    }

    /// Reads a part of the older segments. Returns whether more is to be read.
    fn fill(&mut self, index: &Mutex<RequestIndex>) -> Result<bool, ReadError> {
        if self.filling.is_none() {
            let Some(next) = self.older.pop() else { return Ok(false) };
            self.filling = self.reader.segment_requests(next)?;
        }
        // The totals of a segment count only at its end: requests that are known have later ones.
        if let Some(mut segment) = self.filling.take() {
            if segment.read(RECORDS_AT_ONCE)? {
                self.filling = Some(segment);
            } else if !apply(&mut segment, self.number, index, true) {
                self.older.clear();
            }
        }
        Ok(self.filling.is_some() || !self.older.is_empty())
    }
}

/// Puts what was read of a segment into the index. Returns false if all of it is too old for the index.
fn apply(segment: &mut SegmentRequests, stream: u16, index: &Mutex<RequestIndex>, is_older: bool) -> bool {
    let changes: Vec<RequestChange> = segment.changes().collect();
    let mut is_any_kept = changes.is_empty();
    for part in changes.chunks(CHANGES_AT_ONCE) {
        let mut index = lock(index);
        for change in part {
            is_any_kept |= index.apply(stream, change, is_older);
        }
    }
    is_any_kept
}

fn lock(index: &Mutex<RequestIndex>) -> MutexGuard<'_, RequestIndex> {
    // No code panics with a half-changed index.
    index.lock().unwrap_or_else(PoisonError::into_inner)
}
