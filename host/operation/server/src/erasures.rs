//! Erases requests in the journal while the streams run.

use crate::refusal::Refusal;
use crate::requests::{Requests, ends, unknown_rid};
use afterbay_events::Events;
use afterbay_events::event::RequestErased;
use afterbay_http::ClientAddress;
use afterbay_journal::reader::{ErasedBy, Erasure, JournalReader};
use afterbay_journal::{ErasedRequests, JournalDirectory, NotErased, ReadError, SegmentId};
use afterbay_journal_view::erase::{FrameEraser, report};
use serde_json::Value;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Mutex;

/// Time for a stream to end the segment that it writes.
const SEGMENT_ENDS_WITHIN: Duration = Duration::from_secs(10);
/// Time between two looks at a segment that is to end.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The erasures of a process, one at a time. Clones share them.
#[derive(Clone)]
pub(crate) struct Erasures {
    directory: Arc<JournalDirectory>,
    requests: Requests,
    events: Events,
    turn: Arc<Mutex<()>>,
}

/// The reason why a request was not erased: a segment has to end first, or a refusal.
enum NotDone {
    Busy { stream: String, segment: SegmentId },
    Refused(Refusal),
}

impl From<NotErased> for NotDone {
    fn from(error: NotErased) -> NotDone {
        NotDone::Refused(match error {
            NotErased::Busy { stream, segment } => return NotDone::Busy { stream, segment },
            NotErased::Live { .. } => Refusal::conflict("live", error),
            NotErased::NotTaken { .. } | NotErased::Held { .. } => Refusal::conflict("not_taken", error),
            NotErased::NoSummary { .. } => Refusal::conflict("segment", error),
            error => Refusal::unavailable("journal", error),
        })
    }
}

impl From<ReadError> for NotDone {
    fn from(error: ReadError) -> NotDone {
        NotDone::Refused(match error {
            ReadError::NoStream { .. } => Refusal::not_found("stream", error),
            error => Refusal::unavailable("journal", error),
        })
    }
}

impl Erasures {
    pub(crate) fn new(directory: &Arc<JournalDirectory>, requests: &Requests, events: &Events) -> Erasures {
        let (directory, requests, events) = (directory.clone(), requests.clone(), events.clone());
        Erasures { directory, requests, events, turn: Arc::default() }
    }

    /// Erases the requests with this stored rid, in one stream or in all. Ends the segments that streams write, if the request
    /// is in them. Returns a report.
    pub(crate) async fn erase(
        &self,
        caller: ClientAddress,
        rid: String,
        stream: Option<String>,
    ) -> Result<Value, Refusal> {
        let _turn = self.turn.lock().await;
        let by = match caller {
            ClientAddress::Unix { uid } => ErasedBy::User(uid),
            ClientAddress::Tcp(_) => ErasedBy::Remote,
        };
        loop {
            let (erasures, rid, stream) = (self.clone(), rid.clone(), stream.clone());
            let erase = move || erasures.try_erase(by, &rid, stream);
            match tokio::task::spawn_blocking(erase).await.map_err(ends)? {
                // The time to read the segments of a large request does not count.
                Ok(report) => return Ok(report),
                Err(NotDone::Refused(refused)) => return Err(refused),
                Err(NotDone::Busy { stream, segment }) if self.ends(&stream, segment).await => {}
                Err(NotDone::Busy { stream, segment }) => {
                    return Err(Refusal::unavailable("journal", NotErased::Busy { stream, segment }));
                }
            }
        }
    }

    /// Waits until the stream has ended the segment. Returns false after [`SEGMENT_ENDS_WITHIN`].
    async fn ends(&self, stream: &str, segment: SegmentId) -> bool {
        let begun = Instant::now();
        while begun.elapsed() < SEGMENT_ENDS_WITHIN {
            if self.directory.has_ended(stream, segment).unwrap_or(false) {
                return true;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        false
    }

    fn try_erase(&self, by: ErasedBy, rid: &str, stream: Option<String>) -> Result<Value, NotDone> {
        let journal = JournalReader::open(self.directory.path())?;
        let streams = match stream {
            // Also checks that there is one.
            Some(stream) => vec![journal.stream(&stream)?.name().to_owned()],
            None => journal.streams()?,
        };
        let mut frames = FrameEraser::new(|stream: &str| self.requests.layouts(stream));
        let erased = self.directory.erase(&streams, rid, by, &mut frames)?;
        if erased.is_empty() {
            return Err(NotDone::Refused(unknown_rid(rid)));
        }
        erased.iter().for_each(|it| self.erased(it, rid, by));
        Ok(report(rid, &erased, &journal.followers()?))
    }

    fn erased(&self, erased: &ErasedRequests, rid: &str, by: ErasedBy) {
        if erased.segments > 0 {
            let erasure = Erasure { unix_ns: erased.unix_ns, by };
            self.requests.erased(&erased.stream, &erased.requests, erasure);
        }
        self.events.publish(RequestErased {
            stream: erased.stream.as_str().into(),
            rid: rid.to_owned(),
            by: by.to_string(),
            rows: erased.rows,
            tokens: erased.tokens,
            segments: erased.segments,
            left_frames: erased.left.count,
        });
    }
}
