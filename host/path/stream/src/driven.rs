//! A stream that its caller runs turn by turn, on the caller's thread: for tests that own time, disk and sockets.

use crate::delivery::StartError;
use crate::handle::StreamHandle;
use crate::runner::{Ended, Runner};
use crate::setup::Setup;
use crate::stream::{PreparedStream, Stream};
use afterbay_sockets::Endpoint;
use std::time::Duration;

/// A stream that its caller runs turn by turn. The turns are those that [`Stream`] makes on its own thread.
pub struct DrivenStream {
    listen: Endpoint,
    handle: StreamHandle,
    /// `None` once the stream has ended.
    runner: Option<Box<Runner>>,
}

impl PreparedStream {
    /// Lets the caller run the stream turn by turn.
    pub fn drive(self) -> DrivenStream {
        let (listen, PreparedStream { handle, runner }) = (self.listen().clone(), self);
        DrivenStream { listen, handle, runner: Some(runner) }
    }
}

impl DrivenStream {
    /// Binds, connects and builds the stream.
    pub fn start(setup: Setup) -> Result<DrivenStream, StartError> {
        Stream::prepare(setup).map(PreparedStream::drive)
    }

    /// Makes one turn, without waiting. Returns the end of the stream if it has ended with this turn.
    pub fn turn(&mut self) -> Option<Ended> {
        match self.runner.take()?.turn(Duration::ZERO) {
            Ok(runner) => {
                self.runner = Some(runner);
                None
            }
            Err(ended) => Some(ended),
        }
    }

    /// The time that may pass before the next turn, if nothing happens. 0: there is more to do at once.
    pub fn wait(&self) -> Duration {
        self.runner.as_ref().map_or(Duration::MAX, |runner| runner.wait())
    }

    /// Does the work of the journal's background thread.
    pub fn tend_journal(&self) {
        if let Some(runner) = &self.runner {
            runner.tend_journal();
        }
    }

    /// The endpoint that the scheduler connects to.
    pub fn listen(&self) -> &Endpoint {
        &self.listen
    }

    /// A handle that sends commands to the stream.
    pub fn handle(&self) -> StreamHandle {
        self.handle.clone()
    }
}
