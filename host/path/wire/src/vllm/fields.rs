//! The fields of vLLM's messages, and how they are joined. A message has positions and no names; `layout` says which
//! field stands where. A test checks that each field of each known version has a rule.
//!
//! The meanings are those of vLLM's front end (`OutputProcessor.process_outputs`, `LoggingStatLogger`,
//! `PrometheusStatLogger`): a joined row leaves the front end in the same state as the single rows.

/// How the values of a request's rows become one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowJoin {
    /// Takes the first row's value, which is the same in every row.
    First,
    /// Takes the last row's value.
    Last,
    /// Takes the last value that is not nil: the engine sends it once.
    Latest,
    /// Concatenates arrays. Nil counts as empty.
    Concat,
    /// Adds counts.
    Sum,
    /// Puts the arrays of logprobs together, along the axis of the tokens.
    Logprobs,
    /// Refuses to join: rows of a request stay single if any of them has a value.
    Never,
}

/// The value of a field that says nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absent {
    /// `nil`.
    Nil,
    /// `0`.
    Zero,
}

/// A field of EngineCoreOutput: a request's part of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowField {
    /// vLLM's name.
    pub name: &'static str,
    /// How the values of a request's rows are joined.
    pub join: RowJoin,
    /// The value that says nothing.
    pub absent: Absent,
    /// Whether the value has an entry for each new token.
    pub per_token: bool,
    /// Whether the value belongs to the end of the request. A plugin's end of a request that has new tokens is written
    /// as two rows, and this value goes into the second.
    pub at_end: bool,
}

impl Absent {
    pub(super) fn byte(self) -> u8 {
        match self {
            Absent::Nil => 0xc0,
            Absent::Zero => 0,
        }
    }
}

impl RowField {
    /// Whether the field may have arrays of numbers, whose data may be in other parts.
    pub(crate) fn has_arrays(&self) -> bool {
        matches!(self.join, RowJoin::Never | RowJoin::Logprobs)
    }
}

/// How frame fields of several frames become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameJoin {
    /// Frames with different values are not joined.
    Same,
    /// The rows.
    Rows,
    /// Joins maps of statistics by [`STATS`].
    Stats,
    /// Takes the greatest number.
    Greatest,
    /// Concatenates arrays. Nil counts as empty.
    Concat,
    /// A frame with a value is joined with no other frame.
    Alone,
}

/// A field of EngineCoreOutputs: a frame.
#[derive(Debug, PartialEq, Eq)]
pub struct FrameField {
    /// vLLM's name.
    pub name: &'static str,
    /// How the values of several frames are joined.
    pub join: FrameJoin,
}

/// How the statistics of several steps become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatJoin {
    /// Takes the last value: a state.
    Latest,
    /// Adds what happened in each step: numbers are added, arrays concatenated, maps joined key by key. A flag is set
    /// if it was set once.
    Add,
    /// Takes the last value of each key of two maps.
    LatestEach,
    /// Adds the numbers of two arrays place by place.
    AddEach,
}

/// A key of a map of statistics.
#[derive(Debug, PartialEq, Eq)]
pub struct Stat {
    /// vLLM's name.
    pub name: &'static str,
    /// How the values of several steps are joined.
    pub join: StatJoin,
}

const fn row(name: &'static str, join: RowJoin) -> RowField {
    RowField { name, join, absent: Absent::Nil, per_token: false, at_end: false }
}

const fn per_token(name: &'static str, join: RowJoin) -> RowField {
    RowField { per_token: true, ..row(name, join) }
}

const fn end(name: &'static str, join: RowJoin) -> RowField {
    RowField { at_end: true, ..row(name, join) }
}

const NANS: RowField = RowField { absent: Absent::Zero, ..row("num_nans_in_logits", RowJoin::Sum) };

/// The positions in [`ROW`] of the fields that Afterbay reads.
pub(crate) const REQUEST_ID: usize = 0;
pub(crate) const NEW_TOKEN_IDS: usize = 1;
pub(crate) const NEW_LOGPROBS: usize = 2;
pub(crate) const FINISH_REASON: usize = 5;
pub(crate) const STOP_REASON: usize = 6;
pub(crate) const EVENTS: usize = 7;
pub(crate) const ROUTED: usize = 12;
pub(crate) const NEW_SAMPLING_MASK: usize = 15;
pub(crate) const SPEC_DECODE_METRICS: usize = 16;
pub(crate) const EC_TRANSFER_PARAMS: usize = 9;
pub(crate) const PREFILL_STATS: usize = 11;

/// The event of a request that enters the queue (`EngineCoreEventType`).
pub(crate) const QUEUED: i64 = 1;

