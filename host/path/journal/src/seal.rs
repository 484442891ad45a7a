//! Seals: an operator signs what the segments of a stream hold, and anybody with the public key checks it, also after erasures.
//!
//! A seal covers one segment that has ended, and the head of the seal before. This crate makes digests and files; the caller signs
//! and checks signatures.

mod digests;
mod owners;

use std::collections::BTreeSet;
use std::fmt::{self, Write};

use crate::erase::EraseRows;
use crate::error::{IoError, ReadError};
use crate::position::SegmentId;
use crate::reader::StreamReader;
use crate::seal_file::{self, Digest, Link, Part, SealFile, Statement};
use crate::segment::Segment;
use digests::{Salts, SegmentDigests, digests};

/// The inputs of sealing that come from its caller.
pub struct Sealer<'a> {
    /// Identity of the journal's directory.
    pub instance: &'a str,
    /// Name and version of the program. What of a frame is content is the answer of its decoders.
    pub program: &'a str,
    /// Overwrites rows in frames, as an erasure does.
    pub rows: &'a mut dyn EraseRows,
    /// Random bytes, from which the salts are made. They must be forgotten afterwards.
    pub secret: [u8; 32],
    /// Signs bytes.
    pub sign: &'a dyn Fn(&[u8]) -> Vec<u8>,
}

/// The reason why a segment was not sealed.
#[derive(Debug, thiserror::Error)]
pub enum SealError {
    /// The segment or the seal before cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The disk refuses the seal.
    #[error(transparent)]
    Io(#[from] IoError),
    /// Only one process at a time changes the seals of a stream.
    #[error("stream {stream:?}: an erasure or another seal is under way, try again")]
    Busy {
        /// Name of the stream.
        stream: String,
    },
}

/// The segments that were sealed, and the head of their chain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewSeals {
    /// The segments, oldest first.
    pub segments: Vec<SegmentId>,
    /// Head of the last seal, in hexadecimal. `None`: there is no seal yet.
    pub head: Option<String>,
}

/// The seals of a stream, checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SealReport {
    /// Segments whose seal was checked, problems included.
    pub segments: u64,
    /// Segments behind the last seal.
    pub unsealed: u64,
    /// The oldest sealed segment. Segments before it were removed, with their seals.
    pub first: Option<SegmentId>,
    /// Identity of the directory in which the segments were sealed.
    pub instance: Option<String>,
    /// Time of the last seal, unix nanoseconds.
    pub sealed_unix_ns: u64,
    /// Head of the last seal, in hexadecimal. It stands for this seal and all before it.
    pub head: Option<String>,
    /// Requests with content that was erased since.
    pub erased: u64,
    /// Frames of which nothing but number, time and length is proven: an erasure wrote them anew.
    pub rewritten_frames: u64,
    /// Problems, oldest segment first.
    pub problems: Vec<SealProblem>,
}

/// A problem of a seal or of the segment that it covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealProblem {
    /// The segment. `None`: the whole stream.
    pub segment: Option<SegmentId>,
    /// Kind of problem.
    pub what: SealProblemKind,
}

impl fmt::Display for SealProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.segment {
            Some(segment) => write!(f, "{segment}: {}", self.what),
            None => self.what.fmt(f),
        }
    }
}

