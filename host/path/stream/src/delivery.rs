//! Delivery: a settled batch goes to its readers.
//!
//! Owns, for each reader, the queue in memory, the frames that wait only in the journal, and the socket. Knows no plugin.
//! Nothing follows: the kernel has the bytes.

mod budget;
mod sinks;
mod error;
mod resume;
mod router;
mod sender;
mod sink;
mod spill;
mod stored_content;

pub use budget::{Budget, Portion};
pub use error::StartError;
pub use resume::{ReaderCount, Resume, UnconfirmedFrames};
pub use router::Router;
pub use sender::{SinkSender, push_options};
pub use sink::Sink;
pub use sinks::Delivery;
