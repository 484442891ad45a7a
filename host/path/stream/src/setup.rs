//! The parts of a stream, checked and ready: only the take-over of another process's state, binding and connecting can still
//! fail.

use crate::clock::Clock;
use crate::delivery::Budget;
use crate::frame_load::{ConnectorMessages, FrameLoads};
use crate::hand_over::StreamState;
use crate::pressure::SchedulerLoad;
use afterbay_batch::Joins;
use afterbay_batch::ledger::{AbortSender, AttributesOf, InterruptionSender, LeaseSender, RecordLinks};
use afterbay_batch::records::JournalPolicy;
use afterbay_chain::{CallService, PluginSetup};
use afterbay_config as config;
use afterbay_events::{Events, Health, Metrics};
use afterbay_journal::{Background, JournalWriter, OpenError, RecoveredStream};
use afterbay_sockets::Endpoint;
use afterbay_supervision::fdstore::{FdStore, Inherited};
use afterbay_wire::Layouts;
use std::sync::Arc;
use std::time::Duration;

/// The parts of a stream.
pub struct Setup {
    /// The checked configuration of the stream.
    pub config: config::Stream,
    /// The endpoint that the scheduler connects to.
    pub listen: Endpoint,
    /// The store of the descriptors that outlive the process.
    pub fdstore: FdStore,
    /// The descriptors that an earlier process left for this stream. The drop, when the stream is built, closes those that the
    /// stream did not keep.
    pub inherited: Inherited,
    /// The sinks, in the order of the configuration.
    pub sinks: Vec<SinkSetup>,
    /// The layouts of the stream's msgpack frames.
    pub layouts: Layouts,
    /// The state of the stream in the process that hands it over. `None`: the stream starts.
    pub handed_over: Option<StreamState>,
    /// The open journal, and what the last run left in it.
    pub journal: (JournalWriter, RecoveredStream),
    /// Opens the journal again after a panic.
    pub reopen: Reopen,
    /// The stream's rules for its journal.
    pub journal_policy: JournalPolicy,
    /// Bytes of frames that may wait in the journal for one sink. The stream then stops receiving.
    pub spill_max: u64,
    /// The memory limit that all streams share.
    pub budget: Budget,
    /// Time without a row after which a request is closed.
    pub abandon_after: Duration,
    /// The plugins, in the order of the configuration.
    pub plugins: Vec<PluginSetup>,
    /// The source of request attributes for plugins.
    pub attributes: AttributesOf,
    /// The way of records of requests between streams.
    pub records: RecordLinks,
    /// The services that plugins may ask.
    pub calls: Arc<dyn CallService>,
    /// The source of the scheduler's load for plugins.
    pub scheduler: SchedulerLoad,
    /// The receiver of the load that the stream's frames have, if any wants it.
    pub frame_loads: Option<FrameLoads>,
    /// The receiver of what the engine's connector says.
    pub connector: Option<ConnectorMessages>,
    /// The function that tells the scheduler about requests that plugins finish, if there is a way to the scheduler.
    pub upstream: Option<AbortSender>,
    /// Takes the changes of leases. `None`: nobody ends a request whose client has left.
    pub leases: Option<LeaseSender>,
    /// Takes the requests that the next engine may go on with. `None`: they end with their engine.
    pub interrupted: Option<InterruptionSender>,
    /// The clock of the stream.
    pub clock: Arc<dyn Clock>,
    /// The runner of catch-up rounds of new plugin instances: threads, or the stream's own thread in a test that owns time.
    pub background: Background,
    /// The receiver of events.
    pub events: Events,
    /// The process's metrics.
    pub metrics: Metrics,
    /// The process's health conditions.
    pub health: Health,
}

/// Opens a stream's journal.
pub type Reopen = Box<dyn Fn() -> Result<(JournalWriter, RecoveredStream), OpenError> + Send>;

/// One sink of a stream.
pub struct SinkSetup {
    /// The checked configuration of the sink.
    pub config: config::Sink,
    /// The reader's endpoint.
    pub connect: Endpoint,
    /// The id of the reader, if a new reader must not get frames of the earlier one, as after a restart of SGLang.
    pub reader_id: Option<String>,
    /// The rule for the ends of joined rows, as the reader needs it.
    pub joins: Joins,
}
