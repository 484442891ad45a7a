//! The introduction: the first message of a scheduler's output, in which the connector says what sends it and how its frames are
//! made. It is JSON, and no frame of an engine begins like it. `docs/src/engines/introduction.md` has its form.

use std::collections::BTreeMap;
use std::fmt;

use afterbay_types::Engine;
use serde::Deserialize;
use serde_json::Value as Json;
use thiserror::Error;

use crate::bounds::{MAX_CLASSES, MAX_FIELDS, MAX_INTRODUCTION_BYTES};

/// The beginning of every introduction.
const HEAD: &[u8] = br#"{"afterbay":"introduction""#;

/// The form that this version reads.
const FORMAT: u32 = 1;

/// A connector's description of an engine.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct Introduction {
    format: u32,
    engine: String,
    /// The engine's version, if it is known.
    pub version: Option<String>,
    /// The fields of each class that is sent, in order: a name, and perhaps its default.
    classes: BTreeMap<String, Vec<Vec<Json>>>,
    /// The name or the path of the model.
    pub model: Option<String>,
    /// The name or the path of the tokenizer.
    pub tokenizer: Option<String>,
    /// The parser of tool calls, if the engine knows it.
    pub tool_call_parser: Option<String>,
    /// The parser of reasoning, if the engine knows it.
    pub reasoning_parser: Option<String>,
    /// The rank of the scheduler among those with the same model.
    pub rank: Option<u64>,
    /// The number of front ends that read the engine's output.
    pub front_ends: Option<u64>,
}

/// The reason why a message is no introduction that can be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum IntroductionError {
    /// It is too long.
    #[error("introduction of {bytes} bytes is over the limit of {MAX_INTRODUCTION_BYTES}")]
    TooLong {
        /// The length.
        bytes: usize,
    },
    /// It is not JSON of the right form.
    #[error("introduction cannot be read: {0}")]
    Json(String),
    /// Another form.
    #[error("introduction has format {0}, this version reads {FORMAT}")]
    Format(u32),
    /// An engine that Afterbay does not know.
    #[error("introduction of an engine {0:?} that is not known")]
    Engine(String),
    /// A class has too many fields, a field twice, or one without a name.
    #[error("introduction's class {0:?} should have different names of fields, at most {MAX_FIELDS}")]
    Fields(String),
    /// A field that Afterbay needs is missing.
    #[error("introduction's class {class:?} has no field {field:?}")]
    Needs {
        /// The class.
        class: &'static str,
        /// The field.
        field: &'static str,
    },
}

/// Whether the frame is an introduction.
pub(crate) fn is_introduction(frame: &[u8]) -> bool {
    frame.starts_with(HEAD)
}

impl Introduction {
    /// Reads an introduction.
    pub fn read(frame: &[u8]) -> Result<Introduction, IntroductionError> {
        if frame.len() > MAX_INTRODUCTION_BYTES {
            return Err(IntroductionError::TooLong { bytes: frame.len() });
        }
        let read: Introduction =
            serde_json::from_slice(frame).map_err(|error| IntroductionError::Json(error.to_string()))?;
        if read.format != FORMAT {
            return Err(IntroductionError::Format(read.format));
        }
        read.engine()?;
        let wrong = |(name, fields): &(&String, &Vec<Vec<Json>>)| {
            let names: Option<Vec<&str>> = fields.iter().map(|field| field.first()?.as_str()).collect();
            let is_twice = |names: &[&str]| (0..names.len()).any(|at| names[..at].contains(&names[at]));
            names.is_none_or(|names| names.len() > MAX_FIELDS || is_twice(&names)) || name.is_empty()
        };
        match read.classes.iter().find(wrong) {
            Some((name, _)) => Err(IntroductionError::Fields(name.clone())),
            None if read.classes.len() > MAX_CLASSES => Err(IntroductionError::Fields(String::new())),
            None => Ok(read),
        }
    }

    /// The engine.
    pub fn engine(&self) -> Result<Engine, IntroductionError> {
        Engine::of_word(&self.engine).ok_or_else(|| IntroductionError::Engine(self.engine.clone()))
    }

    /// The engine and its version, for people.
    pub fn name(&self) -> String {
        let engine = self.engine().map_or_else(|_| self.engine.clone(), |engine| engine.name().to_owned());
        format!("{engine} {}", self.version.as_deref().unwrap_or("of unknown version"))
    }

    /// The names of a class's fields, in order, and the default of each that has one.
    pub(crate) fn fields(&self, class: &str) -> Option<impl Iterator<Item = (&str, Option<&Json>)>> {
        let fields = self.classes.get(class)?.iter();
        Some(fields.map(|field| (field.first().and_then(Json::as_str).unwrap_or_default(), field.get(1))))
    }
}

impl fmt::Display for Introduction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "introduction of {} {}",
            self.engine,
            self.version.as_deref().unwrap_or("of unknown version")
        )
    }
}
