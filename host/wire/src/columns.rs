//! What every field of every known version means to Afterbay: the one table of what joining rows of a request does to
//! it, what stands for a row that has none, and what stands for a token that a plugin put in. Both wires and all three
//! messages go by it, since a field's name says the same in each; a test goes over all of them.
//!
//! The meanings are those of SGLang's reader (`TokenizerManager._handle_batch_output`, `convert_logprob_style`,
//! `DetokenizerManager._decode_batch_token_id_output`): a joined row leaves it in the state the single rows would have.

/// What becomes of a column's cells when rows of one request become one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Join {
    /// The same in every row of a request: the first row's. Also what only its first row is read for.
    First,
    /// Counts so far, and what stands at the end: the last row's.
    Last,
    /// Sent once, in any row, and nil in the others: the last that is not nil.
    Latest,
    /// Lists, one after another; nil counts as empty.
    Concat,
    /// Id arrays, one after another.
    Ids,
    /// Texts, one after another.
    Text,
    /// Sampling masks: three flat arrays, each one after another (lists before 0.5.21).
    Mask,
    /// A dict of columns by name, whose cells are lists: joined name by name.
    Named,
    /// Of the frame and not of its rows: every part taken keeps it, the last part's is kept.
    Frame,
    /// Cannot be joined: a request's rows stay single where any of them has it (is not nil).
    Never,
}

/// What the scheduler writes for a row that has none of a column, in a batch where another row has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absent {
    /// `None`.
    Nil,
    /// `[]`.
    Empty,
    /// It never does: either every row has it or none, so such parts cannot stand side by side.
    Never,
}

/// In a list with an entry per token, the entry of a token that the scheduler did not choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Neutral {
    /// `None`.
    Nil,
    /// `0.0`. As a logprob: certain, since it was put there. (`None` is valid too, but SGLang's OpenAI end points
    /// answer a chat request whose logprob is `None` with an error.)
    Zero,
    /// The token's own id.
    Id,
    /// `[]`.
    Empty,
}

/// What is known of a field.
#[derive(Debug, PartialEq, Eq)]
pub struct Column {
    /// Its name, in every version and message.
    pub name: &'static str,
    /// What joining does.
    pub join: Join,
    /// What stands for a row that has none.
    pub absent: Absent,
    /// The column's cells are lists with an entry per new token (or empty); this is the entry of a token put in.
    pub per_token: Option<Neutral>,
}

const fn column(name: &'static str, join: Join, absent: Absent) -> Column {
    Column { name, join, absent, per_token: None }
}

const fn per_token(name: &'static str, join: Join, absent: Absent, neutral: Neutral) -> Column {
    Column { name, join, absent, per_token: Some(neutral) }
}

