//! Every bound of the plugin host, and what happens at it.

use std::time::Duration;

/// A component's bytes. Larger ones are refused before they are compiled.
pub const COMPONENT_BYTES_MAX: u64 = 256 << 20;
/// A plugin's settings, as JSON text. Larger ones are refused.
pub const SETTINGS_BYTES_MAX: usize = 1 << 20;
/// A plugin's memory: a limit above it is cut to it (the address space of a 32-bit memory).
pub const MEMORY_BYTES_MAX: u64 = 4 << 30;

/// A plugin's own name (WIT `description.name`).
pub const NAME_BYTES_MAX: usize = 64;
/// A plugin's version (WIT `description.version`).
pub const VERSION_BYTES_MAX: usize = 64;
/// A plugin's settings schema.
pub const SCHEMA_BYTES_MAX: usize = 256 << 10;
/// The text of a verdict: a reason, what was matched, a note, the name of a sink. Longer is a malformed answer.
pub const REASON_BYTES_MAX: usize = 256;

/// The name of a plugin's own metric. A longer one is cut before it is copied, and refused.
pub const METRIC_NAME_BYTES_MAX: usize = 64;
/// What one instance hands to the next (WIT `export-state`). More is a malformed answer.
pub const STATE_BYTES_MAX: usize = 64 << 20;
/// Requests named in one call of `open`, `changed` or `close`; more are given in several calls, each with its own deadline.
pub const OPEN_REQUESTS_MAX: usize = 256;

/// Bytes that a guest hands over in one call: the strings and lists of a call of an import, or an export's answer. More is a
/// trap. As much as a state may have, the largest of those, with room for its length.
pub const HANDED_OVER_BYTES_MAX: usize = STATE_BYTES_MAX + (64 << 10);
/// Bytes of one call of an import that cost a guest nothing beside the call.
pub const FREE_BYTES_MAX: usize = 4 << 10;
/// Processor time that a guest is charged for each byte of a call of an import with more than [`FREE_BYTES_MAX`]. The host needs
/// 0.1 to 1 ns to look at a byte.
pub const BYTE_COST: Duration = Duration::from_nanos(1);
/// Tokens that are decoded between two looks at the guest's deadline.
pub const TOKENS_AT_ONCE: usize = 1 << 10;
/// What each token of `token-bytes` is charged for beside its bytes: a list of its own.
pub const TOKEN_COST_BYTES: usize = 64;

/// A line of a plugin's log. The rest is cut before it is copied.
pub const LOG_LINE_BYTES_MAX: usize = 4 << 10;
/// Random bytes that a guest may ask for in one call. More is a trap.
pub const RANDOM_BYTES_MAX: usize = 4 << 10;
/// Lines a plugin may log in a second. More are counted and left out.
pub const LOG_LINES_PER_SECOND_MAX: u32 = 100;
/// Lines that wait for `Plugin::drain_log`. More are counted and left out.
pub const LOG_LINES_WAITING_MAX: usize = 200;

/// How often it is looked whether a guest runs. One that runs for so long is found.
pub const LOOK: Duration = Duration::from_millis(1);
/// How often one that was found is looked at. A call is stopped at the first look past its deadline. What lies between two looks
/// counts for so long at most.
pub const TICK: Duration = Duration::from_micros(250);
/// Looks since the last call after which the ticker sleeps until the next one.
pub const LOOKS_IDLE_MAX: u32 = 4;
/// A call may take this much longer than its deadline on the wall's clock while its thread waits for a processor. (With
/// 15 threads for 2 processors, waits of 100 ms were measured, several in a minute.) Past it the call is stopped all the
/// same, so that a thread's clock that stands still makes no call endless.
pub const WAIT_MAX: Duration = Duration::from_secs(10);

/// An instance that keeps to its deadlines saves one part in so many of its time; the call that goes past its deadline may use
/// it, and then it begins anew. So batches wait for a plugin that is too slow for this share of the time more, at most.
pub const SAVED_SHARE: u32 = 64;
/// What it saves at most. Longer than what a virtual machine was seen to take from a call that is found at every tick.
pub const SAVED_MAX: Duration = Duration::from_millis(8);

/// Plugin instances alive in this process (streams x plugins, twice during a reload). One more is refused.
pub const INSTANCES_MAX: u32 = 512;
/// Core instances, memories and tables of one component: a Rust guest has 4, 1 and 2.
pub const CORE_INSTANCES_MAX: u32 = 64;
/// Memories of one plugin.
pub const MEMORIES_MAX: u32 = 4;
/// Tables of one plugin.
pub const TABLES_MAX: u32 = 16;
/// Elements of one table; a table does not grow past it.
pub const TABLE_ELEMENTS_MAX: usize = 1 << 16;
/// A guest's call stack. Deeper is a trap.
pub const STACK_BYTES_MAX: usize = 512 << 10;

/// Memory of an instance that is gone, kept for the next one in its place. What it had more is given back.
pub const RESIDENT_BYTES_MAX: usize = 8 << 20;

/// Compiled components kept on disk. The longest unused is deleted for one more.
pub const CACHE_FILES_MAX: usize = 64;

/// A watched directory is quiet for this long before a changed file is read.
pub const SETTLE: Duration = Duration::from_millis(50);
/// A file that never comes to rest is read after this long all the same.
pub const SETTLE_MAX: Duration = Duration::from_secs(1);
/// Files are looked at this often even if nothing was told (file systems without events, replaced directories).
pub const RESCAN: Duration = Duration::from_secs(2);
/// A component that changed together with its settings waits so long for these to be read, at the most; then it is tried alone.
pub const WAIT_FOR_OTHERS_MAX: Duration = Duration::from_secs(5);

/// What one instance may use. Past it is a fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Linear memory of the instance, in bytes. An answer may hold no more than this either.
    pub memory_bytes: u64,
    /// Processor time of one call on the path: `open`, `changed`, `process`, `pressure`, `close`. An instance that has kept to it
    /// may go past it now and then ([`SAVED_SHARE`]).
    pub deadline: Duration,
    /// Processor time of one call off the path: `describe`, `configure`, which may load a vocabulary, `import-state`, and what an
    /// instance is shown before it takes over.
    pub start_deadline: Duration,
    /// Processor time of `export-state`: the stream waits for it.
    pub state_deadline: Duration,
    /// How long a row waits that it holds. Whoever carries the verdicts out keeps to it.
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
