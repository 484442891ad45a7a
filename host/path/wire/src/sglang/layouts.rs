//! The order of a message's fields. A msgpack batch has positions and no names, so its class and its length select a
//! layout. The layouts come from `layouts/*.json` (taken from SGLang's own classes) or from a file of the same form. A
//! pickled batch has its names with it. The meaning of the fields is in `columns`.

use std::sync::{Arc, LazyLock, OnceLock};

use afterbay_types::Engine;
use serde_json::Value as Json;
use thiserror::Error;

use crate::bounds::MAX_FIELDS;
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
}

impl KnownField {
    const NAMES: [&'static str; 13] = [
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

/// The engine whose frames are read, and the layouts for msgpack batches of columns. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Layouts {
    /// `None`: each frame shows its engine.
    engine: Option<Engine>,
    messages: Arc<[Arc<MessageLayout>]>,
}

/// The reason why layouts cannot be loaded.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LayoutError {
    /// Afterbay has no layout of this version.
    #[error("layout {version:?} is not known; known are {known}")]
    Version {
        /// The requested version.
        version: String,
        /// The known versions.
        known: String,
    },
    /// The file cannot be read.
    #[error("layout file {path:?} cannot be read: {error}")]
    File {
        /// The file's path.
        path: String,
        /// The reason.
        error: String,
    },
    /// The file is not JSON.
    #[error("layout {name:?} is not JSON: {error}")]
    Json {
        /// The file's name.
        name: String,
        /// The reason.
        error: String,
    },
    /// The JSON has none of the three messages, or a message that is not a list of at most 256 different names with
    /// rids first.
    #[error(
        "layout {name:?} should map BatchTokenIDOutput, BatchStrOutput or BatchEmbeddingOutput to \
         its field names, rids first, each once, at most {MAX_FIELDS}"
    )]
    Shape {
        /// The file's name.
        name: String,
    },
}

impl Layouts {
    /// Every version of SGLang that Afterbay knows. A batch's length selects one.
    pub fn builtin() -> Layouts {
        static ALL: LazyLock<Layouts> = LazyLock::new(|| {
            let mut all: Vec<MessageLayout> = Vec::new();
            // Unreadable layouts are skipped here; a test reads each of them.
            for layout in BUILTIN.iter().flat_map(|&(version, json)| read(version, json).unwrap_or_default())
            {
                match all.iter_mut().find(|old| old.kind == layout.kind && old.fields == layout.fields) {
                    Some(old) => {
                        let oldest = old.versions.split("..").next().unwrap_or_default();
                        old.versions = format!("{oldest}..{}", layout.versions);
                    }
                    None => all.push(layout),
                }
            }
            Layouts::new(all)
        });
        ALL.clone()
    }

    /// Every version of both engines, for frames of which nothing says the engine: a journal's, or a simulated scheduler's.
    pub fn any() -> Layouts {
        Layouts { engine: None, ..Layouts::builtin() }
    }

    /// The messages of an engine, in every version.
    pub fn of(engine: Engine) -> Layouts {
        Layouts { engine: Some(engine), ..Layouts::builtin() }
    }

