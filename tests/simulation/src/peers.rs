//! The peers of a stream: senders and readers, whose sockets are real and whose steps belong to the schedule.

mod client;
mod engine;
mod reader;
mod sender;

pub use client::Clients;
pub use engine::{Engine, Waiting};
pub use reader::{Reader, Rows};
pub use sender::{FrameState, Sender};
