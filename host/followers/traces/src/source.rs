//! The facts about requests and streams that are not in the journal.

use afterbay_wire::Layouts;

/// The facts about requests and streams that are not in the journal.
pub trait TraceSource: Send + Sync {
    /// The layouts of a stream's msgpack frames.
    fn layouts(&self, stream: &str) -> Layouts;
    /// The attribute `traceparent` of a request that begins.
    fn traceparent(&self, stream: &str, rid: &str) -> Option<String>;
}
