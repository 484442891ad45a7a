//! One connection of the simulated scheduler: a PUSH of the `zeromq` crate, with a bound on what it holds and an end that
//! can be waited for, neither of which the crate has.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use zeromq::{PushSocket, Socket, SocketEvent, SocketOptions, SocketSend, ZmqError};

use crate::Stop;
use crate::bounds::{MAX_IN_FLIGHT_BYTES, MAX_IN_FLIGHT_FRAMES, STOP_NOTICED_WITHIN};

/// How long one attempt to connect may take; the crate's own waiting doubles up to half a minute and cannot be stopped.
const ATTEMPT: Duration = Duration::from_millis(100);
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(10);

pub(crate) struct Link {
    socket: PushSocket,
    is_broken: Box<dyn FnMut() -> bool>,
    flight: Arc<Flight>,
}

/// Why there is no connection.
pub(crate) enum NoLink {
    Stopped,
    Nobody(ZmqError),
}

/// How a connection ended.
pub(crate) struct End {
    /// The peer went away before everything was written; how much of it was, nobody knows.
    pub(crate) is_broken: bool,
    /// Frames that the peer did not take in time.
    pub(crate) undelivered: u64,
}

/// What the crate holds and has not encoded yet.
#[derive(Default)]
struct Flight {
    frames: AtomicU64,
    bytes: AtomicU64,
    changed: Notify,
}

/// A frame in flight: the crate drops it when it has encoded it.
struct Flying {
    bytes: Bytes,
    flight: Arc<Flight>,
}

impl Link {
    pub(crate) async fn connect(endpoint: &str, timeout: Duration, stop: &Stop) -> Result<Link, NoLink> {
        let deadline = Instant::now() + timeout;
        loop {
            let mut options = SocketOptions::default();
            options.connect_timeout(ATTEMPT);
            let mut socket = PushSocket::with_options(options);
            let mut events = socket.monitor();
            match socket.connect(endpoint).await {
                Ok(()) => {
                    let mut is_broken = false;
                    let is_broken = Box::new(move || {
                        while let Ok(event) = events.try_recv() {
                            is_broken |= matches!(event, SocketEvent::Disconnected(_));
                        }
                        is_broken
                    });
                    return Ok(Link { socket, is_broken, flight: Arc::default() });
                }
                Err(_) if stop.is_stopped() => return Err(NoLink::Stopped),
                Err(last) if Instant::now() >= deadline => return Err(NoLink::Nobody(last)),
                Err(_) => tokio::time::sleep(BETWEEN_ATTEMPTS).await,
            }
        }
    }

    /// Whether another frame may be sent. One may always, if nothing is in flight.
    pub(crate) fn has_room(&self) -> bool {
        let frames = self.flight.frames.load(Ordering::Acquire);
        let bytes = self.flight.bytes.load(Ordering::Acquire);
        frames == 0 || frames < MAX_IN_FLIGHT_FRAMES && bytes < MAX_IN_FLIGHT_BYTES
    }

    /// Waits until something has left, not for long.
    pub(crate) async fn changed(&self) {
        // In time or not, it is looked at again.
        let _in_time = tokio::time::timeout(STOP_NOTICED_WITHIN, self.flight.changed.notified()).await;
    }

    /// Whether the peer has gone. It is seen when a write fails, not before.
    pub(crate) fn is_broken(&mut self) -> bool {
        (self.is_broken)()
    }

    pub(crate) async fn send(&mut self, bytes: &Bytes) -> Result<(), ZmqError> {
        self.flight.frames.fetch_add(1, Ordering::AcqRel);
        self.flight.bytes.fetch_add(bytes.len() as u64, Ordering::AcqRel);
        let flying = Flying { bytes: bytes.clone(), flight: Arc::clone(&self.flight) };
        self.socket.send(Bytes::from_owner(flying).into()).await
    }

    /// Waits until everything is written and the connection closed. Nothing else may run on this runtime: that no task is
    /// left is how it is known.
    pub(crate) async fn finish(self, timeout: Duration) -> End {
        let Link { socket, mut is_broken, flight } = self;
        let deadline = Instant::now() + timeout;
        // The socket's own task goes on until its queue is empty.
        drop(socket);
        let mut undelivered = 0;
        while Handle::current().metrics().num_alive_tasks() > 0 {
            if Instant::now() >= deadline {
                // What is encoded and not written counts as one.
                undelivered = flight.frames.load(Ordering::Acquire).max(1);
                break;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        End { is_broken: is_broken(), undelivered }
    }
}

impl AsRef<[u8]> for Flying {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Flying {
    fn drop(&mut self) {
        self.flight.frames.fetch_sub(1, Ordering::AcqRel);
        self.flight.bytes.fetch_sub(self.bytes.len() as u64, Ordering::AcqRel);
        self.flight.changed.notify_one();
    }
}
