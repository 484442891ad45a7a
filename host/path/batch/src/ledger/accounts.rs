//! The ledger matches each row with a live request, and counts where every token of the row goes.
//!
//! Owns the live requests and their counts. A decoded batch is accounted row by row and goes to the plugin chain. With the
//! chain's decisions the batch is settled: each token received is counted as forwarded, replaced, dropped, swallowed or
//! held, and the outcome is recorded in the journal. Knows nothing of WASM or of sockets.

mod restart;
mod restore;
mod account;
mod barrier;
mod refuse;
mod bound;
mod departed;
mod leases;
mod migrated;
mod release;
mod aborts;
mod attributes;
mod destinations;
mod edits;
mod settle;
mod record;
mod blank;

pub use aborts::{ABORTED, AbortSender, FinishedEarly, LiveStatus, RequestStatus};
pub use attributes::AttributesOf;
pub use leases::{LeaseChange, LeaseSender};
pub use migrated::{Interrupted, Interruption, InterruptionSender};
pub use record::{FindRecord, RecordLinks, StoredRecord};
pub use restart::RestartGap;

use crate::ledger::requests::Requests;
use crate::{ReaderKey, RoutingTable, Row, Timestamp};
use afterbay_events::{Name, StreamTelemetry};
use afterbay_journal as journal;
use afterbay_journal::JournalRequest;
use afterbay_journal::reader::{OperatorAbort, RequestState, StreamReader};
use afterbay_wire::{AbortShape, Batch, FinishKind};
use attributes::of_engine;
use bound::LiveBound;
use record::RecordPlace;
use std::sync::Arc;
use std::time::Instant;

/// Stands for the plugin that finished a request before the last start. The journal names that plugin only in the outcomes of
/// the request's rows.
const EARLIER_RUN: &str = "(a plugin of an earlier run)";

/// A live request.
///
/// At every settled batch, `received == forwarded + replaced + dropped + swallowed + held`, all in tokens.
pub struct Request {
    /// The request's handle in the journal. Plugins know the request by the same number.
    pub handle: JournalRequest,
    /// Tokens received.
    pub received: u64,
    forwarded: u64,
    replaced: u64,
    dropped: u64,
    swallowed: u64,
    held: u64,
    /// Set once the scheduler has ended the request while rows of the request are held.
    is_finishing: bool,
    /// Set once the engine has said that the request ended without a row.
    is_departed: bool,
    /// Whether the last row that the reader gets of the request is held.
    is_last_held: bool,
    /// The scheduler's own token count at the request's last row.
    scheduler_count: u64,
    /// Tokens of the engines before, which the scheduler counts as a part of the prompt.
    before: u64,
    /// Whether the engine died, and the next one is to go on with the request.
    awaits_engine: bool,
    /// Tokens that the scheduler counted and no row accounts for: the row could not be read, or Afterbay did not know the
    /// request at that time.
    unaccounted: i64,
    /// Whether the scheduler's next count is taken without a check.
    trusts_next_count: bool,
    /// Whether the ledger and the journal know the request by a hash of its rid.
    is_rid_hashed: bool,
    /// Tokens that were lost around a start. The event of the start reports these tokens.
    missing: u64,
    /// Tokens sent to the reader minus tokens received: added to the scheduler's count in every later row.
    count_shift: i64,
    /// Whether this is a health check of SGLang, which plugins do not see.
    is_health_check: bool,
    /// Length of the prompt in tokens; 0 if the scheduler did not give it.
    pub prompt_tokens: u64,
    /// Whether the reader was sent a row of the request.
    reader_has_row: bool,
    /// How far the operator's abort of the request has come.
    abort: OperatorAbort,
    /// The plugin that finished the request. Later rows are swallowed.
    finished_by: Option<Name>,
    /// The plugin that lets the request skip the detokenizer.
    skip_plugin: Option<Name>,
    /// The properties that decide which sink reads the request.
    pub reader: ReaderKey,
    attributes: Option<Arc<str>>,
    /// The engine's own attributes. Those of operators override them.
    of_engine: Vec<(String, String)>,
    /// Whether a row of the request was received. Until then its record alone was.
    pub has_row: bool,
    /// Whether the plugins were told of the request.
    is_announced: bool,
    /// The time at which the record, or else the first row, was received.
    arrived_unix_ns: u64,
    /// The place of the request's record.
    record: Option<RecordPlace>,
    last_row_at: Instant,
}

