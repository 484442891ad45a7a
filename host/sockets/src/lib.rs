//! ZeroMQ's PULL, PUSH and PUB over ipc and tcp, on mio, and the credit page of the reader.
//!
//! Owns: connections, their bounds, what the kernel has taken, what a reader has finished, and what the next reader is sent
//! again. One thread drives everything; nothing blocks, logs, or starts a thread; time is passed in. Knows nothing of what a
//! message says.
//!
//! A batch comes in by [`Pull`], goes through the rest of Afterbay, and leaves by [`Push`]; copies leave by [`Push`] or [`Pub`].
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod bounds;
mod conn;
mod door;
mod dropped;
mod endpoint;
mod notices;

mod pull;

mod bound;

mod push;

mod publish;

pub mod credit;

pub use bound::Bound;
pub use conn::{PeerAddress, TokenRange};
pub use dropped::Dropped;
pub use endpoint::{Endpoint, EndpointError};
pub use publish::{Pub, PubNotice, PubOptions, PubTotals};
pub use pull::{BindError, CloseReason, Message, PeerId, Pull, PullNotice, PullOptions, Refusal};
pub use push::{
    CreditOptions, CreditPosition, LossReason, Outgoing, Pending, Push, PushError, PushNotice, PushOptions,
    Totals, Unconfirmed,
};
