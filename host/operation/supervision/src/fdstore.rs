//! Descriptors that outlive the process, by name, and the notify protocol of a supervisor.
//!
//! A stream keeps its sockets and their memories in an [`FdStore`]. The store copies them to the supervisor (systemd, or
//! `afterbay run --keep`), and a later process finds them in its [`Inherited`]. A hand-over passes the same entries to the
//! next process. The crate knows neither sockets nor streams.

mod environment;
mod inherited;
mod name;
mod receive;
mod store;
mod supervisor;

pub use inherited::Inherited;
pub use name::FdName;
pub use receive::{MESSAGE_BYTES_MAX, Message, NotifySocket, StoredFds};
pub use store::{FdStore, Kept, Notice};
pub(crate) use supervisor::send_message;
pub use supervisor::{DESCRIPTORS_MAX, SEND_WAIT_MAX, State, Supervisor};
