//! One stream of an instance in a copy: places ranges by their positions, and knows which bytes are in no message.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Bound::Excluded;
use std::path::Path;

use afterbay_journal::{CopiedStream, IoError, SegmentId};

use crate::replicate::range::Range;

/// Bytes of the journal that are in no message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hole {
    /// Name of the stream in the copy: the instance, a dot, and the stream.
    pub stream: String,
    /// The segment that lacks bytes, or after which segments are missing.
    pub segment: SegmentId,
    missing: Missing,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Missing {
    /// Bytes before this end.
    Bytes {
        from: u64,
        until: u64,
    },
    /// The end of the segment, which a later segment follows.
    End {
        from: u64,
    },
    Segment,
    /// Segments between this one and the next.
    After {
        next: SegmentId,
    },
}

impl fmt::Display for Hole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let segment = self.segment;
        match self.missing {
            Missing::Bytes { from, until } => {
                write!(
                    f,
                    "bytes {from} to {} of segment {segment} are in no message",
                    until.saturating_sub(1)
                )
            }
            Missing::End { from } => write!(f, "segment {segment} from byte {from} on is in no message"),
            Missing::Segment => write!(f, "segment {segment} is in no message"),
            Missing::After { next } => {
                write!(f, "the segments between {segment} and {next} are in no message")
            }
        }
    }
}

/// A stream in a copy.
pub(crate) struct Copied {
    name: String,
    instance: String,
    stream: CopiedStream,
    segments: BTreeMap<SegmentId, CopiedSegment>,
    after: Vec<String>,
    /// Segments that were published again with other bytes, and segments that a later message says the journal does not have.
    replaced: Vec<SegmentId>,
}

#[derive(Default)]
struct CopiedSegment {
    /// Begin and end of the parts that are there, in order, with gaps between them.
    parts: Vec<(u64, u64)>,
    /// Size of the segment, once it is known.
    size: Option<u64>,
    /// Segment before this one.
    previous: Option<SegmentId>,
    /// The time of the last message about it, Unix nanoseconds.
    published_unix_ns: u64,
}

impl CopiedSegment {
    fn has_begin(&self) -> bool {
        self.parts.first().is_some_and(|(from, _)| *from == 0)
    }

    fn add(&mut self, from: u64, until: u64) {
        if from >= until {
            return;
        }
        let (mut from, mut until) = (from, until);
        self.parts.retain(|(begin, end)| {
            let is_apart = *end < from || *begin > until;
            if !is_apart {
                (from, until) = (from.min(*begin), until.max(*end));
            }
            is_apart
        });
        let at = self.parts.partition_point(|(begin, _)| *begin < from);
        self.parts.insert(at, (from, until));
    }

    fn cut(&mut self, size: u64) {
        self.parts.retain(|(begin, _)| *begin < size);
        if let Some((_, until)) = self.parts.last_mut() {
            *until = (*until).min(size);
        }
        self.size = Some(size);
    }

    /// The parts of these bytes that are there.
    fn overlap(&self, from: u64, until: u64) -> Vec<(u64, u64)> {
        let parts = self.parts.iter().map(|(begin, end)| ((*begin).max(from), (*end).min(until)));
        parts.filter(|(begin, end)| begin < end).collect()
    }
}

