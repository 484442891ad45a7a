//! The record of one end of the stream: totals, and for each request the number of its tokens, their digest
//! and its end. Its memory is bounded: beyond the bound it stores only every other request, but the digest
//! over all requests stays exact.

use std::collections::HashMap;
use std::time::Instant;

use serde::{Serialize, Serializer};

use crate::bounds::MAX_STORED_REQUESTS;
use crate::ids::{Digest, mix, name_hash};
use crate::load::EndReason;

/// An ended request.
#[derive(Clone, Copy, Debug)]
pub struct EndedRequest {
    /// The number of its tokens.
    pub tokens: u64,
    /// The digest over their ids, in order.
    pub ids: Digest,
    /// The reason of its end.
    pub ending: EndReason,
    /// The time at which its first token was sent or received. `None` if it had no token.
    pub first: Option<Instant>,
}

/// The record of one end.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Record {
    /// The number of frames of every kind.
    pub frames: u64,
    /// The bytes of all frames.
    pub bytes: u64,
    /// The number of rows. This and the next two counts exclude health checks.
    pub rows: u64,
    /// The number of new tokens.
    pub tokens: u64,
    /// The number of ended requests.
    pub requests: u64,
    /// The number of rows of SGLang's health checks.
    pub health_checks: u64,
    /// The number of batches without rows.
    pub idle: u64,
    /// The number of control messages.
    pub controls: u64,
    /// The digest over all frames in order. It is equal at both ends if nothing was changed, joined or split.
    #[serde(serialize_with = "hexadecimal")]
    pub frames_digest: u64,
    /// The digest over all ended requests (rid, tokens, ids, end reason) in any order. It is equal at both
    /// ends if both had the same requests.
    #[serde(serialize_with = "hexadecimal")]
    pub requests_digest: u64,
    #[serde(skip)]
    stored: HashMap<Box<str>, EndedRequest>,
    /// Requests are not stored if the hash of their rid has one of these bits.
    #[serde(skip)]
    dropped_bits: u64,
    #[serde(skip)]
    limit: RequestLimit,
}

/// The most requests that are stored one by one.
#[derive(Clone, Copy, Debug)]
struct RequestLimit(usize);

impl Default for RequestLimit {
    fn default() -> RequestLimit {
        RequestLimit(MAX_STORED_REQUESTS)
    }
}

impl Record {
    /// An empty record.
    pub fn new() -> Record {
        Record::default()
    }

    /// Adds a frame.
    pub fn frame(&mut self, bytes: &[u8]) {
        self.frames += 1;
        self.bytes += bytes.len() as u64;
        let digest = u64::from(crc32fast::hash(bytes)) | (bytes.len() as u64) << 32;
        self.frames_digest = mix(self.frames_digest.rotate_left(7) ^ digest);
    }

    /// Adds an ended request.
    pub fn end(&mut self, rid: &str, request: EndedRequest) {
        let name = name_hash(rid);
        self.requests += 1;
        let parts = [request.tokens, request.ids.value(), request.ending as u64];
        let digest = parts.iter().fold(name, |digest, &part| mix(digest.rotate_left(7) ^ part));
        self.requests_digest = self.requests_digest.wrapping_add(digest);
        if name & self.dropped_bits != 0 {
            return;
        }
        self.stored.insert(rid.into(), request);
        while self.stored.len() > self.limit.0 {
            self.dropped_bits = self.dropped_bits << 1 | 1;
            self.stored.retain(|rid, _| name_hash(rid) & self.dropped_bits == 0);
        }
    }

    /// An ended request, if it is stored.
    pub fn get(&self, rid: &str) -> Option<&EndedRequest> {
        self.stored.get(rid)
    }

    /// The stored requests that `other` also stores if it has them.
    pub(crate) fn shared_with<'a>(
        &'a self,
        other: &Record,
    ) -> impl Iterator<Item = (&'a str, &'a EndedRequest)> {
        let dropped_bits = other.dropped_bits;
        self.stored
            .iter()
            .map(|(rid, request)| (rid.as_ref(), request))
            .filter(move |(rid, _)| name_hash(rid) & dropped_bits == 0)
    }

    #[cfg(test)]
    fn limited(requests: usize) -> Record {
        Record { limit: RequestLimit(requests), ..Record::default() }
    }
}

/// Writes the digest as text, because numbers of JSON are not exact to 64 bits everywhere.
fn hexadecimal<S: Serializer>(digest: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{digest:016x}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::rid;

    fn request(tokens: u64) -> EndedRequest {
        EndedRequest { tokens, ids: Digest::default(), ending: EndReason::Length, first: None }
    }

    #[test]
    fn beyond_its_limit_a_record_stores_fewer_requests_and_its_digest_covers_all() {
        let (mut a, mut b) = (Record::limited(100), Record::limited(1000));
        for index in 0..500 {
            a.end(&rid(1, index), request(index));
            b.end(&rid(1, 499 - index), request(499 - index));
        }
        assert!((20..=100).contains(&a.stored.len()), "{} stored", a.stored.len());
        assert!(a.dropped_bits != 0 && b.dropped_bits == 0);
        assert_eq!(a.requests_digest, b.requests_digest, "the order does not matter");
        assert_eq!(b.shared_with(&a).count(), a.stored.len(), "both store the same requests");
        assert!(b.shared_with(&a).all(|(rid, _)| a.get(rid).is_some()));
        b.end(&rid(1, 500), request(1));
        a.end(&rid(1, 500), request(2));
        assert_ne!(a.requests_digest, b.requests_digest);
    }

    #[test]
    fn the_digest_of_frames_depends_on_their_order() {
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
