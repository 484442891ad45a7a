//! The order of a message's fields. A msgpack batch has positions and no names: the engine's introduction has them, or else its
//! class, its length and the types of its columns select one of `layouts/*.json` (taken from SGLang's own classes). A pickled
//! batch has its names with it. The meaning of the fields is in `columns`.

use std::sync::{Arc, LazyLock, OnceLock};

use serde_json::Value as Json;

use crate::introduction::{Introduction, IntroductionError};
use crate::kind::BatchKind;
use crate::sglang::columns::{self, Column};

/// The layouts that come with Afterbay, by SGLang version, oldest first.
const BUILTIN: &[(&str, &str)] = &[
    ("0.5.15", include_str!("../../layouts/0.5.15.json")),
    ("0.5.16", include_str!("../../layouts/0.5.16.json")),
    ("0.5.17", include_str!("../../layouts/0.5.17.json")),
    ("0.5.18", include_str!("../../layouts/0.5.18.json")),
    ("0.5.19", include_str!("../../layouts/0.5.19.json")),
    ("0.5.20", include_str!("../../layouts/0.5.20.json")),
    ("0.5.21", include_str!("../../layouts/0.5.21.json")),
    ("0.5.22", include_str!("../../layouts/0.5.22.json")),
    ("0.5.23", include_str!("../../layouts/0.5.23.json")),
];

/// A field of a batch.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LayoutField {
    pub(crate) name: Box<str>,
    /// `None`: a field that Afterbay does not know.
    pub(crate) column: Option<&'static Column>,
}

/// A field that Afterbay reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KnownField {
    Rids,
    HttpWorkerIpcs,
    FinishedReasons,
    OutputIds,
    DecodeIds,
    ReadOffsets,
    CompletionTokens,
    PromptTokens,
    OutputStrs,
    NoStopTrim,
    CachedTokens,
    WeightVersions,
    OutputLogprobs,
    TopLogprobs,
    TopIds,
    ReasoningTokens,
    AcceptedDrafts,
}

impl KnownField {
    const NAMES: [&'static str; 17] = [
        "rids",
        "http_worker_ipcs",
        "finished_reasons",
        "output_ids",
        "decode_ids",
        "read_offsets",
        "completion_tokens",
        "prompt_tokens",
        "output_strs",
        "no_stop_trim",
        "cached_tokens",
        "weight_versions",
        "output_token_logprobs_val",
        "output_top_logprobs_val",
        "output_top_logprobs_idx",
        "reasoning_tokens",
        "spec_num_correct_drafts",
    ];

    pub(crate) fn name(self) -> &'static str {
        KnownField::NAMES[self as usize]
    }
}

/// The fields of one message, in order.
#[derive(Debug)]
pub(crate) struct MessageLayout {
    pub(crate) kind: BatchKind,
    /// The versions that have this layout, as `0.5.21..0.5.23`. Empty for a pickle.
    pub(crate) versions: String,
    pub(crate) fields: Vec<LayoutField>,
    known: [Option<usize>; KnownField::NAMES.len()],
    /// For a BatchTokenIDOutput: the BatchStrOutput of the same version, if it is known.
    pub(crate) text_layout: OnceLock<TextLayout>,
}

impl MessageLayout {
    pub(crate) fn new<'a>(
        kind: BatchKind,
        version: &str,
        names: impl Iterator<Item = &'a str>,
    ) -> MessageLayout {
        let fields: Vec<_> =
            names.map(|name| LayoutField { name: name.into(), column: columns::find(name) }).collect();
        let known = KnownField::NAMES.map(|name| fields.iter().position(|field| *field.name == *name));
        MessageLayout { kind, versions: version.to_owned(), fields, known, text_layout: OnceLock::new() }
    }

    /// A field that the message needs and that is missing.
    fn missing(&self) -> Option<&'static str> {
        let ids = [KnownField::OutputIds, KnownField::DecodeIds];
        let has_ids = self.kind == BatchKind::Embedding || ids.iter().any(|id| self.position(*id).is_some());
        let texts = (self.kind == BatchKind::Str).then_some(KnownField::OutputStrs);
        let needed = [KnownField::Rids, KnownField::FinishedReasons].into_iter().chain(texts);
        let missing = needed.into_iter().find(|known| self.position(*known).is_none());
        missing.or((!has_ids).then_some(KnownField::OutputIds)).map(KnownField::name)
    }

    /// The position of a field, from 0.
    pub(crate) fn position(&self, known: KnownField) -> Option<usize> {
        self.known[known as usize]
    }
}

/// The BatchStrOutput that belongs to a BatchTokenIDOutput.
#[derive(Debug)]
pub(crate) struct TextLayout {
    pub(crate) layout: Arc<MessageLayout>,
    /// The source of each field.
    pub(crate) from: Vec<ColumnSource>,
}

/// The source of a column of the BatchStrOutput, with the position of a source column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ColumnSource {
    /// The column, unchanged.
    Column(usize),
    /// The column of tensors, as base64.
    Base64(usize),
    /// A column that the detokenizer treats in an unknown way. Only nil or empty ones can be written.
    Unknown(usize),
    /// The ids, in any case: the reader has no other source of ids.
    Ids(usize),
    /// Nil: the detokenizer never forwards the column.
    Nil,
    /// An empty text per row.
    NoText,
}

impl TextLayout {
    /// `None`: the BatchStrOutput has a field that the BatchTokenIDOutput lacks.
    pub(crate) fn new(tokens: &MessageLayout, layout: Arc<MessageLayout>) -> Option<TextLayout> {
        let from =
            layout.fields.iter().map(|field| ColumnSource::new(tokens, field)).collect::<Option<_>>()?;
        Some(TextLayout { layout, from })
    }
}

