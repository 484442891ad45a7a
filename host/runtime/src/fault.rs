//! What a plugin did wrong: the stream's policy decides what becomes of the batch.

use std::fmt;
use std::time::Duration;

/// A call that ended badly. The instance is dead; `plugin.component().instantiate(..)` makes a fresh one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("plugin \"{plugin}\": {call} {kind}")]
pub struct Fault {
    /// The operator's name of the plugin.
    pub plugin: String,
    /// The call it happened in.
    pub call: Call,
    /// What happened.
    pub kind: FaultKind,
}

/// The functions that the host calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// The instance's start, before any function of its own.
    Start,
    /// `describe`.
    Describe,
    /// `configure`.
    Configure,
    /// `open`.
    Open,
    /// `process`.
    Process,
    /// `close`.
    Close,
    /// `changed`.
    Changed,
    /// `pressure`.
    Pressure,
    /// `export-state`.
    ExportState,
    /// `import-state`.
    ImportState,
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Call::Start => "start",
            Call::Describe => "describe",
            Call::Configure => "configure",
            Call::Open => "open",
            Call::Process => "process",
            Call::Close => "close",
            Call::Changed => "changed",
            Call::Pressure => "pressure",
            Call::ExportState => "export-state",
            Call::ImportState => "import-state",
        })
    }
}

/// The kinds of fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FaultKind {
    /// The guest trapped: a panic, an abort, a stack too deep, an import that is not granted.
    #[error("trapped: {message}")]
    Trap {
        /// The trap, the last error that the guest logged in this call (a panic's text), and what it printed in the call (an
        /// exception's).
        message: String,
    },
    /// The call took more processor time than its deadline.
    #[error("exceeded {limit:?}")]
    Deadline {
        /// The deadline.
        limit: Duration,
    },
    /// The guest wanted more memory than its limit.
    #[error("wanted {wanted} bytes of memory, the limit is {limit}")]
    Memory {
        /// What it would have had.
        wanted: u64,
        /// The limit, in bytes.
        limit: u64,
    },
    /// The answer breaks the contract of wit/transform.wit.
    #[error("answered what it may not: {what}")]
    Malformed {
        /// How.
        what: String,
    },
    /// The instance was dead already, from an earlier fault.
    #[error("was not called: this instance is dead from an earlier fault")]
    Dead,
}

impl FaultKind {
    /// One word, for metrics.
    pub fn label(&self) -> &'static str {
        match self {
            FaultKind::Trap { .. } => "trap",
            FaultKind::Deadline { .. } => "deadline",
            FaultKind::Memory { .. } => "memory",
            FaultKind::Malformed { .. } => "malformed",
            FaultKind::Dead => "dead",
        }
    }
}