impl Request {
    fn new(handle: JournalRequest, at: Timestamp) -> Request {
        Request {
            handle,
            is_health_check: false,
            received: 0,
            forwarded: 0,
            replaced: 0,
            dropped: 0,
            swallowed: 0,
            held: 0,
            is_finishing: false,
            is_departed: false,
            is_last_held: false,
            scheduler_count: 0,
            before: 0,
            awaits_engine: false,
            unaccounted: 0,
            trusts_next_count: false,
            is_rid_hashed: false,
            missing: 0,
            count_shift: 0,
            prompt_tokens: 0,
            reader_has_row: false,
            abort: OperatorAbort::No,
            finished_by: None,
            skip_plugin: None,
            reader: ReaderKey::default(),
            attributes: None,
            of_engine: Vec::new(),
            has_row: false,
            is_announced: false,
            arrived_unix_ns: at.unix_ns,
            record: None,
            last_row_at: at.instant,
        }
    }

    fn number(&self) -> u64 {
        self.handle.number().0
    }

    /// Reads what only an engine's first row says. The record may have said the length of the prompt before.
    fn read_first_row(&mut self, batch: &Batch, row: u32) {
        // Another engine counts the tokens before as a part of the prompt.
        if self.before == 0 || self.prompt_tokens == 0 {
            self.prompt_tokens = batch.prompt_tokens(row).unwrap_or(self.prompt_tokens);
        }
        self.reader = ReaderKey::of(batch, row);
        self.has_row = true;
    }

    /// The time at which the record, or else the first row, was received, in milliseconds since 1970.
    pub fn arrived_ms(&self) -> u64 {
        self.arrived_unix_ns / 1_000_000
    }

    fn is_finished_early(&self) -> bool {
        self.finished_by.is_some()
    }

    /// Whether plugins are not called with rows of the request: a health check, or a request that has ended. A request whose
    /// last row is held has not ended.
    pub fn is_hidden(&self) -> bool {
        self.is_over() || self.is_health_check
    }

    /// Whether the reader was sent the last row of the request, although the scheduler may continue it.
    fn is_over(&self) -> bool {
        self.is_finished_early() && !self.is_last_held
    }
}

/// The parts of a ledger from outside of its stream. They outlive the ledger when this is rebuilt from the journal after a panic.
#[derive(Default)]
pub struct LedgerLinks {
    /// Sends aborts of requests that plugins finish.
    pub upstream: Option<AbortSender>,
    /// The source of attributes, asked when a request begins. `None`: no plugin reads them.
    pub attributes: Option<AttributesOf>,
    /// Takes the changes of leases. `None`: nobody ends a request whose client has left.
    pub leases: Option<LeaseSender>,
    /// Takes the requests that the next engine may go on with. `None`: they end with their engine.
    pub interrupted: Option<InterruptionSender>,
    /// The journal, for plugins that read what a request asked for.
    pub journal: Option<Arc<StreamReader>>,
    /// The way of records between streams.
    pub records: RecordLinks,
    /// How the scheduler reads an abort, known from its last batch.
    pub abort_shape: Option<AbortShape>,
}

/// The live requests of a stream and the counts of their tokens.
pub struct Ledger {
    requests: Requests<Request>,
    telemetry: StreamTelemetry,
    /// How many live requests an operator aborts.
    aborts: usize,
    /// Tokens that were lost around the last start.
    restart: RestartGap,
    routing: Arc<RoutingTable>,
    links: LedgerLinks,
    // The vectors keep their memory between batches, so that a batch allocates nothing.
    rows: Vec<Row>,
    handles: Vec<JournalRequest>,
    tokens: Vec<u32>,
    completion_counts: Vec<Option<u64>>,
    finishes: Vec<FinishKind>,
    gaps: Vec<journal::TokenGap>,
    /// Requests that close with the current frame although the scheduler continues them: the bound of live requests is reached,
    /// or the request has no rid.
    single_frame: Vec<JournalRequest>,
    /// Requests that the current frame says have ended.
    departed: Vec<JournalRequest>,
    /// Rows of the current frame that begin and end a request.
    begun_and_ended: usize,
    bound: LiveBound,
    /// Requests that began in a frame that no plugin is called with, until the plugins are told of them.
    unannounced: Vec<JournalRequest>,
    /// The last batch of the scheduler: the form of rows that Afterbay writes itself. It does not outlive a panic, which it may
    /// have caused.
    last_batch: Option<Batch>,
}

