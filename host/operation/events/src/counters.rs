//! The counters of streams, sinks, plugins and schedulers, each declared once with its name in `/metrics` and its help.
//!
//! The help says what the counter means and, in a second sentence, what an operator does about it.
//!
//! Names follow Prometheus: what is counted, what happened to it, the unit last. The names of a scheduler's load are those of
//! SGLang.

use afterbay_types::{
    AbortBy, BarrierCause, CallResult, EndCause, FaultKind, HoldEnd, ReaderState, ReloadResult,
    ShadowComparison, SourceState, SpanLoss, VerdictKind,
};

use crate::counter::{Counter, CounterBy, Gauge, SecondsNow, StateGauge, Total};
use crate::histogram::Histogram;
use crate::reading::{Block, Read, Series};

/// Declares a block of counters. A counter's name in metrics is the block's prefix and the field's name. Its help is also the
/// field's documentation.
macro_rules! counters {
    ($(#[$doc:meta])* $block:ident, $prefix:literal { $($field:ident: $type:ty, $help:literal;)* }) => {
        $(#[$doc])*
        // Two streams' threads never write to the same cache line. 128 bytes, because lines are fetched in pairs.
        #[repr(align(128))]
        #[derive(Debug, Default)]
        pub struct $block {
            $(#[doc = $help] pub $field: $type,)*
        }

        impl Block for $block {
            const SERIES: &'static [Series<Self>] = &[
                $(Series {
                    name: concat!($prefix, stringify!($field)),
                    help: $help,
                    read: |block| block.$field.read(),
                },)*
            ];
        }
    };
}

counters! {
    /// The counters of one stream. Its label is `stream`.
    StreamCounters, "" {
        frames_received: Counter, "Frames received from schedulers";
        bytes_received: Counter, "Bytes of frames received from schedulers";
        rows_received: Counter, "Rows received: one for each request in each scheduler step";
        tokens_received: Counter, "Token ids received";
        frames_forwarded: Counter, "Frames put into the queues of sinks";
        frames_rewritten: Counter, "Frames forwarded with other bytes than received";
        rows_forwarded: Counter, "Rows forwarded, changed or not";
        tokens_forwarded: Counter, "Received token ids that were forwarded";
        rows_replaced: Counter, "Rows whose token ids a plugin replaced";
        rows_dropped: Counter, "Rows whose tokens a plugin dropped";
        tokens_dropped: Counter, "Received token ids that a plugin dropped";
        rows_swallowed: Counter, "Rows dropped because a plugin had finished their request";
        tokens_swallowed: Counter, "Token ids dropped because a plugin had finished their request";
        rows_unread: Counter, "Rows that no plugin could see: they cannot be read, or the limit of live requests was reached. Compare the engine's version with the supported ones";
        barriers: CounterBy<BarrierCause>, "Frames passed on whole in their place, by kind";
        requests_opened: Counter, "Requests seen for the first time";
        requests_ended: CounterBy<EndCause>, "Requests that ended for their readers, by cause. Any watchdog, fault, engine_error or lost is a request that failed";
        requests_migrated: Counter, "Requests with which another engine went on after theirs had died";
        requests_erased: Counter, "Requests whose tokens and texts were erased in the journal, by journal.erase";
        requests_live: Gauge, "Requests that have begun and not ended";
        request_gaps: Counter, "Rows before which tokens of their request are missing. Look for lost connections of the scheduler";
        request_imbalances: Counter, "Requests whose ledger did not balance at their end. Any is a bug to report";
        senders: Gauge, "Schedulers connected";
        receiving: Gauge, "1 while the stream receives, 0 while the scheduler's own queue holds the frames. Look at the sinks and the journal if it stays 0";
        panics: Counter, "Panics of the stream's thread, after each of which the stream continued. Any is a bug to report";
        outbox_frames: Gauge, "Frames received and not yet written to a sink's socket";
        outbox_bytes: Gauge, "Bytes of frames received and not yet written to a sink's socket";
        spilled_frames: Gauge, "Frames that wait only in the journal, because a sink's queue is full; a frame that waits for two sinks counts twice";
        spilled_bytes: Gauge, "Bytes of frames that wait only in the journal";
        journal_frame: Gauge, "Number of the last frame appended to the journal";
        journal_durable_frame: Gauge, "Number of the last frame that survives a power cut";
        journal_frames_skipped: Counter, "Frames forwarded without being written to the journal, as on_error = \"forward\" says";
        journal_sync_seconds: Histogram, "Time of each sync of the journal to the disk; rows wait for it only with journal.sync = \"always\"";
        journal_segments_lost: Counter, "Segments removed before a follower had read them: the archive, the replica or the record of usage. Raise journal.retain.bytes";
        journal_failing: Gauge, "1 while frames cannot be written to the journal. Free disk space or repair the disk";
        frame_seconds: Histogram, "Time from the receipt of a frame until all of it is in the kernel's buffer for the sink";
        first_token_seconds: Histogram, "Time from the receipt of the frame with a request's first row until the frame that carries this row is whole in the kernel's buffer for the sink; for a row that a plugin held, from the frame that released it";
        change_seconds: Histogram, "Time for which the stream paused between two batches while another component or configuration took over";
    }
}

counters! {
    /// The counters of one stream's aborts. Its label is `stream`.
    AbortCounters, "aborts_" {
        sent: CounterBy<AbortBy>, "Requests that the scheduler was asked to end, by who asked";
        refused: Counter, "Aborts refused before anything was sent: another request would end too, or the scheduler cannot be asked";
        failed: CounterBy<AbortBy>, "Aborts that did not reach the scheduler, by who asked. The scheduler continues these requests";
    }
}

counters! {
    /// The counters of one stream's leases. Its label is `stream`.
    LeaseCounters, "leases_" {
        live: Gauge, "Requests that the engine goes on with after their client has left";
        begun: Counter, "Requests with a lease whose client left";
        renewed: Counter, "Renewals of leases, because somebody read the request";
        refused: Counter, "Requests with a lease that were aborted at once, because no lease could run. Look for the event LeaseRefused";
    }
}

counters! {
    /// The counters of one sink. Its labels are `stream` and `sink`.
    SinkCounters, "sink_" {
        connected: Gauge, "1 while the reader is connected";
        frames_written: Counter, "Frames written completely to the kernel, including frames sent again";
        bytes_written: Counter, "Bytes of frames written completely to the kernel";
        frames_resent: Counter, "Frames sent again after the reader was lost";
        frames_unconfirmed: Counter, "Frames of which nobody knows whether a lost reader had them. Give the sink a credit page";
        taken_frame: Gauge, "Number of the last frame that never needs to be sent again";
        state: StateGauge<ReaderState>, "1 for the state of the reader: keeping up, behind (frames wait for it), stalled (it finishes none) or away (not connected)";
        waiting_rows: Gauge, "Rows that wait for the sink in memory; a frame that is sent whole counts as one";
        waiting_tokens: Gauge, "Tokens of the rows that wait for the sink in memory";
        waiting_oldest_seconds: SecondsNow, "Time for which the oldest of these rows has waited";
        spilled_frames: Gauge, "Frames that wait for the sink only in the journal, because its queue is full";
        spilled_bytes: Gauge, "Bytes of frames that wait for the sink only in the journal";
        frames_composed: Counter, "Frames composed of waiting rows, in place of the frames that the scheduler sent";
        rows_sent: Counter, "Received rows sent to the sink, alone or inside another row";
        rows_per_second: Gauge, "Received rows sent to the sink per second, over the last second";
        rows_joined: Counter, "Received rows sent inside another row of their request";
        first_token_taken_seconds: Histogram, "Time from the receipt of the frame with a request's first row until the reader has finished the frame that carries this row, by its credit page; nothing without a credit page";
        row_wait_seconds: Histogram, "Time from the receipt of a row until it is put into a frame for the sink";
        queue_frames: Gauge, "Frames not yet written to the kernel";
        queue_bytes: Gauge, "Bytes of frames not yet written to the kernel";
        credit_usable: Gauge, "1 while the reader's credit page is readable. Check AFTERBAY_CREDIT and sink.credit if it stays 0";
        frames_finished: Counter, "Frames that the reader has finished, by its credit page";
        lag_frames: Gauge, "Frames in the kernel that the reader has not finished, by its credit page";
        lag_bytes: Gauge, "Bytes of frames in the kernel that the reader has not finished, by its credit page";
    }
}

counters! {
    /// The counters of one plugin. Its labels are `stream` and `plugin`.
    PluginCounters, "plugin_" {
        rows: Counter, "Rows that the plugin saw";
        batch_seconds: Histogram, "Time of the plugin's call for each batch that it saw";
        verdicts: CounterBy<VerdictKind>, "Verdicts, by action";
        faults: CounterBy<FaultKind>, "Faults, by kind. Look for the event PluginFault";
        rows_compared: CounterBy<ShadowComparison>, "Rows on which a shadow or its live plugin gave a verdict, by whether both agree";
        held_rows: Gauge, "Rows that wait because the plugin holds them";
        held_tokens: Gauge, "Tokens of the rows that wait because the plugin holds them";
        holds_ended: CounterBy<HoldEnd>, "Times that a request's held rows were sent, by reason";
        bypassed_batches: Counter, "Batches that passed without the plugin, because it faulted, is down or is quarantined";
        terminated_rows: Counter, "Rows whose requests were aborted because the plugin did not judge them, as on_fault = terminate says";
        quarantined: Gauge, "1 while the plugin is out of the chain because of too many faults. Correct or reinstate it";
        reloads: CounterBy<ReloadResult>, "Reloads of a changed component, by result";
    }
}

counters! {
    /// The counters of one endpoint of `[[call]]`. Its label is `endpoint`.
    CallCounters, "call_" {
        results: CounterBy<CallResult>, "Calls of plugins to the endpoint that have ended, by result";
        seconds: Histogram, "Time of the calls that the service answered or failed, the body included";
        in_flight: Gauge, "Calls under way, and answers that no plugin has received yet";
        breaker_open: Gauge, "1 while the endpoint's circuit breaker refuses calls. Look at the service";
    }
}

counters! {
    /// The counters of the store that the plugins of one name share. Its label is `plugin`.
    StoreCounters, "plugin_store_" {
        keys: Gauge, "Keys of the plugin's store, at most 10000";
        bytes: Gauge, "Bytes of the keys and values of the plugin's store, at most 4194304";
        failing: Gauge, "1 while the file of the plugin's store cannot be written. Free disk space or repair the disk";
    }
}

counters! {
    /// The counters of a consumer of the journal. Its label is `follower`.
    FollowerCounters, "follower_" {
        failing: Gauge, "1 while the copy takes nothing, and the journal keeps what is missing. Look for the event FollowerFailed";
        failures: Counter, "Attempts that failed and are repeated";
        lag_seconds: SecondsNow, "Time for which the oldest data waits in the journal that the copy lacks";
        segments_missed: Counter, "Segments that were removed from the journal before they were read. Raise journal.retain.bytes";
    }
}

counters! {
    /// The counters of the traces of requests. They have no label.
    TracesCounters, "traces_" {
        requests_exported: Counter, "Requests of a stream whose spans were made for the collector";
        requests_left_out: Counter, "Requests of a stream without a trace, because 8192 requests were traced, or the journal lacks the end of the request";
        spans_exported: Counter, "Spans that the collector has taken";
        spans_dropped: CounterBy<SpanLoss>, "Spans that the collector has not, by reason. Check the collector; with queue_full, trace a smaller share";
        traceparents_refused: Counter, "Values of the attribute traceparent that were ignored, because they are not as the W3C defines them. Correct whoever sets the attribute";
    }
}

counters! {
    /// The counters of the copy of the journal in NATS JetStream. They have no label.
    ReplicateCounters, "replicate_" {
        connected: Gauge, "1 while NATS takes the journal";
        behind_bytes: Gauge, "Bytes of the journal that NATS has not acknowledged. If the value grows, check the NATS servers";
        bytes: Counter, "Bytes of the journal that NATS has acknowledged";
        messages: Counter, "Messages that NATS has acknowledged";
        holes: Counter, "Times that NATS had lost records which it had acknowledged. Look for the event ReplicaLost";
    }
}

counters! {
    /// The counters of the archive. They have no label.
    ArchiveCounters, "archive_" {
        segments_confirmed: Counter, "Segments that are in the archive with their manifest";
        requests_confirmed: Counter, "Requests in the segments that are in the archive";
        bytes_uploaded: Counter, "Bytes of objects that the object store has taken";
    }
}

counters! {
    /// The counters of the records of usage. They have no label.
    UsageCounters, "usage_" {
        records: Counter, "Records of ended requests that are in the usage files and synced";
        bytes: Counter, "Bytes of these records";
    }
}

counters! {
    /// The counters of the address for clients. They have no label.
    ClientsCounters, "clients_" {
        readers: Gauge, "Clients that read a request now";
        reads: Counter, "Requests that clients began to read";
        refused: Counter, "Clients that were refused: without a token, or without such a request";
    }
}

counters! {
    /// The counters of the tap. They have no label.
    TapCounters, "tap_" {
        frames: Counter, "Frames that the tap has published";
        waiting_bytes: Gauge, "Bytes of frames that wait for the tap's slowest subscriber";
        frames_dropped: Counter, "Frames that waited for a subscriber that did not read, and were dropped. Look for the event TapDropped";
    }
}

counters! {
    /// The load of a stream's scheduler when it is read. Its label is `stream`. `None` is left out: a value that no source
    /// gives, and every value while the load is not fresh.
    SchedulerLoad, "scheduler_" {
        load_fresh: u64, "1 while the scheduler's load is known and not stale; its values are left out while it is 0";
        load_age_seconds: Option<f64>, "Time since the scheduler's load was measured, fresh or stale";
        running_requests: Option<u64>, "Requests in the scheduler's running batch";
        waiting_requests: Option<u64>, "Requests that wait in the scheduler";
        kv_cache_usage: Option<f64>, "Used part of the KV cache, 0 to 1";
    }
}

counters! {
    /// One source of the scheduler's load when it is read. Its labels are `stream` and `source`.
    SignalSource, "signal_" {
        state: Option<SourceState>, "1 for the state of the source; the last load from a lost or invalid source may still be fresh";
        readings: Total, "Readings with a new load";
    }
}
