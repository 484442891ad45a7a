//! The meaning of every field of every known version: how rows of a request are joined, the value for a row without
//! one, and the value for a token that a plugin inserted. Both encodings and all three messages use this one table,
//! because a field name means the same in each. A test checks that the table is complete.
//!
//! The meanings are those of SGLang's reader (`TokenizerManager._handle_batch_output`, `convert_logprob_style`,
//! `DetokenizerManager._decode_batch_token_id_output`): a joined row leaves the reader in the same state as the single
//! rows.

use crate::pack::{EXT, INT, LIST, MAP, NIL, OTHER, STR, Types};

/// Any type.
pub(crate) const ANY: Types = Types::MAX;

/// How the cells of a request's rows become one cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Join {
    /// Takes the first row's cell: it is the same in every row, or is only read in a request's first row.
    First,
    /// Takes the last row's cell: a count so far, or a final value.
    Last,
    /// Takes the last cell that is not nil: the scheduler sends the value once.
    Latest,
    /// Concatenates lists. Nil counts as empty.
    Concat,
    /// Concatenates id arrays.
    Ids,
    /// Concatenates texts.
    Text,
    /// Concatenates sampling masks: three flat arrays each (lists before 0.5.21).
    Mask,
    /// Joins a dict of columns name by name. Its cells are lists.
    Named,
    /// Takes the last part's value: the column belongs to the frame and not to its rows.
    Frame,
    /// Refuses to join: rows of a request stay single if any of them has a value.
    Never,
}

/// The scheduler's value for a row that has none, in a batch where another row has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absent {
    /// `None`.
    Nil,
    /// `[]`.
    Empty,
    /// The scheduler never writes such a batch: either every row has a value or none. Such parts cannot share a frame.
    Never,
}

/// The entry for a token that the scheduler did not choose, in a list with one entry per token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Neutral {
    /// `None`.
    Nil,
    /// `0.0`. As a logprob this means certainty. (`None` is valid too, but SGLang's OpenAI endpoints answer a chat
    /// request whose logprob is `None` with an error.)
    Zero,
    /// The token's own id.
    Id,
    /// `[]`.
    Empty,
}

/// The rules for a field.
#[derive(Debug, PartialEq, Eq)]
pub struct Column {
    /// The field's name, the same in every version and message.
    pub name: &'static str,
    /// The types that a cell may have.
    pub(crate) types: Types,
    /// How cells are joined.
    pub join: Join,
    /// The value for a row without one.
    pub absent: Absent,
    /// For a column whose cells are lists with one entry per new token (or empty): the entry for an inserted token.
    pub per_token: Option<Neutral>,
}

const fn column(name: &'static str, types: Types, join: Join, absent: Absent) -> Column {
    Column { name, types, join, absent, per_token: None }
}

const fn per_token(name: &'static str, types: Types, join: Join, absent: Absent, neutral: Neutral) -> Column {
    Column { name, types, join, absent, per_token: Some(neutral) }
}

