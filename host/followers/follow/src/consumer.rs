//! A part that makes something of the journal.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::Path;
use std::time::Duration;

use afterbay_journal::reader::{JournalReader, RequestRecord, SegmentRequests, StreamReader};
use afterbay_journal::{Follower, IoError, ReadError, SegmentId};
use afterbay_wire::Layouts;

/// Records of the journal that are read at once.
pub(crate) const RECORDS_AT_ONCE: usize = 2000;

/// The layouts of a stream's frames, as the journal has them.
///
/// # Errors
/// The journal cannot be read.
pub(crate) fn layouts(stream: &StreamReader) -> Result<Layouts, Failure> {
    Ok(Layouts::of_text(&stream.layout()?))
}

/// A part of a stream that was read.
pub(crate) enum Progress {
    /// A segment was opened, of which nothing was read yet. The one before was read to its end.
    Begun {
        /// Whether there was none before.
        is_first: bool,
    },
    /// Records were read, and there are more.
    More,
    /// Everything was read that the journal has now.
    End,
}

/// Opens a segment of a stream.
pub(crate) type OpenSegment = fn(&StreamReader, SegmentId) -> Result<Option<SegmentRequests>, ReadError>;

/// Reads some records of a stream, of one segment after the other. It begins at the oldest segment if everything `is_new`, else at the
/// newest one.
pub(crate) fn read_on(
    stream: &StreamReader,
    current: &mut Option<SegmentRequests>,
    (open, is_new): (OpenSegment, bool),
    each: &mut dyn FnMut(RequestRecord<'_>),
) -> Result<Progress, ReadError> {
    // Listed first: the writer has left a segment before it begins the next.
    let listed = stream.segments()?;
    let next = match current {
        Some(current) => {
            if current.read_records(RECORDS_AT_ONCE, each)? {
                return Ok(Progress::More);
            }
            listed.iter().find(|id| **id > current.id())
        }
        None if is_new => listed.first(),
        None => listed.last(),
    };
    // `None`: retention was faster, or its header is not complete yet.
    let opened = next.map(|next| open(stream, *next)).transpose()?.flatten();
    Ok(match opened {
        Some(opened) => Progress::Begun { is_first: current.replace(opened).is_none() },
        None => Progress::End,
    })
}

/// The states of the streams that a consumer follows, by name. `None`: the consumer needs nothing of the stream.
pub type Streams<S> = BTreeMap<String, Option<S>>;

/// A look at the journal.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// Whether the process stops, so that nothing is to wait for more.
    pub is_last: bool,
    /// The time, Unix nanoseconds.
    pub now_unix_ns: u64,
}

/// Makes something of the journal, one bounded step at a time. [`Following`](crate::Following) calls it from one thread.
///
/// A place that was confirmed is durable: whatever the consumer made of earlier segments must be, too. A process that is killed
/// goes on at the confirmed place, so a consumer recognises what it has made already.
pub trait Consumer: Send {
    /// The state of one stream.
    type Stream: Send;

    /// Its name, and the copy that it makes.
    fn follower(&self) -> Follower;

    /// Time between two looks at a journal that had nothing new.
    const LOOK_EVERY: Duration;

    /// Prepares for steps, for example connects. Called before the first look, and after each failure.
    ///
    /// # Errors
    /// The outside system, or the disk. It is called again later.
    fn open(&mut self, journal: &JournalReader) -> Result<(), Failure> {
        let _ = journal;
        Ok(())
    }

    /// Begins to follow a stream: at the segment `from`, by default at the oldest one. `None`: it needs nothing of the stream.
    ///
    /// # Errors
    /// The stream cannot be followed now. It is called again later.
    fn begin(
        &mut self,
        reader: StreamReader,
        from: Option<SegmentId>,
    ) -> Result<Option<Self::Stream>, Failure>;

    /// Does a bounded step: at most reads one segment, or sends one message. Returns whether the journal has more.
    ///
    /// # Errors
    /// The step is repeated later.
    fn step(&mut self, stream: &mut Self::Stream, look: Look) -> Result<bool, Failure>;

    /// Makes durable what the steps since the last call gave. Called after a step of each stream, also if one of them failed.
    ///
    /// # Errors
    /// It is called again later. No place is confirmed before.
    fn commit(&mut self, streams: &mut Streams<Self::Stream>, look: Look) -> Result<(), Failure> {
        let _ = (streams, look);
        Ok(())
    }

    /// The oldest segment of a stream that a start needs, after what was committed. `None`: as before.
    fn needed(&mut self, stream: &mut Self::Stream) -> Option<SegmentId>;

    /// The time for which the oldest data waits that the copy lacks.
    fn lag(&self, stream: &Self::Stream, look: Look) -> Duration {
        let _ = (stream, look);
        Duration::ZERO
    }
}

/// The reason why a consumer cannot go on for now. It is tried again later.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct Failure {
    /// The reason as a sentence.
    pub why: String,
    /// Whether the state of the stream is of no use any more: the stream begins again at its confirmed place.
    pub begins_again: bool,
}

impl Failure {
    /// The outside system or the local disk failed: the step is repeated.
    pub fn outside(why: impl ToString) -> Failure {
        Failure { why: why.to_string(), begins_again: false }
    }

    /// The state of the stream may lack something: the stream begins again.
    pub fn of_stream(why: impl ToString) -> Failure {
        Failure { why: why.to_string(), begins_again: true }
    }

    /// A file on the local disk failed, and may lack something: the stream begins again.
    pub(crate) fn local(path: &Path, why: impl Display) -> Failure {
        Failure::of_stream(format!("{}: {why}", path.display()))
    }
}

impl From<ReadError> for Failure {
    fn from(error: ReadError) -> Failure {
        Failure::of_stream(error)
    }
}

impl From<IoError> for Failure {
    fn from(error: IoError) -> Failure {
        Failure::outside(error)
    }
}
