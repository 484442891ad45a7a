//! ZMTP 3.1 with the NULL mechanism, on byte slices: greeting, handshake, commands, frames.
//!
//! A [`Conversation`] is fed the received bytes in pieces of any size, and returns events and bytes to send. It decides which
//! bytes are valid, and knows no sockets, clocks or threads, so a fuzzer can drive it. Sources: RFC 23/ZMTP 3.0 and RFC
//! 37/ZMTP 3.1 (rfc.zeromq.org), and libzmq 4.3.5 where these are vague.
//!
//! `crate` feeds received bytes to [`Conversation::feed`]. To send, it writes a [`FrameHeader`] before each payload.

mod error;
mod greeting;

mod frame;

mod message;

mod command;

mod conversation;

#[cfg(any(test, feature = "fuzz"))]
#[path = "../tests/fuzz/zmtp.rs"]
pub mod fuzz;

pub use command::{COMMAND_BYTES_MAX, PING_CONTEXT_BYTES_MAX};
pub use conversation::{Conversation, Handshake, OUTPUT_BYTES_MAX, Role, UnfinishedPart, ZmtpEvent};
pub use error::ZmtpError;
pub use frame::{FrameHeader, HEADER_BYTES_MAX};
pub use greeting::GREETING_BYTES;
pub use message::{frame_on_wire, is_on_wire, on_wire};
