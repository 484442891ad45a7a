//! One stream: the path of a batch from the scheduler's socket to its reader's.
//!
//! Owns a thread per stream and everything on the path; `path.rs` shows it on one screen. Knows nothing of the command
//! line, of HTTP, or of other streams.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod about;
mod budget;
mod build;
mod change;
mod columns;
mod judge;
mod outlook;
mod path;
mod quarantine;
mod receive;
mod replay;
mod report;
mod resume;
mod resumed;
mod route;
mod seat;
mod send;
mod shadow;
mod sink;
mod spill;
mod standing;
mod tap;
mod thread;

// The old paths of what has moved into crates of its own.
mod actions {
    pub(crate) use crate::judge::label;
    pub(crate) use afterbay_batch::{RecordedVerdict as Said, RecordedVerdicts as Actions};
}
mod decode {
    pub(crate) use afterbay_batch::{Decoded, FrameDecoder as Decode};
}
mod fault {
    pub(crate) use afterbay_batch::fault::{frame, point};
}
mod hold {
    pub(crate) use afterbay_batch::{HeldRow as Held, hold_end_words as words};
    pub(crate) use afterbay_hold::{HeldRows as Holds, HoldState};
}
mod keep {
    pub(crate) use afterbay_batch::Persisted as Kept;
    pub(crate) use afterbay_persist::Persister as Keep;
}
mod ledger {
    pub(crate) use afterbay_batch::{Accounted, Row, Settled};
    pub use afterbay_ledger::{
        ABORTED, FinishedEarly, LiveStatus as Live, RequestStatus as Looked, TellScheduler,
    };
    pub(crate) use afterbay_ledger::{Aborts, Destinations as Ways, Ledger, Request, RestartGap as Restart};
}
mod requests {
    pub(crate) use afterbay_batch::RequestSlot as Slot;
}
mod telemetry {
    pub(crate) use afterbay_events::StreamTelemetry as Telemetry;
}

pub use about::AttributesOf;
pub use budget::Budget;
pub use change::{Change, PluginChange, RunningTap, TapChange};
pub use ledger::{ABORTED, FinishedEarly, Live, Looked, TellScheduler};
pub use outlook::SchedulerLoad;
pub use send::SINK_STATES;
pub use standing::{LastReload, PluginState, Standing};
pub use thread::Ended;

use afterbay_config as config;
use afterbay_events::{Events, Health, Metrics};
use afterbay_journal::reader::OperatorAbort;
use afterbay_journal::{JournalWriter, OpenError, RecoveredStream};
use afterbay_outbox::Joins;
use afterbay_runtime::{Plugin, ReloadError};
use afterbay_sockets::{BindError, Endpoint, PushError};
use afterbay_wire::Layouts;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

/// What a stream is made of. Everything that could be refused has been: only binding is left.
pub struct Setup {
    /// The checked configuration of the stream.
    pub config: config::Stream,
    /// Where the scheduler connects to.
    pub listen: Endpoint,
    /// Its readers, in the order of the config.
    pub sinks: Vec<SinkSetup>,
    /// Who gets copies.
    pub taps: Vec<TapSetup>,
    /// The layouts of its msgpack frames.
    pub layouts: Layouts,
    /// Its journal, and what was found in it.
    pub journal: (JournalWriter, RecoveredStream),
    /// Opens the journal again after a panic.
    pub reopen: Reopen,
    /// What a failing journal means.
    pub on_error: config::OnError,
    /// A frame goes on only when it is on the disk (`sync = "always"`).
    pub durable_first: bool,
    /// Bytes of frames that may wait in the journal for a sink; then nothing more is received.
    pub spill_max: u64,
    /// Bytes that may wait in memory, of all streams.
    pub budget: Budget,
    /// A request without a row for so long is given up.
    pub abandon_after: Duration,
    /// The plugins, in the order of the config.
    pub plugins: Vec<PluginSetup>,
    /// What attributes requests have, for plugins.
    pub attributes: AttributesOf,
    /// How the scheduler does, for plugins.
    pub scheduler: SchedulerLoad,
    /// Who tells the scheduler of requests that plugins finish, where somebody can.
    pub upstream: Option<TellScheduler>,
    /// Where its events go.
    pub events: Events,
    /// Where its counters are.
    pub metrics: Metrics,
    /// Where it says what is wrong.
    pub health: Health,
}

/// Opens a stream's journal.
pub type Reopen = Box<dyn Fn() -> Result<(JournalWriter, RecoveredStream), OpenError> + Send>;

/// One reader of a stream.
pub struct SinkSetup {
    /// The checked configuration of the sink.
    pub config: config::Sink,
    /// Where the reader is.
    pub connect: Endpoint,
    /// Which reader it is, where a new one must not get what an earlier one has left: SGLang that was started anew.
    pub reader_id: Option<String>,
    /// Where joined rows may end, as the reader wants it.
    pub joins: Joins,
}

/// One tap of a stream.
pub struct TapSetup {
    /// The checked configuration of the tap.
    pub config: config::Tap,
    /// Where it connects, or listens.
    pub endpoint: Endpoint,
}

/// One plugin of a stream.
pub struct PluginSetup {
    /// The checked configuration of the plugin.
    pub config: config::Plugin,
    /// Its settings, JSON text: given to the instances that follow this one.
    pub settings: String,
    /// Configured; its next call is `open`.
    pub instance: Plugin,
}

