//! Fetches a plugin's component from an OCI registry, pinned by its digest.
//!
//! The reference pins the manifest, and the manifest pins the component. Both digests are checked after every fetch and
//! every read from the cache. A cached component needs no registry. Every answer to a fetch is limited in size and
//! time. The module knows nothing of plugins.

mod bounds;
mod digest;
mod error;

mod artifact;
mod blocking;
mod cache;
mod login;
mod reference;
mod registry;

mod fetch;

pub use artifact::LAYERS;
pub use bounds::{CONNECT_MAX, FETCH_MAX, MANIFEST_BYTES_MAX, STALL_MAX};
pub use error::TransferError;
pub use fetch::{fetch, fetch_within};
pub use reference::{Reference, ReferenceError, SCHEME};
