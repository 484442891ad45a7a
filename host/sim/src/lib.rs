//! A simulated scheduler and a simulated slow reader, for the demo, the tests, the benches and `afterbay sim`.
//!
//! Both ends use the `zeromq` crate, which shares no code with Afterbay's own sockets, and real wire bytes of
//! [`afterbay_wire::synth`]. A load is seeded, and its token ids follow from each request's name and a token's place, so
//! that a reader, in the same process or not, finds every lost, repeated, late or changed token by itself; where both
//! ends are in one process their records are compared, request by request.
//!
//! Everything is a blocking library call with a [`Stop`] and a callback for progress. This crate must not know Afterbay:
//! what stands between the two ends is the caller's.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod bounds;

// From what is asked for to the frames of it.
pub mod load;

pub mod ids;

pub mod steps;

pub mod frames;
pub mod replay;

// Over a socket.
pub mod scheduler;

mod aborts;
mod endpoint;
mod link;

pub mod inbox;
pub mod reader;
pub mod work;

// To what is said of it.
pub mod check;

pub mod record;

pub mod compare;

mod progress;
mod stop;

pub use endpoint::ListenError;
pub use progress::Progress;
pub use stop::Stop;