/// EngineCoreOutput since 0.26, oldest fields first. Earlier versions have fewer at the end, later ones more.
pub const ROW: &[RowField] = &[
    row("request_id", RowJoin::First),
    row("new_token_ids", RowJoin::Concat),
    per_token("new_logprobs", RowJoin::Logprobs),
    row("new_prompt_logprobs_tensors", RowJoin::Never),
    row("pooling_output", RowJoin::Never),
    end("finish_reason", RowJoin::Last),
    end("stop_reason", RowJoin::Last),
    row("events", RowJoin::Concat),
    end("kv_transfer_params", RowJoin::Latest),
    end("ec_transfer_params", RowJoin::Latest),
    end("trace_headers", RowJoin::Latest),
    row("prefill_stats", RowJoin::Latest),
    per_token("routed_experts", RowJoin::Never),
    NANS,
    end("mm_cache_miss_hashes", RowJoin::Latest),
    per_token("new_sampling_mask", RowJoin::Never),
    end("spec_decode_metrics", RowJoin::Latest),
    row("prompt_token_id_logprobs", RowJoin::Never),
    end("error", RowJoin::Latest),
];

/// The fewest fields of a row: those of 0.25.
pub(crate) const ROW_FIELDS_MIN: usize = 13;

pub(crate) const ENGINE_INDEX: usize = 0;
pub(crate) const OUTPUTS: usize = 1;
pub(crate) const SCHEDULER_STATS: usize = 2;
pub(crate) const TIMESTAMP: usize = 3;
pub(crate) const FINISHED_REQUESTS: usize = 5;
pub(crate) const WEIGHT_VERSION: usize = 8;

const fn frame(name: &'static str, join: FrameJoin) -> FrameField {
    FrameField { name, join }
}

/// EngineCoreOutputs. Versions before 0.32 lack the last field. A field that is not in the table is
/// [`FrameJoin::Alone`].
pub const FRAME: &[FrameField] = &[
    frame("engine_index", FrameJoin::Same),
    frame("outputs", FrameJoin::Rows),
    frame("scheduler_stats", FrameJoin::Stats),
    frame("timestamp", FrameJoin::Greatest),
    frame("utility_output", FrameJoin::Alone),
    frame("finished_requests", FrameJoin::Concat),
    frame("wave_complete", FrameJoin::Alone),
    frame("start_wave", FrameJoin::Alone),
    frame("weight_version", FrameJoin::Same),
];

/// The fewest fields of a frame.
pub(crate) const FRAME_FIELDS_MIN: u64 = 8;

const fn stat(name: &'static str, join: StatJoin) -> Stat {
    Stat { name, join }
}

/// The keys of scheduler_stats. A key that is not in the table is [`StatJoin::Latest`].
pub const STATS: &[Stat] = &[
    stat("num_running_reqs", StatJoin::Latest),
    stat("num_waiting_reqs", StatJoin::Latest),
    stat("num_skipped_waiting_reqs", StatJoin::Latest),
    stat("num_kv_fetch_reqs_by_stage", StatJoin::Latest),
    stat("step_counter", StatJoin::Latest),
    stat("current_wave", StatJoin::Latest),
    stat("kv_cache_usage", StatJoin::Latest),
    stat("iteration_details", StatJoin::Latest),
    stat("prefix_cache_stats", StatJoin::Add),
    stat("connector_prefix_cache_stats", StatJoin::Add),
    stat("kv_cache_eviction_events", StatJoin::Add),
    stat("spec_decoding_stats", StatJoin::Add),
    stat("kv_connector_stats", StatJoin::Add),
    stat("ec_connector_stats", StatJoin::Add),
    stat("waiting_lora_adapters", StatJoin::Latest),
    stat("running_lora_adapters", StatJoin::Latest),
    stat("cudagraph_stats", StatJoin::Latest),
    stat("perf_stats", StatJoin::Add),
];

/// The keys inside an added map that are not simply added.
pub const STATS_INSIDE: &[Stat] = &[
    stat("num_spec_tokens", StatJoin::Latest),
    stat("num_accepted_tokens_per_pos", StatJoin::AddEach),
    stat("num_draft_tokens_per_pos", StatJoin::AddEach),
];

/// The versions of vLLM whose frames and rows have these numbers of elements.
const VERSIONS: &[(u64, u64, &str)] = &[
    (8, 13, "0.25.0..0.25.1"),
    (8, 14, "0.26.0..0.27.1"),
    (8, 16, "0.28.0"),
    (8, 17, "0.29.0..0.30.0"),
    (8, 18, "0.31.0"),
    (9, 18, "0.32.0"),
    (9, 19, "0.33.0"),
];

/// The versions of vLLM whose frames and rows have these numbers of elements, or `unknown`.
pub(crate) fn versions(frame: u64, row: u64) -> &'static str {
    let found = VERSIONS.iter().find(|(of_frame, of_row, _)| (*of_frame, *of_row) == (frame, row));
    found.map_or("unknown", |(_, _, versions)| versions)
}
