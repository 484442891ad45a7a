//! Faults: failed calls of a plugin. The stream decides what happens to the batch.

use std::fmt;
use std::time::Duration;

use afterbay_types::FaultKind;

use crate::lines::GuestFrame;

/// A failed call. The instance is dead. `plugin.component().instantiate(..)` makes another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The operator's name of the plugin.
    pub plugin: String,
    /// The failed call.
    pub call: Call,
    /// The cause.
    pub cause: FaultCause,
    /// The guest's own lines at the end of the call, innermost first, at most [`FRAMES_MAX`](crate::limits::FRAMES_MAX). Empty if
    /// the component has no debug information.
    pub stack: Vec<GuestFrame>,
}

impl std::error::Error for Fault {}

impl fmt::Display for Fault {
    /// The innermost line comes before a trap's text, and the other lines below the text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Fault { plugin, call, cause, stack } = self;
        write!(f, "plugin \"{plugin}\": {call} ")?;
        match (cause, stack.split_first()) {
            (cause, None) => write!(f, "{cause}"),
            (FaultCause::Trap { message }, Some((first, rest))) => {
                write!(f, "trapped: {first}: {message}")?;
                rest.iter().try_for_each(|frame| write!(f, "\n  {frame}"))
            }
            (cause, Some((first, _))) => write!(f, "{cause}: {first}"),
        }
    }
}

/// The functions that the host calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// The instance's start, before any function of its own runs.
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
    /// `answered`.
    Answered,
    /// `due`.
    Due,
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
            Call::Answered => "answered",
            Call::Due => "due",
            Call::ExportState => "export-state",
            Call::ImportState => "import-state",
        })
    }
}

/// The cause of a fault, with its details.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FaultCause {
    /// The guest trapped: a panic, an abort, a stack overflow, or an import that is not granted.
    #[error("trapped: {message}")]
    Trap {
        /// The text of a panic or an exception. Without such a text: the trap, the last error that the guest logged in this call,
        /// and what the guest printed in this call.
        message: String,
    },
    /// The call used more CPU time than its deadline.
    #[error("exceeded {limit:?}")]
    Deadline {
        /// The deadline.
        limit: Duration,
    },
    /// The guest asked for more memory than its limit.
    #[error("wanted {wanted} bytes of memory, the limit is {limit}")]
    Memory {
        /// The memory it would have had, in bytes.
        wanted: u64,
        /// The limit, in bytes.
        limit: u64,
    },
    /// The answer breaks the contract of wit/transform.wit.
    #[error("gave an invalid answer: {what}")]
    Malformed {
        /// The broken rule.
        what: String,
    },
    /// The instance was dead already, because of an earlier fault.
    #[error("was not called: this instance is dead from an earlier fault")]
    Dead,
}

impl FaultCause {
    /// The kind of this cause.
    pub fn kind(&self) -> FaultKind {
        match self {
            FaultCause::Trap { .. } => FaultKind::Trap,
            FaultCause::Deadline { .. } => FaultKind::Deadline,
            FaultCause::Memory { .. } => FaultKind::Memory,
            FaultCause::Malformed { .. } => FaultKind::Malformed,
            FaultCause::Dead => FaultKind::Dead,
        }
    }
}
