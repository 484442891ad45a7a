//! What a bound socket does with connections that come: takes them in bounded turns, and says how often it refused some.

use std::time::{Duration, Instant};

use mio::{Interest, Registry, Token};
use rustix::io::Errno;

use crate::bounds::{ACCEPT_TURN, REFUSED_TOLD_EVERY};
use crate::conn::Conn;
use crate::endpoint::Endpoint;
use crate::pull::{BindError, Listener, Refusal};

/// How long accepting waits after it failed (mostly: no descriptor is free).
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(crate) struct Door {
    /// `None` after [`Door::close`].
    listener: Option<Listener>,
    endpoint: Endpoint,
    /// When to accept without an event: `None` when the listener blocks.
    accept_at: Option<Instant>,
    /// Accepted in this turn.
    accepted: usize,
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
        let endpoint = listener.endpoint().clone();
        let listener = Some(listener);
        Ok(Door { listener, endpoint, accept_at: None, accepted: 0, refused: 0, refused_told: None })
    }

    /// Takes no further connection: its ipc file is unlinked, and connections that were not taken are refused.
    pub(crate) fn close(&mut self) {
        (self.listener, self.accept_at) = (None, None);
    }

    /// The next connection of this turn. `None` ends it: the poll will tell of more, or the deadline is due at once, where
    /// others have their turn first. An error ends it, too, and the deadline is when it is tried again.
    pub(crate) fn next(&mut self, now: Instant) -> Option<Result<Conn, Refusal>> {
        self.accept_at = None;
        let listener = self.listener.as_ref()?;
        while self.accepted < ACCEPT_TURN {
            match Conn::accept(listener.conn()) {
                Ok(conn) => {
                    self.accepted += 1;
                    return Some(Ok(conn));
                }
                Err(Errno::AGAIN) => {
                    self.accepted = 0;
                    return None;
                }
                // It left before it was accepted.
                Err(Errno::CONNABORTED | Errno::INTR | Errno::INVAL | Errno::NOTCONN) => {}
                Err(error) => {
                    self.accepted = 0;
                    self.accept_at = Some(now + ACCEPT_AGAIN);
                    return Some(Err(Refusal::Io(format!("accept: {error}"))));
                }
            }
        }
        self.accepted = 0;
        self.accept_at = Some(now);
        None
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
        &self.endpoint
    }
}
