//! A stream on a thread of its own.

use crate::delivery::StartError;
use crate::handle::StreamHandle;
use crate::runner::{Ended, Runner, message};
use crate::setup::Setup;
use afterbay_sockets::Endpoint;

/// A stream that is bound and built, and that nobody runs yet. It has not read or written a socket. Dropping it changes nothing
/// for the process that hands the stream over.
pub struct PreparedStream {
    pub(crate) handle: StreamHandle,
    pub(crate) runner: Box<Runner>,
}

impl PreparedStream {
    /// Starts the thread.
    pub fn run(self) -> Result<Stream, StartError> {
        let (name, listen) = (self.runner.plan.config.name.to_string(), self.listen().clone());
        let PreparedStream { handle, runner } = self;
        let thread = std::thread::Builder::new().name(format!("stream {name}"));
        let thread = thread.spawn(move || runner.run());
        let thread = thread.map_err(|error| StartError::System { stream: name.clone(), error })?;
        Ok(Stream { name, listen, handle, thread })
    }

    /// The endpoint that the scheduler connects to. If the configuration says port 0, the real port.
    pub fn listen(&self) -> &Endpoint {
        self.runner.pipeline.receive.pull.endpoint()
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
        let (runner, handle) = Runner::new(setup)?;
        Ok(PreparedStream { handle, runner })
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