impl ColumnSource {
    fn new(tokens: &MessageLayout, field: &LayoutField) -> Option<ColumnSource> {
        let at = tokens.fields.iter().position(|it| it.name == field.name);
        match &*field.name {
            "output_strs" => Some(ColumnSource::NoText),
            "placeholder_tokens_idx" | "placeholder_tokens_val" => Some(ColumnSource::Nil),
            "output_ids" => at.map(ColumnSource::Ids),
            "routed_experts" | "indexer_topk" => at.map(ColumnSource::Base64),
            _ if field.column.is_none() => at.map(ColumnSource::Unknown),
            _ => at.map(ColumnSource::Column),
        }
    }
}

/// The layouts of msgpack messages. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Messages {
    layouts: Arc<[Arc<MessageLayout>]>,
    /// Whether they are those of one engine that introduced itself, so that no other can be meant.
    is_one: bool,
}

impl Messages {
    /// Every version that Afterbay knows.
    pub(crate) fn builtin() -> Messages {
        static ALL: LazyLock<Messages> = LazyLock::new(|| {
            let mut all: Vec<MessageLayout> = Vec::new();
            // Unreadable layouts are skipped here; a test reads each of them.
            for layout in BUILTIN.iter().flat_map(|&(version, json)| read(version, json)) {
                match all.iter_mut().find(|old| old.kind == layout.kind && old.fields == layout.fields) {
                    Some(old) => {
                        let oldest = old.versions.split("..").next().unwrap_or_default();
                        old.versions = format!("{oldest}..{}", layout.versions);
                    }
                    None => all.push(layout),
                }
            }
            Messages::new(all, false)
        });
        ALL.clone()
    }

    /// One version that Afterbay knows.
    pub(crate) fn version(version: &str) -> Messages {
        let json = BUILTIN.iter().find(|(known, _)| *known == version).map_or("{}", |(_, json)| json);
        Messages::new(read(version, json), true)
    }

    /// The layouts of engines that introduced themselves, the newest first.
    pub(crate) fn introduced<'i>(
        introductions: impl Iterator<Item = &'i Introduction> + Clone,
    ) -> Result<Messages, IntroductionError> {
        let mut layouts = Vec::new();
        for introduction in introductions.clone() {
            for kind in BatchKind::WITH_COLUMNS {
                let Some(fields) = introduction.fields(kind.class()) else { continue };
                let version = introduction.version.as_deref().unwrap_or("unknown");
                let layout = MessageLayout::new(kind, version, fields.map(|(name, _)| name));
                if let Some(field) = layout.missing() {
                    return Err(IntroductionError::Needs { class: kind.class(), field });
                }
                layouts.push(layout);
            }
        }
        Ok(Messages::new(layouts, introductions.count() == 1))
    }

    fn new(layouts: Vec<MessageLayout>, is_one: bool) -> Messages {
        let layouts: Arc<[Arc<MessageLayout>]> = layouts.into_iter().map(Arc::new).collect();
        for tokens in layouts.iter().filter(|layout| layout.kind == BatchKind::TokenId) {
            let str =
                layouts.iter().find(|str| str.kind == BatchKind::Str && str.versions == tokens.versions);
            if let Some(textless) = str.and_then(|str| TextLayout::new(tokens, Arc::clone(str))) {
                _ = tokens.text_layout.set(textless);
            }
        }
        Messages { layouts, is_one }
    }

    /// Whether a frame with the right number of fields needs no further look.
    pub(crate) fn is_one(&self) -> bool {
        self.is_one
    }

    /// The BatchStrOutput of the version whose BatchTokenIDOutput has these fields, in any order.
    pub(crate) fn text_of(&self, fields: &[LayoutField]) -> Option<&Arc<MessageLayout>> {
        let same = |layout: &&Arc<MessageLayout>| {
            layout.kind == BatchKind::TokenId
                && layout.fields.len() == fields.len()
                && fields.iter().all(|field| layout.fields.contains(field))
        };
        self.layouts.iter().find(same)?.text_layout.get().map(|textless| &textless.layout)
    }

    /// The layouts of batches with this number of fields.
    pub(crate) fn of(&self, kind: BatchKind, fields: u64) -> impl Iterator<Item = &Arc<MessageLayout>> {
        let is =
            move |layout: &&Arc<MessageLayout>| layout.kind == kind && layout.fields.len() as u64 == fields;
        self.layouts.iter().filter(is)
    }

    pub(crate) fn fields(&self, kind: BatchKind) -> &[LayoutField] {
        self.layouts.iter().find(|layout| layout.kind == kind).map_or(&[], |layout| &layout.fields)
    }

    pub(crate) fn unknown_fields(&self) -> Vec<String> {
        let fields = self.layouts.iter().flat_map(|layout| &layout.fields);
        let mut unknown: Vec<_> =
            fields.filter(|field| field.column.is_none()).map(|field| field.name.to_string()).collect();
        unknown.sort();
        unknown.dedup();
        unknown
    }
}

/// Reads a file of layouts: a map from class to field names, in order.
fn read(version: &str, json: &str) -> Vec<MessageLayout> {
    let json: Json = serde_json::from_str(json).unwrap_or_default();
    let layout = |kind: BatchKind| {
        let names = json.get(kind.class())?.as_array()?.iter().filter_map(Json::as_str);
        Some(MessageLayout::new(kind, version, names))
    };
    BatchKind::WITH_COLUMNS.into_iter().filter_map(layout).collect()
}
