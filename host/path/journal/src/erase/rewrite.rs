//! Writes one segment again, without the content of the erased requests.

use std::collections::BTreeSet;
use std::io::{self, IoSlice};
use std::path::PathBuf;
use std::sync::Arc;

use super::plan::{Plan, PlannedSegment};
use super::{EraseRows, ErasedRequests, Eraser, NotErased};
use crate::error::IoError;
use crate::format::{self, HEADER_BYTES, RecordKind};
use crate::pause::Pause;
use crate::position::FrameNo;
use crate::record::{RecordBody, RequestEntry, SegmentTotals, erase_outcome};
use crate::request::Erasure;
use crate::rid::stored_rid;
use crate::seal_file::{self, Part};
use crate::segment::{Payloads, RawRecord, Scan, Segment, SegmentSummary};
use crate::segment_end::end_records;
use crate::storage::{self, File, PART, Storage, write_all};

/// Writes a segment again, unless nothing is left to change.
pub(super) fn segment(
    eraser: &Eraser<'_>,
    plan: &Plan,
    planned: &PlannedSegment,
    erasure: Erasure,
    rows: &mut dyn EraseRows,
    report: &mut ErasedRequests,
) -> Result<(), NotErased> {
    // Retention may have removed it.
    let Some(segment) = plan.segments_of.open(planned.id)? else { return Ok(()) };
    let Some(summary) = segment.summary()? else {
        return Err(NotErased::NoSummary { stream: plan.stream.clone(), segment: planned.id });
    };
    let (storage, dir) = (&*eraser.root.storage, &plan.segments_of.dir);
    // Until the segment is written again, nobody may seal its content.
    let Some(_seals) = seal_file::lock(storage, dir)? else {
        return Err(NotErased::Busy { stream: plan.stream.clone(), segment: planned.id });
    };
    let (pause, until, part, changed) = (eraser.pause, summary.begins, None, BTreeSet::new());
    let mut copy = Copy { storage, pause, segment: &segment, until, part, changed };
    let changed = overwrite(plan, &segment, &summary, rows, report, &mut copy).and_then(|()| {
        let has_changed = !copy.changed.is_empty();
        if has_changed {
            seal_file::erase(storage, dir, planned.id, |part| is_erased(plan, &copy.changed, part))?;
        }
        let entries = erased_entries(planned, &summary, erasure, has_changed);
        if !has_changed && entries == summary.entries {
            return Ok(None);
        }
        Ok(Some(copy.finish(&entries, &summary.totals, planned.modified_unix_ns)?))
    });
    match changed {
        Ok(None) => Ok(()),
        Ok(Some(bytes)) => {
            (report.segments, report.bytes) = (report.segments + 1, report.bytes + bytes);
            storage.sync_dir(dir).map_err(|error| IoError::new("sync", dir, error).into())
        }
        Err(error) => {
            // The next start removes it, if this fails.
            let _ = storage.remove(&segment.path.with_extension(PART));
            Err(error)
        }
    }
}

/// Whether a part of a seal has content of the erased requests.
fn is_erased(plan: &Plan, changed: &BTreeSet<u64>, part: &Part) -> bool {
    match part {
        Part::Request(number) => plan.requests.contains_key(number),
        Part::Rid(rid) => plan.requests.values().any(|info| info.rid == *rid),
        Part::Record(offset) => changed.contains(offset),
    }
}

/// The requests of a segment once it is written again. The time of an earlier erasure stays if nothing is left to erase.
fn erased_entries(
    planned: &PlannedSegment,
    summary: &SegmentSummary,
    erasure: Erasure,
    has_changed: bool,
) -> Vec<RequestEntry> {
    let mut entries = summary.entries.clone();
    for RequestEntry { info, .. } in &mut entries {
        let number = info.number.0;
        let is_erased = planned.listed.contains(&number) || planned.outcomes.contains(&number);
        if is_erased && (has_changed || info.erased.is_none()) {
            info.erased = Some(erasure);
        }
    }
    entries
}

