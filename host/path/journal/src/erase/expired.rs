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
    /// The age of each segment, in seconds, at which requests are to be erased in it next, by stream and segment.
    known: HashMap<String, HashMap<SegmentId, u64>>,
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
                let next_s = match known.get(&id) {
                    Some(next_s) => *next_s,
                    None if reads < SUMMARIES_MAX => {
                        reads += 1;
                        let Ok(due) = due(&self.rules, &files, id) else { continue };
                        *known.entry(id).or_insert(next_age(&due))
                    }
                    None => continue,
                };
                if age_s < next_s {
                    continue;
                }
                let eraser = Eraser { root, pause, by: ErasedBy::Rule };
                let due_now = due(&self.rules, &files, id).map_err(NotErased::from);
                let erased = due_now.and_then(|mut due| {
                    due.retain(|(due_s, _)| age_s >= *due_s);
                    erase(&eraser, &stream, id, due, &mut *self.rows)
                });
                let next_s = match erased {
                    Ok(notice) => {
                        root.push_notice(&stream, notice);
                        let next_s = due(&self.rules, &files, id).map_or(0, |due| next_age(&due));
                        if next_s > age_s { next_s } else { age_s + RETRY_S }
                    }
                    // The reason passes.
                    Err(NotErased::HandOver | NotErased::Busy { .. }) => next_s,
                    Err(error) => {
                        let (of, error) = (stream.clone(), error.to_string());
                        let notice = BackgroundNotice::EraseFailed { stream: of, segment: id, error };
                        root.push_notice(&stream, notice);
                        age_s + RETRY_S
                    }
                };
                known.insert(id, next_s);
                return;
            }
        }
    }
}

/// The requests that ended in a segment and are to be erased, each with the age of the segment, in seconds, at which they are.
fn due(
    rules: &[EraseRule],
    files: &SegmentFiles,
    id: SegmentId,
) -> Result<Vec<(u64, RequestInfo)>, ReadError> {
    let summary = files.open(id)?.map_or(Ok(None), |segment| segment.summary())?;
    let ended = summary.into_iter().flat_map(|summary| summary.entries).filter(|entry| entry.closed);
    let infos = ended.map(|entry| entry.info).filter(|info| info.erased.is_none());
    Ok(infos.filter_map(|info| Some((age_of(rules, &info)?, info))).collect())
}

fn next_age(due: &[(u64, RequestInfo)]) -> u64 {
    due.iter().map(|(age_s, _)| *age_s).min().unwrap_or(u64::MAX)
}

/// Erases requests that ended in a segment.
fn erase(
    eraser: &Eraser<'_>,
    stream: &str,
    id: SegmentId,
    due: Vec<(u64, RequestInfo)>,
    rows: &mut dyn EraseRows,
) -> Result<BackgroundNotice, NotErased> {
    // The requests may have been closed after their last frames.
    let (mut numbers, mut around) = (BTreeSet::new(), (u64::MAX, id.first.0));
    for (_, info) in due {
        around = (around.0.min(info.begins().0), around.1.max(info.last_frame.0));
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