/// Kind of a problem. Displays as a sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealProblemKind {
    /// The stream has segments, and no seal.
    #[error("nothing is sealed")]
    NothingSealed,
    /// The known head is that of no seal.
    #[error("no seal has the head {0}: seals were removed or made anew")]
    UnknownHead(String),
    /// There are later seals.
    #[error("is not sealed, and a later segment is")]
    NotSealed,
    /// The file of the seal is damaged.
    #[error("its seal cannot be read")]
    Unreadable,
    /// Another key signed, or the statement was changed.
    #[error("its seal has a signature of another key, or of something else")]
    Signature,
    /// The seal is of another segment, stream or journal.
    #[error("its seal is of {0}")]
    Foreign(String),
    /// The seal continues another chain.
    #[error("its seal does not follow the seal before: segments or seals between them are missing or other")]
    Chain,
    /// The sealed segment does not exist, or its header cannot be read.
    #[error("is sealed and missing")]
    Missing,
    /// Records differ from those that were sealed.
    #[error("records in the bytes {from} to {to} are not those that were sealed")]
    Records {
        /// First byte.
        from: u64,
        /// Byte after the last.
        to: u64,
    },
    /// Content differs from that which was sealed.
    #[error("{0} is not what was sealed")]
    Content(String),
    /// Content has no salt, as if it were erased, and is there.
    #[error("{0} counts as erased in the seal and is there")]
    NotErased(String),
}

impl StreamReader {
    /// Seals the segments that have ended since the last seal, oldest first. Works while another process writes; an erasure waits
    /// for one segment.
    ///
    /// # Errors
    /// The last seal or a segment cannot be read, or the disk. What was sealed before is sealed.
    pub fn seal(&self, sealer: &mut Sealer<'_>) -> Result<NewSeals, SealError> {
        let mut new = NewSeals::default();
        while self.seal_next(sealer, &mut new)? {}
        Ok(new)
    }

    /// Seals one segment. Returns false if none has ended since the last seal.
    fn seal_next(&self, sealer: &mut Sealer<'_>, new: &mut NewSeals) -> Result<bool, SealError> {
        let (storage, dir) = (&*self.segments.storage, &self.segments.dir);
        let busy = || SealError::Busy { stream: self.name().to_owned() };
        let _lock = seal_file::lock(storage, dir)?.ok_or_else(busy)?;
        let last = seal_file::list(storage, dir)?.pop();
        let previous = match last {
            Some(last) => SealFile::read(storage, dir, last)?.map(|seal| seal.statement.head()),
            None => None,
        };
        new.head = previous.as_ref().map(hexadecimal);
        let Some((segment, limit)) = self.next_to_seal(last)? else { return Ok(false) };
        let salts = Salts::new(&sealer.secret, segment.id);
        let SegmentDigests { links, parts, .. } = digests(self.name(), &segment, limit, sealer.rows, &salts)?;
        let exact_salt = salts.exact();
        let statement = Statement {
            instance: sealer.instance.to_owned(),
            stream: self.name().to_owned(),
            segment: segment.id,
            previous,
            sealed_unix_ns: storage.now_unix_ns(),
            program: sealer.program.to_owned(),
            links,
            parts: parts.into_iter().collect(),
        };
        let signature = (sealer.sign)(&statement.signed());
        let salts = statement.parts.iter().map(|(part, _)| salts.of(part)).collect();
        SealFile { statement, signature, exact_salt, salts }.write(storage, dir)?;
        new.segments.push(segment.id);
        Ok(true)
    }

    /// The first readable segment after `last` that nobody changes any more, and the end of its records.
    fn next_to_seal(&self, last: Option<SegmentId>) -> Result<Option<(Segment, u64)>, ReadError> {
        let mut segments = self.segments.list()?;
        segments.retain(|file| last.is_none_or(|last| file.id > last));
        for (at, file) in segments.iter().enumerate() {
            let Some(segment) = self.segments.open(file.id)? else { continue };
            if let Some(summary) = segment.summary()? {
                return Ok(Some((segment, summary.begins)));
            }
            // Segments get their summaries in order: this one gets none any more if a later one has its own.
            let mut later = segments[at + 1..].iter();
            let has_summary = later.any(|next| {
                self.segments.open(next.id).is_ok_and(|next| {
                    next.is_some_and(|next| next.summary().is_ok_and(|summary| summary.is_some()))
                })
            });
            if !has_summary {
                return Ok(None);
            }
            let next = segments.get(at + 1).map(|next| next.id);
            let limit = self.segments.recorded_end(next, file.id)?.limit;
            return Ok(Some((segment, limit)));
        }
        Ok(None)
    }

