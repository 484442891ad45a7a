//! Every bound of a hand-over, in one place.

use std::time::Duration;

/// Most bytes of any message but `part`.
pub const MESSAGE_BYTES_MAX: usize = 256 << 10;
/// Most bytes of one `part`: the state of a stream, with the exported states of its plugins.
pub const PART_BYTES_MAX: usize = 256 << 20;
/// Most bytes of all parts together.
pub const PARTS_BYTES_MAX: usize = 1 << 30;
/// Most parts: one for each of 256 streams, and those of the process.
pub const PARTS_MAX: usize = 1024;
/// Most descriptors of a hand-over.
pub const DESCRIPTORS_MAX: usize = 65_536;
/// Most descriptors in one message. The kernel's limit is 253.
pub const GROUP_MAX: usize = 64;
/// Most descriptors in one entry.
pub const ENTRY_DESCRIPTORS_MAX: usize = 4;
/// Longest name of an entry or a part, in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// Longest reason, in bytes. A longer one is cut.
pub const WHY_BYTES_MAX: usize = 8 << 10;
/// Descriptors that the new process needs beside those that go over.
pub const DESCRIPTORS_SPARE: u64 = 128;

/// Time for `hello` after the connection is made.
pub const HELLO_MAX: Duration = Duration::from_secs(5);
/// Time from the stop of the streams to `released`. Then the running process resumes.
pub const WHOLE_MAX: Duration = Duration::from_secs(30);
/// Time that the new process waits for an answer. It is longer than [`WHOLE_MAX`], so the running process decides.
pub const ANSWER_MAX: Duration = Duration::from_secs(60);
/// Time for `running` after `released`.
pub const RUNNING_MAX: Duration = Duration::from_secs(5);
/// Time in which a new process that has failed may end by itself. Then it is killed.
pub const END_MAX: Duration = Duration::from_secs(2);
/// Time after SIGKILL in which the end of the new process is awaited.
pub const KILL_MAX: Duration = Duration::from_secs(5);