/// Why a stream did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Its listen name, or that of one of its taps, could not be bound.
    #[error("stream {stream:?}: {error}")]
    Bind {
        /// The stream.
        stream: String,
        /// Why.
        error: BindError,
    },
    /// Its socket could not be registered.
    #[error("stream {stream:?}: {error}")]
    Connect {
        /// The stream.
        stream: String,
        /// Why.
        error: PushError,
    },
    /// The system refused a poll or a thread.
    #[error("stream {stream:?}: {error}")]
    System {
        /// The stream.
        stream: String,
        /// Why.
        error: std::io::Error,
    },
}

/// A stream that runs on its own thread.
pub struct Stream {
    name: String,
    listen: Endpoint,
    control: Control,
    thread: std::thread::JoinHandle<Ended>,
}

/// Tells a running stream things, from any thread.
#[derive(Clone)]
pub struct Control {
    sender: Sender<thread::Control>,
    waker: Arc<mio::Waker>,
}

impl Control {
    /// Hands over what became of a changed component.
    pub fn reload(&self, plugin: &str, result: Result<Plugin, ReloadError>) {
        self.tell(thread::Control::Reload { plugin: plugin.to_owned(), result: Box::new(result) });
    }

    /// The attributes of a rid were set anew: where it is live, plugins are told.
    pub fn attributes_changed(&self, rid: &str) {
        self.tell(thread::Control::Changed { rid: rid.to_owned() });
    }

    /// Asks how its plugins stand, in their order. Dropped unasked, `reply` says that the stream has ended.
    pub fn standings(&self, reply: impl FnOnce(Vec<Standing>) + Send + 'static) {
        self.tell(thread::Control::Standings { reply: Box::new(reply) });
    }

    /// Makes it otherwise, between two batches; `done` is called when it is so. Dropped unasked, it says that the stream has
    /// ended.
    pub fn change(&self, change: Change, done: impl FnOnce() + Send + 'static) {
        self.tell(thread::Control::Change { change: Box::new(change), reply: Box::new(done) });
    }

    /// Takes a plugin out of quarantine. The reply: `None`, there is none of that name; false, it was not in quarantine.
    /// Dropped unasked, it says that the stream has ended.
    pub fn reinstate(&self, plugin: &str, reply: impl FnOnce(Option<bool>) + Send + 'static) {
        self.tell(thread::Control::Reinstate { plugin: plugin.to_owned(), reply: Box::new(reply) });
    }

    /// Asks what is known of a rid. Dropped unasked, `reply` says that the stream has ended.
    pub fn look(&self, rid: &str, reply: impl FnOnce(Looked) + Send + 'static) {
        self.tell(thread::Control::Look { rid: rid.to_owned(), reply: Box::new(reply) });
    }

    /// What becomes of a live request, as its number is in the journal. Its last row says `stop`, and what still comes of it is
    /// swallowed. It is `Expected` before the caller tells the scheduler, then `Due`, or `No` where that could not be told. `done`
    /// is called when the journal has it, or has refused it; dropped unasked, it says that the stream has ended.
    pub fn end(&self, rid: &str, number: u64, ending: OperatorAbort, done: impl FnOnce() + Send + 'static) {
        self.tell(thread::Control::End { rid: rid.to_owned(), number, ending, reply: Box::new(done) });
    }

    /// Makes a shadow live: in the place of the plugin it is a shadow of, which leaves the chain, else in its own.
    pub fn promote(&self, plugin: &str, reply: impl FnOnce(Option<bool>) + Send + 'static) {
        self.tell(thread::Control::Promote { plugin: plugin.to_owned(), reply: Box::new(reply) });
    }

    /// Where joined rows may end for this sink, once it is known who reads. A sink that is not there is passed over.
    pub fn joins(&self, sink: &str, joins: Joins) {
        self.tell(thread::Control::Joins { sink: sink.to_owned(), joins });
    }

    /// Sends what was received, then ends; gives up at the deadline.
    pub fn stop(&self, deadline: Instant) {
        self.tell(thread::Control::Stop { deadline });
    }

    fn tell(&self, control: thread::Control) {
        // Both fail only where the stream has ended already.
        let _told = self.sender.send(control);
        let _woken = self.waker.wake();
    }
}

impl Stream {
    /// Binds, connects and starts the thread.
    pub fn start(setup: Setup) -> Result<Stream, StartError> {
        let name = setup.config.name.to_string();
        let system = |error| StartError::System { stream: name.clone(), error };
        let poll = mio::Poll::new().map_err(system)?;
        let waker = Arc::new(mio::Waker::new(poll.registry(), thread::WAKER).map_err(system)?);
        let abandon_after = setup.abandon_after;
        let (plan, path, report) = build::start(setup, poll.registry(), &waker)?;
        let listen = path.receive.socket().endpoint().clone();
        let (sender, control) = channel();
        let thread = thread::Thread::new(poll, plan, path, control, report, abandon_after);
        let thread = std::thread::Builder::new()
            .name(format!("stream {name}"))
            .spawn(move || thread.run())
            .map_err(|error| StartError::System { stream: name.clone(), error })?;
        Ok(Stream { name, listen, control: Control { sender, waker }, thread })
    }

    /// Its name in the config.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where it listens; with the real port where the config said 0.
    pub fn listen(&self) -> &Endpoint {
        &self.listen
    }

    /// To tell it things.
    pub fn control(&self) -> Control {
        self.control.clone()
    }

    /// Whether its thread has ended, which it does only when told to, or after panic upon panic.
    pub fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits for its end. `Err`: it could not go on after a panic, with this message.
    pub fn join(self) -> Result<Ended, String> {
        self.thread.join().map_err(|panic| thread::message(&*panic))
    }
}
