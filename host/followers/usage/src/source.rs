//! The facts that only a running process has.

use afterbay_journal::OpenError;
use afterbay_wire::Layouts;

/// The process that runs the streams.
pub trait UsageSource: Send + Sync {
    /// The identity of the journal's directory.
    ///
    /// # Errors
    /// There is none, and the disk refuses it now.
    fn instance(&self) -> Result<String, OpenError>;

    /// The layouts of a stream's frames.
    fn layouts(&self, stream: &str) -> Layouts;
}
