//! Enums whose every value has one fixed word. Metric labels, events, the journal and JSON answers all write that word.

/// An enum of which each value has a word.
pub trait Word: Copy + 'static {
    /// The words, in the order of [`index`](Word::index).
    const WORDS: &'static [&'static str];

    /// The position of this value in [`WORDS`](Word::WORDS).
    fn index(self) -> usize;

    /// The word of this value.
    fn word(self) -> &'static str {
        Self::WORDS.get(self.index()).copied().unwrap_or_default()
    }
}

/// Declares an enum with the word of each value.
macro_rules! words {
    ($($(#[$doc:meta])* $name:ident { $($(#[$value_doc:meta])* $value:ident = $word:literal,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name {
            $($(#[$value_doc])* $value,)*
        }

        impl Word for $name {
            const WORDS: &'static [&'static str] = &[$($word),*];

            fn index(self) -> usize {
                self as usize
            }
        }

        impl $name {
            /// The word of this value.
            pub fn word(self) -> &'static str {
                Word::word(self)
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.word())
            }
        }
    )*};
}

words! {
    /// The reason why a frame moves through the stream whole, in its place, instead of row by row.
    BarrierCause {
        /// The frame is a control message.
        Control = "control",
        /// The frame is a batch without rows.
        Idle = "idle",
        /// The frame could not be decoded and passed unchanged.
        NotUnderstood = "not_understood",
        /// The frame could not be decoded and did not pass, because a plugin must judge its rows.
        Refused = "refused",
    }

    /// The kind of a plugin's verdict on a row, without its content.
    VerdictKind {
        /// The row gets other token ids.
        Replace = "replace",
        /// The row is removed.
        Drop = "drop",
        /// The row becomes the last of its request, with the finish reason `stop`.
        Finish = "finish",
        /// The row becomes the last of its request, with the finish reason `length`.
        Length = "length",
        /// The row becomes the last of its request, with the finish reason `abort`.
        Abort = "abort",
        /// The row becomes the last of its request, with an error.
        Error = "error",
        /// The row passes unchanged, and the journal records a note.
        Annotate = "annotate",
        /// The row goes to another sink.
        Route = "route",
        /// The row goes past the detokenizer.
        SkipText = "skip_text",
        /// The row waits.
        Hold = "hold",
        /// The held rows of the request are sent with this row.
        Release = "release",
        /// Other token ids replace those of this row and of the held rows.
        ReleaseAs = "release_as",
        /// The held rows of the request are sent, and this row waits.
        ReleaseAndHold = "release_and_hold",
    }

    /// The reason why rows that a plugin held were sent.
    HoldEnd {
        /// The plugin released them.
        Verdict = "verdict",
        /// The time for which the plugin may hold them had passed.
        Time = "time",
        /// The last row of their request arrived.
        Last = "last",
        /// The instance that held them is gone: it faulted, was reloaded, or its plugin was removed.
        Instance = "instance",
        /// The bound on held rows was reached.
        Room = "room",
        /// A later row of the request cannot be joined with them.
        Columns = "columns",
        /// They were held before the last start or panic.
        Start = "start",
        /// The stream stops, or the request was given up.
        Stop = "stop",
        /// A call to a service about their request failed.
        Call = "call",
    }

    /// The result of a plugin's call to a service.
    CallResult {
        /// The service answered.
        Answered = "answered",
        /// The answer did not arrive in time.
        TimedOut = "timed_out",
        /// The connection failed, the status was 5xx, or the answer was too long.
        Failed = "failed",
        /// `max_in_flight` calls were under way.
        Full = "full",
        /// The circuit breaker was open.
        Broken = "broken",
        /// Nobody waited for the answer any more: the request or the plugin's instance had ended.
        Cancelled = "cancelled",
    }

    /// The reason why a span was not exported.
    SpanLoss {
        /// The queue for the collector was full.
        QueueFull = "queue_full",
        /// The collector did not take the span.
        NotTaken = "not_taken",
    }

    /// The comparison of a shadow's verdict on a row with that of the live plugin.
    ShadowComparison {
        /// Both gave the same verdict.
        Same = "same",
        /// Each gave another verdict.
        Other = "other",
        /// Only the live plugin gave a verdict.
        OnlyLive = "only_live",
        /// Only the shadow gave a verdict.
        OnlyShadow = "only_shadow",
    }

    /// The kind of a plugin's fault.
    FaultKind {
        /// The guest trapped.
        Trap = "trap",
        /// The call exceeded its deadline.
        Deadline = "deadline",
        /// The guest asked for more memory than its limit.
        Memory = "memory",
        /// The answer breaks the contract.
        Malformed = "malformed",
        /// The instance was called after a fault, before it was replaced.
        Dead = "dead",
        /// Rows could not be read, so the plugin did not see them. The plugin is not at fault.
        Unread = "unread",
    }

    /// The result of a plugin's reload.
    ReloadResult {
        /// The new component is in use.
        Ok = "ok",
        /// The component before it stays in use.
        Failed = "failed",
    }

    /// The state of a source of the scheduler's load.
    SourceState {
        /// Nothing has been read from the source yet.
        Awaited = "awaited",
        /// The last reading is fresh.
        Fresh = "fresh",
        /// The last reading is too old to use.
        Stale = "stale",
        /// The source cannot be reached. The last reading may still be fresh.
        Lost = "lost",
        /// The source's answer cannot be used. The last reading may still be fresh.
        Invalid = "invalid",
    }

    /// The state of a sink's reader.
    ReaderState {
        /// The reader takes frames as they are received.
        KeepingUp = "keeping_up",
        /// Frames wait for the reader, and are joined if the configuration allows it.
        Behind = "behind",
        /// The reader has frames and finishes none.
        Stalled = "stalled",
        /// The reader is not connected.
        Away = "away",
    }

    /// The cause of a request's end on one stream: the party that was the first to end it for its reader.
    EndCause {
        /// The model: an end token, a stop token or a stop text. A reason that is none of these causes counts here, too, as vLLM's
        /// repetition.
        Model = "model",
        /// The limit of tokens.
        Limit = "limit",
        /// The engine aborted the request: its client left, or had asked for what the engine refuses. vLLM's API server ends
        /// a request with a stop text in this way, too.
        Client = "client",
        /// A plugin.
        Plugin = "plugin",
        /// The plugin `watchdog`, or one whose name begins with `watchdog-`.
        Watchdog = "watchdog",
        /// Afterbay, because a plugin with `on_fault = "terminate"` failed.
        Fault = "fault",
        /// An operator, by `afterbay abort` or the admin address.
        Operator = "operator",
        /// The engine ended the request with an error of its own.
        EngineError = "engine_error",
        /// No last row was received, and Afterbay stopped waiting: the engine died or lost the request.
        Lost = "lost",
        /// The stream before this one, which has the cause.
        FirstLeg = "first_leg",
        /// A plugin or an operator, of which no record is left.
        Unknown = "unknown",
    }

    /// The party that asked to end a request.
    AbortBy {
        /// `afterbay abort`, or the admin address.
        Operator = "operator",
        /// A plugin that had finished the request.
        Plugin = "plugin",
        /// The request's client had left, and the lease was over.
        Lease = "lease",
    }
}

/// The name of the plugin whose ends have a cause of their own.
const WATCHDOG: &str = "watchdog";

impl EndCause {
    /// The cause of an end by the engine, from its finish reason as the journal has it.
    pub fn of_finish(reason: &str) -> EndCause {
        match reason {
            "length" => EndCause::Limit,
            "abort" => EndCause::Client,
            "error" => EndCause::EngineError,
            _ => EndCause::Model,
        }
    }

    /// The cause of an end by the plugin with this name.
    pub fn of_plugin(name: &str) -> EndCause {
        match name.strip_prefix(WATCHDOG) {
            Some(rest) if rest.is_empty() || rest.starts_with('-') => EndCause::Watchdog,
            _ => EndCause::Plugin,
        }
    }
}
