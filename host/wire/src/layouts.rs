//! Which field stands where. A msgpack batch has positions and no names, so its layout is known by its class and its
//! length, from `layouts/*.json` (what SGLang's own classes said) or from a file of the same shape; a pickled batch has
//! its names with it. What a field means is in `columns`.

use std::sync::{Arc, LazyLock, OnceLock};

use serde_json::Value as Json;
use thiserror::Error;

use crate::bounds::MAX_FIELDS;
use crate::columns::{self, Column};
use crate::kind::Kind;
use crate::textless::Textless;

/// The layouts that come with Afterbay, by SGLang's version, oldest first.
const BUILTIN: &[(&str, &str)] = &[
    ("0.5.15", include_str!("../layouts/0.5.15.json")),
    ("0.5.16", include_str!("../layouts/0.5.16.json")),
    ("0.5.17", include_str!("../layouts/0.5.17.json")),
    ("0.5.18", include_str!("../layouts/0.5.18.json")),
    ("0.5.19", include_str!("../layouts/0.5.19.json")),
    ("0.5.20", include_str!("../layouts/0.5.20.json")),
    ("0.5.21", include_str!("../layouts/0.5.21.json")),
    ("0.5.22", include_str!("../layouts/0.5.22.json")),
    ("0.5.23", include_str!("../layouts/0.5.23.json")),
];

/// A field of a batch.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Field {
    pub(crate) name: Box<str>,
    /// `None`: a field that Afterbay does not know.
    pub(crate) column: Option<&'static Column>,
}

/// A field that Afterbay reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
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
}

impl Known {
    const NAMES: [&'static str; 10] = [
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
    ];

    pub(crate) fn name(self) -> &'static str {
        Known::NAMES[self as usize]
    }
}

/// The fields of one message, in order.
#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) kind: Kind,
    /// The versions that have it, as `0.5.21..0.5.23`; of a pickle, nothing.
    pub(crate) versions: String,
    pub(crate) fields: Vec<Field>,
    known: [Option<usize>; Known::NAMES.len()],
    /// Of a BatchTokenIDOutput: the BatchStrOutput of the same version. Not set: it is not known.
    pub(crate) textless: OnceLock<Textless>,
}

impl Layout {
    pub(crate) fn new<'a>(kind: Kind, version: &str, names: impl Iterator<Item = &'a str>) -> Layout {
        let fields: Vec<_> =
            names.map(|name| Field { name: name.into(), column: columns::find(name) }).collect();
        let known = Known::NAMES.map(|name| fields.iter().position(|field| *field.name == *name));
        Layout { kind, versions: version.to_owned(), fields, known, textless: OnceLock::new() }
    }

    /// Where a field stands, from 0.
    pub(crate) fn position(&self, known: Known) -> Option<usize> {
        self.known[known as usize]
    }
}

/// The layouts by which msgpack batches are read. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Layouts(Arc<[Arc<Layout>]>);

/// Why layouts cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LayoutError {
    /// No layout of that version comes with Afterbay.
    #[error("layout {version:?} is not known; known are {known}")]
    Version {
        /// As asked for.
        version: String,
        /// The versions that are known.
        known: String,
    },
    /// The file cannot be read.
    #[error("layout file {path:?} cannot be read: {error}")]
    File {
        /// Its path.
        path: String,
        /// Why.
        error: String,
    },
    /// The file is no JSON.
    #[error("layout {name:?} is not JSON: {error}")]
    Json {
        /// Its name.
        name: String,
        /// Why.
        error: String,
    },
    /// The JSON has none of the three messages, or one that is no list of at most 256 different names with rids first.
    #[error(
        "layout {name:?} should map BatchTokenIDOutput, BatchStrOutput or BatchEmbeddingOutput to \
         its field names, rids first, each once, at most {MAX_FIELDS}"
    )]
    Shape {
        /// Its name.
        name: String,
    },
}

