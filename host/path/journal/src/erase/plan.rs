//! Finds what an erasure changes: the requests, their frames, and the segments that name either.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;

use super::NotErased;
use crate::background::StreamShared;
use crate::error::ReadError;
use crate::frame_set::FrameSet;
use crate::outcome::{Outcome, Passage};
use crate::position::{FrameNo, SegmentId};
use crate::reader::SegmentFold;
use crate::record::RecordBody;
use crate::request::RequestInfo;
use crate::root::Root;
use crate::segment::{Payloads, Segment};
use crate::segment_files::SegmentFiles;
use crate::sink_progress::SinkProgress;

/// The changes of an erasure in one stream.
pub(super) struct Plan {
    pub stream: String,
    pub segments_of: SegmentFiles,
    /// The requests, by number.
    pub requests: BTreeMap<u64, RequestInfo>,
    /// Whether each request has ended, by number.
    closed: BTreeMap<u64, bool>,
    /// Frames with rows of the requests, and the numbers of these requests.
    pub frames: BTreeMap<u64, Vec<u64>>,
    /// Frames whose rows the journal names: no other request has a row there.
    understood: FrameSet,
    /// Segments to write again, oldest first.
    pub segments: Vec<PlannedSegment>,
    /// Frames from the first that has anything of the requests to their last row.
    around: RangeInclusive<u64>,
    sinks: Vec<SinkProgress>,
    writer: Option<Arc<StreamShared>>,
}

pub(super) struct PlannedSegment {
    pub id: SegmentId,
    /// Numbers of the requests that the segment's summary lists.
    pub listed: Vec<u64>,
    pub has_summary: bool,
    pub modified_unix_ns: u64,
    /// Numbers of the requests with rows in the segment's outcomes.
    pub outcomes: BTreeSet<u64>,
}

impl Plan {
    /// Reads the summaries of the segments with frames `around`, and of the last segment, for the sinks; by default of all.
    pub fn new(
        root: &Root,
        stream: &str,
        writer: Option<Arc<StreamShared>>,
        around: Option<(u64, u64)>,
        select: &dyn Fn(&RequestInfo) -> bool,
    ) -> Result<Plan, ReadError> {
        let segments_of = SegmentFiles { storage: root.storage.clone(), dir: root.dir.join(stream) };
        let mut plan = Plan {
            stream: stream.to_owned(),
            segments_of: segments_of.clone(),
            requests: BTreeMap::new(),
            closed: BTreeMap::new(),
            frames: BTreeMap::new(),
            understood: FrameSet::default(),
            segments: Vec::new(),
            around: 0..=0,
            sinks: Vec::new(),
            writer,
        };
        let files = segments_of.list()?;
        let mut fold = SegmentFold::new(segments_of)?;
        if let Some((first, last)) = around {
            fold.only(first, last);
        }
        let mut all = Vec::new();
        while let Some(segment) = fold.next_segment()? {
            let mut listed = Vec::new();
            for entry in fold.state.requests.iter().filter(|entry| select(&entry.info)) {
                let number = entry.info.number.0;
                plan.requests.insert(number, entry.info.clone());
                plan.closed.insert(number, entry.closed);
                listed.push(number);
            }
            let modified = files.iter().find(|file| file.id == segment.id);
            all.push(PlannedSegment {
                id: segment.id,
                listed,
                has_summary: fold.has_summary,
                modified_unix_ns: modified.map_or(0, |file| file.modified_unix_ns),
                outcomes: BTreeSet::new(),
            });
        }
        plan.sinks = std::mem::take(&mut fold.state.totals.sinks);
        if plan.requests.is_empty() {
            return Ok(plan);
        }
        let first = plan.requests.values().map(|info| info.begins().0).min().unwrap_or(0);
        let last = plan.requests.values().map(|info| info.last_frame.0).max().unwrap_or(0);
        plan.around = first..=last;
        for at in 0..all.len() {
            if !all[at].listed.is_empty() {
                let next = all.get(at + 1).map(|next| next.id);
                plan.outcomes(&mut all[at], next)?;
            }
        }
        // A frame may be in a segment before that of its outcome.
        let ends = all.iter().skip(1).map(|next| next.id.first.0).chain([u64::MAX]);
        let ends: Vec<u64> = ends.collect();
        plan.segments = all
            .into_iter()
            .zip(ends)
            .filter(|(it, end)| {
                !it.listed.is_empty()
                    || plan.frames.range(it.id.first.0..(*end).max(it.id.first.0)).next().is_some()
            })
            .map(|(it, _)| it)
            .collect();
        Ok(plan)
    }