impl Ledger {
    /// Continues the requests that were live at the end of the last run.
    pub fn new(
        live: &[journal::LiveRequest],
        links: LedgerLinks,
        restart: RestartGap,
        routing: Arc<RoutingTable>,
        telemetry: StreamTelemetry,
        now: Timestamp,
    ) -> Ledger {
        let mut ledger = Ledger {
            requests: Requests::new(),
            telemetry,
            aborts: 0,
            restart,
            routing,
            links,
            rows: Vec::new(),
            handles: Vec::new(),
            tokens: Vec::new(),
            completion_counts: Vec::new(),
            finishes: Vec::new(),
            gaps: Vec::new(),
            single_frame: Vec::new(),
            departed: Vec::new(),
            begun_and_ended: 0,
            bound: LiveBound::default(),
            unannounced: Vec::new(),
            last_batch: None,
        };
        for journal::LiveRequest { request, info, .. } in live {
            // The journal may count a token of a held row as replaced and as dropped.
            let dropped = info.dropped.min(info.received);
            let replaced = info.replaced.min(info.received - dropped);
            let mut continued = Request {
                received: info.received,
                forwarded: info.received - dropped - replaced,
                replaced,
                dropped,
                scheduler_count: info.received,
                count_shift: info.forwarded as i64 - info.received as i64,
                reader_has_row: info.rows > 0,
                has_row: info.rows > 0,
                is_announced: true,
                arrived_unix_ns: info.begins_unix_ns(),
                record: (info.record_frame.0 > 0).then_some(RecordPlace::Frame(info.record_frame)),
                of_engine: of_engine(info),
                finished_by: info.ended_early.then(|| EARLIER_RUN.into()),
                is_finishing: info.state == RequestState::Finished,
                // `restore_held` corrects this.
                is_last_held: info.ended_early || info.state == RequestState::Finished,
                ..Request::new(*request, now)
            };
            continued.restore_migration();
            ledger.publish_record(&info.rid, continued.record);
            ledger.requests.insert(*request, &info.rid, continued);
            ledger.begin_lease(*request);
            ledger.hand_over_interrupted(*request);
            if info.ending != OperatorAbort::No && !info.ended_early {
                ledger.set_abort(*request, info.ending);
            }
        }
        ledger.add_attributes();
        ledger
    }

    /// Keeps what outlives the ledger.
    pub fn into_links(self) -> LedgerLinks {
        self.links
    }

    /// How many requests are live.
    pub fn live(&self) -> usize {
        self.requests.len()
    }

    /// The memory of the live requests in bytes.
    pub fn memory(&self) -> u64 {
        self.requests.memory() as u64
    }

    /// The live requests with their rids.
    pub fn requests(&self) -> impl Iterator<Item = (&str, &Request)> {
        self.requests.iter().map(|(_, rid, request)| (rid, request))
    }

    /// A live request, with its rid.
    pub fn request(&self, handle: JournalRequest) -> Option<(&str, &Request)> {
        Some((self.requests.rid(handle)?, self.requests.get(handle)?))
    }

    /// The live request with this number.
    pub fn numbered(&self, number: u64) -> Option<JournalRequest> {
        self.requests.numbered(number)
    }

    /// Whether plugins see rows of the live request with this number.
    pub fn is_open(&self, number: u64) -> bool {
        let request = self.numbered(number).and_then(|handle| self.requests.get(handle));
        request.is_some_and(|request| !request.is_hidden())
    }

    /// The name of the sink that reads the request; `None` if an earlier run opened the request and its first row is not known.
    pub fn sink_name(&self, request: &Request) -> Option<&Name> {
        self.routing.reader_name(&request.reader)
    }

    /// The rid of the live request with this number.
    pub fn rid_of(&self, number: u64) -> Option<&str> {
        self.requests.rid(self.numbered(number)?)
    }
}
