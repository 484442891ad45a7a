//! Accepts connections for a bound socket, in bounded turns, and limits how often refusals are reported.

use std::net::Shutdown;
use std::time::{Duration, Instant};

use mio::{Interest, Registry, Token};
use rustix::io::Errno;

use crate::bounds::{ACCEPT_TURN, REFUSED_NOTICE_INTERVAL};
use crate::conn::Conn;
use crate::listener::{BindError, Listener};
use crate::peers::RefusalReason;
use afterbay_types::Endpoint;

/// How long accepting pauses after a failure (usually: no file descriptor is free).
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(crate) struct Acceptor {
    /// `None` after [`Acceptor::close`].
    listener: Option<Listener>,
    endpoint: Endpoint,
    /// The time to accept without an event. `None`: the listener blocks, and the poll reports the next connection.
    accept_at: Option<Instant>,
    /// Connections accepted in this turn.
    accepted: usize,
    refused: u64,
    last_refused_notice: Option<Instant>,
}

impl Acceptor {
    pub(crate) fn open(listener: Listener, registry: &Registry, token: Token) -> Result<Acceptor, BindError> {
        listener.conn().register(registry, token, Interest::READABLE).map_err(|error| BindError::Io {
            endpoint: listener.endpoint().clone(),
            call: "register",
            error,
        })?;
        let endpoint = listener.endpoint().clone();
        let listener = Some(listener);
        Ok(Acceptor {
            listener,
            endpoint,
            accept_at: None,
            accepted: 0,
            refused: 0,
            last_refused_notice: None,
        })
    }

    /// Stops listening: the ipc file is unlinked, and connections that were not accepted are refused.
    pub(crate) fn close(&mut self) {
        if let Some(listener) = self.listener.take() {
            // Whoever else has a descriptor of the socket cannot keep it open.
            listener.conn().shutdown(Shutdown::Both);
        }
        self.accept_at = None;
    }

    /// From now on the ipc file is unlinked at the end, also if an earlier process made it.
    pub(crate) fn claim(&mut self) {
        if let Some(listener) = &mut self.listener {
            listener.claim();
        }
    }

    /// Leaves the listening socket and its ipc file to another process.
    pub(crate) fn leave(&mut self) {
        if let Some(listener) = self.listener.take() {
            listener.leave();
        }
    }

    /// Accepts no connection for a while, after a failure.
    pub(crate) fn wait(&mut self, now: Instant) {
        self.accept_at = Some(now + ACCEPT_AGAIN);
    }

    /// Accepts the next connection of this turn. `None` ends the turn: either the poll reports the next connection, or
    /// the deadline is due at once, after other connections had their turn. An error also ends the turn; the deadline
    /// says when to try again.
    pub(crate) fn next(&mut self, now: Instant) -> Option<Result<Conn, RefusalReason>> {
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
                // The connection ended before it was accepted.
                Err(Errno::CONNABORTED | Errno::INTR | Errno::INVAL | Errno::NOTCONN) => {}
                Err(error) => {
                    self.accepted = 0;
                    self.accept_at = Some(now + ACCEPT_AGAIN);
                    return Some(Err(RefusalReason::Io(format!("accept: {error}"))));
                }
            }
        }
        self.accepted = 0;
        self.accept_at = Some(now);
        None
    }

    /// The time to accept without an event.
    pub(crate) fn accept_at(&self) -> Option<Instant> {
        self.accept_at
    }

    /// Counts one refusal. Returns the count since the last report if a report is due now.
    pub(crate) fn refused(&mut self, now: Instant) -> Option<u64> {
        self.refused += 1;
        if self.last_refused_notice.is_some_and(|last| now < last + REFUSED_NOTICE_INTERVAL) {
            return None;
        }
        self.last_refused_notice = Some(now);
        Some(std::mem::take(&mut self.refused))
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }
}

pub(crate) fn clone_registry(registry: &Registry, endpoint: &Endpoint) -> Result<Registry, BindError> {
    registry.try_clone().map_err(|error| BindError::Io {
        endpoint: endpoint.clone(),
        call: "the poll's registry",
        error,
    })
}
