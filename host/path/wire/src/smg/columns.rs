//! The fields of SMG's messages: their order, and the rules by which their cells are joined and edited. They are those of SMG's reader
//! (`BatchTokenIDSlimOutput` in its crate `engine_zmq_client`): it appends the lists and keeps the last counts.

use std::sync::{Arc, LazyLock};

use crate::introduction::{Introduction, IntroductionError};
use crate::kind::BatchKind;

/// The version of SMG's plugin whose fields come with Afterbay.
const VERSION: &str = "0.14.1";

/// The number of first fields that every version has.
const FIELDS_MIN: usize = 7;

/// How the cells of a request's rows become one cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Join {
    /// The first or the last row's cell.
    Last,
    /// The lists one after the other. Nil counts as empty.
    Concat,
    /// The field belongs to the frame. The last frame has it.
    Frame,
    /// Rows with a value are not joined.
    Never,
}

/// The entry for a token that the scheduler did not choose, in a list with one entry per token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Neutral {
    Zero,
    Id,
    Empty,
}

/// A field and its rules.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Column {
    pub(super) name: &'static str,
    pub(super) join: Join,
    /// The one byte that stands for no value.
    pub(super) absent: u8,
    pub(super) per_token: Option<Neutral>,
}

const NIL: u8 = 0xc0;
const EMPTY: u8 = 0x90;
const ZERO: u8 = 0x00;

const fn last(name: &'static str, absent: u8) -> Column {
    Column { name, join: Join::Last, absent, per_token: None }
}

const fn list(name: &'static str, absent: u8, per_token: Option<Neutral>) -> Column {
    Column { name, join: Join::Concat, absent, per_token }
}

const fn frame(name: &'static str) -> Column {
    Column { name, join: Join::Frame, absent: ZERO, per_token: None }
}

pub(super) const RIDS: &str = "rids";
pub(super) const OUTPUT_IDS: &str = "output_ids";
pub(super) const REASONS: &str = "finished_reasons";
pub(super) const MESSAGES: &str = "finished_messages";
pub(super) const MATCHED: &str = "finished_matched";
pub(super) const STATUS: &str = "finished_status";
pub(super) const ERR_TYPES: &str = "finished_err_types";
pub(super) const PROMPT_TOKENS: &str = "prompt_tokens";
pub(super) const COMPLETION_TOKENS: &str = "completion_tokens";
pub(super) const CACHED_TOKENS: &str = "cached_tokens";
pub(super) const LOGPROBS: &str = "output_token_logprobs_val";
pub(super) const TOP_LOGPROBS: &str = "output_top_logprobs_val";
pub(super) const TOP_IDS: &str = "output_top_logprobs_idx";
pub(super) const REASONING_TOKENS: &str = "reasoning_tokens";
pub(super) const ENGINE_INDEX: &str = "engine_index";

/// The fields of `BatchTokenIDSlimOutput`.
const TOKENS: &[Column] = &[
    last(RIDS, NIL),
    list(OUTPUT_IDS, EMPTY, None),
    last(REASONS, 0xa0),
    last(MESSAGES, NIL),
    last(MATCHED, NIL),
    last(PROMPT_TOKENS, ZERO),
    last(COMPLETION_TOKENS, ZERO),
    last(CACHED_TOKENS, ZERO),
    list(LOGPROBS, EMPTY, Some(Neutral::Zero)),
    list("output_token_logprobs_idx", EMPTY, Some(Neutral::Id)),
    frame(ENGINE_INDEX),
    frame("num_running"),
    frame("num_waiting"),
    frame("kv_used_tokens"),
    frame("kv_total_tokens"),
    last(STATUS, NIL),
    list(TOP_LOGPROBS, EMPTY, Some(Neutral::Empty)),
    list(TOP_IDS, EMPTY, Some(Neutral::Empty)),
    last(REASONING_TOKENS, ZERO),
    // The prompt's, in the row after the prefill.
    list("input_token_logprobs_val", EMPTY, None),
    list("input_token_logprobs_idx", EMPTY, None),
    list("input_top_logprobs_val", EMPTY, None),
    list("input_top_logprobs_idx", EMPTY, None),
    list("output_token_ids_logprobs_val", EMPTY, Some(Neutral::Empty)),
    list("output_token_ids_logprobs_idx", EMPTY, Some(Neutral::Empty)),
    last(ERR_TYPES, NIL),
    // The rows that an output adds.
    list("output_hidden_states", NIL, None),
];

