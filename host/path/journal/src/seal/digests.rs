//! The digests of a segment: two chains over its records, and one digest for each part that an erasure may remove.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use bytes::Bytes;
use sha2::{Digest as _, Sha256};

use super::owners::{OwnedBytes, owned_bytes};
use crate::erase::EraseRows;
use crate::error::ReadError;
use crate::format::{RecordHead, RecordKind, encoded};
use crate::outcome::Outcome;
use crate::position::SegmentId;
use crate::record::{RecordBody, RequestEntry, erase_outcome};
use crate::rid::stored_rid;
use crate::seal_file::{Digest, Link, Part, Salt};
use crate::segment::{Payloads, ScanStep, Segment, SegmentSummary};

/// Bytes of records between two links.
const LINK_BYTES: u64 = 1 << 20;

/// The salts of a segment's digests.
pub(super) enum Salts<'a> {
    /// The segment is being sealed: the salts are made from a secret, which is forgotten afterwards.
    New([u8; 32]),
    /// No content was erased since the segment was sealed: only the exact chain is of interest.
    Exact(Salt),
    /// The salts that erasures left, of all sealed parts.
    Left(HashMap<&'a Part, Option<Salt>>),
}

impl Salts<'_> {
    /// No salt of a segment tells one of another segment, where it may be erased.
    pub fn new(secret: &[u8; 32], segment: SegmentId) -> Salts<'static> {
        Salts::New(Sha256::new().chain_update(secret).chain_update(encoded(&segment)).finalize().into())
    }

    pub fn exact(&self) -> Option<Salt> {
        match self {
            Salts::New(secret) => Some(salt(secret, b"exact")),
            Salts::Exact(salt) => Some(*salt),
            Salts::Left(_) => None,
        }
    }

    pub fn of(&self, part: &Part) -> Option<Salt> {
        match self {
            Salts::New(secret) => Some(salt(secret, &encoded(part))),
            Salts::Exact(_) => None,
            Salts::Left(salts) => salts.get(part).copied().flatten(),
        }
    }

    /// Whether a frame at this offset is one part, if that is known.
    fn is_one_part(&self, offset: u64) -> Option<bool> {
        match self {
            Salts::New(_) | Salts::Exact(_) => None,
            Salts::Left(salts) => Some(salts.contains_key(&Part::Record(offset))),
        }
    }
}

fn salt(secret: &[u8; 32], name: &[u8]) -> Salt {
    let digest = Sha256::new().chain_update(secret).chain_update(name).finalize();
    std::array::from_fn(|at| digest[at])
}

/// The digests of a segment.
#[derive(Default)]
pub(super) struct SegmentDigests {
    pub links: Vec<Link>,
    /// The parts with content and a salt.
    pub parts: BTreeMap<Part, Digest>,
    /// The parts with content, but without a salt.
    pub unsalted: BTreeSet<Part>,
}

/// Reads the records of a segment up to `limit`. Damage counts as it is: bytes that are no record have a place in the chains.
pub(super) fn digests(
    stream: &str,
    segment: &Segment,
    limit: u64,
    rows: &mut dyn EraseRows,
    salts: &Salts<'_>,
) -> Result<SegmentDigests, ReadError> {
    let (mut header, exact) = (Vec::new(), Digest::default());
    segment.header.encode(&mut header);
    let summary = segment.summary()?;
    let requests = match salts {
        Salts::Exact(_) => RequestsOfRows::default(),
        Salts::New(_) | Salts::Left(_) => RequestsOfRows::read(segment, limit, summary.as_ref())?,
    };
    let (exact_salt, parts) = (salts.exact(), HashMap::new());
    let mut hasher = SegmentHasher { stream, rows, salts, requests, exact_salt, exact, rest: exact, parts };
    hasher.link(&[], &header, &header);
    let mut links = Vec::new();
    let mut linked = 0;
    let mut scan = segment.records(limit, Payloads::All);
    let end = loop {
        let end = match scan.step()? {
            ScanStep::Record(record) => {
                let payload = scan.payload(&record);
                let rest = hasher.record(record.offset, &record.head, payload, scan.body(&record));
                hasher.link(&head_bytes(&record.head), payload, &rest);
                record.offset + record.head.record_bytes()
            }
            ScanStep::Corrupt { offset, bytes } => {
                hasher.link(b"corrupt", &bytes.to_le_bytes(), &bytes.to_le_bytes());
                offset + bytes
            }
            ScanStep::End { offset, torn } => break offset + torn,
        };
        if end - linked >= LINK_BYTES {
            links.push(hasher.at(end));
            linked = end;
        }
    };
    let summary = summary.as_ref().map(without_erasures).unwrap_or_default();
    hasher.link(b"summary", &summary, &summary);
    links.push(hasher.at(end));
    let mut found = SegmentDigests { links, ..SegmentDigests::default() };
    for (part, hasher) in hasher.parts {
        match hasher {
            Some(hasher) => drop(found.parts.insert(part, hasher.finalize().into())),
            None => drop(found.unsalted.insert(part)),
        }
    }
    Ok(found)
}

