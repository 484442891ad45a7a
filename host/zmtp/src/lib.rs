//! ZMTP 3.1 (NULL) on bytes: greeting, handshake, frames. Knows no sockets.

/// skeleton
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {}