    /// Checks the seals of the stream. `is_signed` checks a signature of bytes, and `known_head` is the head of a seal that must be
    /// there.
    ///
    /// # Errors
    /// The disk.
    pub fn verify_seals(
        &self,
        rows: &mut dyn EraseRows,
        is_signed: &dyn Fn(&[u8], &[u8]) -> bool,
        known_head: Option<&str>,
    ) -> Result<SealReport, ReadError> {
        let (storage, dir) = (&*self.segments.storage, &self.segments.dir);
        let segments = self.segments()?;
        let (erased, report) = (BTreeSet::new(), SealReport::default());
        let mut check = Check { stream: self, rows, is_signed, before: None, erased, report };
        // Retention removes the seal after its segment.
        let mut seals = seal_file::list(storage, dir)?;
        seals.retain(|seal| segments.first().is_some_and(|first| seal >= first));
        let Some(last) = seals.last().copied() else {
            if !segments.is_empty() {
                check.problem(None, SealProblemKind::NothingSealed);
            }
            check.report.unsealed = segments.len() as u64;
            return Ok(check.report);
        };
        check.report.first = seals.first().copied();
        check.report.unsealed = segments.iter().filter(|id| **id > last).count() as u64;
        let mut heads = BTreeSet::new();
        let all: BTreeSet<SegmentId> = segments.iter().chain(&seals).copied().collect();
        for id in all.into_iter().filter(|id| *id <= last) {
            check.report.segments += 1;
            match SealFile::read(storage, dir, id) {
                Ok(Some(seal)) => check.seal(id, &seal, &mut heads)?,
                // The chain begins after the segments that retention removed meanwhile.
                Ok(None) if self.is_removed(id)? => (check.before, check.report.head) = (None, None),
                Ok(None) => check.problem(Some(id), SealProblemKind::NotSealed),
                Err(ReadError::Corrupt { .. }) => {
                    check.before = None;
                    check.problem(Some(id), SealProblemKind::Unreadable);
                }
                Err(error) => return Err(error),
            }
        }
        if let Some(head) = known_head.filter(|head| !heads.contains(&head.to_lowercase())) {
            check.problem(None, SealProblemKind::UnknownHead(head.to_owned()));
        }
        check.report.erased = check.erased.len() as u64;
        Ok(check.report)
    }

    /// Whether retention removed a segment.
    fn is_removed(&self, id: SegmentId) -> Result<bool, ReadError> {
        Ok(self.segments.list()?.first().is_none_or(|first| first.id > id))
    }
}

struct Check<'a> {
    stream: &'a StreamReader,
    rows: &'a mut dyn EraseRows,
    is_signed: &'a dyn Fn(&[u8], &[u8]) -> bool,
    /// Head of the seal before, if that can be read.
    before: Option<Digest>,
    /// Requests with content that was erased.
    erased: BTreeSet<Part>,
    report: SealReport,
}

