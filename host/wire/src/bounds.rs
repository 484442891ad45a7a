//! The bounds of this crate. A frame over any of them is not understood: an error value, beside the frame's bytes. (The pickle
//! crate has its own, on opcodes and depth.) How deep a msgpack value is nested has no bound: it costs nothing.

/// Longest frame that is read, in bytes. Spans are `u32`, so this must stay under 4 GiB.
pub const MAX_FRAME_BYTES: usize = 1 << 30;

/// Most fields of a message in a layout. SGLang's widest has 54.
pub const MAX_FIELDS: usize = 256;

/// Longest name of a message's class, in bytes. A longer one is cut in what [`crate::Barrier`] tells.
pub const MAX_TAG_BYTES: usize = 128;

/// How far into a pickle that cannot be read its class is looked for, in bytes. It is named within the first 100.
pub const PICKLE_HEAD_BYTES: usize = 256;

/// How many times its bytes a frame's values may come to. A pickle may say one value in many places, so what is read
/// out of it must be counted: ids and entries of lists and maps by number, texts by length. Honest ones stay below 1.
pub const MAX_EXPANSION: usize = 4;

/// Deepest nesting shown as JSON; deeper values are shown as `{"__cut__": true}`.
pub const MAX_SHOWN_DEPTH: usize = 64;

/// How many times the frame's bytes is shown as JSON, in values and bytes of text; what comes after is shown as
/// `{"__cut__": true}`.
pub const MAX_SHOWN: usize = 8;

/// Longest rid of an abort, in bytes: the journal's, which has no request with a longer one.
pub const MAX_RID_BYTES: usize = 4096;
