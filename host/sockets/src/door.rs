//! What a bound socket does with connections that come: takes them in bounded turns, and says how often it refused some.

use std::time::{Duration, Instant};

use mio::{Interest, Registry, Token};
use rustix::io::Errno;

use crate::bounds::REFUSED_TOLD_EVERY;
use crate::conn::Conn;
use crate::endpoint::Endpoint;
use crate::pull::{BindError, Listener};

/// How long accepting waits after it failed (mostly: no descriptor is free).
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(crate) struct Door {
    listener: Listener,
    /// When to accept without an event: `None` when the listener blocks.
    accept_at: Option<Instant>,
    refused: u64,
    refused_told: Option<Instant>,
}

impl Door {
    pub(crate) fn open(listener: Listener, registry: &Registry, token: Token) -> Result<Door, BindError> {
        listener.conn().register(registry, token, Interest::READABLE).map_err(|error| BindError::Io {
            endpoint: listener.endpoint().clone(),
            call: "register",
            error,
        })?;
        Ok(Door { listener, accept_at: None, refused: 0, refused_told: None })
    }

    /// The next connection; `None`: the poll will tell of one. After an error it is tried again at the deadline.
    pub(crate) fn next(&mut self, now: Instant) -> Option<Result<Conn, Errno>> {
        self.accept_at = None;
        loop {
            match Conn::accept(self.listener.conn()) {
                Ok(conn) => return Some(Ok(conn)),
                Err(Errno::AGAIN) => return None,
                // It left before it was accepted.
                Err(Errno::CONNABORTED | Errno::INTR | Errno::INVAL | Errno::NOTCONN) => {}
                Err(error) => {
                    self.accept_at = Some(now + ACCEPT_AGAIN);
                    return Some(Err(error));
                }
            }
        }
    }

    /// There may be more connections, and others have their turn first: the deadline is due at once.
    pub(crate) fn yield_turn(&mut self, now: Instant) {
        self.accept_at = Some(now);
    }

    /// When to accept without an event.
    pub(crate) fn accept_at(&self) -> Option<Instant> {
        self.accept_at
    }

    /// One more was refused: how many since this was told last, where it is to be told now.
    pub(crate) fn refused(&mut self, now: Instant) -> Option<u64> {
        self.refused += 1;
        if self.refused_told.is_some_and(|told| now < told + REFUSED_TOLD_EVERY) {
            return None;
        }
        self.refused_told = Some(now);
        Some(std::mem::take(&mut self.refused))
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        self.listener.endpoint()
    }
}
