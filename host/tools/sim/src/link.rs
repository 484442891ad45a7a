//! One connection of the simulated scheduler: a PUSH of the `zeromq` crate, with a bound on its frames and a
//! way to wait for their delivery, which the crate lacks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use afterbay_types::parts;
use anyhow::bail;
use bytes::Bytes;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use zeromq::{PushSocket, Socket, SocketEvent, SocketOptions, SocketSend, ZmqError, ZmqMessage};

use crate::Stop;
use crate::bounds::{MAX_IN_FLIGHT_BYTES, MAX_IN_FLIGHT_FRAMES, STOP_NOTICED_WITHIN};

/// The longest attempt to connect. The crate's own retries double up to half a minute and cannot be stopped.
const ATTEMPT: Duration = Duration::from_millis(100);
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(10);

pub(crate) struct Link {
    socket: PushSocket,
    is_broken: Box<dyn FnMut() -> bool>,
    flight: Arc<InFlight>,
}

/// The end of a connection.
pub(crate) struct LinkEnd {
    /// Set if the peer disappeared before everything was written. How much was written is unknown.
    pub(crate) is_broken: bool,
    /// The number of frames that the peer did not take in time.
    pub(crate) undelivered: u64,
}

/// The frames that the crate has not encoded yet.
#[derive(Default)]
struct InFlight {
    frames: AtomicU64,
    bytes: AtomicU64,
    changed: Notify,
}

/// A frame in flight. The crate drops it once it is encoded.
struct InFlightFrame {
    bytes: Bytes,
    flight: Arc<InFlight>,
}

impl Link {
    pub(crate) async fn connect(endpoint: &str, timeout: Duration, stop: &Stop) -> anyhow::Result<Link> {
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
                Err(_) if stop.is_stopped() => bail!("stopped before it was connected"),
                Err(last) if Instant::now() >= deadline => {
                    let waited = timeout.as_secs_f32();
                    bail!("endpoint {endpoint}: nobody listens there after {waited} s: {last}");
                }
                Err(_) => tokio::time::sleep(BETWEEN_ATTEMPTS).await,
            }
        }
    }

    /// Whether another frame may be sent. If nothing is in flight, one always may.
    pub(crate) fn has_room(&self) -> bool {
        let frames = self.flight.frames.load(Ordering::Acquire);
        let bytes = self.flight.bytes.load(Ordering::Acquire);
        frames == 0 || frames < MAX_IN_FLIGHT_FRAMES && bytes < MAX_IN_FLIGHT_BYTES
    }

    /// Waits until a frame was encoded, or until [`STOP_NOTICED_WITHIN`] has passed.
    pub(crate) async fn changed(&self) {
        // The caller checks again in either case.
        let _in_time = tokio::time::timeout(STOP_NOTICED_WITHIN, self.flight.changed.notified()).await;
    }

    /// Whether the peer has disappeared. Only a failed write shows it.
    pub(crate) fn is_broken(&mut self) -> bool {
        (self.is_broken)()
    }

    pub(crate) async fn send(&mut self, bytes: &Bytes) -> Result<(), ZmqError> {
        self.flight.frames.fetch_add(1, Ordering::AcqRel);
        self.flight.bytes.fetch_add(bytes.len() as u64, Ordering::AcqRel);
        let frame = InFlightFrame { bytes: bytes.clone(), flight: Arc::clone(&self.flight) };
        let frame = Bytes::from_owner(frame);
        // The parts of a message share the frame's bytes, so the frame is in flight until the last one is encoded.
        let message = match parts::split(&frame).map(ZmqMessage::try_from) {
            Ok(Ok(message)) => message,
            _ => frame.into(),
        };
        self.socket.send(message).await
    }

    /// Waits until everything is written and the connection is closed. The runtime must run nothing else: the
    /// end is known by the absence of tasks.
    pub(crate) async fn finish(self, timeout: Duration) -> LinkEnd {
        let Link { socket, mut is_broken, flight } = self;
        let deadline = Instant::now() + timeout;
        // The socket's own task continues until its queue is empty.
        drop(socket);
        let mut undelivered = 0;
        while Handle::current().metrics().num_alive_tasks() > 0 {
            if Instant::now() >= deadline {
                // Bytes that are encoded but not written count as one frame.
                undelivered = flight.frames.load(Ordering::Acquire).max(1);
                break;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        LinkEnd { is_broken: is_broken(), undelivered }
    }
}

impl AsRef<[u8]> for InFlightFrame {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for InFlightFrame {
    fn drop(&mut self) {
        self.flight.frames.fetch_sub(1, Ordering::AcqRel);
        self.flight.bytes.fetch_sub(self.bytes.len() as u64, Ordering::AcqRel);
        self.flight.changed.notify_one();
    }
}
