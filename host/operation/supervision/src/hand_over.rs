//! A running process hands over to a new one.
//!
//! The new process gets what a supervisor would pass to it after a crash: descriptors with their names, in the same messages.
//! In addition it gets the state that a crash would lose. The running process starts the new one, and the new one's standard
//! input is a socket between the two, so nobody else can take part. Each message is one of the supervisor's protocol.
//!
//! ```text
//! running process                          new process
//!                                          checks the configuration, compiles
//!                                    ◀──   VERSION=… FORMATS=… MAINPID=…
//! stops its streams between two frames
//! FDSTORE=1 FDNAME=…, a descriptor   ──▶
//! …
//! STATE=1, a memory file             ──▶   builds everything
//!                                    ◀──   READY=1, or FAILED=…
//! RELEASED=1                         ──▶
//!                                    ◀──   RUNNING=1
//! ends                                     runs
//! ```
//!
//! The new process moves no byte of a stream before `RELEASED=1`. If anything else happens before that, the running process kills
//! the new one, which could otherwise still write to the journal, and its streams go on.

mod channel;
mod predecessor;
mod successor;

pub use predecessor::{Predecessor, Taken};
pub use successor::Successor;

use std::process::ExitStatus;
use std::time::Duration;

/// Most bytes of the state: 64 MiB of each of 16 streams.
pub const STATE_BYTES_MAX: usize = 1 << 30;
/// Most bytes of a reason. A longer one is cut.
const WHY_BYTES_MAX: usize = 3 << 10;
/// Time for the new process to check and compile before it asks.
pub const ASK_MAX: Duration = Duration::from_secs(110);
/// Time from the stop of the streams to the release. Then the running process resumes.
pub const WHOLE_MAX: Duration = Duration::from_secs(30);
/// Time that the new process waits for an answer. It is longer than [`WHOLE_MAX`], so the running process decides.
const ANSWER_MAX: Duration = Duration::from_secs(60);
/// Time for `RUNNING=1` after the release.
const RUNNING_MAX: Duration = Duration::from_secs(5);
/// Time in which a new process that has failed may end by itself. Then it is killed.
const END_MAX: Duration = Duration::from_secs(2);
/// Time between two looks at a new process that ends.
const END_LOOK_EVERY: Duration = Duration::from_millis(5);

/// The reason why nothing was handed over. The running process goes on.
#[derive(Debug, thiserror::Error)]
pub enum HandOverError {
    /// The new process ended.
    #[error("the new process ended before it took over ({0}): the log of this process has its messages")]
    Ended(ExitStatus),
    /// The new process says why.
    #[error("the new process: {0}")]
    Failed(String),
    /// The running process has refused, or has ended.
    #[error("the running process closed the connection")]
    Closed,
    /// The other process ended without reading the last message.
    #[error("the other process ended before it read the last message")]
    Unread,
    /// Nothing arrived, or could be written, before the deadline.
    #[error("the other process did not answer in time")]
    Late,
    /// A message that does not belong here.
    #[error("a message that does not say {0}")]
    Unexpected(&'static str),
    /// This process had no room for a descriptor.
    #[error("no room for further descriptors: raise the limit of open files (ulimit -n, LimitNOFILE=)")]
    NoRoom,
    /// The process that asks is a child of the one that was started.
    #[error("the binary starts another process: it must be the program itself, or become it (exec)")]
    Wrapper,
    /// The state is too large.
    #[error("the state has {0} bytes, at most {STATE_BYTES_MAX} are allowed")]
    State(usize),
    /// Standard input is no connection to a running process.
    #[error("--take-over is for the process that `afterbay upgrade` starts")]
    NotStarted,
    /// The system refused a call.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}
