//! Every bound of the simulator, and what happens at it.

use std::time::Duration;

/// Frames handed to the `zeromq` crate and not yet encoded by it: the simulated scheduler waits at this many. (A real
/// one never waits: its queue has no bound. The time waited is told, as `blocked`.)
pub const MAX_IN_FLIGHT_FRAMES: u64 = 64;

/// The same, in bytes; one frame may always go.
pub const MAX_IN_FLIGHT_BYTES: u64 = 16 << 20;

/// Requests kept one by one in a [`Record`](crate::record::Record). Past it every other one is let go, chosen by its
/// rid so that two records keep the same ones; the digest over all of them stays exact.
pub const MAX_KEPT_REQUESTS: usize = 1 << 18;

/// Rows a simulated batch may have; a load that asks for more is refused.
pub const MAX_RUNNING: u32 = 1 << 16;

/// New tokens a simulated row may have; a load that asks for more is refused.
pub const MAX_TOKENS_PER_STEP: u32 = 1 << 16;

/// Tokens of the prompt's end that SGLang gives the detokenizer, at the most; a load that asks for more is refused.
pub const MAX_PROMPT_TAIL: u32 = 5;

/// Stretches of a request's tokens that the reader remembers as missing, so that they may still come, late. Past it the
/// oldest counts as lost for good.
pub const MAX_MISSING_RANGES: usize = 64;

/// Faults told one by one; past it they are only counted.
pub const MAX_SAMPLES: usize = 16;

/// Bytes of frames read from a directory to be replayed; a larger directory is refused.
pub const MAX_REPLAY_BYTES: u64 = 1 << 30;

/// How late a step may be and still keep its place in time; what is later than that is forgotten, not caught up with.
pub const MAX_CATCH_UP: Duration = Duration::from_millis(50);

/// How often progress is told, at the most.
pub const PROGRESS_EVERY: Duration = Duration::from_millis(100);

/// How long it may take at the most until a stop is noticed.
pub const STOP_NOTICED_WITHIN: Duration = Duration::from_millis(20);

/// Aborts that wait for the simulated scheduler's next step; further ones wait on the socket.
pub const MAX_ABORTS: usize = 1024;
