//! Every event of Afterbay: its fields, its level, its sentence, and its key for the log's rate limit.
//!
//! A doc comment says what the event means and, after `Action:`, what an operator does about it.
//!
//! All events are in one file, because one declaration makes the enum [`Event`], its list of names and its pages in the book.
//! A comment heads the events of each part: the stream, its sinks, the journal, a hand-over, the configuration, the supervisor,
//! plugins.

use afterbay_types::{FaultKind, HoldEnd, Name};
use tracing::Level;

use crate::declare::{Times, events};

/// The `tracing` target of every event.
pub const TARGET: &str = "afterbay";

/// The kind of an event. Tests select events by it.
pub trait Kind: Clone + Into<Event> {
    /// The struct's name: `event` in the log, `event="…"` in metrics.
    const NAME: &'static str;
    /// Returns the event if it has this kind.
    fn of(event: &Event) -> Option<&Self>;
}

/// A reason, if any, at the end of a sentence.
struct Because<'a>(&'a Option<String>);

impl std::fmt::Display for Because<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(why) => write!(f, ": {why}"),
            None => Ok(()),
        }
    }
}

/// The request of a plugin's log line, if any, as a prefix.
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

    /// A stream has started and receives frames.
    StreamStarted, INFO, first 5 of [stream] {
        stream: Name, listen: String,
    } => "stream {stream:?}: started, receives on {listen}";

    /// A stream has stopped in order.
    StreamStopped, INFO, first 5 of [stream] {
        stream: Name, frames: u64,
    } => "stream {stream:?}: stopped after {frames} frames";

    /// A stream's thread panicked. The stream continues from its journal, on the same connections. `frame` is the frame in
    /// progress, 0 for none. A frame that is in progress at three such panics passes unchanged.
    ///
    /// Action: report the message and its backtrace as a bug; nothing to do for the stream itself.
    StreamPanicked, ERROR, first 3 of [stream] {
        stream: Name, frame: u64, why: String,
    } => "stream {stream:?}: thread panicked at frame {frame}, continues from the journal: {why}";

    /// A stream could not start, or ended with an error. The other streams continue.
    ///
    /// Action: remove the cause in `why`, then restart Afterbay, which exits with 70.
    StreamFailed, ERROR, first 5 of [stream] {
        stream: Name, why: String,
    } => "stream {stream:?}: failed: {why}";

    /// The connector has introduced the stream's engine. Frames from here on are read by the fields that the engine has.
    ///
    /// Action: none. If `unknown` names columns, a newer Afterbay may join rows with them.
    EngineIntroduced, INFO, first 5 of [stream] {
        stream: Name, engine: String, unknown: String,
    } => "stream {stream:?}: the engine is {engine}, {unknown}";

    /// An introduction cannot be used, and frames are read as before it. Or the attributes that the engine gives a request cannot.
    ///
    /// Action: see `why`. Use the connector of this Afterbay, or an Afterbay that knows the engine.
    IntroductionRefused, WARN, first 5 of [stream] {
        stream: Name, why: String,
    } => "stream {stream:?}: {why}";

    /// A stream that `after` makes the next one for some requests does not run, because the rendezvous does not name it. The
    /// streams before it run.
    ///
    /// Action: start SGLang with the connector and AFTERBAY_TEXT_INGRESS if this stream is wanted.
    StreamAbsent, INFO, first 5 of [stream] {
        stream: Name, why: String,
    } => "stream {stream:?}: does not run, the streams before it do: {why}";

    /// A stream has stopped receiving. The scheduler's own queue holds further frames.
    ///
    /// Action: remove the cause in `why`: a full queue (a slow reader) or a failing journal.
    ReceivePaused, WARN, first 2 of [stream, why] {
        stream: Name, why: String,
    } => "stream {stream:?}: receiving is paused, the scheduler's queue holds further frames: {why}";

    /// A stream receives again.
    ReceiveResumed, INFO, first 2 of [stream] {
        stream: Name, paused_ms: u64,
    } => "stream {stream:?}: receives again after a pause of {paused_ms} ms";

    /// A stream drains: it accepts no new connections, receives the frames that its senders handed to the kernel, and sends
    /// everything it has.
    DrainBegun, INFO, first 5 of [stream] {
        stream: Name, frames: u64,
    } => "stream {stream:?}: drain begun, {frames} frames left to send";

    /// A drain is complete: every frame that senders handed to the kernel was received, and every received frame is sent.
    DrainFinished, INFO, first 5 of [stream] {
        stream: Name, drained_ms: u64,
    } => "stream {stream:?}: drain finished in {drained_ms} ms";

    /// A drain reached its deadline. The remaining frames are in the journal, and the next start sends them. `unread_bytes`
    /// from senders could not be received because the journal accepted no frames; they are lost.
    ///
    /// Action: start Afterbay again, which sends the rest. If bytes of senders are lost, the exit code is 1.
    DrainDeadline, WARN, first 5 of [stream] {
        stream: Name, remaining_frames: u64, remaining_bytes: u64, unread_bytes: u64,
    } => "stream {stream:?}: drain stopped at its deadline, the journal keeps {remaining_frames} frames ({remaining_bytes} bytes) for the next start{}"
        with if *unread_bytes > 0 { format!(", {unread_bytes} bytes from senders are lost because the journal accepted no frames") } else { String::new() };

    /// The kernel refused to poll the stream's sockets.
    ///
    /// Action: look at file descriptors and memory; restart Afterbay if the event repeats.
    PollFailed, ERROR, first 1 of [stream] {
        stream: Name, why: String,
    } => "stream {stream:?}: poll failed: {why}";

    // Senders: schedulers that connect to a stream.

    /// A scheduler has connected.
    SenderConnected, INFO, first 5 of [stream] {
        stream: Name, peer: u64, from: String,
    } => "stream {stream:?}: sender {peer} connected from {from}";

    /// A scheduler's connection has ended. Every complete frame was received. `reason` is one word for metrics and tests:
    /// `clean`, `cut`, `garbage`, `too_large` and others; `why` is for people.
    ///
    /// Action: if a `RequestGap` follows, ZeroMQ lost messages: look for a crash of the scheduler, or for another client.
    SenderClosed, warn_if(*reason != "clean"), first 5 of [stream, reason] {
        stream: Name, peer: u64, reason: &'static str, why: String, frames: u64,
    } => "stream {stream:?}: sender {peer} closed after {frames} frames: {why}";

    /// A connection was refused.
    ///
    /// Action: see `why`; raise `stream.max_peers` if there are more schedulers than it allows.
    SenderRefused, WARN, first 5 of [stream] {
        stream: Name, from: String, why: String,
    } => "stream {stream:?}: sender from {from} refused: {why}";

    /// A sender's connection outlived an earlier process and continues. `bytes`: received by the earlier process, and received
    /// again.
    SenderContinued, INFO, first 5 of [stream] {
        stream: Name, peer: u64, from: String, bytes: u64,
    } => "stream {stream:?}: sender {peer} from {from} continues its connection to an earlier process, {bytes} bytes are received \
         again";

    /// A connection outlived an earlier process and was closed, because Afterbay cannot continue it. At least `lost_bytes` that
    /// the sender had sent are lost.
    ///
    /// Action: see `why`. The peer connects again.
    NotContinued, WARN, first 5 of [stream] {
        stream: Name, name: String, why: String, lost_bytes: u64,
    } => "stream {stream:?}: {name} of an earlier process is closed: {why} ({lost_bytes} received bytes are lost)";

    // Sinks: the readers of a stream.

    /// A reader has connected.
    SinkConnected, INFO, first 5 of [stream, sink] {
        stream: Name, sink: Name, endpoint: String,
    } => "stream {stream:?}: sink {sink:?} connected to {endpoint}";

    /// A reader's connection outlived an earlier process and continues. `unfinished_frames`: the reader has these and has not
    /// counted them. `pending_frames`: the earlier process had not written these whole.
    SinkContinued, INFO, first 5 of [stream, sink] {
        stream: Name, sink: Name, endpoint: String, unfinished_frames: u64, pending_frames: u64,
    } => "stream {stream:?}: sink {sink:?} continues the connection of an earlier process to {endpoint}, with {unfinished_frames} \
         unfinished frames and {pending_frames} to be written";

    /// No reader listens on the sink's endpoint yet. Afterbay retries until one does.
    ///
    /// Action: start the reader, or correct `sink.connect`.
    SinkWaiting, INFO, first 2 of [stream, sink] {
        stream: Name, sink: Name, endpoint: String, why: String,
    } => "stream {stream:?}: sink {sink:?} waits for a reader on {endpoint}: {why}";

    /// A reader's connection has ended. Frames wait until it is back. `at_end`: no sender is connected and nothing waits, as
    /// when SGLang stops.
    ///
    /// Action: unless `at_end`, find out why the reader stopped.
    SinkLost, warn_if(!*at_end), first 5 of [stream, sink, at_end] {
        stream: Name, sink: Name, why: String, at_end: bool,
    } => "stream {stream:?}: sink {sink:?} lost its reader: {why}{}"
        with if *at_end { "; no sender is connected and nothing waits" } else { "; frames wait until a reader connects" };

    /// After a loss of the reader: the frames that are sent again, and the frames of which nobody knows whether the reader
    /// had them.
    ///
    /// Action: with unconfirmed frames, give the sink a credit page (`sink.credit`).
    SinkSettled, warn_if(*unconfirmed_frames > 0), first 5 of [stream, sink] {
        stream: Name, sink: Name, resent_frames: u64, unconfirmed_frames: u64,
    } => "stream {stream:?}: sink {sink:?} sends {resent_frames} frames again, {unconfirmed_frames} frames are unconfirmed";

    /// After a restart: the reader still has frames of the last run. Afterbay sends nothing until the reader has counted
    /// them on its credit page.
    SinkResuming, INFO, first 5 of [stream, sink] {
        stream: Name, sink: Name, frames: u64,
    } => "stream {stream:?}: sink {sink:?} waits until its reader has finished {frames} frames of the last run";

    /// A start found a sink of the last run that the configuration no longer has.
    ///
    /// Action: its reader may lack `frames` frames. They stay in the journal: `afterbay journal show` finds them.
    SinkRemoved, WARN, first 5 of [stream, sink] {
        stream: Name, sink: Name, frames: u64,
    } => "stream {stream:?}: sink {sink:?} is no longer configured: {frames} frames are not sent to its reader and stay in the journal";

    /// The reader of a sink changed its state: it keeps up, is behind, has stalled, or is away. `at_end`: it is away since a
    /// `SinkLost` with `at_end`, and nothing was received since.
    ///
    /// Action: behind or stalled means that the reader is slower than the scheduler; rows are joined meanwhile. See the
    /// reader's CPU time.
    SinkState, warn_if(*state != "keeping_up" && !*at_end), first 5 of [stream, sink, state, at_end] {
        stream: Name, sink: Name, state: &'static str, rows: u64, oldest_ms: u64, at_end: bool,
    } => "stream {stream:?}: sink {sink:?}: state {state}, {rows} rows wait, the oldest for {oldest_ms} ms";

    /// A batch for several sinks could not be taken apart, so the sink of its first row got all of it.
    ///
    /// Action: report the frame as a bug, with the SGLang version.
    BatchUnsplit, WARN, first 2 of [stream] {
        stream: Name, frame: u64, rows: u64, why: String,
    } => "stream {stream:?}: frame {frame} could not be split, all {rows} rows went to the sink of its first row: {why}";

    /// Rows that wait for this sink are not joined. Under load the backlog grows instead.
    ///
    /// Action: see `why`; set `sink.reader` or `sink.tokenizer`, or start the reader with the connector.
    SinkUnjoined, WARN, first 2 of [stream, sink] {
        stream: Name, sink: Name, why: String,
    } => "stream {stream:?}: sink {sink:?} gets rows unjoined: {why}";

    /// A sink joins rows under backpressure and has no credit page.
    ///
    /// Action: set `sink.credit`.
    SinkUncounted, WARN, first 2 of [stream, sink] {
        stream: Name, sink: Name,
    } => "stream {stream:?}: sink {sink:?} has no credit page, so Afterbay notices a slow reader only by what it leaves unread in the kernel: a libzmq reader without RCVHWM leaves nothing, and one with RCVHWM loses unread frames when Afterbay dies. Set credit";

    /// The credit page says that a tokenizer reads. Rows that wait for this sink can be joined at any token.
    SinkJoined, INFO, first 5 of [stream, sink] {
        stream: Name, sink: Name,
    } => "stream {stream:?}: sink {sink:?} joins rows at any token, because its credit page says that a tokenizer reads";

    /// The tokenizer for this sink is loaded. Rows before a detokenizer are joined where the text is whole.
    SinkVocabulary, INFO, first 2 of [stream, sink] {
        stream: Name, sink: Name, tokens: u64, kind: String,
    } => "stream {stream:?}: sink {sink:?} joins rows where the text is whole, with a tokenizer of {tokens} tokens ({kind})";

    /// Afterbay reads the reader's count of finished frames.
    CreditSeen, INFO, first 5 of [stream, sink] {
        stream: Name, sink: Name, generation: u64, count: u64,
    } => "stream {stream:?}: sink {sink:?} reads its credit page: generation {generation}, {count} frames finished";

    /// The credit page cannot be used, and frames are sent without it. After a crash of the reader, some frames may be
    /// unconfirmed.
    ///
    /// Action: see `why`; check AFTERBAY_CREDIT of the connector and `sink.credit`.
    CreditUnusable, WARN, first 5 of [stream, sink] {
        stream: Name, sink: Name, why: String,
    } => "stream {stream:?}: sink {sink:?} sends without credit: {why}";

    /// Sockets reported changes faster than the stream read them. Some connection events are missing from the log. No frame
    /// is lost.
    NoticesMissed, WARN, first 1 of [stream, of] {
        stream: Name, of: &'static str, missed: u64,
    } => "stream {stream:?}: {missed} notices of {of} are missing from the log";

    // Signals: the scheduler's own load. `source` is `load_snapshot` or `frames`.

    /// A source of the scheduler's load is readable, for the first time or again.
    SignalFound, INFO, first 5 of [stream, source] {
        stream: Name, source: &'static str, place: String,
    } => "signals of {stream:?}: {source} {place} is readable";

    /// A source of the scheduler's load cannot be reached. Afterbay retries.
    ///
    /// Action: see `why`; check `stream.signals` and that the scheduler runs.
    SignalLost, WARN, first 5 of [stream, source] {
        stream: Name, source: &'static str, place: String, why: String,
    } => "signals of {stream:?}: {source} {place} cannot be reached: {why}";

    /// The data of a source of the scheduler's load cannot be used.
    ///
    /// Action: see `why`; compare the SGLang version with the supported ones.
    SignalInvalid, WARN, first 5 of [stream, source] {
        stream: Name, source: &'static str, place: String, why: String,
    } => "signals of {stream:?}: {source} {place} cannot be used: {why}";

    /// The last load from a source is too old to be used.
    ///
    /// Action: check that the scheduler runs and is not stuck.
    SignalStale, WARN, first 5 of [stream, source] {
        stream: Name, source: &'static str, place: String, age_ms: u64,
    } => "signals of {stream:?}: {source} {place} is stale, its last load is {age_ms} ms old";

    /// A source of the scheduler's load is no longer stale.
    SignalFresh, INFO, first 5 of [stream, source] {
        stream: Name, source: &'static str, place: String,
    } => "signals of {stream:?}: {source} {place} is fresh";

    // The stores of plugins.

    /// The file of a plugin's store cannot be written. The plugin continues with the values in memory, and they are lost if
    /// the process ends before the disk recovers.
    ///
    /// Action: free disk space or repair the disk.
    PluginStoreFailed, ERROR, first 1 of [plugin] {
        plugin: Name, why: String,
    } => "store of plugin {plugin:?}: {why}";

    /// The file of a plugin's store has all values again.
    PluginStoreHealed, INFO, first 5 of [plugin] {
        plugin: Name, failing_ms: u64,
    } => "store of plugin {plugin:?}: written again after {failing_ms} ms";

    /// The end of a plugin's store cannot be read: the machine lost its power while the file was written, or the disk is
    /// damaged. The changes at the end are lost.
    ///
    /// Action: check the disk if the machine did not lose its power.
    PluginStoreDamaged, WARN, first 5 of [plugin] {
        plugin: Name, cut_bytes: u64, kept: String,
    } => "store of plugin {plugin:?}: {cut_bytes} bytes at its end cannot be read, the damaged file is {kept}";

    // The journal.

    /// A stream's journal is open. Frames that the last run had not accounted are accounted now.
    JournalRecovered, INFO, first 5 of [stream] {
        stream: Name, segments: u64, bytes: u64, last_frame: u64, live_requests: u64, unaccounted_frames: u64,
    } => "journal of {stream:?}: open at frame {last_frame}, {segments} segments ({bytes} bytes), {live_requests} live requests, accounts {unaccounted_frames} frames of the last run";

    /// The last process died while it wrote. The incomplete end of a segment was removed. The scheduler's next frames
    /// follow.
    JournalCut, WARN, first 5 of [stream] {
        stream: Name, segment: String, cut_bytes: u64,
    } => "journal of {stream:?}: incomplete end of segment {segment} removed, {cut_bytes} bytes";

    /// Bytes of a segment are not those that were written. They stay in the file and are skipped.
    ///
    /// Action: check the disk; `afterbay journal verify` lists the damage.
    JournalCorrupt, ERROR, first 5 of [stream] {
        stream: Name, segment: String, what: String,
    } => "journal of {stream:?}: segment {segment} is damaged: {what}";

    /// A frame cannot be written, or the journal has reached `retain.bytes` with segments that a follower needs. Until frames
    /// can be written, `on_error` says whether the stream stops receiving (`stop`) or sends frames that are in no journal
    /// (`forward`).
    ///
    /// Action: see `why`: free disk space, repair the disk, or repair what the follower waits for.
    JournalWriteFailed, ERROR, first 1 of [stream] {
        stream: Name, on_error: &'static str, why: String,
    } => "journal of {stream:?}: write failed (on_error = {on_error:?}): {why}";

    /// The journal accepts frames again.
    JournalHealed, INFO, first 5 of [stream] {
        stream: Name, failing_ms: u64, skipped_frames: u64,
    } => "journal of {stream:?}: accepts frames again after {failing_ms} ms, {skipped_frames} frames were sent without being written";

    /// A sync failed. Frames after `durable_frame` may not survive a power cut.
    ///
    /// Action: check the disk.
    JournalSyncFailed, ERROR, first 1 of [stream] {
        stream: Name, durable_frame: u64, why: String,
    } => "journal of {stream:?}: sync failed, frames after {durable_frame} may not survive a power cut: {why}";

    /// Another message of the journal, in `what`.
    JournalNotice, warn_if(*is_wrong), first 5 of [stream] {
        stream: Name, is_wrong: bool, what: String,
    } => "journal of {stream:?}: {what}";

    /// A segment was removed, as `journal.retain` says.
    SegmentRemoved, INFO, first 5 of [stream] {
        stream: Name, segment: String, bytes: u64,
    } => "journal of {stream:?}: segment {segment} removed, {bytes} bytes";

    /// A segment was removed that a follower (the archive, the replica, the record of usage) had not read, because the journal had
    /// reached `retain.bytes` and `journal.on_error` is "forward". The copy lacks the segment for ever.
    ///
    /// Action: see why the follower does not advance; raise `journal.retain.bytes`.
    SegmentLost, ERROR, first 5 of [stream] {
        stream: Name, segment: String, bytes: u64, followers: String,
    } => "journal of {stream:?}: segment {segment} removed, {bytes} bytes, before these had read it: {followers}";

    /// A request was erased: its tokens, texts and notes were overwritten in the segments. `by` is a user's number, a caller over
    /// TCP, or `journal.erase`. 0 `segments`: everything was erased before. `left_frames` may still hold content.
    ///
    /// Action: if `left_frames` is not 0, see the report of `afterbay journal erase`, and erase again.
    RequestErased, warn_if(*left_frames > 0), first 5 of [stream] {
        stream: Name, rid: String, by: String, rows: u64, tokens: u64, segments: u64, left_frames: u64,
    } => "journal of {stream:?}: request {rid:?} erased by {by}: {rows} rows ({tokens} tokens) in {segments} segments written \
         again, {left_frames} frames may still hold content";

    /// Requests were erased because of their age, as `journal.erase` says. `left_frames` may still hold content.
    ///
    /// Action: if `left_frames` is not 0, erase the requests with `afterbay journal erase`.
    RequestsErased, warn_if(*left_frames > 0), first 5 of [stream] {
        stream: Name, requests: u64, rows: u64, tokens: u64, segments: u64, left_frames: u64,
    } => "journal of {stream:?}: {requests} requests erased by age: {rows} rows ({tokens} tokens) in {segments} segments written \
         again, {left_frames} frames may still hold content";

    /// A live request had no row for `journal.abandon_after`. It no longer prevents the removal of segments.
    ///
    /// Action: find out why the scheduler forgot the request.
    RequestAbandoned, WARN, first 5 of [stream] {
        stream: Name, rid: String,
    } => "journal of {stream:?}: request {rid:?} had no row for abandon_after, its segments may be removed";

    // The content of frames.

    /// A frame could not be decoded. It is in the journal; `then` says what happens to it.
    ///
    /// Action: start the scheduler with the connector, which introduces it. Export the frame and report it.
    FrameNotUnderstood, WARN, first 1 of [stream, kind] {
        stream: Name, frame: u64, bytes: u64, kind: String, why: String, then: String,
    } => "stream {stream:?}: frame {frame} ({bytes} bytes) could not be decoded, {then}: {why}";

    /// Some rows of a frame cannot be shown to plugins. Each plugin's `on_fault` decides whether they pass or their requests
    /// end.
    ///
    /// Action: see `why`; compare the SGLang version with the supported ones.
    RowsUnread, WARN, first 1 of [stream] {
        stream: Name, frame: u64, rows: u64, why: String,
    } => "stream {stream:?}: {rows} rows of frame {frame} cannot be shown to plugins, on_fault decides: {why}";

    /// The bound of live requests is reached. Requests without a row for the longest time were given up.
    ///
    /// Action: look for a scheduler that drops requests without a last row.
    LiveRequestsFull, WARN, first 1 of [stream] {
        stream: Name, limit: u64, given_up: u64,
    } => "stream {stream:?}: the limit of {limit} live requests is reached, {given_up} requests without a row for 10 s or more were given up";

    /// Another engine has begun, alone on the stream, while requests of the engine before it were live. They were given up, because
    /// nobody sends their rows any more. Those that `waiting` counts are sent to the engine that began (`stream.migration`).
    ///
    /// Action: read the log of the engine that ended.
    EngineRestarted, WARN, first 5 of [stream] {
        stream: Name, requests: u64, waiting: u64,
    } => "stream {stream:?}: another engine began, {requests} requests of the one before it were given up, it is to go on with {waiting}";

    /// Requests of an engine that died wait: the server of the next engine cannot be reached, or says that it is not ready.
    /// Afterbay asks again each second.
    ///
    /// Action: nothing while the engine loads. Else look at `why`, and correct `stream.migration.front_end`.
    MigrationWaiting, INFO, first 2 of [stream] {
        stream: Name, why: String,
    } => "stream {stream:?}: requests wait for the next engine: {why}";

    /// An engine goes on with a request of the engine before it, which had sent `tokens` tokens of it.
    RequestMigrated, INFO, first 5 of [stream] {
        stream: Name, rid: String, tokens: u64,
    } => "stream {stream:?}: the engine goes on with request {rid:?} behind {tokens} tokens";

    /// No engine goes on with a request whose engine has died. The request has ended.
    ///
    /// Action: look at `why`. `stream.migration.resample` lets sampled requests go on.
    RequestNotMigrated, WARN, first 5 of [stream] {
        stream: Name, rid: String, why: String,
    } => "stream {stream:?}: no engine goes on with request {rid:?}: {why}";

    /// Tokens of a request did not arrive: the scheduler had counted `expected`, Afterbay received `got`. The reader has the
    /// same gap.
    ///
    /// Action: look for a `SenderClosed` before it.
    RequestGap, WARN, first 5 of [stream] {
        stream: Name, rid: String, frame: u64, expected: u64, got: u64,
    } => "stream {stream:?}: request {rid:?} has a gap at frame {frame}: {got} tokens received, {expected} counted by the scheduler";

    /// Frames that a scheduler sent between the last stop and this start did not arrive: the first rows of `requests`
    /// requests lack `tokens` tokens. At least `frames` frames are missing, since no later row has more than `row_tokens`
    /// tokens. `silent` requests that were live have had no row since.
    ///
    /// Action: nothing to repair. Stop the scheduler before Afterbay, and stop Afterbay with SIGTERM.
    FramesMissing, WARN, first 5 of [stream] {
        stream: Name, frames: u64, requests: u64, tokens: u64, row_tokens: u64, silent: u64,
    } => "stream {stream:?}: at least {frames} frames were lost between the last stop and this start, {requests} requests lack {tokens} tokens (no later row has more than {row_tokens}){}"
        with if *silent > 0 { format!("; {silent} more requests have had no row since the start") } else { String::new() };

    /// The ledger of a request does not balance at its end.
    ///
    /// Action: report it as a bug, with `afterbay journal show` of the request.
    RequestImbalance, ERROR, first 5 of [stream] {
        stream: Name, rid: String, counted: u64, received: u64, forwarded: u64, replaced: u64, dropped: u64, swallowed: u64,
    } => "stream {stream:?}: request {rid:?} does not balance: {counted} tokens counted by the scheduler, {received} received, {forwarded} forwarded, {replaced} replaced, {dropped} dropped, {swallowed} swallowed";

    // The log.

    /// Standard error took no lines for a time, and `lines` were dropped; it takes lines again. The counts in `/metrics` have
    /// every event.
    ///
    /// Action: look at the reader of standard error, such as the container runtime or a pipe to another program.
    LogLinesDropped, WARN, first 5 of [lines] {
        lines: u64,
    } => "log: {lines} lines were dropped, because standard error took none";

    // A hand-over to a new process.

    /// A new process takes over: the streams stop between two frames, and the new process gets their connections.
    HandOverBegun, INFO, first 5 of [to_pid] {
        to_pid: u32, from: String, to: String,
    } => "hand-over: begun from afterbay {from} to afterbay {to}, process {to_pid}";

    /// The new process runs, and this one ends with exit code 0. No connection was closed. The streams stood still for `ms`.
    HandOverFinished, INFO, first 5 of [to_pid] {
        to_pid: u32, to: String, ms: u64,
    } => "hand-over: finished, process {to_pid} with afterbay {to} runs, the streams stood still for {ms} ms";

    /// A hand-over was refused or has failed. This process goes on with the same connections, and the new one has ended.
    ///
    /// Action: remove the cause in `why`, and ask again; the log of the new process may say more.
    HandOverFailed, ERROR, first 5 of [why] {
        why: String,
    } => "hand-over: failed, this process goes on: {why}";

    /// This process has taken the place of another one, with its connections and its live requests.
    TookOver, INFO, first 5 of [from_pid] {
        from_pid: u32, from: String, streams: usize,
    } => "hand-over: took over {streams} streams from process {from_pid} with afterbay {from}";

    // The configuration.

    /// A new configuration is in force, completely.
    ConfigReloaded, INFO, first 5 of [changed] {
        changed: String,
    } => "config: reloaded: {changed}";

    /// A new configuration was refused. The one before it stays in force.
    ///
    /// Action: correct the file as `why` says; `afterbay check` checks it.
    ConfigReloadFailed, ERROR, first 5 of [why] {
        why: String,
    } => "config: reload refused, the configuration before it stays in force: {why}";

    /// After a refused configuration, the file is correct again, and has the configuration that is in force.
    ConfigCorrected, INFO, first 5 of [file] {
        file: String,
    } => "config: {file} is correct again, nothing has changed";

    /// The configuration's directory cannot be watched, so Afterbay reads it every two seconds.
    ///
    /// Action: raise the limit of inotify watches if `why` names it.
    ConfigUnwatched, WARN, first 5 of [directory] {
        directory: String, why: String,
    } => "config: {directory} cannot be watched, it is read every 2 s: {why}";

    // The follower of the journal.

    /// A consumer of the journal cannot go on: the outside system takes nothing, or the local disk fails. The journal keeps what the
    /// copy lacks. Published once until it goes on.
    ///
    /// Action: see `why`; check the outside system, its credentials and the network, or the disk.
    FollowerFailed, WARN, first 2 of [follower] {
        follower: String, copy: String, why: String,
    } => "{follower}: {copy} takes nothing, the journal keeps what is missing: {why}";

    /// A consumer of the journal goes on.
    FollowerRecovered, INFO, first 2 of [follower] {
        follower: String, copy: String, failing_s: u64,
    } => "{follower}: {copy} goes on after {failing_s} s";

    /// The copy that `afterbay clients serve` serves gets nothing from NATS. Clients get what it has. Published once until it goes on.
    ///
    /// Action: see `why`; check NATS, the credentials and the network.
    CopyFailed, WARN, first 2 of [from] {
        from: String, why: String,
    } => "the copy gets nothing from {from}: {why}";

    /// The copy that `afterbay clients serve` serves goes on.
    CopyRecovered, INFO, first 2 of [from] {
        from: String, failing_s: u64,
    } => "the copy of {from} goes on after {failing_s} s";

    /// Segments were removed from the journal before a consumer had read them: the copy lacks the requests that ended in them.
    /// `before` is the first segment after the gap.
    ///
    /// Action: raise `journal.retain.bytes`.
    FollowerMissed, ERROR, first 5 of [follower, stream] {
        follower: String, stream: Name, segments: u64, before: String,
    } => "{follower}: {segments} segments of stream {stream:?} before {before} were removed before they were read";

    /// The process that follows the journal has ended, and is started again. The journal keeps what the copies lack.
    ///
    /// Action: see `why`, and the lines of the log before.
    FollowerEnded, WARN, first 5 of [why] {
        why: String, restart_s: u64,
    } => "follower: the process that follows the journal {why}, it is started again in {restart_s} s";

    /// A process follows the journal: the first one, or the next one after an end or a reload.
    FollowerStarted, INFO, first 5 of [pid] {
        pid: u32,
    } => "follower: process {pid} follows the journal";

    // Traces.

    /// The collector does not take spans. They are dropped and counted until it does. Published once until spans are taken
    /// again.
    ///
    /// Action: see `why`; check `traces.endpoint`, and that the collector runs.
    TracesNotExported, WARN, first 2 of [endpoint] {
        endpoint: String, why: String,
    } => "traces: {endpoint} takes no spans, they are dropped: {why}";

    /// The endpoint has the path that Afterbay adds to it.
    ///
    /// Action: give the address alone, like `http://127.0.0.1:4318`.
    TracesPathTwice, WARN, first 2 of [endpoint] {
        endpoint: String,
    } => "traces.endpoint {endpoint:?} ends in /v1/traces, and Afterbay adds /v1/traces: spans go to {endpoint}/v1/traces";

    /// The collector takes spans again.
    TracesExported, INFO, first 2 of [endpoint] {
        endpoint: String,
    } => "traces: {endpoint} takes spans again";

    // The copy of the journal in NATS JetStream.

    /// The connection to NATS is established, for the first time in this process. The event names the durability that a client can read.
    ReplicaFound, INFO, first 5 of [server] {
        server: String, version: String, stream: String, replicas: usize,
    } => "replicate: {server} ({version}) has stream {stream:?} with {replicas} replicas; a client cannot read whether each server syncs a message before it acknowledges: set sync_interval = always there";

    /// The stream in NATS keeps less than a copy of the journal needs.
    ///
    /// Action: change the stream as `why` says, with `nats stream edit afterbay`.
    ReplicaWeak, WARN, first 5 of [stream, why] {
        stream: String, why: String,
    } => "replicate: stream {stream:?} of NATS {why}";

    /// NATS no longer has records that it had acknowledged. They are published again as far as the journal still has them; the rest is
    /// a hole in the copy, which `afterbay journal verify` finds.
    ///
    /// Action: set `sync_interval: always` in the NATS servers, and keep 3 replicas; look for who deleted the messages.
    ReplicaLost, ERROR, first 5 of [stream] {
        stream: Name, segment: String, offset: u64,
    } => "replicate: stream {stream:?}: NATS has lost what it had acknowledged, from byte {offset} of segment {segment} on";

    // The archive.

    /// Bytes of a segment are no record. Everything else of the segment is in the archive, and its manifest has the number of bytes.
    ///
    /// Action: check the disk; `afterbay journal verify` lists the damage.
    ArchiveDamage, ERROR, first 5 of [stream] {
        stream: Name, segment: String, corrupt_bytes: u64,
    } => "archive: {corrupt_bytes} bytes of segment {segment} of stream {stream:?} cannot be read";

    // The tap.

    /// The address for clients listens.
    ClientsListening, INFO, first 5 of [address] {
        address: String,
    } => "clients: read their requests on http://{address}";

    /// The tap's socket listens.
    TapListening, INFO, first 5 of [endpoint] {
        endpoint: String,
    } => "tap: publishes received frames on {endpoint}";

    /// A subscriber did not read, until more frames waited for it than the tap holds. They were dropped, and the connections of all
    /// subscribers were closed. Subscribers connect again by themselves, and the tap waits for them.
    ///
    /// Action: make the slow subscriber faster, or end it.
    TapDropped, WARN, first 2 of [endpoint] {
        endpoint: String, frames: u64, bytes: u64,
    } => "tap: a subscriber of {endpoint} is too slow: {frames} frames ({bytes} bytes) were dropped, and all subscribers disconnected";

    // Usage.

    /// An earlier process left incomplete lines at the end of a file of usage. They were cut, and their records are written again.
    UsageCut, WARN, first 5 of [file] {
        file: String, cut_bytes: u64,
    } => "usage: {file}: {cut_bytes} bytes of incomplete records cut, they are written again";

    /// Lines inside a file of usage are damaged. They stay where they are; their records are not written again.
    ///
    /// Action: check the disk. `afterbay usage` gives the sums from the journal.
    UsageDamaged, ERROR, first 5 of [file] {
        file: String, lines: u64,
    } => "usage: {file}: {lines} lines are damaged";

    // The supervisor: systemd, or `afterbay run --keep`.

    /// The supervisor does not keep these descriptors, so a crash closes the connection. Published once until descriptors are
    /// kept again.
    ///
    /// Action: see `why`; raise `FileDescriptorStoreMax=`, and set `NotifyAccess=main`.
    DescriptorsNotKept, WARN, first 5 of [why] {
        name: String, why: String,
    } => "descriptors {name:?} do not outlive a crash: {why}";

    /// An earlier process left descriptors that nobody needs: their stream or sink is no longer in the configuration, or the
    /// process died while it stored them. They are closed. What a sender had given to the kernel on them is lost.
    DescriptorsLeftOver, WARN, first 5 of [why] {
        name: String, why: &'static str,
    } => "descriptors {name:?} of an earlier process are closed: {why}";

    /// The supervisor cannot be reached, or what it passed cannot be used. The streams run.
    ///
    /// Action: see `why`; check the unit, or the environment of the process.
    SupervisorFailed, WARN, first 2 of [why] {
        why: String,
    } => "supervisor: {why}";

    // Plugins.

    /// A plugin is loaded.
    PluginLoaded, INFO, first 5 of [stream, plugin] {
        stream: Name, plugin: Name, version: String, digest: String,
    } => "plugin {plugin:?} of {stream:?}: version {version} loaded, sha256 {digest}";

    /// A changed component has replaced the one before it, between two batches.
    PluginReloaded, INFO, first 5 of [stream, plugin] {
        stream: Name, plugin: Name, version: String, digest: String, resumed_requests: u64,
        state_bytes: u64,
    } => "plugin {plugin:?} of {stream:?}: version {version} took over {resumed_requests} live requests with {state_bytes} bytes of state, sha256 {digest}";

    /// A reload could neither hand over a plugin's state nor read the rows of the live requests: the new instance does not
    /// know their earlier rows.
    ///
    /// Action: see `why`.
    PluginStateLost, WARN, first 5 of [stream, plugin] {
        stream: Name, plugin: Name, why: String,
    } => "plugin {plugin:?} of {stream:?}: its state was lost, the new instance does not know the earlier rows of live requests: {why}";

    /// Before it took over, the new instance saw the rows of live requests from the journal. `why`: the reason why it could not
    /// import the state of the instance before it.
    PluginReplayed, INFO, first 5 of [stream, plugin] {
        stream: Name, plugin: Name, rows: u64, why: Option<String>,
    } => "plugin {plugin:?} of {stream:?}: the new instance saw {rows} rows of live requests before it took over{}" with Because(why);

    /// A changed component cannot be used. The one before it stays.
    ///
    /// Action: correct the component as `why` says.
    PluginReloadFailed, ERROR, first 5 of [stream, plugin] {
        stream: Name, plugin: Name, why: String,
    } => "plugin {plugin:?} of {stream:?}: reload failed, the component before it stays: {why}";

    /// A component was refused, because its digest is not in `plugins.allow`. It does not run.
    ///
    /// Action: find out who changed the component. If it is meant to run, add its digest to `plugins.allow`.
    PluginRefused, ERROR, first 5 of [stream, plugin] {
        stream: Name, plugin: Name, digest: String,
    } => "plugin {plugin:?} of {stream:?}: refused: sha256:{digest} is not in plugins.allow";

    /// A plugin project was built (`afterbay run --dev`). Its component is reloaded if it changed.
    PluginBuilt, INFO, first 5 of [project] {
        project: String, took_ms: u64,
    } => "dev: {project} built in {took_ms} ms";

    /// A plugin project was saved and does not build. The running component stays.
    ///
    /// Action: correct the source as `why` says.
    PluginBuildFailed, ERROR, first 5 of [project] {
        project: String, why: String,
    } => "dev: {project} does not build, the running component stays: {why}";

    /// A directory cannot be watched for changed components, so Afterbay reads it every two seconds.
    ///
    /// Action: raise the limit of inotify watches if `why` names it.
    PluginReloadUnwatched, WARN, first 5 of [directory] {
        directory: String, why: String,
    } => "plugins: {directory} cannot be watched, it is read every 2 s: {why}";

    /// A plugin trapped, exceeded its deadline or memory, or gave an invalid answer. `then` says what happens to the batch.
    ///
    /// Action: see `why`; correct the plugin or raise `limits`.
    PluginFault, ERROR, first 5 of [stream, plugin, kind] {
        stream: Name, plugin: Name, kind: FaultKind, why: String, then: &'static str,
    } => "plugin {plugin:?} of {stream:?}: fault, {then}: {why}";

    /// After a fault, no new instance could be made. Afterbay retries every second. `then` says what happens to batches
    /// meanwhile.
    ///
    /// Action: see `why`.
    PluginDown, ERROR, first 1 of [stream, plugin] {
        stream: Name, plugin: Name, why: String, then: &'static str,
    } => "plugin {plugin:?} of {stream:?}: down, {then}: {why}";

    /// A plugin had too many faults and has left the chain. `why` is the last fault.
    ///
    /// Action: correct the plugin, or reinstate it with `afterbay plugins reinstate`.
    PluginQuarantined, ERROR, first 5 of [stream, plugin] {
        stream: Name, plugin: Name, faults: u64, within_ms: u64, then: &'static str, why: String,
    } => "plugin {plugin:?} of {stream:?}: quarantined after {faults} faults in {within_ms} ms, {then} until it is changed or reinstated: {why}";

    /// A plugin says that its stream is not ready: `/readyz` answers 503. The mark ends when the plugin removes it, with
    /// the plugin's instance, or after 5 minutes in which the plugin has not set it again.
    ///
    /// Action: see `why`.
    PluginNotReady, ERROR, first 5 of [stream, plugin] {
        stream: Name, plugin: Name, why: String,
    } => "plugin {plugin:?} of {stream:?}: the stream is not ready: {why}";

    /// A plugin no longer says that its stream is not ready.
    PluginReady, INFO, first 5 of [stream, plugin] {
        stream: Name, plugin: Name, not_ready_ms: u64,
    } => "plugin {plugin:?} of {stream:?}: the stream is ready again after {not_ready_ms} ms";

    /// A plugin was removed from the configuration and from the chain.
    PluginRemoved, INFO, first 5 of [stream, plugin] {
        stream: Name, plugin: Name,
    } => "plugin {plugin:?} of {stream:?}: removed";

    /// A plugin has returned from quarantine to the chain. `by` is `operator` or `reload`.
    PluginReinstated, INFO, first 5 of [stream, plugin] {
        stream: Name, plugin: Name, by: &'static str,
    } => "plugin {plugin:?} of {stream:?}: reinstated by {}" with if *by == "reload" { "a reload" } else { "the operator" };

    /// A plugin has ended a request before the scheduler did.
    RequestFinishedEarly, INFO, first 5 of [stream, plugin] {
        stream: Name, plugin: Name, rid: String, reason: String,
    } => "plugin {plugin:?} of {stream:?}: request {rid:?} finished early: {reason}";

    /// Attributes were set for an id, and no request with this id began in this time. The attributes are forgotten.
    ///
    /// Action: compare the id with the rids of `afterbay journal ls`. Set attributes by the engine's rid, or by the client's id in it.
    AttributesUnclaimed, WARN, first 5 of [seconds] {
        rid: String, seconds: u64,
    } => "attributes of {rid:?} were never applied: no request with this id began in {seconds} s";

    /// Afterbay asked the scheduler to end a request. `by` is the operator, or a plugin that had finished it.
    AbortSent, INFO, first 5 of [stream, by] {
        stream: Name, rid: String, by: String, to: String,
    } => "stream {stream:?}: asked {to} to abort request {rid:?}, by {by}";

    /// The scheduler could not be asked to end a request, so it continues to generate tokens.
    ///
    /// Action: see `why`; check `stream.abort`.
    AbortFailed, WARN, first 5 of [stream, by] {
        stream: Name, rid: String, by: String, why: String,
    } => "stream {stream:?}: abort of request {rid:?} by {by} failed, the scheduler continues it: {why}";

    /// The client of a request with a lease has left, and the lease cannot run. The scheduler is asked to end the request at once.
    ///
    /// Action: see `why`; raise `leases.max_count`, or set `leases.max_time`.
    LeaseRefused, WARN, first 5 of [stream] {
        stream: Name, rid: String, why: String,
    } => "stream {stream:?}: request {rid:?} has no lease after its client has left: {why}";

    /// This stream has no way to ask its scheduler to end a request.
    ///
    /// Action: set `stream.abort`, or AFTERBAY_ABORT of the connector, if plugins finish requests.
    AbortUnavailable, INFO, first 2 of [stream] {
        stream: Name, why: String,
    } => "stream {stream:?}: the scheduler cannot be asked to abort requests: {why}";

    /// A plugin has dropped rows of a batch.
    RowsDropped, INFO, first 5 of [stream, plugin, reason] {
        stream: Name, plugin: Name, reason: String, frame: u64, rows: u64, tokens: u64,
    } => "plugin {plugin:?} of {stream:?}: dropped {rows} rows ({tokens} tokens) of frame {frame}: {reason}";

    /// A verdict could not be written to the frame. The row passed unchanged, or waits again if it is held. If held rows cannot
    /// be removed from the frame, or a plugin with `on_fault = "terminate"` judged it, the frame's other requests end.
    ///
    /// Action: see `why`; correct the plugin.
    VerdictFailed, WARN, first 5 of [stream, plugin] {
        stream: Name, plugin: Name, frame: u64, why: String,
    } => "plugin {plugin:?} of {stream:?}: its verdict on frame {frame} could not be written: {why}";

    /// A shadow's verdict on a row differs from that of the live plugin.
    ///
    /// Action: compare the two versions.
    ShadowDiffers, INFO, first 5 of [stream, plugin] {
        stream: Name, plugin: Name, rid: String, live: String, shadow: String,
    } => "plugin {plugin:?} of {stream:?}: request {rid:?}: the shadow says {shadow}, live says {live}";

    /// A shadow became live.
    ///
    /// Action: change `mode` in the configuration, too.
    PluginPromoted, INFO, first 5 of [stream, plugin] {
        stream: Name, plugin: Name, of: String,
    } => "plugin {plugin:?} of {stream:?}: is live until a restart or a reload with another mode; {of}";

    /// Rows that a plugin let skip the detokenizer go through it, because they could not be rewritten.
    ///
    /// Action: see `why`.
    RowsNotSkipped, WARN, first 2 of [stream] {
        stream: Name, frame: u64, rows: u64, why: String,
    } => "stream {stream:?}: {rows} rows of frame {frame} go through the detokenizer, which a plugin let them skip: {why}";

    /// Rows that a plugin held were sent without its release. They are sent unchanged, or with `on_fault = "terminate"` they
    /// end their request. `end` is the reason as a word for metrics; `why` is for people.
    ///
    /// Action: for `time`, raise `limits.hold` or let the plugin release earlier.
    HoldEnded, warn_if(*end != HoldEnd::Last), first 5 of [stream, plugin, end] {
        stream: Name, plugin: Name, rid: String, rows: u64, tokens: u64, end: HoldEnd, why: &'static str,
    } => "plugin {plugin:?} of {stream:?}: {rows} held rows ({tokens} tokens) of request {rid:?} end without a release: {why}";

    /// A row that a plugin wanted to hold was sent, or a later row cannot be joined with the held ones.
    ///
    /// Action: see `why`.
    HoldRefused, WARN, first 5 of [stream, plugin, why] {
        stream: Name, plugin: Name, frame: u64, why: String,
    } => "plugin {plugin:?} of {stream:?}: a row of frame {frame} cannot be held: {why}";

    /// A plugin asked to hold a row for longer than `limits.hold`. The row is sent after `limits.hold`. Published once per
    /// plugin.
    ///
    /// Action: raise `limits.hold`, or change the plugin.
    HoldCut, WARN, first 1 of [stream, plugin] {
        stream: Name, plugin: Name, wanted_ms: u64, limit_ms: u64,
    } => "plugin {plugin:?} of {stream:?}: asked to hold a row for {wanted_ms} ms, limits.hold allows {limit_ms} ms";

    /// Rows that were held before the last start or panic cannot be read from the journal. They are lost to the reader.
    ///
    /// Action: see `why`; `afterbay journal verify` lists damage.
    HoldLost, ERROR, first 5 of [stream] {
        stream: Name, why: String,
    } => "stream {stream:?}: held rows cannot be read from the journal and are lost: {why}";

    /// The calls of plugins to an endpoint fail. The circuit breaker of the endpoint is open: Afterbay refuses further calls for
    /// `open_ms`, then tries one. Each plugin's `on_fault` applies to the refused calls.
    ///
    /// Action: look at the service and at `why`, the reason of the last failure.
    CallsStopped, WARN, first 5 of [endpoint] {
        endpoint: Name, failures: u64, open_ms: u64, why: String,
    } => "endpoint {endpoint:?}: {failures} calls in a row failed, calls are refused for {open_ms} ms: {why}";

    /// An endpoint answers again, and its circuit breaker is closed.
    CallsResumed, INFO, first 5 of [endpoint] {
        endpoint: Name, stopped_ms: u64,
    } => "endpoint {endpoint:?}: answers again, calls were refused for {stopped_ms} ms";

    /// A line of a plugin's own log, at the plugin's level.
    PluginLog, any(*severity), first 100 of [stream, plugin] {
        stream: Name, plugin: Name, severity: Level, rid: Option<String>, line: String,
    } => "plugin {plugin:?} of {stream:?}: {}{line}" with OfRequest(rid);
}
