//! The counters of a stream, of its sinks, plugins and scheduler: each with its name in `/metrics` and its help, declared once.

use afterbay_types::{
    AbortBy, BarrierCause, FaultKind, HoldEnd, ReloadResult, ShadowComparison, SourceState, VerdictKind,
};

use crate::counter::{Counter, CounterBy, Gauge, Seconds, SecondsNow, Total};
use crate::histogram::Histogram;
use crate::metrics::{Block, Reading, Series};

/// Declares a block: a field's name with the block's prefix is its name in metrics, its help is its documentation.
macro_rules! counters {
    ($(#[$doc:meta])* $block:ident, $prefix:literal { $($field:ident: $type:ty, $help:literal;)* }) => {
        $(#[$doc])*
        // A block of its own cache lines: two streams' threads never write to the same one. 128, because
        // lines are fetched in pairs.
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
                    read: |block| Reading::from(&block.$field),
                },)*
            ];
        }
    };
}

counters! {
    /// Of one stream; `stream` is its label.
    StreamCounters, "" {
        frames_received: Counter, "Frames received from schedulers";
        bytes_received: Counter, "Bytes of frames received from schedulers";
        rows_received: Counter, "Rows received: one for each request in each scheduler step";
        tokens_received: Counter, "Token ids received";
        frames_forwarded: Counter, "Frames handed to the sink's queue";
        frames_rewritten: Counter, "Frames forwarded with other bytes than they came with";
        rows_forwarded: Counter, "Rows forwarded, changed or not";
        tokens_forwarded: Counter, "Token ids received that were forwarded";
        rows_replaced: Counter, "Rows whose token ids a plugin replaced";
        rows_dropped: Counter, "Rows whose tokens a plugin dropped";
        tokens_dropped: Counter, "Token ids received that a plugin dropped";
        rows_swallowed: Counter, "Rows of requests that a plugin had finished";
        tokens_swallowed: Counter, "Token ids of requests that a plugin had finished";
        aborts_withheld: Counter, "Requests that a plugin had finished and the scheduler was not told to end: their rid begins that of another, or too many waited";
        rows_unread: Counter, "Rows that no plugin could be shown: they cannot be read, or there was no room for their requests";
        requests_given_up: Counter, "Requests without a row for the longest time that were given up to make room for others";
        barriers: CounterBy<BarrierCause>, "Frames passed on in their place as they came, by kind";
        requests_opened: Counter, "Requests seen for the first time";
        requests_finished: Counter, "Requests that ended";
        requests_live: Gauge, "Requests that have begun and not ended";
        request_gaps: Counter, "Rows before which tokens of a request are missing";
        request_imbalances: Counter, "Requests whose ledger did not balance at their end";
        senders: Gauge, "Schedulers connected";
        receiving: Gauge, "1 while frames are received, 0 while the scheduler's own queue holds them";
        receive_paused_seconds: Seconds, "Time in which nothing was received because a queue was full or the journal failed";
        panics: Counter, "Panics of its thread, after each of which it went on";
        outbox_frames: Gauge, "Frames received and not yet handed to a sink's queue";
        outbox_bytes: Gauge, "Bytes of frames received and not yet handed to a sink's queue";
        spilled_frames: Gauge, "Frames that wait in the journal alone, because a sink's queue is full; one that waits for two is counted twice";
        spilled_bytes: Gauge, "Bytes of frames that wait in the journal alone";
        journal_frame: Gauge, "Number of the last frame appended to the journal";
        journal_durable_frame: Gauge, "Number of the last frame known to survive a power cut";
        journal_frames_skipped: Counter, "Frames forwarded without being kept, as on_error says";
        journal_append_seconds: Seconds, "Time spent appending to the journal";
        journal_failing: Gauge, "1 while frames cannot be written to the journal";
        frame_seconds: Histogram, "Time from a frame's receipt to its being whole in the kernel's buffer for the sink";
        change_seconds: Histogram, "Time that the stream stood between two batches while another component or configuration took over";
    }
}

counters! {
    /// Of one stream's way back to its scheduler; `stream` is its label.
    AbortCounters, "aborts_" {
        sent: CounterBy<AbortBy>, "Requests that the scheduler was told to end, by who wanted it";
        refused: Counter, "Aborts of live requests refused before anything was sent: another request would end too, or there is no way to the scheduler";
        failed: CounterBy<AbortBy>, "Aborts that did not reach the scheduler, by who wanted it";
    }
}

counters! {
    /// Of one sink; `stream` and `sink` are its labels.
    SinkCounters, "sink_" {
        connected: Gauge, "1 while a reader is connected";
        connects: Counter, "Times a reader was connected";
        frames_written: Counter, "Frames handed whole to the kernel, those sent again included";
        bytes_written: Counter, "Bytes of frames handed whole to the kernel";
        frames_resent: Counter, "Frames sent again after a reader was lost";
        frames_unconfirmed: Counter, "Frames of which nobody can say whether a lost reader had them";
        taken_frame: Gauge, "Number of the last frame that never need be sent again";
        state: Gauge, "How its reader does: 0 keeping up, 1 behind, 2 stalled, 3 away";
        leaving: Gauge, "1 while it is in the configuration no more, and has requests or frames to send";
        waiting_rows: Gauge, "Rows that wait for it in memory; a frame that goes on whole counts as one";
        waiting_tokens: Gauge, "Tokens of the rows that wait for it in memory";
        waiting_oldest_seconds: SecondsNow, "Time that the oldest of them has waited";
        spilled_frames: Gauge, "Frames that wait for it in the journal alone, because its queue is full";
        spilled_bytes: Gauge, "Bytes of frames that wait for it in the journal alone";
        frames_composed: Counter, "Frames made of rows that waited, in place of those that the scheduler sent";
        rows_left: Counter, "Rows that have left for it, also inside another";
        rows_per_second: Gauge, "Rows that left for it, by the second, in the last one or so";
        rows_joined: Counter, "Rows that left inside another row of their request";
        frames_torn: Counter, "Frames sent whole though some of their rows had left, because they could not be taken apart";
        window_frames: Gauge, "Frames that the reader is given ahead of its count";
        queue_frames: Gauge, "Frames not yet in the kernel";
        queue_bytes: Gauge, "Bytes of frames not yet in the kernel";
        credit_usable: Gauge, "1 while the reader's count of finished frames is read";
        frames_finished: Counter, "Frames that the reader has finished, by its credit";
        lag_frames: Gauge, "Frames in the kernel that the reader has not finished, by its credit";
        lag_bytes: Gauge, "Bytes of frames in the kernel that the reader has not finished, by its credit";
    }
}

