//! ZMTP 3.1 (NULL) on bytes: greeting, handshake, frames. Knows no sockets.