/// The fields of `BatchEmbeddingSlimOutput`. One row is a whole request.
const EMBEDDINGS: &[Column] = &[
    last(RIDS, NIL),
    Column { name: "embeddings", join: Join::Never, absent: EMPTY, per_token: None },
    last(PROMPT_TOKENS, ZERO),
    last(CACHED_TOKENS, ZERO),
    last(REASONS, 0xa0),
    last(MESSAGES, NIL),
    last(STATUS, NIL),
    frame(ENGINE_INDEX),
    frame("num_running"),
    frame("num_waiting"),
    frame("kv_used_tokens"),
    frame("kv_total_tokens"),
];

/// A field that Afterbay does not know: it is carried, and rows with a value in it are not joined.
const UNKNOWN: Column = Column { name: "", join: Join::Never, absent: NIL, per_token: None };

/// The messages with rows.
const MESSAGES_WITH_ROWS: [(&str, BatchKind, &[Column]); 2] = [
    ("BatchTokenIDSlimOutput", BatchKind::TokenId, TOKENS),
    ("BatchEmbeddingSlimOutput", BatchKind::Embedding, EMBEDDINGS),
];

/// The fields of one message, in order.
#[derive(Debug)]
pub(crate) struct SlimLayout {
    pub(super) kind: BatchKind,
    pub(super) class: &'static str,
    pub(super) versions: String,
    pub(super) fields: Vec<(Box<str>, &'static Column)>,
}

impl SlimLayout {
    fn new<'n>(at: usize, version: &str, names: impl Iterator<Item = &'n str>) -> SlimLayout {
        let (class, kind, columns) = MESSAGES_WITH_ROWS[at];
        let find = |name: &str| columns.iter().find(|column| column.name == name).unwrap_or(&UNKNOWN);
        let fields = names.map(|name| (name.into(), find(name))).collect();
        SlimLayout { kind, class, versions: version.to_owned(), fields }
    }

    /// The position of a field.
    pub(super) fn position(&self, name: &str) -> Option<usize> {
        self.fields.iter().position(|(known, _)| **known == *name)
    }
}

/// The layouts of SMG's messages. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct SlimLayouts(Arc<[Arc<SlimLayout>]>);

impl SlimLayouts {
    /// The fields that come with Afterbay, and those of every earlier version, which has fewer of them.
    pub(crate) fn builtin() -> SlimLayouts {
        static ALL: LazyLock<SlimLayouts> = LazyLock::new(|| {
            let of = |(at, (_, _, columns)): (usize, (&str, BatchKind, &'static [Column]))| {
                let lengths = FIELDS_MIN..=columns.len();
                lengths.map(move |count| {
                    let names = columns[..count].iter().map(|column| column.name);
                    Arc::new(SlimLayout::new(at, &format!("..{VERSION}"), names))
                })
            };
            SlimLayouts(MESSAGES_WITH_ROWS.into_iter().enumerate().flat_map(of).collect())
        });
        ALL.clone()
    }

    /// The layouts that plugins introduced, the newest first.
    pub(crate) fn introduced<'i>(
        introductions: impl Iterator<Item = &'i Introduction>,
    ) -> Result<SlimLayouts, IntroductionError> {
        let mut layouts = Vec::new();
        for introduction in introductions {
            for (at, &(class, kind, _)) in MESSAGES_WITH_ROWS.iter().enumerate() {
                let Some(fields) = introduction.fields(class) else { continue };
                let version = introduction.version.as_deref().unwrap_or("unknown");
                let layout = SlimLayout::new(at, version, fields.map(|(name, _)| name));
                let needed = [RIDS, REASONS].into_iter();
                let mut needed = needed.chain((kind == BatchKind::TokenId).then_some(OUTPUT_IDS));
                if let Some(field) = needed.find(|name| layout.position(name).is_none()) {
                    return Err(IntroductionError::Needs { class, field });
                }
                layouts.push(Arc::new(layout));
            }
        }
        Ok(SlimLayouts(layouts.into()))
    }

    /// The layout of a message of this class with this number of fields.
    pub(super) fn of(&self, class: &str, fields: u64) -> Option<&Arc<SlimLayout>> {
        self.0.iter().find(|layout| layout.class == class && layout.fields.len() as u64 == fields)
    }

    pub(crate) fn unknown_fields(&self) -> Vec<String> {
        let fields = self.0.iter().flat_map(|layout| &layout.fields);
        let unknown = fields.filter(|(_, column)| **column == UNKNOWN);
        unknown.map(|(name, _)| name.to_string()).collect()
    }
}

/// Whether messages of the class have rows.
pub(super) fn has_rows(class: &str) -> bool {
    MESSAGES_WITH_ROWS.iter().any(|(known, ..)| *known == class)
}

/// The fields of the message of tokens, for synthetic frames.
pub(super) fn tokens() -> (&'static str, &'static [Column]) {
    (MESSAGES_WITH_ROWS[0].0, TOKENS)
}