    /// The SGLang versions whose layouts come with Afterbay, oldest first.
    pub fn versions() -> Vec<&'static str> {
        BUILTIN.iter().map(|(version, _)| *version).collect()
    }

    /// The layouts of one version, for example `0.5.21`.
    pub fn version(version: &str) -> Result<Layouts, LayoutError> {
        match BUILTIN.iter().find(|(known, _)| *known == version) {
            Some((_, json)) => Layouts::from_json(version, json),
            None => Err(LayoutError::Version {
                version: version.to_owned(),
                known: BUILTIN.iter().map(|(known, _)| *known).collect::<Vec<_>>().join(", "),
            }),
        }
    }

    /// The layouts of a file like `layouts/*.json`: a map from class to field names, in order.
    pub fn from_json(name: &str, json: &str) -> Result<Layouts, LayoutError> {
        Ok(Layouts::new(read(name, json)?))
    }

    /// Loads the layouts that the config key `layout` or an option names: `auto`, `vllm`, a version of SGLang, or the path
    /// of a file (with a `/` or ending in `.json`).
    pub fn load(source: &str) -> Result<Layouts, LayoutError> {
        match source {
            "auto" => Ok(Layouts::any()),
            "vllm" => Ok(Layouts::of(Engine::Vllm)),
            path if path.contains('/') || path.ends_with(".json") => {
                let json = std::fs::read_to_string(path)
                    .map_err(|error| LayoutError::File { path: path.to_owned(), error: error.to_string() })?;
                Layouts::from_json(path, &json)
            }
            version => Layouts::version(version),
        }
    }

    /// The layouts that a journal's text names: `auto`, `vllm`, a version of SGLang, or the content of a layout file. No text:
    /// every version of both engines.
    pub fn of_text(text: &str) -> Result<Layouts, LayoutError> {
        match text {
            "" | "auto" => Ok(Layouts::any()),
            "vllm" => Ok(Layouts::of(Engine::Vllm)),
            json if json.starts_with('{') => Layouts::from_json("journal", json),
            version => Layouts::version(version),
        }
    }

    fn new(layouts: Vec<MessageLayout>) -> Layouts {
        let layouts: Arc<[Arc<MessageLayout>]> = layouts.into_iter().map(Arc::new).collect();
        for tokens in layouts.iter().filter(|layout| layout.kind == BatchKind::TokenId) {
            let str =
                layouts.iter().find(|str| str.kind == BatchKind::Str && str.versions == tokens.versions);
            if let Some(textless) = str.and_then(|str| TextLayout::new(tokens, Arc::clone(str))) {
                _ = tokens.text_layout.set(textless);
            }
        }
        Layouts { engine: Some(super::ENGINE), messages: layouts }
    }

    pub(crate) fn engine(&self) -> Option<Engine> {
        self.engine
    }

    /// The BatchStrOutput of the version whose BatchTokenIDOutput has these fields, in any order.
    pub(crate) fn text_of(&self, fields: &[LayoutField]) -> Option<&Arc<MessageLayout>> {
        let same = |layout: &&Arc<MessageLayout>| {
            layout.kind == BatchKind::TokenId
                && layout.fields.len() == fields.len()
                && fields.iter().all(|field| layout.fields.contains(field))
        };
        self.messages.iter().find(same)?.text_layout.get().map(|textless| &textless.layout)
    }

    /// The layout of a batch with this number of fields.
    pub(crate) fn find(&self, kind: BatchKind, fields: u64) -> Option<&Arc<MessageLayout>> {
        self.messages.iter().find(|layout| layout.kind == kind && layout.fields.len() as u64 == fields)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &MessageLayout> {
        self.messages.iter().map(|layout| &**layout)
    }
}

fn read(name: &str, json: &str) -> Result<Vec<MessageLayout>, LayoutError> {
    let json: Json = serde_json::from_str(json)
        .map_err(|error| LayoutError::Json { name: name.to_owned(), error: error.to_string() })?;
    let shape = || LayoutError::Shape { name: name.to_owned() };
    let mut layouts = Vec::new();
    for kind in BatchKind::WITH_COLUMNS {
        let Some(fields) = json.get(kind.class()) else { continue };
        let fields = fields.as_array().filter(|fields| fields.len() <= MAX_FIELDS).ok_or_else(shape)?;
        let names: Vec<&str> = fields.iter().map(Json::as_str).collect::<Option<_>>().ok_or_else(shape)?;
        let twice = names.iter().enumerate().any(|(at, name)| names[..at].contains(name));
        if twice || names.first() != Some(&"rids") {
            return Err(shape());
        }
        layouts.push(MessageLayout::new(kind, name, names.into_iter()));
    }
    if layouts.is_empty() { Err(shape()) } else { Ok(layouts) }
}