/// Overwrites the records of the requests in the copy.
fn overwrite(
    plan: &Plan,
    segment: &Segment,
    summary: &SegmentSummary,
    rows: &mut dyn EraseRows,
    report: &mut ErasedRequests,
    copy: &mut Copy<'_>,
) -> Result<(), NotErased> {
    let mut scan = segment.records(summary.begins, Payloads::NotFrames);
    while let Some(record) = scan.record()? {
        let number = record.head.number;
        match record.head.kind {
            RecordKind::FRAME | RecordKind::CHANGED => {
                let requests = plan.requests_in(FrameNo(number));
                if requests.is_empty() {
                    continue;
                }
                let Some(bytes) = segment.payload(&record)? else { continue };
                let is_named = plan.frames.contains_key(&number);
                let rids: BTreeSet<&str> = requests.iter().map(|info| &*info.rid).collect();
                let is_erased = |rid: &[u8]| rids.contains(&*stored_rid(rid));
                match rows.erase(&plan.stream, &bytes, &is_erased) {
                    Ok(rewritten) if rewritten.bytes.len() != bytes.len() => {
                        report.left.push(number, "its length would change".to_owned());
                    }
                    Ok(rewritten) => {
                        for left in rewritten.left {
                            report.left.push(number, format!("column {left:?} has no entry per row"));
                        }
                        if rewritten.bytes != bytes {
                            copy.put(&record, &rewritten.bytes)?;
                        }
                    }
                    // Without its rid in it, the frame has no row of the request.
                    Err(_) if !is_named && !rids.iter().any(|rid| has_rid(&bytes, rid)) => {}
                    Err(why) => report.left.push(number, why),
                }
            }
            RecordKind::OUTCOME => {
                let Some(of_frame) = plan.frames.get(&number) else { continue };
                overwrite_outcome(&scan, &record, of_frame, copy)?;
            }
            _ => {}
        }
    }
    Ok(())
}

fn overwrite_outcome(
    scan: &Scan,
    record: &RawRecord,
    numbers: &[u64],
    copy: &mut Copy<'_>,
) -> Result<(), NotErased> {
    let Some(RecordBody::Outcome(outcome)) = scan.body(record) else { return Ok(()) };
    let is_erased =
        |row: u32| outcome.requests.get(row as usize).is_some_and(|request| numbers.contains(&request.0));
    let before = scan.payload(record);
    let mut after = before.to_vec();
    if erase_outcome(&mut after, is_erased).is_some() && after != before {
        copy.put(record, &after)?;
    }
    Ok(())
}

/// Whether the bytes of a frame may name a stored rid. A hashed rid is known by its first characters only.
fn has_rid(frame: &[u8], rid: &str) -> bool {
    let known = rid.rsplit_once("#sha256:").map_or(rid, |(first, _)| first);
    // Characters that replace invalid bytes are not in the frame.
    let known = known.split('\u{FFFD}').next().unwrap_or_default();
    known.is_empty() || frame.windows(known.len()).any(|window| window == known.as_bytes())
}

/// The segment's copy, made for the first change.
struct Copy<'a> {
    storage: &'a dyn Storage,
    pause: &'a Pause,
    segment: &'a Segment,
    /// End of what is copied.
    until: u64,
    part: Option<Arc<dyn File>>,
    /// Offsets of the records that differ.
    changed: BTreeSet<u64>,
}

impl Copy<'_> {
    fn path(&self) -> PathBuf {
        self.segment.path.with_extension(PART)
    }

    fn error(&self, error: io::Error) -> NotErased {
        IoError::new("write", &self.path(), error).into()
    }

    fn part(&mut self) -> Result<Arc<dyn File>, NotErased> {
        if let Some(part) = &self.part {
            return Ok(part.clone());
        }
        let part = self.copied().map_err(|error| self.error(error))?.ok_or(NotErased::HandOver)?;
        Ok(self.part.insert(part).clone())
    }

    /// Copies the segment. Returns `None` if a pause is wanted.
    fn copied(&self) -> io::Result<Option<Arc<dyn File>>> {
        let part = self.storage.create(&self.path())?;
        let copied = storage::copy(&*self.segment.file, &*part, self.until, || !self.pause.is_wanted())?;
        match copied == self.until {
            true => Ok(Some(part)),
            false if self.pause.is_wanted() => Ok(None),
            false => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Writes a record with another payload of the same length.
    fn put(&mut self, record: &RawRecord, payload: &[u8]) -> Result<(), NotErased> {
        debug_assert!(record.offset >= HEADER_BYTES as u64);
        debug_assert_eq!(record.head.payload as usize, payload.len());
        let mut bytes = Vec::new();
        let head = record.head;
        format::record(&mut bytes, head.kind, head.number, head.time, |out| out.extend_from_slice(payload));
        format::add_checksums(&mut bytes, self.segment.header.salt, record.offset);
        let part = self.part()?;
        self.changed.insert(record.offset);
        write_all(&*part, &mut [IoSlice::new(&bytes)], record.offset).map_err(|error| self.error(error))
    }

    /// Writes the end of the copy, and renames the copy. Returns its size.
    fn finish(
        &mut self,
        entries: &[RequestEntry],
        totals: &SegmentTotals,
        modified_unix_ns: u64,
    ) -> Result<u64, NotErased> {
        let part = self.part()?;
        let mut end = end_records(entries, totals, self.until);
        format::add_checksums(&mut end, self.segment.header.salt, self.until);
        let written = write_all(&*part, &mut [IoSlice::new(&end)], self.until)
            .and_then(|()| part.sync())
            // Retention counts the age of the rows, not of the erasure.
            .and_then(|()| part.set_modified(modified_unix_ns))
            .and_then(|()| self.storage.rename(&self.path(), &self.segment.path));
        written.map_err(|error| self.error(error))?;
        Ok(self.until + end.len() as u64)
    }
}
