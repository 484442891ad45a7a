//! What Afterbay itself puts into a stream's journal beside what its scheduler sends.

/// The bytes of a frame that Afterbay puts among the scheduler's: rows that had waited go on with it, those that its outcome
/// has. It leaves for no reader; what leaves is what its [`CHANGED`](crate::reader::Outcome::changed) holds. No frame of a
/// scheduler begins so: msgpack's begin with an array's header, pickles with `0x80`.
pub const MARK: &[u8] = b"AFTERBAY: rows that waited go on";

/// Whether these are the bytes of a frame of Afterbay's own.
pub fn is_mark(bytes: &[u8]) -> bool {
    bytes == MARK
}

/// Stands among the sinks while rows are held: it has taken all frames before the oldest of these. Not a reader.
pub const HELD_SINK: &str = "(held)";