impl Layouts {
    /// Every version that Afterbay knows; a batch's length tells which.
    pub fn builtin() -> Layouts {
        static ALL: LazyLock<Layouts> = LazyLock::new(|| {
            let mut all: Vec<Layout> = Vec::new();
            // Unreadable ones are left out here; a test reads each.
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

    /// The versions of SGLang whose layouts come with Afterbay, oldest first.
    pub fn versions() -> Vec<&'static str> {
        BUILTIN.iter().map(|(version, _)| *version).collect()
    }

    /// Only that version, for example `0.5.21`.
    pub fn version(version: &str) -> Result<Layouts, LayoutError> {
        match BUILTIN.iter().find(|(known, _)| *known == version) {
            Some((_, json)) => Layouts::from_json(version, json),
            None => Err(LayoutError::Version {
                version: version.to_owned(),
                known: BUILTIN.iter().map(|(known, _)| *known).collect::<Vec<_>>().join(", "),
            }),
        }
    }

    /// Only what a file of the shape of `layouts/*.json` says: a map from class to the names of its fields, in order.
    pub fn from_json(name: &str, json: &str) -> Result<Layouts, LayoutError> {
        Ok(Layouts::new(read(name, json)?))
    }

    /// As the config's `layout` says: `auto`, a version, or the path of a file (anything with a `/` or ending in `.json`).
    pub fn load(source: &str) -> Result<Layouts, LayoutError> {
        match source {
            "auto" => Ok(Layouts::builtin()),
            path if path.contains('/') || path.ends_with(".json") => {
                let json = std::fs::read_to_string(path)
                    .map_err(|error| LayoutError::File { path: path.to_owned(), error: error.to_string() })?;
                Layouts::from_json(path, &json)
            }
            version => Layouts::version(version),
        }
    }

    fn new(layouts: Vec<Layout>) -> Layouts {
        let layouts: Arc<[Arc<Layout>]> = layouts.into_iter().map(Arc::new).collect();
        for tokens in layouts.iter().filter(|layout| layout.kind == Kind::TokenId) {
            let str = layouts.iter().find(|str| str.kind == Kind::Str && str.versions == tokens.versions);
            if let Some(textless) = str.and_then(|str| Textless::new(tokens, Arc::clone(str))) {
                _ = tokens.textless.set(textless);
            }
        }
        Layouts(layouts)
    }

    /// The BatchStrOutput of the version whose BatchTokenIDOutput has these fields, in any order.
    pub(crate) fn text_of(&self, fields: &[Field]) -> Option<&Arc<Layout>> {
        let same = |layout: &&Arc<Layout>| {
            layout.kind == Kind::TokenId
                && layout.fields.len() == fields.len()
                && fields.iter().all(|field| layout.fields.contains(field))
        };
        self.0.iter().find(same)?.textless.get().map(|textless| &textless.layout)
    }

    /// The layout of a batch of so many fields.
    pub(crate) fn find(&self, kind: Kind, fields: u64) -> Option<&Arc<Layout>> {
        self.0.iter().find(|layout| layout.kind == kind && layout.fields.len() as u64 == fields)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Layout> {
        self.0.iter().map(|layout| &**layout)
    }
}

fn read(name: &str, json: &str) -> Result<Vec<Layout>, LayoutError> {
    let json: Json = serde_json::from_str(json)
        .map_err(|error| LayoutError::Json { name: name.to_owned(), error: error.to_string() })?;
    let shape = || LayoutError::Shape { name: name.to_owned() };
    let mut layouts = Vec::new();
    for kind in Kind::ALL {
        let Some(fields) = json.get(kind.class()) else { continue };
        let fields = fields.as_array().filter(|fields| fields.len() <= MAX_FIELDS).ok_or_else(shape)?;
        let names: Vec<&str> = fields.iter().map(Json::as_str).collect::<Option<_>>().ok_or_else(shape)?;
        let twice = names.iter().enumerate().any(|(at, name)| names[..at].contains(name));
        if twice || names.first() != Some(&"rids") {
            return Err(shape());
        }
        layouts.push(Layout::new(kind, name, names.into_iter()));
    }
    if layouts.is_empty() { Err(shape()) } else { Ok(layouts) }
}
