//! The parts of a stream, checked and ready: only binding and connecting can still fail.

use crate::pressure::SchedulerLoad;
use afterbay_chain::{AttributesOf, PluginSetup};
use afterbay_config as config;
use afterbay_delivery::{Budget, TapSetup};
use afterbay_events::{Events, Health, Metrics};
use afterbay_journal::{JournalWriter, OpenError, RecoveredStream};
use afterbay_ledger::AbortSender;
use afterbay_outbox::Joins;
use afterbay_sockets::Endpoint;
use afterbay_wire::Layouts;
use std::time::Duration;

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
    pub upstream: Option<AbortSender>,
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
