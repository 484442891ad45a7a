//! Payload of RIDS: the checksums of the rids that a summary lists. A reader that looks for a rid skips a summary without it.

use serde::{Deserialize, Serialize};

use crate::format::checksum;

/// The rids of a summary, as sorted checksums.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RidIndex(Vec<u32>);

impl RidIndex {
    pub fn of<'a>(rids: impl Iterator<Item = &'a str>) -> RidIndex {
        let mut sums: Vec<u32> = rids.map(sum).collect();
        sums.sort_unstable();
        sums.dedup();
        RidIndex(sums)
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
    use crate::format::{decoded, encoded};

    #[test]
    fn an_index_has_the_rids_it_was_made_of_and_reads_back_the_same() {
        let rids: Vec<String> = (0..1000).map(|at| format!("rid-{at}")).collect();
        let index = RidIndex::of(rids.iter().chain(&rids).map(String::as_str));
        let bytes = encoded(&index);
        let read: RidIndex = decoded(&bytes).unwrap();
        assert_eq!(read, index);
        assert!(rids.iter().all(|rid| read.may_have(rid)));
        assert!(!read.may_have("rid-1000") && !read.may_have(""));
        assert_eq!(decoded::<RidIndex>(&bytes[..bytes.len() - 1]), None);
    }
}
