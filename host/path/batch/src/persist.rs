//! The persist stage: the journal gets a frame before anything else happens to the frame.
//!
//! Owns the journal's writer, the frames that wait for the disk, and the reaction to a failing disk. Takes a
//! [`Received`](crate::Received) and returns a [`Persisted`](crate::Persisted), which the pipeline decodes
//! next. The later stages record here what they did with the frame.

mod disk;
mod persister;
mod unaccounted;

pub use persister::{JournalPolicy, Persister, RecordCopy};
