//! The sockets through their public interface.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[cfg(debug_assertions)]
mod adopt;
mod bind;
mod closing;
mod libzmq;
mod libzmq_restarts;
mod pull;
mod push;
mod support;
mod zeromq_crate;
