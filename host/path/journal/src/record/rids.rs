//! Payload of RIDS: the checksums of the rids that a summary lists. A reader that looks for a rid skips a summary without it.

use super::put_u32;
use crate::format::{ByteReader, RecordKind, checksum, record};

/// The rids of a summary, as sorted checksums.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RidIndex(Vec<u32>);

impl RidIndex {
    pub fn of<'a>(rids: impl Iterator<Item = &'a str>) -> RidIndex {
        let mut sums: Vec<u32> = rids.map(sum).collect();
        sums.sort_unstable();
        sums.dedup();
        RidIndex(sums)
    }

    /// Adds the record.
    pub fn put(&self, out: &mut Vec<u8>) {
        record(out, RecordKind::RIDS, self.0.len() as u64, 0, |out| {
            self.0.iter().for_each(|sum| put_u32(out, *sum));
        });
    }

    /// Returns `None` if the payload does not match its kind.
    pub fn decode(payload: &[u8], count: u64) -> Option<RidIndex> {
        let mut at = ByteReader(payload);
        let sums: Vec<u32> = std::iter::from_fn(|| at.u32()).collect();
        (at.0.is_empty() && sums.len() as u64 == count).then_some(RidIndex(sums))
    }

    /// Whether the summary may list a request with this rid: about one in a million summaries of 4,000 requests has another rid
    /// with the same checksum.
    pub fn may_have(&self, rid: &str) -> bool {
        self.0.binary_search(&sum(rid)).is_ok()
    }
}

fn sum(rid: &str) -> u32 {
    checksum(0, rid.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{HEAD_BYTES, RecordHead, seal};

    #[test]
    fn an_index_has_the_rids_it_was_made_of_and_reads_back_the_same() {
        let rids: Vec<String> = (0..1000).map(|at| format!("rid-{at}")).collect();
        let index = RidIndex::of(rids.iter().chain(&rids).map(String::as_str));
        let mut bytes = Vec::new();
        index.put(&mut bytes);
        seal(&mut bytes, 1, 0);
        let (head, _) = RecordHead::decode(bytes.first_chunk().unwrap(), 1, 0).unwrap();
        let payload = &bytes[HEAD_BYTES..][..head.payload as usize];
        let read = RidIndex::decode(payload, head.number).unwrap();
        assert_eq!((&read, head.number), (&index, 1000));
        assert!(rids.iter().all(|rid| read.may_have(rid)));
        assert!(!read.may_have("rid-1000") && !read.may_have(""));
        assert_eq!(RidIndex::decode(&payload[1..], head.number), None);
        assert_eq!(RidIndex::decode(payload, head.number + 1), None);
    }
}