counters! {
    /// Of one tap; `stream` and `tap` are its labels.
    TapCounters, "tap_" {
        connected: Gauge, "1 while it is connected; of one that publishes, while somebody has subscribed";
        subscribers: Gauge, "Subscribers of one that publishes that have subscribed to something";
        frames_written: Counter, "Copies handed whole to the kernel, for each subscriber";
        bytes_written: Counter, "Bytes of copies handed whole to the kernel, for each subscriber";
        queue_bytes: Gauge, "Bytes of copies that wait for its socket";
        subscriber_queue_bytes: Gauge, "Bytes of copies that wait for subscribers; what waits for several counts for each";
        subscriber_frames_dropped: Counter, "Copies dropped for a subscriber because its queue was full";
        subscriber_bytes_dropped: Counter, "Bytes of copies dropped for subscribers";
        frames_dropped: Counter, "Copies dropped because its queue was full";
        bytes_dropped: Counter, "Bytes of copies dropped";
    }
}

counters! {
    /// Of one plugin; `stream` and `plugin` are its labels.
    PluginCounters, "plugin_" {
        calls: Counter, "Calls of process, one for each batch that it was shown";
        rows: Counter, "Rows that it was shown";
        seconds: Seconds, "Time spent in calls";
        verdicts: CounterBy<VerdictKind>, "Verdicts, by action";
        faults: CounterBy<FaultKind>, "Faults, by kind";
        compared: CounterBy<ShadowComparison>, "Rows of which a shadow or its live plugin said something, by what the other said";
        held_rows: Gauge, "Rows that wait because the plugin holds them";
        held_tokens: Gauge, "Tokens of the rows that wait because the plugin holds them";
        holds_ended: CounterBy<HoldEnd>, "Releases of a request's rows that waited, by why";
        holds_refused: Counter, "Rows that the plugin wanted to hold and that went on, or could not be joined with those that waited";
        bypassed_batches: Counter, "Batches that went on without the plugin: it faulted, is down or quarantined";
        held_batches: Counter, "Batches that were tried once more on a fresh instance, as on_fault = hold says";
        terminated_rows: Counter, "Rows whose requests were aborted since the plugin did not judge them, as on_fault = terminate says";
        quarantined: Gauge, "1 while it is out of the chain because it faulted too often";
        quarantines: Counter, "Times that it was taken out of the chain";
        reloads: CounterBy<ReloadResult>, "Changed components, by result";
        requests_open: Gauge, "Requests opened and not closed";
        memory_bytes: Gauge, "Linear memory in use";
    }
}

counters! {
    /// What is known of the load of a stream's scheduler as it is asked for; `stream` is its label. `None` is left out: what
    /// nobody says, and all values while they are not fresh.
    SchedulerLoad, "scheduler_" {
        load_fresh: u64, "1 while the scheduler's load is known and not stale; its values are left out while it is 0";
        load_age_seconds: Option<f64>, "Time since the scheduler's load was measured, fresh or stale";
        num_running_reqs: Option<u64>, "Requests in the scheduler's running batch";
        num_waiting_reqs: Option<u64>, "Requests that wait in the scheduler";
        num_waiting_uncached_tokens: Option<u64>, "Tokens of waiting prompts that are estimated to be in no cache";
        num_used_tokens: Option<u64>, "Tokens of KV cache in use";
        num_total_tokens: Option<u64>, "Tokens of KV cache in use and of the requests that wait";
        num_active_tokens: Option<u64>, "Tokens of num_total_tokens without the requests that await their KV from a prefill server";
        max_total_num_tokens: Option<u64>, "Tokens that the KV cache holds";
        max_running_requests: Option<u64>, "The most requests that may run";
        token_usage: Option<f64>, "Used part of the KV cache, 0 to 1";
        gen_throughput: Option<f64>, "Tokens generated a second";
        cache_hit_rate: Option<f64>, "Part of the last prefills' prompt tokens that came from the cache, 0 to 1";
        utilization: Option<f64>, "The larger of running requests and token usage over their limits; may exceed 1";
        num_retracted_reqs: Option<u64>, "Requests put back to waiting for want of memory since the scheduler's last report";
        num_retracted_requests: Option<Total>, "Requests ever put back to waiting for want of memory";
    }
}

counters! {
    /// Of one source of the scheduler's load as it is asked for; `stream` and `source` are its labels.
    SignalSource, "signal_" {
        state: Option<SourceState>, "1 of the state that the source is in; what a lost or invalid one said last may still be fresh";
        age_seconds: Option<f64>, "Time since the source measured what it said last";
        readings: Total, "Readings that said something new";
        refusals: Total, "Looks, scrapes and messages that gave no reading";
        missed: Total, "Messages of the publisher that did not come";
    }
}
