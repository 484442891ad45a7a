//! ZeroMQ's PULL and PUSH over ipc and tcp, on mio, and the reader's credit page.
//!
//! The crate owns connections, their bounds, and the knowledge of what the kernel has taken, what a reader has finished and
//! what the next reader gets again. The caller's thread drives everything. No call blocks, logs or starts a thread, and
//! callers pass the time in. The crate does not interpret messages.
//!
//! A batch enters by [`Pull`], passes the rest of Afterbay, and leaves by [`Push`].
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod zmtp;
pub mod bounds;

pub mod injected;

mod conn;
mod notices;
mod peers;

mod lasting;
mod listener;

mod acceptor;

mod pull;

pub mod credit;
mod push;

pub use afterbay_types::{Endpoint, EndpointError};
pub use conn::{PeerAddress, TokenRange};
pub use lasting::{Lasting, MemoryError};
#[doc(hidden)]
pub use lasting::{ReceiveBuffer, SendMemory};
pub use listener::{BindError, Listener};
pub use peers::{CloseReason, PeerId, RefusalReason};
pub use pull::{Message, Pull, PullNotice, PullOptions};
pub use push::{
    CreditOptions, CreditPosition, InheritedPush, KeepAs, LossReason, OutgoingFrame, Pending, Push,
    PushError, PushNotice, PushOptions, PushTotals, Unconfirmed,
};