impl Copied {
    /// Makes the stream's directory in the copy's.
    ///
    /// # Errors
    /// The names are no names, or the disk refuses the directory.
    pub fn make(dir: &Path, instance: &str, stream: &str) -> Result<Copied, IoError> {
        let name = format!("{instance}.{stream}");
        Ok(Copied {
            stream: CopiedStream::make(dir, &name, instance)?,
            name,
            instance: instance.to_owned(),
            segments: BTreeMap::new(),
            after: Vec::new(),
            replaced: Vec::new(),
        })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// The segments that a loss of power has changed after they were published.
    pub fn replaced(&self) -> &[SegmentId] {
        &self.replaced
    }

    /// Places a range, which was published at this time, Unix nanoseconds. A later message counts more than an earlier one.
    ///
    /// # Errors
    /// The disk refuses it.
    pub fn place(&mut self, range: &Range, published_unix_ns: u64) -> Result<(), IoError> {
        let Range { segment: id, offset, .. } = *range;
        if offset == 0 {
            self.begin(range)?;
        }
        let segment = self.segments.entry(id).or_default();
        for (from, until) in segment.overlap(offset, range.end()) {
            let bytes = &range.bytes[(from - offset) as usize..(until - offset) as usize];
            if !self.stream.has(id, from, bytes)? && self.replaced.last() != Some(&id) {
                self.replaced.push(id);
            }
        }
        self.stream.write(id, offset, &range.bytes)?;
        segment.add(offset, range.end());
        segment.published_unix_ns = published_unix_ns;
        if let Some(size) = range.size {
            self.stream.truncate(id, size)?;
            segment.cut(size);
        }
        // The first range has the header and the first records.
        if segment.has_begin() {
            self.stream.show(id)?;
        }
        Ok(())
    }

    /// Takes the facts of the first range of a segment.
    fn begin(&mut self, range: &Range) -> Result<(), IoError> {
        if let Some(previous) = range.previous.filter(|previous| *previous < range.segment) {
            // The disk lost these in a loss of power, and the journal continued without them.
            let between = (Excluded(previous), Excluded(range.segment));
            let gone: Vec<SegmentId> = self.segments.range(between).map(|(id, _)| *id).collect();
            for id in gone {
                self.stream.remove(id)?;
                self.segments.remove(&id);
                self.replaced.push(id);
            }
        }
        self.segments.entry(range.segment).or_default().previous = range.previous;
        if range.after != self.after {
            let named: Vec<String> =
                range.after.iter().map(|name| format!("{}.{name}", self.instance)).collect();
            self.stream.set_after(&named)?;
            self.after.clone_from(&range.after);
        }
        Ok(())
    }

    /// Removes the segments that nothing was published of since this time, Unix nanoseconds, but the newest.
    ///
    /// # Errors
    /// The disk refuses the change.
    pub fn forget_before(&mut self, unix_ns: u64) -> Result<(), IoError> {
        while self.segments.len() > 1
            && let Some(oldest) = self.segments.first_entry()
            && oldest.get().published_unix_ns < unix_ns
        {
            self.stream.remove(*oldest.key())?;
            oldest.remove();
        }
        Ok(())
    }

    /// The bytes that are in no message, behind the first segment of which the beginning is there.
    pub fn holes(&self) -> Vec<Hole> {
        let mut holes = Vec::new();
        let hole = |segment, missing| Hole { stream: self.name.clone(), segment, missing };
        let newest = self.segments.keys().next_back();
        let mut before: Option<SegmentId> = None;
        for (&id, segment) in &self.segments {
            // The messages before the oldest one have expired.
            let Some(before) = before.replace(id).or(segment.has_begin().then_some(id)) else { continue };
            match segment.previous {
                _ if before == id => {}
                Some(previous) if !self.segments.contains_key(&previous) => {
                    holes.push(hole(previous, Missing::Segment));
                }
                None if segment.has_begin() && before.sequence.checked_add(1) != Some(id.sequence) => {
                    holes.push(hole(before, Missing::After { next: id }));
                }
                _ => {}
            }
            let mut from = 0;
            for &(begin, end) in &segment.parts {
                if begin > from {
                    holes.push(hole(id, Missing::Bytes { from, until: begin }));
                }
                from = end;
            }
            match segment.size {
                Some(size) if from < size => {
                    holes.push(hole(id, Missing::Bytes { from, until: size }));
                }
                None if newest != Some(&id) => holes.push(hole(id, Missing::End { from })),
                _ => {}
            }
        }
        holes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use afterbay_journal::FrameNo;

    fn id(sequence: u32) -> SegmentId {
        SegmentId { first: FrameNo(u64::from(sequence) * 10), sequence }
    }

    fn range(sequence: u32, offset: u64, bytes: &[u8], size: Option<u64>) -> Range {
        let previous = sequence.checked_sub(1).map(id).filter(|_| offset == 0);
        let bytes = bytes.to_vec().into();
        Range { segment: id(sequence), offset, begun_unix_ns: 0, size, previous, after: Vec::new(), bytes }
    }

    fn shown(copied: &Copied) -> Vec<String> {
        copied.holes().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn repeated_and_overlapping_ranges_give_the_segment_and_holes_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let mut copied = Copied::make(dir.path(), "i", "s").unwrap();
        let path = dir.path().join("i.s").join(id(0).to_string());
        for range in [range(0, 0, b"0123", None), range(0, 2, b"2345", None), range(0, 0, b"0123", None)] {
            copied.place(&range, 0).unwrap();
        }
        copied.place(&range(0, 8, b"89", Some(10)), 0).unwrap();
        let hole = "bytes 6 to 7 of segment 00000000000000000000-0000000000.seg are in no message";
        assert_eq!(shown(&copied), [hole]);
        copied.place(&range(0, 6, b"67", None), 0).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"0123456789");
        assert!(copied.holes().is_empty() && copied.replaced().is_empty());
        // Nothing of segment 1, and only the beginning of segment 2.
        copied.place(&range(2, 0, b"01", None), 0).unwrap();
        copied.place(&range(3, 0, b"01", None), 0).unwrap();
        assert_eq!(
            shown(&copied),
            [
                format!("segment {} is in no message", id(1)),
                format!("segment {} from byte 2 on is in no message", id(2)),
            ]
        );
    }

    #[test]
    fn a_segment_without_its_beginning_is_not_shown_and_is_a_hole_unless_it_is_the_oldest() {
        let dir = tempfile::tempdir().unwrap();
        let mut copied = Copied::make(dir.path(), "i", "s").unwrap();
        for range in [range(1, 4, b"45", Some(6)), range(2, 0, b"0", Some(1)), range(3, 3, b"3", None)] {
            copied.place(&range, 0).unwrap();
        }
        assert_eq!(shown(&copied), [format!("bytes 0 to 2 of segment {} are in no message", id(3))]);
        let is_there = |sequence| dir.path().join("i.s").join(id(sequence).to_string()).exists();
        assert_eq!([1, 2, 3].map(is_there), [false, true, false]);
        // The journal had no segment before: a gap of sequences is a hole.
        let first = Range { previous: None, ..range(5, 0, b"0", None) };
        copied.place(&first, 0).unwrap();
        assert!(shown(&copied).contains(&format!(
            "the segments between {} and {} are in no message",
            id(3),
            id(5)
        )));
    }

    #[test]
    fn what_a_journal_writes_again_after_a_loss_of_power_replaces_what_it_had_published() {
        let dir = tempfile::tempdir().unwrap();
        let mut copied = Copied::make(dir.path(), "i", "s").unwrap();
        copied.place(&range(0, 0, b"0123456789", None), 0).unwrap();
        copied.place(&range(1, 0, b"01", None), 0).unwrap();
        // The disk lost segment 1 and the end of segment 0, and the next segment has another name.
        copied.place(&range(0, 0, b"0123", None), 0).unwrap();
        copied.place(&range(0, 4, b"S", Some(5)), 0).unwrap();
        let next = Range { segment: id(2), previous: Some(id(0)), ..range(2, 0, b"0", None) };
        copied.place(&next, 0).unwrap();
        assert_eq!(copied.replaced(), [id(0), id(1)]);
        assert!(copied.holes().is_empty());
        let dir = dir.path().join("i.s");
        assert_eq!(std::fs::read(dir.join(id(0).to_string())).unwrap(), b"0123S");
        assert!(!dir.join(id(1).to_string()).exists());
    }

    #[test]
    fn segments_of_which_nothing_is_published_for_some_time_are_forgotten_but_the_newest() {
        let dir = tempfile::tempdir().unwrap();
        let mut copied = Copied::make(dir.path(), "i", "s").unwrap();
        for (sequence, published) in [(0, 5), (1, 6), (2, 7)] {
            copied.place(&range(sequence, 0, b"01", Some(2)), published).unwrap();
        }
        let there = || {
            let is_there = |sequence| dir.path().join("i.s").join(id(sequence).to_string()).exists();
            [0, 1, 2].map(is_there)
        };
        copied.forget_before(6).unwrap();
        assert_eq!(there(), [false, true, true]);
        copied.forget_before(100).unwrap();
        assert_eq!(there(), [false, false, true]);
        assert!(copied.holes().is_empty());
    }

    #[test]
    fn hostile_names_make_no_directory() {
        let dir = tempfile::tempdir().unwrap();
        for (instance, stream) in [("..", "/x"), ("a", "../../x"), ("a/b", "s"), ("", "s"), ("a", "\0")] {
            assert!(Copied::make(dir.path(), instance, stream).is_err(), "{instance:?} {stream:?}");
        }
    }
}
