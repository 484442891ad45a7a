//! The bounds of this crate. A frame past any of them is not understood: decoding returns an error value beside the
//! frame's bytes. (The pickle crate has its own bounds on opcodes and depth.) The nesting of msgpack has no bound,
//! because it costs nothing.

/// The longest frame that is read, in bytes. Spans are `u32`, so it must be less than 4 GiB.
pub const MAX_FRAME_BYTES: usize = 1 << 30;

/// The most fields of a message in a layout. SGLang's widest message has 54.
pub const MAX_FIELDS: usize = 256;

/// The longest introduction, in bytes. SGLang's has 8 KiB.
pub const MAX_INTRODUCTION_BYTES: usize = 256 << 10;

/// The longest line of JSON in the record of a request, in bytes.
pub const MAX_REQUEST_BYTES: usize = 64 << 10;

/// The longest prompt in the record of a request, in bytes: 262,144 ids.
pub const MAX_PROMPT_BYTES: usize = 1 << 20;

/// The most classes of an introduction. SGLang's has 3.
pub const MAX_CLASSES: usize = 16;

/// The longest class name that [`crate::Barrier`] returns, in bytes. A longer one is cut.
pub const MAX_TAG_BYTES: usize = 128;

/// The bytes of an unreadable pickle that are searched for its class. SGLang names it within the first 100.
pub const PICKLE_HEAD_BYTES: usize = 256;

/// The limit of a frame's values as a multiple of its bytes. A pickle can repeat one value in many places, so reading
/// counts: ids and entries of lists and maps by number, texts by length. Honest frames stay below 1.
pub const MAX_EXPANSION: usize = 4;

/// The deepest nesting shown as JSON. Deeper values become `{"__cut__": true}`.
pub const MAX_SHOWN_DEPTH: usize = 64;

/// The limit of JSON output as a multiple of the frame's bytes, counted in values and bytes of text. Values past it
/// become `{"__cut__": true}`.
pub const MAX_SHOWN: usize = 8;

/// The longest rid of an abort, in bytes. The journal has no request with a longer one.
pub const MAX_RID_BYTES: usize = 4096;

/// The highest token id that is written for vLLM, whose arrays have ids as 32-bit signed ints. Its tokenizers take no
/// negative ones.
pub const ID_MAX: i64 = i32::MAX as i64;
