//! A simulated scheduler and a simulated slow reader, for the demo, the tests, the benches and
//! `afterbay sim`.
//!
//! Both ends use the `zeromq` crate, which shares no code with Afterbay's own sockets, and real wire bytes
//! from [`afterbay_wire::synth`]. A load has a seed, and its token ids follow from each request's name and a
//! token's position. A reader, also in another process, therefore finds every lost, repeated, late or changed
//! token without any other input. If both ends are in one process, their records are compared request by
//! request.
//!
//! All functions block and take a [`Stop`] and a callback for progress. This crate must not know Afterbay:
//! the caller decides what runs between the two ends.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod bounds;

pub mod ids;
pub mod load;
pub mod steps;

pub mod frames;

pub mod scheduler;

mod aborts;
mod endpoint;
mod link;

pub mod inbox;
pub mod reader;
mod work;

pub mod check;
pub mod record;

pub mod compare;

mod progress;
mod stop;

pub use progress::Progress;
pub use stop::Stop;
