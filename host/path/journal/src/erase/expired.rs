//! Erases requests by age, in the retention thread: those of which the segment with their end has reached the age of a rule.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use super::{EraseRows, Eraser, NotErased};
use crate::error::ReadError;
use crate::mutex::lock;
use crate::notice::BackgroundNotice;
use crate::pause::Pause;
use crate::position::SegmentId;
use crate::request::{ErasedBy, RequestInfo};
use crate::root::Root;
use crate::segment::SegmentSummary;
use crate::segment_files::{SegmentFile, SegmentFiles};

/// Summaries that one pass reads.
const SUMMARIES_MAX: usize = 16;
/// Time until a segment is tried again, in seconds: a reader had not taken all rows, or the disk failed.
const RETRY_S: u64 = 60;

/// Parts of a rule's age after which the current segment ends, so that requests are not erased much later than the rule says.
const SEGMENT_AGE_PARTS: u32 = 8;

/// A rule by which requests are erased.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EraseRule {
    /// Name and value of the attribute that a request must have. `None`: every request.
    pub attribute: Option<(String, String)>,
    /// Time since the segment with the request's end was last written.
    pub after: Duration,
}

/// The age, in seconds, at which a request that has ended is to be erased, by the first rule that selects the request.
fn age_of(rules: &[EraseRule], info: &RequestInfo) -> Option<u64> {
    let selects = |rule: &&EraseRule| rule.attribute.as_ref().is_none_or(|it| info.attributes.contains(it));
    rules.iter().find(selects).map(|rule| rule.after.as_secs())
}

/// The segments in which requests are to be erased by age.
pub(crate) struct Expired {
    rules: Vec<EraseRule>,
    rows: Box<dyn EraseRows + Send>,
    /// By stream and segment.
    known: HashMap<String, HashMap<SegmentId, Due>>,
}

/// The next erasure in a segment.
#[derive(Clone, Copy)]
struct Due {
    /// Age of the segment, in seconds. `None`: nothing is to be erased.
    age_s: Option<u64>,
    /// Age before which an erasure is not tried again.
    retry_at_s: u64,
}

impl Due {
    fn of(rules: &[EraseRule], summary: Option<&SegmentSummary>) -> Due {
        let ended = summary.into_iter().flat_map(|summary| &summary.entries);
        let ended = ended.filter(|entry| entry.closed && entry.info.erased.is_none());
        Due { age_s: ended.filter_map(|entry| age_of(rules, &entry.info)).min(), retry_at_s: 0 }
    }

    fn is_due(self, age_s: u64) -> bool {
        self.age_s.is_some_and(|due| age_s >= due) && age_s >= self.retry_at_s
    }
}

impl Expired {
    pub fn new(rules: Vec<EraseRule>, rows: Box<dyn EraseRows + Send>) -> Expired {
        Expired { rules, rows, known: HashMap::new() }
    }

    /// Erases the requests that ended in one segment, if any are due. Reads at most [`SUMMARIES_MAX`] summaries.
    pub fn pass(&mut self, root: &Root, pause: &Pause) {
        let clock = root.read_clock();
        let Some(shortest) = self.rules.iter().map(|rule| rule.after).min() else { return };
        let segment_age = shortest / SEGMENT_AGE_PARTS;
        // The next pass lists the directory again. Writers report the error.
        let Ok(entries) = root.storage.list(&root.dir) else { return };
        let names = entries.into_iter().filter(|entry| entry.is_dir && !entry.name.starts_with('.'));
        let mut reads = 0;
        for stream in names.map(|entry| entry.name) {
            let files = SegmentFiles { storage: root.storage.clone(), dir: root.dir.join(&stream) };
            let Ok(listed) = files.list() else { continue };
            let writer = lock(&root.streams).get(&stream).cloned();
            let known = self.known.entry(stream.clone()).or_default();
            known.retain(|id, _| listed.iter().any(|file| file.id == *id));
            for SegmentFile { id, modified_unix_ns, .. } in listed {
                // Uses the smaller age, so that setting the clock forward makes nothing old.
                let age_s = clock.age_ns(modified_unix_ns) / 1_000_000_000;
                if let Some(writer) = writer.as_ref().filter(|writer| writer.is_tracked(id)) {
                    writer.end_aged(clock, segment_age);
                    continue;
                }
                let due = match known.get(&id) {
                    Some(due) => *due,
                    None if reads < SUMMARIES_MAX => {
                        reads += 1;
                        let Ok(due) = read(&self.rules, &files, id) else { continue };
                        *known.entry(id).or_insert(due)
                    }
                    None => continue,
                };
                if due.is_due(age_s) {
                    let eraser = Eraser { root, pause, by: ErasedBy::Rule };
                    let erased = erase(&eraser, &stream, &files, (id, age_s), (&self.rules, &mut *self.rows));
                    let retry = Due { retry_at_s: age_s + RETRY_S, ..due };
                    let next = match erased {
                        Ok(notice) => {
                            root.push_notice(&stream, notice);
                            read(&self.rules, &files, id)
                                .map_or(retry, |next| if next.is_due(age_s) { retry } else { next })
                        }
                        // The reason passes.
                        Err(NotErased::HandOver | NotErased::Busy { .. }) => due,
                        Err(error) => {
                            let error = error.to_string();
                            let notice =
                                BackgroundNotice::EraseFailed { stream: stream.clone(), segment: id, error };
                            root.push_notice(&stream, notice);
                            retry
                        }
                    };
                    known.insert(id, next);
                    return;
                }
            }
        }
    }
}

fn read(rules: &[EraseRule], files: &SegmentFiles, id: SegmentId) -> Result<Due, NotErased> {
    Ok(Due::of(rules, summary(files, id)?.as_ref()))
}

fn summary(files: &SegmentFiles, id: SegmentId) -> Result<Option<SegmentSummary>, ReadError> {
    files.open(id)?.map_or(Ok(None), |segment| segment.summary())
}

/// Erases the requests that ended in a segment of this age.
fn erase(
    eraser: &Eraser<'_>,
    stream: &str,
    files: &SegmentFiles,
    (id, age_s): (SegmentId, u64),
    (rules, rows): (&[EraseRule], &mut dyn EraseRows),
) -> Result<BackgroundNotice, NotErased> {
    let entries = summary(files, id)?.into_iter().flat_map(|summary| summary.entries);
    let is_due = |after: Option<u64>| after.is_some_and(|after| age_s >= after);
    let due = entries
        .filter(|entry| entry.closed && entry.info.erased.is_none() && is_due(age_of(rules, &entry.info)))
        .map(|entry| entry.info);
    // The requests may have been closed after their last frames.
    let (mut numbers, mut around) = (BTreeSet::new(), (u64::MAX, id.first.0));
    for info in due {
        around = (around.0.min(info.first_frame.0), around.1.max(info.last_frame.0));
        numbers.insert(info.number);
    }
    let select = |info: &RequestInfo| numbers.contains(&info.number);
    let erased = eraser.erase(&[stream.to_owned()], Some(around), &select, rows)?;
    let erased = erased.into_iter().next().unwrap_or_default();
    Ok(BackgroundNotice::Erased {
        stream: stream.to_owned(),
        requests: erased.requests.len() as u64,
        rows: erased.rows,
        tokens: erased.tokens,
        segments: erased.segments,
        left_frames: erased.left.count,
    })
}
