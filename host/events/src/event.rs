//! Every event of Afterbay: its fields, its level, its sentence, and what makes two of them alike for the log's limit.

use afterbay_types::HoldEnd;
use tracing::Level;

use crate::declare::events;
use crate::field::Name;

/// The `tracing` target of every event.
pub const TARGET: &str = "afterbay";

/// A kind of event, as a test asks for it.
pub trait Kind: Clone + Into<Event> {
    /// The struct's name; `event` in the log, `event="…"` in metrics.
    const NAME: &'static str;
    /// The event of this kind, if it is one.
    fn of(event: &Event) -> Option<&Self>;
}

/// Warns where `is_wrong`, informs otherwise.
fn warn_if(is_wrong: bool) -> Level {
    if is_wrong { Level::WARN } else { Level::INFO }
}

/// Names the request in front of a plugin's line, where there is one.
struct OfRequest<'a>(&'a Option<String>);

impl std::fmt::Display for OfRequest<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(rid) => write!(f, "request {rid:?}: "),
            None => Ok(()),
        }
    }
}

events! {
    // The stream itself.

    /// A stream receives.
    StreamStarted, Level::INFO, first 5 of [stream] {
        stream: Name, listen: String,
    } => "stream {stream:?}: started, receives on {listen}";

    /// A stream has ended in order.
    StreamStopped, Level::INFO, first 5 of [stream] {
        stream: Name, frames: u64,
    } => "stream {stream:?}: stopped after {frames} frames";

    /// A stream's thread panicked, and goes on out of its journal, on the same connections. `frame`: the one in hand; 0: none.
    StreamPanicked, Level::ERROR, first 3 of [stream] {
        stream: Name, frame: u64, why: String,
    } => "stream {stream:?}: a panic with frame {frame} in hand, goes on out of the journal: {why}";

    /// A stream could not start, or has ended by an error or a panic.
    StreamFailed, Level::ERROR, first 5 of [stream] {
        stream: Name, why: String,
    } => "stream {stream:?}: failed: {why}";

    /// The next leg of requests is not to be had: the stream that is configured for it does not run.
    StreamAbsent, Level::INFO, first 5 of [stream] {
        stream: Name, why: String,
    } => "stream {stream:?}: does not run, the legs before it do: {why}";

    /// A stream has stopped receiving, so that the scheduler's queue holds.
    ReceivePaused, Level::WARN, first 2 of [stream, why] {
        stream: Name, why: String,
    } => "stream {stream:?}: receives no more for now: {why}";

    /// A stream receives again.
    ReceiveResumed, Level::INFO, first 2 of [stream] {
        stream: Name, paused_ms: u64,
    } => "stream {stream:?}: receives again after {paused_ms} ms";

    /// A stream stops: it takes no more connections, receives what its senders have handed to the kernel, and sends what it has.
    DrainBegun, Level::INFO, first 5 of [stream] {
        stream: Name, frames: u64,
    } => "stream {stream:?}: drain begun, {frames} frames to be sent";

    /// Everything that the senders had handed to the kernel was received, and everything that was received is sent.
    DrainFinished, Level::INFO, first 5 of [stream] {
        stream: Name, drained_ms: u64,
    } => "stream {stream:?}: drain finished in {drained_ms} ms";

    /// The drain's time is over; what remains is in the journal. `unread_bytes` came from senders, could not be received because
    /// the journal took no frames, and are lost.
    DrainDeadline, Level::WARN, first 5 of [stream] {
        stream: Name, remaining_frames: u64, remaining_bytes: u64, unread_bytes: u64,
    } => "stream {stream:?}: drain ended by its deadline, {remaining_frames} frames ({remaining_bytes} bytes) remain in the journal{}"
        with if *unread_bytes > 0 { format!(", {unread_bytes} bytes of senders are lost because the journal took no frames") } else { String::new() };

    /// The system would not wait for the stream's sockets.
    PollFailed, Level::ERROR, first 1 of [stream] {
        stream: Name, why: String,
    } => "stream {stream:?}: poll failed: {why}";

    // Senders: schedulers that connect to a stream.

    /// A scheduler is connected.
    SenderConnected, Level::INFO, first 5 of [stream] {
        stream: Name, peer: u64, from: String,
    } => "stream {stream:?}: sender {peer} connected from {from}";

    /// A scheduler's connection has ended; all that came whole was received. `reason` is `clean`, `cut`, `garbage`,
    /// `too_large`, `multipart` and the like: a word for metrics and tests, while `why` is for people.
    SenderClosed, warn_if(*reason != "clean"), first 5 of [stream, reason] {
        stream: Name, peer: u64, reason: &'static str, why: String, frames: u64,
    } => "stream {stream:?}: sender {peer} closed after {frames} frames: {why}";

    /// A connection was not taken.
    SenderRefused, Level::WARN, first 5 of [stream] {
        stream: Name, from: String, why: String,
    } => "stream {stream:?}: sender from {from} refused: {why}";

    // Sinks: the readers that a stream sends to.

    /// A reader is connected.
    SinkConnected, Level::INFO, first 5 of [stream, sink] {
        stream: Name, sink: Name, endpoint: String,
    } => "stream {stream:?}: sink {sink:?} connected to {endpoint}";

    /// There is no reader yet.
    SinkWaiting, Level::INFO, first 2 of [stream, sink] {
        stream: Name, sink: Name, endpoint: String, why: String,
    } => "stream {stream:?}: sink {sink:?} waits for a reader on {endpoint}: {why}";

    /// The reader's connection has ended. `at_end`: it had finished all there was, and no sender is there either.
    SinkLost, warn_if(!*at_end), first 5 of [stream, sink, at_end] {
        stream: Name, sink: Name, why: String, at_end: bool,
    } => "stream {stream:?}: sink {sink:?} lost its reader: {why}{}"
        with if *at_end { "; no sender is left either, and nothing waits" } else { "" };

    /// After a loss: what is sent again, and of which frames nobody can say whether the reader had them.
    SinkSettled, warn_if(*unconfirmed_frames > 0), first 5 of [stream, sink] {
        stream: Name, sink: Name, resent_frames: u64, unconfirmed_frames: u64,
    } => "stream {stream:?}: sink {sink:?} sends {resent_frames} frames again, {unconfirmed_frames} cannot be confirmed";

    /// After a kill: the reader has frames of the run before, and nothing is sent until it has counted them.
    SinkResuming, Level::INFO, first 5 of [stream, sink] {
        stream: Name, sink: Name, frames: u64,
    } => "stream {stream:?}: sink {sink:?} waits for its reader to finish what it was sent before, {frames} frames";

    /// A reload has brought a further sink.
    SinkAdded, Level::INFO, first 5 of [stream, sink] {
        stream: Name, sink: Name, endpoint: String,
    } => "stream {stream:?}: sink {sink:?} is added, on {endpoint}";

    /// The configuration has the sink no more: it gets no new requests, and goes when those that it has are sent.
    SinkLeaving, Level::INFO, first 5 of [stream, sink] {
        stream: Name, sink: Name, endpoint: String,
    } => "stream {stream:?}: sink {sink:?} on {endpoint} leaves when it has the rest of its requests";

    /// A sink that left is gone: it has all that it was to get.
    SinkRemoved, Level::INFO, first 5 of [stream, sink] {
        stream: Name, sink: Name,
    } => "stream {stream:?}: sink {sink:?} has all it was to get, and is removed";

    /// A sink's reader does otherwise than it did: it keeps up, is behind, has stalled, or is away. `at_end`: away since a
    /// `SinkLost` that says so, and nothing has come since.
    SinkState, warn_if(*state != "keeping up" && !*at_end), first 5 of [stream, sink, state, at_end] {
        stream: Name, sink: Name, state: &'static str, rows: u64, oldest_ms: u64, at_end: bool,
    } => "stream {stream:?}: sink {sink:?} is {state}, {rows} rows wait, the oldest for {oldest_ms} ms";

    /// A batch for several sinks that cannot be taken apart went to the sink of its first row.
    BatchUnsplit, Level::WARN, first 2 of [stream] {
        stream: Name, frame: u64, rows: u64, why: String,
    } => "stream {stream:?}: frame {frame} with {rows} rows went whole to the sink of its first row: {why}";

    /// A tap's queue is full: from this frame on copies are dropped. What leaves is numbered by sink, what came by the journal.
    TapDropping, Level::WARN, first 2 of [stream, tap] {
        stream: Name, tap: Name, first: u64,
    } => "stream {stream:?}: tap {tap:?} does not keep up, copies are dropped from frame {first} on";

    /// A tap takes copies again, or has ended: what was dropped.
    TapDropped, Level::WARN, first 2 of [stream, tap] {
        stream: Name, tap: Name, frames: u64, first: u64, last: u64,
    } => "stream {stream:?}: tap {tap:?} was not given {frames} copies, of frames {first} to {last}";

    /// A tap that publishes is bound.
    TapListening, Level::INFO, first 5 of [stream, tap] {
        stream: Name, tap: Name, endpoint: String,
    } => "stream {stream:?}: tap {tap:?} publishes on {endpoint}";

    /// A subscriber of a tap is connected.
    SubscriberConnected, Level::INFO, first 5 of [stream, tap] {
        stream: Name, tap: Name, subscriber: u64, from: String,
    } => "stream {stream:?}: tap {tap:?}: subscriber {subscriber} connected from {from}";

    /// A subscriber's connection has ended. `unsent` copies still waited for it.
    SubscriberClosed, warn_if(*reason != "clean"), first 5 of [stream, tap, reason] {
        stream: Name, tap: Name, subscriber: u64, reason: &'static str, why: String, frames: u64, unsent: u64,
    } => "stream {stream:?}: tap {tap:?}: subscriber {subscriber} closed after {frames} copies, {unsent} waited for it: {why}";

    /// A subscriber was not taken.
    SubscriberRefused, Level::WARN, first 5 of [stream, tap] {
        stream: Name, tap: Name, from: String, why: String,
    } => "stream {stream:?}: tap {tap:?}: subscriber from {from} refused: {why}";

    /// A subscriber's queue is full: from this frame on copies are dropped for it, numbered as in [`TapDropping`].
    SubscriberDropping, Level::WARN, first 2 of [stream, tap, subscriber] {
        stream: Name, tap: Name, subscriber: u64, from: String, first: u64,
    } => "stream {stream:?}: tap {tap:?}: subscriber {subscriber} from {from} does not keep up, copies are dropped from frame {first} on";

    /// A subscriber takes copies again, or has left: what was dropped for it.
    SubscriberDropped, Level::WARN, first 2 of [stream, tap, subscriber] {
        stream: Name, tap: Name, subscriber: u64, frames: u64, first: u64, last: u64,
    } => "stream {stream:?}: tap {tap:?}: subscriber {subscriber} was not given {frames} copies, of frames {first} to {last}";

    /// Rows that wait for a sink will not be joined, and why.
    SinkUnjoined, Level::WARN, first 2 of [stream, sink] {
        stream: Name, sink: Name, why: String,
    } => "stream {stream:?}: sink {sink:?} gets rows unjoined: {why}";

    /// A sink without a credit page, whose rows are joined under backpressure: what that costs, at the start.
    SinkUncounted, Level::WARN, first 2 of [stream, sink] {
        stream: Name, sink: Name,
    } => "stream {stream:?}: sink {sink:?} has no credit page: that its reader is behind shows only in what it leaves unread in the kernel, which is nothing where a libzmq reader has no RCVHWM, and one with RCVHWM loses what it has not read when Afterbay dies: set credit, or when = \"window\"";

    /// The reader's credit page says that it is a tokenizer: rows that wait for the reader may be joined anywhere.
    SinkJoined, Level::INFO, first 5 of [stream, sink] {
        stream: Name, sink: Name,
    } => "stream {stream:?}: sink {sink:?} joins rows anywhere: its reader's credit page says that a tokenizer reads";

    /// Rows before a detokenizer are joined where the text is whole.
    SinkVocabulary, Level::INFO, first 2 of [stream, sink] {
        stream: Name, sink: Name, tokens: u64, kind: String,
    } => "stream {stream:?}: sink {sink:?} joins rows where the text is whole, by {tokens} tokens ({kind})";

    /// What connected to is not a reader that Afterbay can feed.
    SinkRefused, Level::ERROR, first 5 of [stream, sink] {
        stream: Name, sink: Name, why: String,
    } => "stream {stream:?}: sink {sink:?} refused its reader: {why}";

    /// The reader's count of finished frames is read.
    CreditSeen, Level::INFO, first 5 of [stream, sink] {
        stream: Name, sink: Name, generation: u64, count: u64,
    } => "stream {stream:?}: sink {sink:?} reads its reader's credit: generation {generation}, {count} frames finished";

    /// The reader's count is not believed; frames go on without it.
    CreditUnusable, Level::WARN, first 5 of [stream, sink] {
        stream: Name, sink: Name, why: String,
    } => "stream {stream:?}: sink {sink:?} goes on without credit: {why}";

    /// What the sockets had to tell came faster than it was taken.
    NoticesMissed, Level::WARN, first 1 of [stream, of] {
        stream: Name, of: &'static str, missed: u64,
    } => "stream {stream:?}: {missed} notices of {of} were missed";

    // Signals: the scheduler's own load. `source` is the key of the config: `load_snapshot`, `load_stat` or `metrics`.

    /// A source of the scheduler's load is read, for the first time or again.
    SignalFound, Level::INFO, first 5 of [stream, source] {
        stream: Name, source: &'static str, place: String,
    } => "signals of {stream:?}: {source} {place} found";

    /// A source of the scheduler's load cannot be had.
    SignalLost, Level::WARN, first 5 of [stream, source] {
        stream: Name, source: &'static str, place: String, why: String,
    } => "signals of {stream:?}: {source} {place} not to be had: {why}";

    /// What a source of the scheduler's load says cannot be used.
    SignalInvalid, Level::WARN, first 5 of [stream, source] {
        stream: Name, source: &'static str, place: String, why: String,
    } => "signals of {stream:?}: {source} {place} cannot be used: {why}";

    /// What a source of the scheduler's load said last is too old to be used.
    SignalStale, Level::WARN, first 5 of [stream, source] {
        stream: Name, source: &'static str, place: String, age_ms: u64,
    } => "signals of {stream:?}: {source} {place} is stale, measured {age_ms} ms ago";

    /// A source of the scheduler's load is no longer stale.
    SignalFresh, Level::INFO, first 5 of [stream, source] {
        stream: Name, source: &'static str, place: String,
    } => "signals of {stream:?}: {source} {place} is fresh";

    /// Messages of the scheduler's load did not come. What they said is superseded.
    SignalMissed, Level::WARN, first 1 of [stream, source] {
        stream: Name, source: &'static str, place: String, messages: u64,
    } => "signals of {stream:?}: {messages} messages of {source} {place} did not come";

    // The journal.

    /// A stream's journal is open.
    JournalRecovered, Level::INFO, first 5 of [stream] {
        stream: Name, segments: u64, bytes: u64, last_frame: u64, live_requests: u64, unaccounted_frames: u64,
    } => "journal of {stream:?}: open at frame {last_frame}, {segments} segments ({bytes} bytes), {live_requests} live requests, {unaccounted_frames} frames were not accounted and are now";

    /// The last process died while it wrote: the torn end was cut.
    JournalCut, Level::WARN, first 5 of [stream] {
        stream: Name, segment: String, cut_bytes: u64,
    } => "journal of {stream:?}: torn end of segment {segment} cut, {cut_bytes} bytes";

    /// Bytes in a segment are not what was written. They are left in place and skipped.
    JournalCorrupt, Level::ERROR, first 5 of [stream] {
        stream: Name, segment: String, what: String,
    } => "journal of {stream:?}: segment {segment} is damaged: {what}";

    /// A frame cannot be written. `on_error` is what happens until it can: `stop` or `forward`.
    JournalWriteFailed, Level::ERROR, first 1 of [stream] {
        stream: Name, on_error: &'static str, why: String,
    } => "journal of {stream:?}: write failed (on_error = {on_error:?}): {why}";

    /// Frames are written again.
    JournalHealed, Level::INFO, first 5 of [stream] {
        stream: Name, failing_ms: u64, skipped_frames: u64,
    } => "journal of {stream:?}: writes again after {failing_ms} ms, {skipped_frames} frames were not kept";

    /// A sync failed: what came after the last one that worked may not survive a power cut.
    JournalSyncFailed, Level::ERROR, first 1 of [stream] {
        stream: Name, durable_frame: u64, why: String,
    } => "journal of {stream:?}: sync failed, durable up to frame {durable_frame}: {why}";

    /// Something else that the journal has to tell.
    JournalNotice, warn_if(*is_wrong), first 5 of [stream] {
        stream: Name, is_wrong: bool, what: String,
    } => "journal of {stream:?}: {what}";

    /// A segment is full and whole.
    SegmentSealed, Level::DEBUG, first 5 of [stream] {
        stream: Name, segment: String, bytes: u64,
    } => "journal of {stream:?}: segment {segment} sealed, {bytes} bytes";

    /// A segment was removed, as `retain` says.
    SegmentRemoved, Level::INFO, first 5 of [stream] {
        stream: Name, segment: String, bytes: u64,
    } => "journal of {stream:?}: segment {segment} removed, {bytes} bytes";

    /// A live request without a row for `abandon_after` no longer holds back retention.
    RequestAbandoned, Level::WARN, first 5 of [stream] {
        stream: Name, rid: String,
    } => "journal of {stream:?}: request {rid:?} abandoned, it had no row for too long";

    // What is in the frames.

    /// A frame could not be decoded. It is in the journal; `then` says what becomes of it.
    FrameNotUnderstood, Level::WARN, first 1 of [stream, kind] {
        stream: Name, frame: u64, bytes: u64, kind: String, why: String, then: String,
    } => "stream {stream:?}: frame {frame} ({bytes} bytes) not understood, {then}: {why}";

    /// Some rows of a frame cannot be shown to plugins. Each plugin's `on_fault` says what becomes of them: they pass, or their
    /// requests are ended.
    RowsUnread, Level::WARN, first 1 of [stream] {
        stream: Name, frame: u64, rows: u64, why: String,
    } => "stream {stream:?}: {rows} rows of frame {frame} cannot be shown to plugins, on_fault says what becomes of them: {why}";

    /// There is no room for one more live request. Those without a row for the longest time were given up.
    LiveRequestsFull, Level::WARN, first 1 of [stream] {
        stream: Name, limit: u64, given_up: u64,
    } => "stream {stream:?}: live requests have reached their limit of {limit}, {given_up} without a row for 10 s or more were given up";

    /// A frame has a column or a length that no known layout has.
    UnknownColumns, Level::WARN, first 1 of [stream, what] {
        stream: Name, frame: u64, what: String,
    } => "stream {stream:?}: frame {frame} has what this version does not know, carried as it is: {what}";

    /// Tokens of a request did not arrive: the scheduler had counted `expected`, and `got` came.
    RequestGap, Level::WARN, first 5 of [stream] {
        stream: Name, rid: String, frame: u64, expected: u64, got: u64,
    } => "stream {stream:?}: request {rid:?} has a gap at frame {frame}: {got} tokens received, {expected} counted by the scheduler";

    /// Frames that a scheduler sent did not arrive between the end of the last run and this start: the first rows of `requests`
    /// requests lack `tokens` tokens. `frames` frames at least are missing, as no row since carries more than `row_tokens`
    /// tokens. `silent` requests that were live have had no row since.
    FramesMissing, Level::WARN, first 5 of [stream] {
        stream: Name, frames: u64, requests: u64, tokens: u64, row_tokens: u64, silent: u64,
    } => "stream {stream:?}: at least {frames} frames are missing between the stop and this start, {requests} requests affected: {tokens} tokens did not arrive (no row since has more than {row_tokens}){}"
        with if *silent > 0 { format!("; {silent} more requests have had no row since the start") } else { String::new() };

    /// A request's ledger does not balance at its end.
    RequestImbalance, Level::ERROR, first 5 of [stream] {
        stream: Name, rid: String, counted: u64, received: u64, forwarded: u64, replaced: u64, dropped: u64, swallowed: u64,
    } => "stream {stream:?}: request {rid:?} does not balance: {counted} tokens counted by the scheduler, {received} received, {forwarded} forwarded, {replaced} replaced, {dropped} dropped, {swallowed} swallowed";

    // The configuration.

    /// Another configuration is in force, in all its parts.
    ConfigReloaded, Level::INFO, first 5 of [changed] {
        changed: String,
    } => "config: reloaded: {changed}";

    /// A configuration is not taken; the one before goes on as it is.
    ConfigReloadFailed, Level::ERROR, first 5 of [why] {
        why: String,
    } => "config: not reloaded, the one before goes on: {why}";

    /// The configuration's directory cannot be watched: it is looked at every two seconds instead.
    ConfigUnwatched, Level::WARN, first 5 of [directory] {
        directory: String, why: String,
    } => "config: {directory} cannot be watched, it is looked at now and then: {why}";

    // Plugins.

    /// A plugin is ready.
    PluginLoaded, Level::INFO, first 5 of [stream, plugin] {
        stream: Name, plugin: Name, version: String, digest: String,
    } => "plugin {plugin:?} of {stream:?}: version {version} loaded, sha256 {digest}";

    /// A changed component has taken over between two batches.
    PluginReloaded, Level::INFO, first 5 of [stream, plugin] {
        stream: Name, plugin: Name, version: String, digest: String, resumed_requests: u64,
        state_bytes: u64,
    } => "plugin {plugin:?} of {stream:?}: version {version} took over {resumed_requests} requests with {state_bytes} bytes of state, sha256 {digest}";

    /// What a plugin knew of its requests did not go over to the instance that took over from it.
    PluginStateLost, Level::WARN, first 5 of [stream, plugin] {
        stream: Name, plugin: Name, why: String,
    } => "plugin {plugin:?} of {stream:?}: its state was not handed over, requests are told of as after a fault: {why}";

    /// The instance that took over was shown the live requests' rows again.
    PluginReplayed, Level::INFO, first 5 of [stream, plugin] {
        stream: Name, plugin: Name, rows: u64,
    } => "plugin {plugin:?} of {stream:?}: was shown {rows} rows of live requests before it took over";

    /// A changed component cannot be used; the one before stays.
    PluginReloadFailed, Level::ERROR, first 5 of [stream, plugin] {
        stream: Name, plugin: Name, why: String,
    } => "plugin {plugin:?} of {stream:?}: reload failed, the one before stays: {why}";

    /// A project was built again (`afterbay run --dev`); its component is reloaded if it is another.
    PluginBuilt, Level::INFO, first 5 of [project] {
        project: String, took_ms: u64,
    } => "dev: {project} built in {took_ms} ms";

    /// A project was saved and does not build; what runs stays.
    PluginBuildFailed, Level::ERROR, first 5 of [project] {
        project: String, why: String,
    } => "dev: {project} is not built, what runs stays: {why}";

    /// A directory cannot be watched for changed components: it is looked at every two seconds instead.
    PluginReloadUnwatched, Level::WARN, first 5 of [directory] {
        directory: String, why: String,
    } => "plugins: {directory} cannot be watched, it is looked at now and then: {why}";

    /// A plugin trapped, took too long or too much memory, or answered what it may not. `then`: what becomes of the batch.
    PluginFault, Level::ERROR, first 5 of [stream, plugin, kind] {
        stream: Name, plugin: Name, kind: &'static str, why: String, then: &'static str,
    } => "plugin {plugin:?} of {stream:?}: fault, {then}: {why}";

    /// No fresh instance could be made after a fault; it is tried again every second. `then`: what becomes of a batch meanwhile.
    PluginDown, Level::ERROR, first 1 of [stream, plugin] {
        stream: Name, plugin: Name, why: String, then: &'static str,
    } => "plugin {plugin:?} of {stream:?}: down, {then}: {why}";

    /// A plugin has faulted too often, and is out of the chain until it is released or changed. `why`: the last fault.
    PluginQuarantined, Level::ERROR, first 5 of [stream, plugin] {
        stream: Name, plugin: Name, faults: u64, within_ms: u64, then: &'static str, why: String,
    } => "plugin {plugin:?} of {stream:?}: quarantined after {faults} faults in {within_ms} ms, {then} until it is changed or released: {why}";

    /// A plugin is no longer configured, and out of the chain.
    PluginRemoved, Level::INFO, first 5 of [stream, plugin] {
        stream: Name, plugin: Name,
    } => "plugin {plugin:?} of {stream:?}: removed";

    /// A plugin is back in the chain. `by`: `operator` or `reload`.
    PluginReleased, Level::INFO, first 5 of [stream, plugin] {
        stream: Name, plugin: Name, by: &'static str,
    } => "plugin {plugin:?} of {stream:?}: released from quarantine by {}" with if *by == "reload" { "a reload" } else { "the operator" };

    /// A plugin has ended a request before the scheduler did.
    RequestFinishedEarly, Level::INFO, first 5 of [stream, plugin] {
        stream: Name, plugin: Name, rid: String, reason: String,
    } => "plugin {plugin:?} of {stream:?}: request {rid:?} finished early: {reason}";

    /// The scheduler was told to end a request. `by` is the operator, or a plugin that had finished it.
    AbortSent, Level::INFO, first 5 of [stream, by] {
        stream: Name, rid: String, by: Name, to: String,
    } => "stream {stream:?}: abort of request {rid:?} sent to {to}, by {by}";

    /// The scheduler could not be told to end a request: it goes on generating.
    AbortFailed, Level::WARN, first 5 of [stream, by] {
        stream: Name, rid: String, by: Name, why: String,
    } => "stream {stream:?}: abort of request {rid:?}, by {by}, not sent: {why}";

    /// Nobody can be told to end requests of a stream, and why.
    AbortUnavailable, Level::INFO, first 2 of [stream] {
        stream: Name, why: String,
    } => "stream {stream:?}: requests cannot be aborted in the scheduler: {why}";

    /// A plugin has dropped rows of a batch.
    RowsDropped, Level::INFO, first 5 of [stream, plugin, reason] {
        stream: Name, plugin: Name, reason: String, frame: u64, rows: u64, tokens: u64,
    } => "plugin {plugin:?} of {stream:?}: {rows} rows ({tokens} tokens) of frame {frame} dropped: {reason}";

    /// A verdict could not be carried out on the wire; the row went on unchanged.
    VerdictFailed, Level::WARN, first 5 of [stream, plugin] {
        stream: Name, plugin: Name, frame: u64, why: String,
    } => "plugin {plugin:?} of {stream:?}: verdict on frame {frame} not carried out: {why}";

    /// A shadow says something else of a row than the live plugin.
    ShadowDiffers, Level::INFO, first 5 of [stream, plugin] {
        stream: Name, plugin: Name, rid: String, live: String, shadow: String,
    } => "plugin {plugin:?} of {stream:?}: request {rid:?}: in the shadow says {shadow}, live says {live}";

    /// A shadow became live.
    PluginPromoted, Level::INFO, first 5 of [stream, plugin] {
        stream: Name, plugin: Name, of: String,
    } => "plugin {plugin:?} of {stream:?}: is live from now on, until a restart, or another mode in the configuration; {of}";

    /// Rows that a plugin lets skip the detokenizer go to it all the same: they cannot be written as it would have.
    RowsNotSkipped, Level::WARN, first 2 of [stream] {
        stream: Name, frame: u64, rows: u64, why: String,
    } => "stream {stream:?}: {rows} rows of frame {frame} go to the detokenizer, which they were to skip: {why}";

    /// Rows that a plugin held wait no more, without its word: they go on as they came, or with `on_fault = "terminate"` they
    /// end their request. `end` is why, as metrics count it; `why` is for people.
    HoldEnded, warn_if(*end != HoldEnd::Last), first 5 of [stream, plugin, end] {
        stream: Name, plugin: Name, rid: String, rows: u64, tokens: u64, end: HoldEnd, why: &'static str,
    } => "plugin {plugin:?} of {stream:?}: {rows} rows ({tokens} tokens) of request {rid:?} wait no more, without its word: {why}";

    /// A row that a plugin wanted to hold went on, or one came that cannot be joined with those that wait.
    HoldRefused, Level::WARN, first 5 of [stream, plugin, why] {
        stream: Name, plugin: Name, frame: u64, why: String,
    } => "plugin {plugin:?} of {stream:?}: a row of frame {frame} is not held: {why}";

    /// A plugin wants to hold rows for longer than the operator allows. Told once.
    HoldCut, Level::WARN, first 1 of [stream, plugin] {
        stream: Name, plugin: Name, wanted_ms: u64, limit_ms: u64,
    } => "plugin {plugin:?} of {stream:?}: wants to hold a row for {wanted_ms} ms, limits.hold is {limit_ms} ms";

    /// What waited before the last start or panic is not to be had from the journal.
    HoldLost, Level::ERROR, first 5 of [stream] {
        stream: Name, why: String,
    } => "stream {stream:?}: rows that were held are not to be had from the journal: {why}";

    /// A line of a plugin's own log, at the plugin's own level.
    PluginLog, *severity, first 100 of [stream, plugin] {
        stream: Name, plugin: Name, severity: Level, rid: Option<String>, line: String,
    } => "plugin {plugin:?} of {stream:?}: {}{line}" with OfRequest(rid);
}
