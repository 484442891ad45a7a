//! The conversation in which a new process takes the place of a running Afterbay.
//!
//! Owns the Unix socket, the messages, their bounds, and the transfer of descriptors. Knows nothing of streams, journals or
//! configurations: the state of each part is JSON of its own, and descriptors have names.
//!
//! # The order
//!
//! ```text
//! new process                          running process
//! hello: versions, streams       ──▶   compares; nothing has stopped yet
//!                                ◀──   refused: why                          (the end)
//!                                      stops its streams between two frames
//!                                ◀──   state, parts, descriptors
//! builds everything
//! ready                          ──▶
//! failed: why                    ──▶   resumes                               (the end)
//!                                ◀──   released
//! running                        ──▶   ends
//! ```
//!
//! The new process moves no byte of a stream before `released`. The running process resumes if anything else happens: an end
//! of the connection, a wrong message, or no message before the deadline. Before it resumes, it ends the new process, which
//! could otherwise still write to the journal.
//!
//! # The wire form
//!
//! A message is the length of its JSON (4 bytes, little-endian), then the JSON: an object with one key, the name of the message.
//! `tests/wire.rs` has each message as bytes. Unknown fields are ignored; an unknown message is an error.
//!
//! | message | fields |
//! |---|---|
//! | `hello` | `afterbay`, `formats` (name to version), `descriptors` (the limit of open files), `streams` (`name`, `listen`) |
//! | `refused` | `why` |
//! | `state` | `afterbay`, `pid`, `parts`, `descriptors` (the numbers of each that follow) |
//! | `part` | `name`, `state` |
//! | `descriptors` | `entries` (`name`, `count`); the message's bytes carry the descriptors, in this order |
//! | `ready`, `released`, `running` | none |
//! | `failed` | `why` |
//!
//! `formats` has the version of these messages, too: both processes must have the same of each. [`bounds`] has the sizes and
//! times.

pub mod bounds;
mod error;
mod message;
mod version;

mod channel;
mod fds;
mod peer;
mod socket;

mod giver;
mod taker;

pub use error::ChannelError;
pub use fds::NamedFds;
pub use giver::{Asked, GiveError, Given, Ready, Released};
pub use message::{Formats, Hello, Part, StreamId};
pub use socket::{HandOverSocket, SOCKET};
pub use taker::{Confirmation, Predecessor, TakeError, Taken};
pub use version::Versions;
