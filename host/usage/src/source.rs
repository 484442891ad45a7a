//! The facts that only a running process has.

use afterbay_wire::Layouts;

/// The process that runs the streams.
pub trait UsageSource: Send + Sync {
    /// The layouts of a stream's frames.
    fn layouts(&self, stream: &str) -> Layouts;
}
