//! What one end saw of the stream: totals, and per request how many tokens, which, and how it ended. Bounded however
//! long the run: past a bound only every other request is kept one by one, the digest over all stays exact.

use std::collections::HashMap;
use std::time::Instant;

use serde::{Serialize, Serializer};

use crate::bounds::MAX_KEPT_REQUESTS;
use crate::ids::{Digest, mix, name_hash};
use crate::load::Ending;

/// A request that has ended.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Its tokens.
    pub tokens: u64,
    /// Over their ids, in order.
    pub ids: Digest,
    /// How it ended.
    pub ending: Ending,
    /// When its first token was sent, or seen by the reader. `None` where it had none.
    pub first: Option<Instant>,
}

/// What one end saw.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Record {
    /// Frames of every kind.
    pub frames: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Rows, those of health checks left out, here and below.
    pub rows: u64,
    /// New tokens.
    pub tokens: u64,
    /// Requests that have ended.
    pub requests: u64,
    /// Rows of SGLang's health checks.
    pub health_checks: u64,
    /// Batches without rows.
    pub idle: u64,
    /// Control messages.
    pub controls: u64,
    /// Over every frame's bytes, in their order: equal at both ends where nothing was changed, joined or split.
    #[serde(serialize_with = "hexadecimal")]
    pub frames_digest: u64,
    /// Over every ended request (rid, tokens, ids, ending), in no order: equal at both ends where they saw the same.
    #[serde(serialize_with = "hexadecimal")]
    pub requests_digest: u64,
    #[serde(skip)]
    kept: HashMap<Box<str>, Request>,
    /// Requests whose name's hash has one of these bits set are not kept.
    #[serde(skip)]
    let_go: u64,
    #[serde(skip)]
    bound: Bound,
}

/// How many requests are kept one by one.
#[derive(Clone, Copy, Debug)]
struct Bound(usize);

impl Default for Bound {
    fn default() -> Bound {
        Bound(MAX_KEPT_REQUESTS)
    }
}

impl Record {
    /// Empty.
    pub fn new() -> Record {
        Record::default()
    }

    /// Takes a frame's bytes in.
    pub fn frame(&mut self, bytes: &[u8]) {
        self.frames += 1;
        self.bytes += bytes.len() as u64;
        let digest = u64::from(crc32fast::hash(bytes)) | (bytes.len() as u64) << 32;
        self.frames_digest = mix(self.frames_digest.rotate_left(7) ^ digest);
    }

    /// Takes a request in that has ended.
    pub fn end(&mut self, rid: &str, request: Request) {
        let name = name_hash(rid);
        self.requests += 1;
        let what = [request.tokens, request.ids.value(), request.ending as u64];
        let digest = what.iter().fold(name, |digest, &part| mix(digest.rotate_left(7) ^ part));
        self.requests_digest = self.requests_digest.wrapping_add(digest);
        if name & self.let_go != 0 {
            return;
        }
        self.kept.insert(rid.into(), request);
        while self.kept.len() > self.bound.0 {
            self.let_go = self.let_go << 1 | 1;
            self.kept.retain(|rid, _| name_hash(rid) & self.let_go == 0);
        }
    }

    /// A request that ended, if it is one of those kept.
    pub fn get(&self, rid: &str) -> Option<&Request> {
        self.kept.get(rid)
    }

    /// Whether every request is kept one by one.
    pub fn is_complete(&self) -> bool {
        self.let_go == 0
    }

    /// The requests that are kept, and that another record keeps as well if it saw them.
    pub(crate) fn kept_with<'a>(&'a self, other: &Record) -> impl Iterator<Item = (&'a str, &'a Request)> {
        let let_go = other.let_go;
        self.kept
            .iter()
            .map(|(rid, request)| (rid.as_ref(), request))
            .filter(move |(rid, _)| name_hash(rid) & let_go == 0)
    }

    #[cfg(test)]
    fn bounded(requests: usize) -> Record {
        Record { bound: Bound(requests), ..Record::default() }
    }
}

/// Not a number: JSON's are not that exact everywhere.
fn hexadecimal<S: Serializer>(digest: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{digest:016x}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::rid;

    fn request(tokens: u64) -> Request {
        Request { tokens, ids: Digest::default(), ending: Ending::Length, first: None }
    }

    #[test]
    fn past_its_bound_a_record_keeps_fewer_and_its_digest_still_tells_all() {
        let (mut a, mut b) = (Record::bounded(100), Record::bounded(1000));
        for index in 0..500 {
            a.end(&rid(1, index), request(index));
            b.end(&rid(1, 499 - index), request(499 - index));
        }
        assert!((20..=100).contains(&a.kept.len()), "{} kept", a.kept.len());
        assert!(!a.is_complete() && b.is_complete());
        assert_eq!(a.requests_digest, b.requests_digest, "the order does not matter");
        assert_eq!(b.kept_with(&a).count(), a.kept.len(), "both keep the same ones");
        assert!(b.kept_with(&a).all(|(rid, _)| a.get(rid).is_some()));
        b.end(&rid(1, 500), request(1));
        a.end(&rid(1, 500), request(2));
        assert_ne!(a.requests_digest, b.requests_digest);
    }

    #[test]
    fn the_digest_of_frames_tells_their_order() {
        let digest = |frames: &[&[u8]]| {
            let mut record = Record::new();
            frames.iter().for_each(|frame| record.frame(frame));
            record.frames_digest
        };
        assert_eq!(digest(&[b"a", b"b"]), digest(&[b"a", b"b"]));
        assert_ne!(digest(&[b"a", b"b"]), digest(&[b"b", b"a"]));
        assert_ne!(digest(&[b"a", b"b"]), digest(&[b"a"]));
    }
}
