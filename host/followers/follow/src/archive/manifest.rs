//! Manifests: one JSON object for each segment, written after the objects that hold the segment's rows.
//!
//! The manifest of a file's first segment commits the whole file: it names all segments of the file. The manifests of the other
//! segments say the same and are written after it. A start completes them if a kill came between. No segment is ever in the files of
//! two manifests.

use afterbay_journal::SegmentId;
use serde::{Deserialize, Serialize};

use crate::archive::names::word;

/// Version of the manifests.
const VERSION: u32 = 1;

/// The manifest of one segment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    pub(crate) version: u32,
    pub(crate) instance: String,
    pub(crate) stream: String,
    /// The segment, with its counts.
    #[serde(flatten)]
    pub(crate) segment: SegmentEntry,
    /// The file that holds the segment's rows.
    pub(crate) file: FileEntry,
}

/// A segment and what it gave.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SegmentEntry {
    /// Name of the segment without extension.
    pub(crate) segment: String,
    /// Time when the segment was begun, unix nanoseconds.
    pub(crate) begun_unix_ns: u64,
    /// Requests that ended in the segment.
    pub(crate) requests: u64,
    /// Tokens that these requests received.
    pub(crate) tokens: u64,
    /// Batches whose outcome is in the segment.
    pub(crate) batches: u64,
    /// Bytes of the segment that are no record: what they held is not in the archive.
    pub(crate) corrupt_bytes: u64,
}

/// The rows of consecutive segments, as one object for each table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileEntry {
    /// The objects. A table without rows has none.
    pub(crate) objects: Vec<ObjectEntry>,
    /// All segments of the file, in order.
    pub(crate) segments: Vec<SegmentEntry>,
    /// The oldest segment that a reader of the segments after this file needs. `None`: only those.
    pub(crate) needs: Option<String>,
}

/// An object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ObjectEntry {
    /// `requests` or `batches`.
    pub(crate) table: String,
    /// Path below the archive's URL.
    pub(crate) path: String,
    pub(crate) rows: u64,
    pub(crate) bytes: u64,
}

/// Segments that are not in the archive and never will be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Gap {
    pub(crate) version: u32,
    pub(crate) instance: String,
    pub(crate) stream: String,
    /// The last segment before the gap that is in the archive.
    pub(crate) after: String,
    /// The first segment after the gap.
    pub(crate) before: String,
}

impl Manifest {
    pub(crate) fn new(instance: &str, stream: &str, segment: &SegmentEntry, file: &FileEntry) -> Manifest {
        Manifest {
            version: VERSION,
            instance: instance.to_owned(),
            stream: stream.to_owned(),
            segment: segment.clone(),
            file: file.clone(),
        }
    }
}

impl Gap {
    pub(crate) fn new(instance: &str, stream: &str, after: SegmentId, before: SegmentId) -> Gap {
        Gap {
            version: VERSION,
            instance: instance.to_owned(),
            stream: stream.to_owned(),
            after: word(after),
            before: word(before),
        }
    }
}

/// The bytes of a manifest or a gap.
pub(crate) fn encode(value: &impl Serialize) -> Vec<u8> {
    // Plain structs always have a JSON form.
    let mut bytes = serde_json::to_vec_pretty(value).unwrap_or_default();
    bytes.push(b'\n');
    bytes
}

/// Reads a manifest. The error says what is wrong.
pub(crate) fn decode(bytes: &[u8]) -> Result<Manifest, String> {
    let manifest: Manifest = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    match manifest.version {
        VERSION => Ok(manifest),
        version => Err(format!("version {version}, this program reads {VERSION}")),
    }
}
