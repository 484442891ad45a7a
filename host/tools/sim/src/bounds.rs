//! The bounds of the simulator, and its behaviour at each of them.

use std::time::Duration;

/// The most frames that the `zeromq` crate holds without having encoded them. The simulated scheduler waits
/// at this bound and reports the time as `blocked`. A real scheduler never waits: its queue has no bound.
pub const MAX_IN_FLIGHT_FRAMES: u64 = 64;

/// The most bytes of these frames. A single frame may always be sent.
pub const MAX_IN_FLIGHT_BYTES: u64 = 16 << 20;

/// The most requests that a [`Record`](crate::record::Record) stores one by one. Beyond it the record drops
/// every other request, selected by rid so that two records drop the same ones. The digest over all requests
/// stays exact.
pub const MAX_STORED_REQUESTS: usize = 1 << 18;

/// The most rows of a simulated batch. A load that asks for more is refused.
pub const MAX_RUNNING: u32 = 1 << 16;

/// The most new tokens of a simulated row. A load that asks for more is refused.
pub const MAX_TOKENS_PER_STEP: u32 = 1 << 16;

/// The most tokens of the prompt's end that SGLang gives to the detokenizer. A load that asks for more is
/// refused.
pub const MAX_PROMPT_TAIL: u32 = 5;

/// The most ranges of a request's missing tokens that the reader remembers, in case they arrive late. Beyond
/// it the oldest range counts as lost for good.
pub const MAX_MISSING_RANGES: usize = 64;

/// The most faults described in words. Further faults are only counted.
pub const MAX_SAMPLES: usize = 16;

/// The most that a step may be late and still keep the pace. A larger delay is not made up for.
pub const MAX_CATCH_UP: Duration = Duration::from_millis(50);

/// The shortest time between two reports of progress.
pub const PROGRESS_EVERY: Duration = Duration::from_millis(100);

/// The longest time until a stop is noticed.
pub const STOP_NOTICED_WITHIN: Duration = Duration::from_millis(20);

/// The most aborts that wait for the simulated scheduler's next step. Further aborts wait on the socket.
pub const MAX_ABORTS: usize = 1024;