/// The summary as it was before an erasure.
fn without_erasures(summary: &SegmentSummary) -> Vec<u8> {
    let mut entries: Vec<RequestEntry> = summary.entries.clone();
    entries.iter_mut().for_each(|entry| entry.info.erased = None);
    encoded(&(summary.begins, entries, &summary.totals))
}

fn head_bytes(head: &RecordHead) -> Vec<u8> {
    let mut bytes = Vec::new();
    head.encode(&mut bytes);
    bytes
}

/// The requests of the rows in each frame, as the outcomes in the segment name them.
#[derive(Default)]
struct RequestsOfRows {
    of_frame: HashMap<u64, Vec<u64>>,
    /// Rid of each request.
    rids: HashMap<u64, String>,
}

impl RequestsOfRows {
    fn read(
        segment: &Segment,
        limit: u64,
        summary: Option<&SegmentSummary>,
    ) -> Result<RequestsOfRows, ReadError> {
        let entries = summary.into_iter().flat_map(|summary| &summary.entries);
        let rids = entries.map(|entry| (entry.info.number.0, entry.info.rid.clone())).collect();
        let mut found = RequestsOfRows { of_frame: HashMap::new(), rids };
        let mut scan = segment.records(limit, Payloads::NotFrames);
        while let Some(record) = scan.record()? {
            if let Some(RecordBody::Outcome(outcome)) = scan.body(&record) {
                let of_frame = found.of_frame.entry(record.head.number).or_default();
                of_frame.extend(outcome.requests.iter().map(|request| request.0));
            }
        }
        for of_frame in found.of_frame.values_mut() {
            of_frame.sort_unstable();
            of_frame.dedup();
        }
        Ok(found)
    }

    /// The part of the rows with these rids in a frame.
    fn parts(&self, frame: u64, rids: Vec<String>) -> Vec<Part> {
        let mut of_rid: HashMap<&str, Vec<u64>> = HashMap::new();
        for number in self.of_frame.get(&frame).into_iter().flatten() {
            if let Some(rid) = self.rids.get(number) {
                of_rid.entry(rid).or_default().push(*number);
            }
        }
        let part = |rid: String| match of_rid.get(&*rid).map(Vec::as_slice) {
            Some([number]) => Part::Request(*number),
            // An erasure knows the rows by their rid alone.
            _ => Part::Rid(rid),
        };
        rids.into_iter().map(part).collect()
    }
}

struct SegmentHasher<'a> {
    stream: &'a str,
    rows: &'a mut dyn EraseRows,
    salts: &'a Salts<'a>,
    requests: RequestsOfRows,
    exact_salt: Option<Salt>,
    exact: Digest,
    rest: Digest,
    /// The parts with content. `None`: the part has no salt.
    parts: HashMap<Part, Option<Sha256>>,
}