/// The table. A field that is not in it is carried; rows that have it are not joined.
pub const COLUMNS: &[Column] = &[
    column("rids", Join::First, Absent::Never),
    column("http_worker_ipcs", Join::First, Absent::Nil),
    column("finished_reasons", Join::Last, Absent::Never),
    column("output_strs", Join::Text, Absent::Never),
    // For the detokenizer. It reads the first two on a request's first row only.
    column("decoded_texts", Join::First, Absent::Never),
    column("read_offsets", Join::First, Absent::Never),
    column("decode_ids", Join::Ids, Absent::Never),
    column("output_ids", Join::Ids, Absent::Never),
    column("skip_special_tokens", Join::First, Absent::Never),
    column("spaces_between_special_tokens", Join::First, Absent::Never),
    column("no_stop_trim", Join::First, Absent::Never),
    // Counts, each the whole request's so far.
    column("prompt_tokens", Join::Last, Absent::Never),
    column("reasoning_tokens", Join::Last, Absent::Never),
    column("completion_tokens", Join::Last, Absent::Never),
    column("cached_tokens", Join::Last, Absent::Never),
    column("cached_tokens_details", Join::Last, Absent::Never),
    column("image_tokens", Join::Last, Absent::Never),
    column("audio_tokens", Join::Last, Absent::Never),
    column("video_tokens", Join::Last, Absent::Never),
    column("retraction_counts", Join::Last, Absent::Never),
    column("spec_verify_ct", Join::Last, Absent::Never),
    column("spec_accepted_tokens", Join::Last, Absent::Never),
    column("spec_accepted_drafts", Join::Last, Absent::Never),
    column("spec_num_correct_drafts", Join::Last, Absent::Never),
    column("spec_num_block_accept_tokens", Join::Last, Absent::Never),
    column("spec_num_cap_tokens", Join::Last, Absent::Never),
    column("spec_acceptance_histogram", Join::Last, Absent::Never),
    column("spec_correct_drafts_histogram", Join::Last, Absent::Never),
    column("spec_cap_lens_histogram", Join::Last, Absent::Never),
    column("dp_ranks", Join::Last, Absent::Never),
    // Spans of tokens with the version of the weights, on the last row only.
    column("weight_versions", Join::Last, Absent::Nil),
    // Times, each the whole request's so far.
    column("time_stats", Join::Last, Absent::Never),
    column("queue_time", Join::Last, Absent::Never),
    column("forward_entry_time", Join::Last, Absent::Never),
    column("prefill_launch_delay", Join::Last, Absent::Never),
    column("prefill_launch_latency", Join::Last, Absent::Never),
    column("prefill_finished_ts", Join::Last, Absent::Never),
    // Of the prompt: once, in the row after prefill (usually the first), `[]` in the others, and the reader appends
    // what comes. The flat ones it keeps as they come.
    column("input_token_logprobs_val", Join::Concat, Absent::Empty),
    column("input_token_logprobs_idx", Join::Concat, Absent::Empty),
    column("input_top_logprobs_val", Join::Concat, Absent::Empty),
    column("input_top_logprobs_idx", Join::Concat, Absent::Empty),
    column("input_token_ids_logprobs_val", Join::Concat, Absent::Empty),
    column("input_token_ids_logprobs_idx", Join::Concat, Absent::Empty),
    column("input_top_logprobs_val_flat", Join::Latest, Absent::Nil),
    column("input_top_logprobs_idx_flat", Join::Latest, Absent::Nil),
    column("input_top_logprobs_flat_null_prefix", Join::Latest, Absent::Nil),
    // An entry per new token.
    per_token("output_token_logprobs_val", Join::Concat, Absent::Empty, Neutral::Zero),
    per_token("output_token_logprobs_idx", Join::Concat, Absent::Empty, Neutral::Id),
    per_token("output_top_logprobs_val", Join::Concat, Absent::Empty, Neutral::Nil),
    per_token("output_top_logprobs_idx", Join::Concat, Absent::Empty, Neutral::Nil),
    per_token("output_token_ids_logprobs_val", Join::Concat, Absent::Empty, Neutral::Nil),
    per_token("output_token_ids_logprobs_idx", Join::Concat, Absent::Empty, Neutral::Nil),
    per_token("output_token_sampling_mask", Join::Mask, Absent::Nil, Neutral::Empty),
    per_token("output_token_sampling_logprobs", Join::Concat, Absent::Nil, Neutral::Empty),
    per_token("customized_info", Join::Named, Absent::Never, Neutral::Nil),
    // Not set by any version's scheduler, so what they would mean joined is not known.
    column("output_token_entropy_val", Join::Never, Absent::Never),
    column("placeholder_tokens_idx", Join::Never, Absent::Never),
    column("placeholder_tokens_val", Join::Never, Absent::Never),
    column("token_steps", Join::Never, Absent::Never),
    // Of all tokens so far, or replaced by each row that has it: a reader of single rows sees each.
    column("output_hidden_states", Join::Never, Absent::Nil),
    column("routed_experts", Join::Never, Absent::Nil),
    column("indexer_topk", Join::Never, Absent::Nil),
    column("beam_search_output", Join::Never, Absent::Nil),
    // BatchEmbeddingOutput: one row is all of its request.
    column("embeddings", Join::Never, Absent::Never),
    column("pooled_hidden_states", Join::Never, Absent::Nil),
    // The scheduler's load (0.5.9 to 0.5.13).
    column("load", Join::Frame, Absent::Never),
];

/// What is known of the field `name`.
pub fn find(name: &str) -> Option<&'static Column> {
    COLUMNS.iter().find(|column| column.name == name)
}