impl Check<'_> {
    fn problem(&mut self, segment: Option<SegmentId>, what: SealProblemKind) {
        self.report.problems.push(SealProblem { segment, what });
    }

    fn seal(
        &mut self,
        id: SegmentId,
        seal: &SealFile,
        heads: &mut BTreeSet<String>,
    ) -> Result<(), ReadError> {
        let statement = &seal.statement;
        if !(self.is_signed)(&statement.signed(), &seal.signature) {
            self.before = None;
            self.problem(Some(id), SealProblemKind::Signature);
            return Ok(());
        }
        let instance = self.report.instance.get_or_insert_with(|| statement.instance.clone());
        if (&*statement.stream, statement.segment) != (self.stream.name(), id)
            || statement.instance != *instance
        {
            let Statement { segment, stream, instance, .. } = statement;
            let of = format!("{segment} of stream {stream:?} of {instance}");
            self.problem(Some(id), SealProblemKind::Foreign(of));
        }
        let head = statement.head();
        if self.report.head.is_none() {
            // Retention may have removed the seal before the first.
            heads.extend(statement.previous.as_ref().map(hexadecimal));
        } else if self.before.is_none() || statement.previous != self.before {
            self.problem(Some(id), SealProblemKind::Chain);
        }
        heads.insert(hexadecimal(&head));
        self.before = Some(head);
        self.report.head = Some(hexadecimal(&head));
        self.report.sealed_unix_ns = statement.sealed_unix_ns;
        match self.stream.segments.open(id)? {
            Some(segment) => self.segment(&segment, seal),
            None if self.stream.is_removed(id)? => Ok(()),
            None => {
                self.problem(Some(id), SealProblemKind::Missing);
                Ok(())
            }
        }
    }

    /// Compares a segment with its seal.
    fn segment(&mut self, segment: &Segment, seal: &SealFile) -> Result<(), ReadError> {
        let Statement { stream, links, parts, .. } = &seal.statement;
        let salts = match seal.exact_salt {
            Some(salt) => Salts::Exact(salt),
            None => Salts::Left(parts.iter().map(|(part, _)| part).zip(seal.salts.iter().copied()).collect()),
        };
        let end = links.last().map_or(0, |last| last.end);
        let found = digests(stream, segment, end, self.rows, &salts)?;
        let digest = |link: &Link| if seal.exact_salt.is_some() { link.exact } else { link.rest };
        let is_same =
            |(found, sealed): (&Link, &Link)| found.end == sealed.end && digest(found) == digest(sealed);
        let same = found.links.iter().zip(links).take_while(|pair| is_same(*pair)).count();
        if same < links.len() || found.links.len() != links.len() {
            let from = same.checked_sub(1).map_or(0, |before| links[before].end);
            let to = links.get(same).map_or(end, |link| link.end);
            self.problem(Some(segment.id), SealProblemKind::Records { from, to });
        }
        if seal.exact_salt.is_none() {
            self.parts(segment, seal, &found)?;
        }
        Ok(())
    }

    fn parts(&mut self, segment: &Segment, seal: &SealFile, found: &SegmentDigests) -> Result<(), ReadError> {
        let mut problems = Vec::new();
        let mut sealed = BTreeSet::new();
        for (part, digest, salt) in seal.salted_parts() {
            sealed.insert(part);
            match (salt, part) {
                (Some(_), part) if found.parts.get(part) != Some(digest) => {
                    problems.push((part, SealProblemKind::Content as fn(String) -> SealProblemKind));
                }
                (Some(_), _) => {}
                (None, Part::Record(_)) => self.report.rewritten_frames += 1,
                (None, part) => drop(self.erased.insert(part.clone())),
            }
        }
        for part in found.unsalted.iter().filter(|part| !matches!(part, Part::Record(_))) {
            let what =
                if sealed.contains(part) { SealProblemKind::NotErased } else { SealProblemKind::Content };
            problems.push((part, what));
        }
        if problems.is_empty() {
            return Ok(());
        }
        let entries = segment.summary()?.map(|summary| summary.entries).unwrap_or_default();
        let rid = |number| entries.iter().find(|entry| entry.info.number.0 == number).map(|it| &*it.info.rid);
        for (part, what) in problems {
            let what = what(match part {
                Part::Request(number) => {
                    format!("content of request {number} {:?}", rid(*number).unwrap_or_default())
                }
                Part::Rid(rid) => format!("content of {rid:?}"),
                Part::Record(offset) => format!("the frame at byte {offset}"),
            });
            self.problem(Some(segment.id), what);
        }
        Ok(())
    }
}

fn hexadecimal(digest: &Digest) -> String {
    digest.iter().fold(String::new(), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests;
