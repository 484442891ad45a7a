//! Every bound of the plugin host, and what happens when it is reached.

use std::ops::RangeInclusive;
use std::time::Duration;

/// The bytes of a component. A larger one is refused before it is compiled.
pub const COMPONENT_BYTES_MAX: u64 = 256 << 20;
/// The bytes of debug information of a component's module. More is not read, and faults then name no source line.
pub const DEBUG_BYTES_MAX: usize = 32 << 20;
/// The source lines of a component. Code past them has no line.
pub const LINES_MAX: usize = 1 << 16;
/// The source lines in the message of a fault.
pub const FRAMES_MAX: usize = 8;
/// The bytes of a plugin's settings, as JSON text. Larger ones are refused.
pub const SETTINGS_BYTES_MAX: usize = 1 << 20;
/// The bytes of the environment that a component carries. A larger one is refused.
pub const ENVIRONMENT_BYTES_MAX: usize = 1 << 20;
/// The bytes of a plugin's memory. A higher limit is reduced to this one (the address space of a 32-bit memory).
pub const MEMORY_BYTES_MAX: u64 = 4 << 30;

/// The bytes of a plugin's own name (WIT `description.name`).
pub const NAME_BYTES_MAX: usize = 64;
/// The bytes of a plugin's version (WIT `description.version`).
pub const VERSION_BYTES_MAX: usize = 64;
/// The bytes of a plugin's settings schema.
pub const SCHEMA_BYTES_MAX: usize = 256 << 10;
/// The bytes of a verdict's text: a reason, a match, a note, or the name of a sink. A longer text is a malformed answer.
pub const REASON_BYTES_MAX: usize = 256;

/// The timers of an instance. One more ends the guest.
pub const TIMERS_MAX: usize = 1 << 20;

/// The HTTP statuses of an `error`. Another one is a malformed answer.
pub const ERROR_STATUSES: RangeInclusive<u16> = 400..=599;

/// The bytes of a plugin's own metric name. A longer one is cut before it is copied, and refused.
pub const METRIC_NAME_BYTES_MAX: usize = 64;
/// The labels of one value of a plugin's own metric. A value with more is refused.
pub const LABELS_MAX: usize = 4;
/// The bytes of a label's name. A longer one is cut before it is copied, and refused.
pub const LABEL_NAME_BYTES_MAX: usize = 64;
/// The bytes of a label's value. The rest is cut.
pub const LABEL_VALUE_BYTES_MAX: usize = 128;

/// The bytes of a key of a plugin's store. A longer one is refused.
pub const KEY_BYTES_MAX: usize = 256;
/// The bytes of a value of a plugin's store. A longer one is refused.
pub const VALUE_BYTES_MAX: usize = 64 << 10;
/// The keys in one answer of `list-keys`.
pub const KEYS_LISTED_MAX: usize = 1000;

/// The bytes of an endpoint's name. A longer one has no endpoint.
pub const ENDPOINT_BYTES_MAX: usize = 64;
/// The bytes of a call's body. A call with a longer one is not sent.
pub const CALL_BODY_BYTES_MAX: usize = 1 << 20;
/// The calls of a plugin that wait for the stream, which takes them after each call of the plugin. Further ones are not sent.
pub const CALLS_WAITING_MAX: usize = 1024;
/// The calls that wait for the stream, with those that are not sent. One more is a trap.
pub const UNSENT_CALLS_MAX: usize = 16 << 10;
/// The bytes of the reason of a health mark. The rest is cut.
pub const HEALTH_BYTES_MAX: usize = 256;

/// The bytes of the state that one instance exports (WIT `export-state`). More is a malformed answer.
pub const STATE_BYTES_MAX: usize = 64 << 20;
/// The requests in one call of `open`, `changed` or `close`, and the answers in one call of `answered`. More are given in several calls, each with its own deadline.
pub const OPEN_REQUESTS_MAX: usize = 256;

/// The bytes that a guest hands over in one call: the strings and lists of an import's call, or an export's answer. More is
/// a trap. The largest of these is a state, plus its length.
pub const HANDED_OVER_BYTES_MAX: usize = STATE_BYTES_MAX + (64 << 10);
/// The bytes of one import call that cost a guest nothing beyond the call.
pub const FREE_BYTES_MAX: usize = 4 << 10;
/// The CPU time for which a guest is charged per byte, in a call of an import with more than [`FREE_BYTES_MAX`] bytes. The
/// host needs 0.1 to 1 ns to read a byte.
pub const BYTE_COST: Duration = Duration::from_nanos(1);
/// The tokens that are decoded between two checks of the guest's deadline.
pub const TOKENS_AT_ONCE: usize = 1 << 10;
/// The bytes for which each token of `token-bytes` is charged beside its own: the cost of its list.
pub const TOKEN_COST_BYTES: usize = 64;

