//! Entries that Afterbay itself adds to a stream's journal.

/// Bytes of a frame that Afterbay appends when held rows are released without a frame to carry them. The
/// marker is sent to no reader: `CHANGED` of its outcome holds the
/// released rows. No scheduler's frame begins like this: msgpack begins with an array header, pickle with
/// `0x80`.
pub const RELEASE_MARKER: &[u8] = b"AFTERBAY: rows that waited go on";

/// Whether `bytes` are a release marker.
pub fn is_release_marker(bytes: &[u8]) -> bool {
    bytes == RELEASE_MARKER
}

/// Name of the pseudo sink that is recorded while rows are held. It has taken all frames before the oldest
/// held row. It is not a reader.
pub const HELD_SINK: &str = "(held)";