    /// Reads the outcomes of a segment.
    fn outcomes(&mut self, planned: &mut PlannedSegment, next: Option<SegmentId>) -> Result<(), ReadError> {
        let Some(segment) = self.segments_of.open(planned.id)? else { return Ok(()) };
        let mut scan = segment.records(self.limit(&segment, next)?, Payloads::NotFrames);
        while let Some(record) = scan.record()?.filter(|record| !record.begins_summary()) {
            if let Some(RecordBody::Outcome(outcome)) = scan.body(&record) {
                self.outcome(&outcome, &mut planned.outcomes);
            }
        }
        Ok(())
    }

    fn outcome(&mut self, outcome: &Outcome<'_>, of_segment: &mut BTreeSet<u64>) {
        if !matches!(outcome.passage, Passage::NotUnderstood(_)) {
            self.understood.insert(outcome.frame.0);
        }
        for request in outcome.requests.iter() {
            if !self.requests.contains_key(&request.0) {
                continue;
            }
            of_segment.insert(request.0);
            let of_frame = self.frames.entry(outcome.frame.0).or_default();
            if !of_frame.contains(&request.0) {
                of_frame.push(request.0);
            }
        }
    }

    /// End of a segment's records.
    fn limit(&self, segment: &Segment, next: Option<SegmentId>) -> Result<u64, ReadError> {
        Ok(match segment.summary()? {
            Some(summary) => summary.begins,
            None => self.segments_of.recorded_end(next, segment.id)?.limit,
        })
    }

    /// Whether everything can be erased now. Asks the writer to end its segment if not.
    pub fn check(&self, root: &Root) -> Result<(), NotErased> {
        let (rid, stream) = (|info: &RequestInfo| info.rid.clone(), || self.stream.clone());
        let now = root.storage.now_unix_ns();
        for (number, info) in &self.requests {
            // Without a writer, the next start takes a request for abandoned after this time.
            let is_idle = self.writer.is_none()
                && now.saturating_sub(info.last_unix_ns) > root.options.abandon_after_ns();
            if !self.closed.get(number).copied().unwrap_or_default() && !is_idle {
                return Err(NotErased::Live { rid: rid(info), stream: stream() });
            }
            let waits = |sink: &&SinkProgress| !sink.has_taken_row(info.last_frame, info.number);
            match self.sinks.iter().find(waits) {
                Some(sink) if sink.is_reader() => {
                    let (sink, frame) = (sink.name().to_owned(), info.last_frame);
                    return Err(NotErased::NotTaken { rid: rid(info), stream: stream(), sink, frame });
                }
                Some(_) => return Err(NotErased::Held { rid: rid(info), stream: stream() }),
                None => {}
            }
        }
        for planned in &self.segments {
            let is_tracked = self.writer.as_ref().is_some_and(|writer| writer.is_tracked(planned.id));
            if let Some(writer) = self.writer.as_ref().filter(|_| is_tracked) {
                writer.end_this_segment(planned.id);
                return Err(NotErased::Busy { stream: stream(), segment: planned.id });
            }
            if !planned.has_summary {
                // The segment may have got its summary, or been removed, since it was read.
                let segment = self.segments_of.open(planned.id)?;
                let summary = segment.map(|segment| segment.summary()).transpose()?;
                return Err(match summary {
                    Some(None) => NotErased::NoSummary { stream: stream(), segment: planned.id },
                    Some(Some(_)) | None => NotErased::Busy { stream: stream(), segment: planned.id },
                });
            }
        }
        Ok(())
    }

    /// The requests that have rows in a frame, or may have rows that no outcome names.
    pub fn requests_in(&self, frame: FrameNo) -> Vec<&RequestInfo> {
        if let Some(numbers) = self.frames.get(&frame.0) {
            return numbers.iter().filter_map(|number| self.requests.get(number)).collect();
        }
        if !self.around.contains(&frame.0) || self.understood.contains(frame) {
            return Vec::new();
        }
        self.requests.values().filter(|info| (info.begins()..=info.last_frame).contains(&frame)).collect()
    }
}
