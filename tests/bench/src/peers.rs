//! The sender's and the reader's sockets.

use afterbay_sockets::{Endpoint, OutgoingFrame, Pull, PullOptions, Push, PushOptions, TokenRange};
use anyhow::ensure;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The longest time without progress before a measurement fails.
pub(crate) const STALL: Duration = Duration::from_secs(20);

/// A PULL socket on a thread of its own.
pub(crate) struct Reader {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Reader {
    /// Binds the socket; the thread passes every frame to `take`.
    pub(crate) fn start(
        endpoint: &str,
        mut take: impl FnMut(bytes::Bytes) + Send + 'static,
    ) -> anyhow::Result<Reader> {
        let mut poll = mio::Poll::new()?;
        let options = PullOptions::default();
        let tokens = TokenRange { first: 0, count: 1 + options.max_peers };
        let mut pull = Pull::bind(poll.registry(), tokens, &endpoint.parse::<Endpoint>()?, options, None)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut events = mio::Events::with_capacity(16);
            while !stopped.load(Ordering::Relaxed) {
                let wait = if pull.has_more() { Duration::ZERO } else { Duration::from_millis(50) };
                if poll.poll(&mut events, Some(wait)).is_err() {
                    continue;
                }
                let now = Instant::now();
                events.iter().for_each(|event| pull.ready(event, now));
                while let Some(message) = pull.receive() {
                    take(message.bytes);
                }
            }
        });
        Ok(Reader { stop, thread: Some(thread) })
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A reader that panicked has failed the run already.
            let _joined = thread.join();
        }
    }
}

/// A PUSH socket, driven by its caller's thread.
pub(crate) struct Sender {
    poll: mio::Poll,
    events: mio::Events,
    push: Push,
    /// The number of frames sent.
    pub(crate) sent: u64,
}

impl Sender {
    pub(crate) fn connect(endpoint: &str) -> anyhow::Result<Sender> {
        let poll = mio::Poll::new()?;
        let tokens = TokenRange { first: 0, count: 1 };
        let endpoint: Endpoint = endpoint.parse()?;
        let push = Push::connect(poll.registry(), tokens, &endpoint, PushOptions::default(), Instant::now())?;
        let mut sender = Sender { poll, events: mio::Events::with_capacity(16), push, sent: 0 };
        let begun = Instant::now();
        while !sender.push.is_connected() {
            ensure!(begun.elapsed() < STALL, "nobody listens on {endpoint}");
            sender.turn(Duration::from_millis(10))?;
        }
        Ok(sender)
    }

    fn turn(&mut self, wait: Duration) -> anyhow::Result<()> {
        self.poll.poll(&mut self.events, Some(wait))?;
        let now = Instant::now();
        for event in &self.events {
            self.push.ready(event, now);
        }
        self.push.tick(now);
        Ok(())
    }

    pub(crate) fn send(&mut self, bytes: bytes::Bytes) -> anyhow::Result<()> {
        self.sent += 1;
        let frame = OutgoingFrame { sequence: self.sent, bytes, counted: false };
        ensure!(self.push.send(frame).is_ok(), "the sender's queue is full");
        self.push.flush(Instant::now());
        Ok(())
    }

    /// Waits until the kernel has taken every frame.
    pub(crate) fn settle(&mut self) -> anyhow::Result<()> {
        while !self.push.is_drained() {
            self.turn(Duration::from_millis(1))?;
        }
        Ok(())
    }

    /// Waits until fewer than `window` frames are in flight.
    pub(crate) fn wait_for(&mut self, received: &AtomicU64, window: u64) -> anyhow::Result<()> {
        let begun = Instant::now();
        while self.sent - received.load(Ordering::Acquire) >= window {
            self.turn(Duration::from_micros(100))?;
            ensure!(begun.elapsed() < STALL, "frame {} did not arrive", received.load(Ordering::Acquire) + 1);
        }
        Ok(())
    }
}
