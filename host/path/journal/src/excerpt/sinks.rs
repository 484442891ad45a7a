//! The records about sinks that an excerpt needs: those that tell when its rows were sent and taken.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::record::Taken;
use crate::release_marker::HELD_SINK;
use crate::sink_progress::{SentFrame, SinkContent};

/// Records about one sink that are in the excerpt.
#[derive(Default)]
struct ExcerptSink {
    /// Sequence numbers that were sent and not taken.
    sent: VecDeque<u64>,
    last_sent: u64,
    /// Frame up to which everything is taken.
    through: u64,
}

/// Records about sinks that are in the excerpt.
#[derive(Default)]
pub(super) struct ExcerptSinks {
    sinks: BTreeMap<String, ExcerptSink>,
    /// Last frame of the excerpt that was sent.
    sent_through: u64,
    /// Last frame of the excerpt.
    last_frame: u64,
}

impl ExcerptSinks {
    /// The records about an excerpt whose last frame is `last_frame`.
    pub(super) fn up_to(last_frame: u64) -> ExcerptSinks {
        ExcerptSinks { last_frame, ..ExcerptSinks::default() }
    }

    /// Whether the excerpt has this SENT. Segments repeat those that are not taken when they begin.
    pub(super) fn has_sent(
        &mut self,
        sink: &str,
        frame: &SentFrame,
        frames: &BTreeSet<u64>,
        requests: &BTreeSet<u64>,
    ) -> bool {
        let last = match &frame.content {
            SinkContent::Whole(frame) => Some(frame.0).filter(|frame| frames.contains(frame)),
            SinkContent::Rows(rows) => {
                let own = rows.iter().filter(|(request, _)| requests.contains(&request.0));
                own.map(|(_, frame)| frame.0).max()
            }
        };
        let Some(last) = last else { return false };
        let known = self.sinks.entry(sink.to_owned()).or_default();
        if frame.sequence <= known.last_sent {
            return false;
        }
        known.last_sent = frame.sequence;
        known.sent.push_back(frame.sequence);
        self.sent_through = self.sent_through.max(last);
        true
    }

    /// Whether the excerpt has this TAKEN: it is the first that says that some rows are taken.
    pub(super) fn has_taken(&mut self, taken: &Taken, frames: &BTreeSet<u64>) -> bool {
        if taken.sink == HELD_SINK {
            return false;
        }
        let known = self.sinks.entry(taken.sink.clone()).or_default();
        let waited = known.sent.len();
        known.sent.retain(|sequence| *sequence > taken.sequence);
        let mut has_news = known.sent.len() < waited;
        if taken.void || taken.forgotten {
            // The numbers after this one are given again.
            has_news |= !known.sent.is_empty();
            known.sent.clear();
            known.last_sent = taken.sequence;
        }
        let through = taken.through.0;
        if through > known.through {
            has_news |= frames.range(known.through + 1..=through).next().is_some();
            known.through = through;
        }
        has_news
    }

    /// Whether no later record can say more about the rows of the excerpt.
    pub(super) fn is_settled(&self) -> bool {
        let through = self.sinks.values().map(|sink| sink.through).max().unwrap_or_default();
        self.sent_through.max(through) >= self.last_frame
            && self.sinks.values().all(|sink| sink.sent.is_empty())
    }
}
