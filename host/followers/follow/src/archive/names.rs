//! Names of objects, relative to the archive's prefix. They depend on nothing but the instance, the stream and the segment, so that a
//! repeated upload replaces an object in place of adding one.

use afterbay_journal::SegmentId;
use chrono::{DateTime, Utc};

use crate::archive::schema::Table;

/// The stream that names belong to.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    pub(crate) instance: String,
    pub(crate) stream: String,
}

impl Names {
    /// The object of a table that begins with this segment, which was begun at this time.
    pub(crate) fn object(&self, table: Table, first: SegmentId, begun_unix_ns: u64) -> String {
        let begun = DateTime::<Utc>::from_timestamp_nanos(begun_unix_ns.cast_signed());
        let (instance, stream, first) = (&self.instance, &self.stream, word(first));
        let partition = begun.format("date=%Y-%m-%d/hour=%H");
        format!("{}/{partition}/{instance}.{stream}.{first}.parquet", table.name())
    }

    /// The directory of the stream's manifests.
    pub(crate) fn manifests(&self) -> String {
        format!("manifests/{}/{}", self.instance, self.stream)
    }

    /// The manifest of a segment.
    pub(crate) fn manifest(&self, segment: SegmentId) -> String {
        format!("{}/{}.json", self.manifests(), word(segment))
    }

    /// The object that names the gap before a segment.
    pub(crate) fn gap(&self, before: SegmentId) -> String {
        format!("{}/{}.gap.json", self.manifests(), word(before))
    }
}

/// A segment's name without its extension.
pub(crate) fn word(segment: SegmentId) -> String {
    segment.to_string().trim_end_matches(".seg").to_owned()
}

/// The segment of a manifest's file name. `None` for another object.
pub(crate) fn segment_of(manifest: &str) -> Option<SegmentId> {
    parse(manifest.strip_suffix(".json")?)
}

/// The segment with this name without its extension.
pub(crate) fn parse(word: &str) -> Option<SegmentId> {
    SegmentId::parse(&format!("{word}.seg"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use afterbay_journal::FrameNo;

    #[test]
    fn an_object_is_named_by_instance_stream_and_first_segment_in_the_hour_of_its_begin() {
        let names = Names { instance: "node-0a1b2c3d".into(), stream: "decode.0".into() };
        let first = SegmentId { first: FrameNo(7), sequence: 3 };
        assert_eq!(
            names.object(Table::Requests, first, 1_764_137_100_000_000_000),
            "requests/date=2025-11-26/hour=06/node-0a1b2c3d.decode.0.00000000000000000007-0000000003.parquet"
        );
        let manifest = names.manifest(first);
        assert_eq!(manifest, "manifests/node-0a1b2c3d/decode.0/00000000000000000007-0000000003.json");
        assert_eq!(segment_of(manifest.rsplit('/').next().unwrap()), Some(first));
        assert_eq!(segment_of("00000000000000000007-0000000003.gap.json"), None);
    }
}