/// The table. A field that is not in it is carried, and rows with a value in it are not joined.
pub const COLUMNS: &[Column] = &[
    column("rids", STR, Join::First, Absent::Never),
    column("http_worker_ipcs", STR | NIL, Join::First, Absent::Nil),
    column("finished_reasons", NIL | MAP, Join::Last, Absent::Never),
    column("output_strs", STR, Join::Text, Absent::Never),
    // For the detokenizer, which reads the first two in a request's first row only.
    column("decoded_texts", STR, Join::First, Absent::Never),
    column("read_offsets", INT | NIL, Join::First, Absent::Never),
    column("decode_ids", EXT | LIST | OTHER, Join::Ids, Absent::Never),
    column("output_ids", EXT | LIST | OTHER, Join::Ids, Absent::Never),
    column("skip_special_tokens", OTHER | NIL, Join::First, Absent::Never),
    column("spaces_between_special_tokens", OTHER | NIL, Join::First, Absent::Never),
    column("no_stop_trim", OTHER | NIL, Join::First, Absent::Never),
    // Counts of the whole request so far.
    column("prompt_tokens", INT | NIL, Join::Last, Absent::Never),
    column("reasoning_tokens", INT | NIL, Join::Last, Absent::Never),
    column("completion_tokens", INT | NIL, Join::Last, Absent::Never),
    column("cached_tokens", INT | NIL, Join::Last, Absent::Never),
    column("cached_tokens_details", MAP | NIL | OTHER, Join::Last, Absent::Never),
    column("image_tokens", INT | NIL, Join::Last, Absent::Never),
    column("audio_tokens", INT | NIL, Join::Last, Absent::Never),
    column("video_tokens", INT | NIL, Join::Last, Absent::Never),
    column("retraction_counts", INT | NIL, Join::Last, Absent::Never),
    column("spec_verify_ct", INT | NIL, Join::Last, Absent::Never),
    column("spec_accepted_tokens", INT | NIL, Join::Last, Absent::Never),
    column("spec_accepted_drafts", INT | NIL, Join::Last, Absent::Never),
    column("spec_num_correct_drafts", INT | NIL, Join::Last, Absent::Never),
    column("spec_num_block_accept_tokens", INT | NIL, Join::Last, Absent::Never),
    column("spec_num_cap_tokens", INT | NIL, Join::Last, Absent::Never),
    column("spec_acceptance_histogram", LIST | NIL, Join::Last, Absent::Never),
    column("spec_correct_drafts_histogram", LIST | NIL, Join::Last, Absent::Never),
    column("spec_cap_lens_histogram", LIST | NIL, Join::Last, Absent::Never),
    column("dp_ranks", INT | NIL, Join::Last, Absent::Never),
    // Spans of tokens with the version of the weights, in the last row only.
    column("weight_versions", LIST | MAP | NIL | OTHER, Join::Last, Absent::Nil),
    // Times of the whole request so far.
    column("time_stats", LIST | MAP | NIL | OTHER, Join::Last, Absent::Never),
    column("queue_time", ANY, Join::Last, Absent::Never),
    column("forward_entry_time", ANY, Join::Last, Absent::Never),
    column("prefill_launch_delay", ANY, Join::Last, Absent::Never),
    column("prefill_launch_latency", ANY, Join::Last, Absent::Never),
    column("prefill_finished_ts", ANY, Join::Last, Absent::Never),
    // Columns of the prompt: sent once, in the row after prefill (usually the first), and `[]` in the others. The reader
    // appends the lists; the flat ones it replaces.
    column("input_token_logprobs_val", LIST | NIL | EXT | OTHER, Join::Concat, Absent::Empty),
    column("input_token_logprobs_idx", LIST | NIL | EXT | OTHER, Join::Concat, Absent::Empty),
    column("input_top_logprobs_val", LIST | NIL | EXT | OTHER, Join::Concat, Absent::Empty),
    column("input_top_logprobs_idx", LIST | NIL | EXT | OTHER, Join::Concat, Absent::Empty),
    column("input_token_ids_logprobs_val", LIST | NIL | EXT | OTHER, Join::Concat, Absent::Empty),
    column("input_token_ids_logprobs_idx", LIST | NIL | EXT | OTHER, Join::Concat, Absent::Empty),
    column("input_top_logprobs_val_flat", ANY, Join::Latest, Absent::Nil),
    column("input_top_logprobs_idx_flat", ANY, Join::Latest, Absent::Nil),
    column("input_top_logprobs_flat_null_prefix", ANY, Join::Latest, Absent::Nil),
    // One entry per new token.
    per_token(
        "output_token_logprobs_val",
        LIST | NIL | EXT | OTHER,
        Join::Concat,
        Absent::Empty,
        Neutral::Zero,
    ),
    per_token(
        "output_token_logprobs_idx",
        LIST | NIL | EXT | OTHER,
        Join::Concat,
        Absent::Empty,
        Neutral::Id,
    ),
    per_token("output_top_logprobs_val", LIST | NIL | EXT | OTHER, Join::Concat, Absent::Empty, Neutral::Nil),
    per_token("output_top_logprobs_idx", LIST | NIL | EXT | OTHER, Join::Concat, Absent::Empty, Neutral::Nil),
    per_token(
        "output_token_ids_logprobs_val",
        LIST | NIL | EXT | OTHER,
        Join::Concat,
        Absent::Empty,
        Neutral::Nil,
    ),
    per_token(
        "output_token_ids_logprobs_idx",
        LIST | NIL | EXT | OTHER,
        Join::Concat,
        Absent::Empty,
        Neutral::Nil,
    ),
    per_token("output_token_sampling_mask", ANY, Join::Mask, Absent::Nil, Neutral::Empty),
    per_token(
        "output_token_sampling_logprobs",
        LIST | NIL | EXT | OTHER,
        Join::Concat,
        Absent::Nil,
        Neutral::Empty,
    ),
    per_token("customized_info", LIST | MAP | NIL | OTHER, Join::Named, Absent::Never, Neutral::Nil),
    // No version's scheduler sets these, so it is unknown how to join them.
    column("output_token_entropy_val", NIL, Join::Never, Absent::Never),
    column("placeholder_tokens_idx", NIL, Join::Never, Absent::Never),
    column("placeholder_tokens_val", NIL, Join::Never, Absent::Never),
    column("token_steps", NIL, Join::Never, Absent::Never),
    // Either of all tokens so far, or replaced by each row with a value: a reader of single rows sees each value.
    column("output_hidden_states", ANY, Join::Never, Absent::Nil),
    column("routed_experts", ANY, Join::Never, Absent::Nil),
    column("indexer_topk", ANY, Join::Never, Absent::Nil),
    column("beam_search_output", ANY, Join::Never, Absent::Nil),
    // BatchEmbeddingOutput: one row is the whole request.
    column("embeddings", ANY, Join::Never, Absent::Never),
    column("pooled_hidden_states", ANY, Join::Never, Absent::Nil),
    // The scheduler's load (0.5.9 to 0.5.13).
    column("load", ANY, Join::Frame, Absent::Never),
];

/// The rules for the field `name`.
pub fn find(name: &str) -> Option<&'static Column> {
    COLUMNS.iter().find(|column| column.name == name)
}
