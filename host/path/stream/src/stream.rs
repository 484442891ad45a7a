//! A stream on a thread of its own.

use crate::build::{self, WAKER};
use crate::delivery::StartError;
use crate::handle::StreamHandle;
use crate::runner::{Ended, Runner, RunnerParts, message};
use crate::setup::Setup;
use afterbay_sockets::Endpoint;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::channel;

/// A stream that is bound and built, and that nobody runs yet. It has not read or written a socket. Dropping it changes nothing
/// for the process that hands the stream over.
pub struct PreparedStream {
    pub(crate) name: String,
    pub(crate) listen: Endpoint,
    pub(crate) handle: StreamHandle,
    pub(crate) runner: Box<Runner>,
}

impl PreparedStream {
    pub(crate) fn new(setup: Setup) -> Result<PreparedStream, StartError> {
        let name = setup.config.name.to_string();
        let system = |error| StartError::System { stream: name.clone(), error };
        let poll = mio::Poll::new().map_err(system)?;
        let waker = Arc::new(mio::Waker::new(poll.registry(), WAKER).map_err(system)?);
        let (abandon_after, clock, background) = (setup.abandon_after, setup.clock.clone(), setup.background);
        let (plan, pipeline, report) = build::start(setup, poll.registry(), &waker)?;
        let listen = pipeline.receive.socket().endpoint().clone();
        let (sender, commands) = channel();
        let turns = Arc::new(AtomicU64::new(0));
        let handle = StreamHandle { sender, waker, turns: Arc::downgrade(&turns) };
        let parts =
            RunnerParts { poll, clock, background, turns, plan, pipeline, commands, report, abandon_after };
        let runner = Runner::new(parts);
        Ok(PreparedStream { name, listen, handle, runner })
    }
}

impl PreparedStream {
    /// Starts the thread.
    pub fn run(self) -> Result<Stream, StartError> {
        let PreparedStream { name, listen, handle, runner } = self;
        let thread = std::thread::Builder::new().name(format!("stream {name}"));
        let thread = thread.spawn(move || runner.run());
        let thread = thread.map_err(|error| StartError::System { stream: name.clone(), error })?;
        Ok(Stream { name, listen, handle, thread })
    }

    /// The endpoint that the scheduler connects to. If the configuration says port 0, the real port.
    pub fn listen(&self) -> &Endpoint {
        &self.listen
    }

    /// A handle that sends commands to the stream, which obeys them once it runs.
    pub fn handle(&self) -> StreamHandle {
        self.handle.clone()
    }
}

/// A stream that runs on its own thread.
pub struct Stream {
    name: String,
    listen: Endpoint,
    handle: StreamHandle,
    thread: std::thread::JoinHandle<Ended>,
}

impl Stream {
    /// Binds, connects and starts the thread.
    pub fn start(setup: Setup) -> Result<Stream, StartError> {
        Stream::prepare(setup)?.run()
    }

    /// Does everything but run: binds or takes over the connections, reads the journal, and starts the plugins.
    pub fn prepare(setup: Setup) -> Result<PreparedStream, StartError> {
        PreparedStream::new(setup)
    }

    /// The stream's name in the configuration.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The endpoint that the scheduler connects to. If the configuration says port 0, the real port.
    pub fn listen(&self) -> &Endpoint {
        &self.listen
    }

    /// A handle that sends commands to the stream.
    pub fn handle(&self) -> StreamHandle {
        self.handle.clone()
    }

    /// Whether the thread has ended: after a stop, or after repeated panics.
    pub fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits for the thread. `Err` has the message of the panic that ended the stream.
    pub fn join(self) -> Result<Ended, String> {
        self.thread.join().map_err(|panic| message(&*panic))
    }
}
