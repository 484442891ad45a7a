//! The slowest steps of the engine in a journal, for `afterbay journal steps` and for the admin address.

use crate::ended::{EngineStep, each_step};
use crate::legs;
use crate::time::json_time;
use afterbay_journal::reader::{JournalReader, RequestRecord, StreamReader};
use afterbay_journal::{FrameNo, ReadError, SegmentId};
use serde_json::{Value, json};
use std::cmp::Reverse;

/// A search of steps. All conditions must hold.
#[derive(Clone, Debug)]
pub struct StepSearch {
    /// The step ended at or after this time, Unix nanoseconds.
    pub since_unix_ns: u64,
    /// The step ended before this time.
    pub until_unix_ns: u64,
    /// The engine worked on a request with this rid.
    pub rid: Option<String>,
    /// The step ended with this frame.
    pub frame: Option<u64>,
    /// Number of slowest steps, at least 1.
    pub slowest: usize,
    /// Bytes of the segments of a stream that are read. Past them, the oldest segments are left out.
    pub bytes_max: u64,
}

/// The slowest steps of several streams, and the sums over all that match.
#[derive(Debug, Default)]
pub struct SlowestSteps {
    /// The slowest first, of equal ones the earlier, each with the name of its stream.
    pub steps: Vec<(String, EngineStep)>,
    /// Steps that match.
    pub known: u64,
    /// Time of the steps that match, in nanoseconds.
    pub gpu_ns: u64,
    /// The time from which on all steps were read, Unix nanoseconds, if segments of the wanted time were left out.
    pub complete_since_unix_ns: Option<u64>,
}

impl Default for StepSearch {
    fn default() -> StepSearch {
        StepSearch {
            since_unix_ns: 0,
            until_unix_ns: u64::MAX,
            rid: None,
            frame: None,
            slowest: 1,
            bytes_max: u64::MAX,
        }
    }
}

impl StepSearch {
    fn matches(&self, step: &EngineStep) -> bool {
        (self.since_unix_ns..self.until_unix_ns).contains(&step.received_unix_ns)
            && self.frame.is_none_or(|frame| step.frame.0 == frame)
            && self.rid.as_ref().is_none_or(|rid| step.rows.iter().any(|row| *row.rid == **rid))
    }

    /// Whether no later step matches.
    fn is_past(&self, step: &EngineStep) -> bool {
        step.received_unix_ns >= self.until_unix_ns || self.frame.is_some_and(|frame| step.frame.0 >= frame)
    }
}

impl SlowestSteps {
    /// Reads the steps of these streams. Streams after another one have none: their frames are the detokenizer's.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub fn read(
        journal: &JournalReader,
        streams: &[StreamReader],
        search: &StepSearch,
    ) -> Result<SlowestSteps, ReadError> {
        let mut slowest = SlowestSteps::default();
        for stream in streams {
            if legs::after(stream, streams)?.is_empty() {
                slowest.add_stream(journal.stream(stream.name())?, search)?;
            }
        }
        slowest.keep(search.slowest);
        Ok(slowest)
    }

    fn add_stream(&mut self, stream: StreamReader, search: &StepSearch) -> Result<(), ReadError> {
        let listed = stream.segment_files()?;
        let ids: Vec<SegmentId> = listed.iter().map(|(id, ..)| *id).collect();
        let mut first = match search.frame {
            // The step before is in the segment before.
            Some(frame) => ids.partition_point(|id| id.first <= FrameNo(frame)).saturating_sub(2),
            None => begin(&stream, &ids, search.since_unix_ns)?,
        };
        let mut end = ids.len();
        while end > first + 1 && begun(&stream, ids[end - 1])? >= search.until_unix_ns {
            end -= 1;
        }
        let mut bytes: u64 = listed[first..end].iter().map(|(_, bytes, _)| bytes).sum();
        let wanted = first;
        while bytes > search.bytes_max && first + 1 < end {
            bytes -= listed[first].1;
            first += 1;
        }
        if first > wanted {
            let since = begun(&stream, ids[first])?;
            if since > search.since_unix_ns {
                self.complete_since_unix_ns = self.complete_since_unix_ns.max(Some(since));
            }
        }
        let name = stream.name().to_owned();
        each_step(stream, &ids[first..end], &mut |step| {
            let is_past = search.is_past(&step);
            if search.matches(&step) {
                self.add(&name, step, search.slowest);
            }
            !is_past
        })
    }

    fn add(&mut self, stream: &str, step: EngineStep, most: usize) {
        (self.known, self.gpu_ns) = (self.known + 1, self.gpu_ns + step.gpu_ns);
        self.steps.push((stream.to_owned(), step));
        if self.steps.len() > 2 * most {
            self.keep(most);
        }
    }

    fn keep(&mut self, most: usize) {
        self.steps.sort_by_key(|(_, step)| (Reverse(step.gpu_ns), step.received_unix_ns));
        self.steps.truncate(most);
    }
}

/// A step as JSON, with its requests.
pub fn json(stream: &str, step: &EngineStep) -> Value {
    let requests = step.rows.iter().map(|row| {
        json!({
            "rid": &*row.rid,
            "request": row.request.0,
            "tokens": row.tokens,
            "prompt_tokens": row.prompt_tokens,
            "gpu_ns": row.gpu_ns,
        })
    });
    let mut json = totals(stream, step);
    json["requests"] = requests.collect();
    json
}

/// A step as JSON, without its requests.
pub fn totals(stream: &str, step: &EngineStep) -> Value {
    json!({
        "stream": stream,
        "frame": step.frame.0,
        "time": json_time(step.received_unix_ns),
        "gpu_ns": step.gpu_ns,
        "rows": step.rows.len(),
        "new_requests": step.new_requests(),
        "tokens": step.tokens(),
        "prompt_tokens": step.prompt_tokens(),
    })
}

/// The time at which a segment was begun, Unix nanoseconds. 0: unknown.
fn begun(stream: &StreamReader, id: SegmentId) -> Result<u64, ReadError> {
    Ok(stream.begun_unix_ns(id)?.unwrap_or(0))
}

/// The index of the segment to begin with: the one with the first rows of the requests that were live at this time.
///
/// # Errors
/// The journal cannot be read.
pub fn begin(stream: &StreamReader, segments: &[SegmentId], since: u64) -> Result<usize, ReadError> {
    // 0 and 1 stand for the begin of the journal.
    if since < 2 {
        return Ok(0);
    }
    let mut at = None;
    for id in segments.iter().rev() {
        if (1..since).contains(&begun(stream, *id)?) {
            at = Some(*id);
            break;
        }
    }
    let Some(at) = at else { return Ok(0) };
    let Some(mut segment) = stream.segment_requests(at)? else { return Ok(0) };
    let mut first = at.first;
    let mut is_list = true;
    while is_list
        && segment.read_records(1, &mut |record| match record {
            RequestRecord::Carried(requests) => {
                let frames = requests.iter().map(|(request, _)| request).filter(|request| request.is_seen());
                let frames = frames.map(|request| request.begins());
                first = frames.chain([first]).min().unwrap_or_default();
            }
            RequestRecord::Frame(..) | RequestRecord::Outcome(..) => is_list = false,
            _ => {}
        })?
    {}
    Ok(segments.partition_point(|id| id.first <= first && *id <= at).saturating_sub(1))
}