/// The bytes of a line in a plugin's log. The rest is cut before it is copied.
pub const LOG_LINE_BYTES_MAX: usize = 4 << 10;
/// The random bytes of one call. More is a trap.
pub const RANDOM_BYTES_MAX: usize = 4 << 10;
/// The lines that a plugin may log per second. More are counted and left out.
pub const LOG_LINES_PER_SECOND_MAX: u32 = 100;
/// The lines that wait for `Plugin::drain_log`. More are counted and left out.
pub const LOG_LINES_WAITING_MAX: usize = 200;

/// The time between two looks for running guests. A guest that runs for this long is found.
pub const LOOK: Duration = Duration::from_millis(1);
/// The time between two checks of a guest that was found. A call is stopped at the first check past its deadline. The time
/// between two checks counts for at most this length.
pub const TICK: Duration = Duration::from_micros(250);
/// The looks without a call after which the ticker sleeps until the next call.
pub const LOOKS_IDLE_MAX: u32 = 4;
/// The wall time by which a call may exceed its deadline while its thread waits for a processor. (With 15 threads on 2
/// processors, waits of 100 ms were measured several times per minute.) Then the call is stopped in any case, so that no
/// call is endless if a thread's clock stands still.
pub const WAIT_MAX: Duration = Duration::from_secs(10);

/// The divisor of an instance's credit: an instance within its deadlines earns 1/64 of its time. A call past its deadline
/// may use the credit up, and then the credit begins at 0 again. A plugin that is too slow thus delays batches by at most
/// this share.
pub const SAVED_SHARE: u32 = 64;
/// The largest credit. It exceeds the longest time that a virtual machine was seen to take from a call found at every tick.
pub const SAVED_MAX: Duration = Duration::from_millis(8);

/// The plugin instances of this process (streams times plugins, twice during a reload). One more is refused.
pub const INSTANCES_MAX: u32 = 512;
/// The core instances, memories and tables of one component. A Rust guest has 4, 1 and 2.
pub const CORE_INSTANCES_MAX: u32 = 64;
/// The memories of one plugin.
pub const MEMORIES_MAX: u32 = 4;
/// The tables of one plugin.
pub const TABLES_MAX: u32 = 16;
/// The elements of one table. A table does not grow past it.
pub const TABLE_ELEMENTS_MAX: usize = 1 << 16;
/// The bytes of a guest's call stack. A deeper one is a trap.
pub const STACK_BYTES_MAX: usize = 512 << 10;

/// The memory of a dropped instance that is reserved for the next one. The rest is given back.
pub const RESIDENT_BYTES_MAX: usize = 8 << 20;

/// The compiled components on disk. For one more, the one that was unused for the longest time is deleted.
pub const CACHE_FILES_MAX: usize = 64;

/// The time for which a watched directory must be quiet before a changed file is read.
pub const SETTLE: Duration = Duration::from_millis(50);
/// The time after which a file that keeps changing is read in any case.
pub const SETTLE_MAX: Duration = Duration::from_secs(1);
/// The time between two looks at files without events (for file systems without events, and replaced directories).
pub const RESCAN: Duration = Duration::from_secs(2);
/// The time for which a changed component waits for its changed settings to be read. Then the component is tried alone.
pub const WAIT_FOR_OTHERS_MAX: Duration = Duration::from_secs(5);

/// The limits of one instance. Exceeding one is a fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The linear memory of the instance, in bytes. It also bounds the size of an answer.
    pub memory_bytes: u64,
    /// The CPU time of one call on the path: `open`, `changed`, `process`, `pressure`, `answered`, `close`. An instance that stays
    /// within it may exceed it now and then ([`SAVED_SHARE`]).
    pub deadline: Duration,
    /// The CPU time of one call off the path: `describe`, `configure` (which may load a vocabulary), `import-state`, and
    /// replayed rows.
    pub start_deadline: Duration,
    /// The CPU time of `export-state`, for which the stream waits.
    pub state_deadline: Duration,
    /// The longest time for which a plugin may hold a row. The stream enforces it.
    pub hold: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory_bytes: 64 << 20,
            deadline: Duration::from_millis(2),
            start_deadline: Duration::from_secs(5),
            state_deadline: Duration::from_millis(20),
            hold: Duration::from_secs(1),
        }
    }
}