impl SegmentHasher<'_> {
    /// Adds a link to both chains.
    fn link(&mut self, head: &[u8], exact: &[u8], rest: &[u8]) {
        let length = (head.len() as u64).to_le_bytes();
        if let Some(salt) = &self.exact_salt {
            let link = Sha256::new().chain_update(salt).chain_update(self.exact);
            self.exact = link.chain_update(length).chain_update(head).chain_update(exact).finalize().into();
        }
        if !matches!(self.salts, Salts::Exact(_)) {
            let link = Sha256::new().chain_update(self.rest).chain_update(length);
            self.rest = link.chain_update(head).chain_update(rest).finalize().into();
        }
    }

    fn at(&self, end: u64) -> Link {
        Link { end, exact: self.exact, rest: self.rest }
    }

    /// Adds the content of a record to its parts. Returns the payload without the content.
    fn record(&mut self, at: u64, head: &RecordHead, payload: &[u8], body: Option<RecordBody>) -> Vec<u8> {
        let has_parts = !matches!(self.salts, Salts::Exact(_));
        match body {
            Some(RecordBody::Outcome(outcome)) if has_parts => self.outcome(at, payload, &outcome),
            _ if has_parts && [RecordKind::FRAME, RecordKind::CHANGED].contains(&head.kind) => {
                self.frame(at, head.number, payload)
            }
            _ => payload.to_vec(),
        }
    }

    fn frame(&mut self, at: u64, number: u64, payload: &[u8]) -> Vec<u8> {
        let is_one_part = self.salts.is_one_part(at);
        if is_one_part == Some(true) {
            return self.one_part(at, payload);
        }
        let bytes = Bytes::copy_from_slice(payload);
        let rids = RefCell::new(Rids::default());
        let erased = self.rows.erase(self.stream, &bytes, &|rid| {
            rids.borrow_mut().add(rid);
            true
        });
        // No erasure changes a frame that cannot be decoded.
        let Ok(erased) = erased else { return payload.to_vec() };
        let rids = rids.into_inner();
        let owned = owned_bytes(payload, erased.bytes.into(), rids.order.len(), |some| {
            let is_erased = |rid: &[u8]| rids.index.get(&*stored_rid(rid)).is_some_and(|at| some(*at));
            Some(self.rows.erase_part(self.stream, &bytes, &is_erased).ok()?.bytes.into())
        });
        match owned {
            Some(owned) => {
                let parts = self.requests.parts(number, rids.order);
                self.owned(at, payload, owned, |owner| parts[owner].clone())
            }
            None => self.one_part(at, payload),
        }
    }

    fn outcome(&mut self, at: u64, payload: &[u8], outcome: &Outcome<'_>) -> Vec<u8> {
        if outcome.actions.is_empty() {
            return payload.to_vec();
        }
        let request = |row: u32| outcome.requests.get(row as usize).map(|request| request.0);
        let numbers: BTreeSet<u64> =
            outcome.actions.iter().filter_map(|action| request(action.row)).collect();
        let numbers: Vec<u64> = numbers.into_iter().collect();
        let without = |some: &dyn Fn(usize) -> bool| {
            let mut bytes = payload.to_vec();
            let of = |row: u32| numbers.binary_search(&request(row)?).ok();
            erase_outcome(&mut bytes, |row| of(row).is_some_and(some))?;
            Some(bytes)
        };
        let owned = without(&|_| true).and_then(|rest| owned_bytes(payload, rest, numbers.len(), without));
        match owned {
            Some(owned) => self.owned(at, payload, owned, |owner| Part::Request(numbers[owner])),
            None => payload.to_vec(),
        }
    }

    fn owned(&mut self, at: u64, payload: &[u8], owned: OwnedBytes, part: impl Fn(usize) -> Part) -> Vec<u8> {
        for (run, owner) in owned.runs {
            self.part(part(owner), at, run.start, &payload[run]);
        }
        owned.rest
    }

    fn one_part(&mut self, at: u64, payload: &[u8]) -> Vec<u8> {
        self.part(Part::Record(at), at, 0, payload);
        Vec::new()
    }

    /// Adds bytes to a part, with their place in the segment.
    fn part(&mut self, part: Part, at: u64, start: usize, bytes: &[u8]) {
        let salts = self.salts;
        let salted = || salts.of(&part).map(|salt| Sha256::new().chain_update(salt));
        if !self.parts.contains_key(&part) {
            let hasher = salted();
            self.parts.insert(part.clone(), hasher);
        }
        if let Some(Some(hasher)) = self.parts.get_mut(&part) {
            for place in [at, start as u64, bytes.len() as u64] {
                hasher.update(place.to_le_bytes());
            }
            hasher.update(bytes);
        }
    }
}

/// The rids of a frame, in the order of their first rows.
#[derive(Default)]
struct Rids {
    order: Vec<String>,
    index: HashMap<String, usize>,
}

impl Rids {
    fn add(&mut self, rid: &[u8]) {
        let rid = stored_rid(rid).into_owned();
        if !self.index.contains_key(&rid) {
            self.index.insert(rid.clone(), self.order.len());
            self.order.push(rid);
        }
    }
}
