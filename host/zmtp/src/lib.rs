//! ZMTP 3.1 with the NULL mechanism, on bytes: greeting, handshake, commands, frames.
//!
//! Owns: what bytes mean, and which are refused. Knows no sockets, clocks or threads: a [`Peer`] is fed bytes as they
//! come, in pieces of any size, and gives events and bytes to send. So a keeper process can take it over, and a fuzzer
//! can drive it. Sources: RFC 23/ZMTP 3.0 and RFC 37/ZMTP 3.1 (rfc.zeromq.org); what libzmq 4.3.5 does where they are vague.
//!
//! A message comes in through [`Peer::feed`] or straight into its own buffer ([`Peer::body`]), and goes to
//! `afterbay_sockets`; there the same is done for sending, with [`Header`] before each payload.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod greeting;

mod command;
mod frame;

mod error;
mod peer;

mod subscriptions;

#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;

pub use command::{COMMAND_BYTES_MAX, PING_CONTEXT_BYTES_MAX};
pub use error::Error;
pub use frame::{HEADER_BYTES_MAX, Header};
pub use greeting::GREETING_BYTES;
pub use peer::{Body, Event, Handshake, OUTPUT_BYTES_MAX, Peer, Role, Unfinished};
pub use subscriptions::{SUBSCRIPTIONS_MAX, Subscriptions};
