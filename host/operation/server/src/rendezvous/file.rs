//! Reads a rendezvous file, in which an engine's connector describes the scheduler that it runs in.
//!
//! The READMEs of the connectors, which write the file, explain each field.

use afterbay_config::{self as config, Engine};
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// The format that this version reads.
const FORMAT: u32 = 1;

/// The contents of a rendezvous file. Unknown fields are ignored.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub(crate) struct RendezvousFile {
    format: u32,
    /// The word for the engine.
    engine: String,
    /// `tokens` (a scheduler's output) or `text` (a detokenizer's).
    leg: String,
    /// The process of the scheduler, or the one that started the detokenizers. Another pid means other sockets.
    pub(crate) pid: u32,
    pub(crate) written_unix_ns: u64,
    /// The engine's version, if the connector knows it.
    version: Option<String>,
    pub(crate) mode: String,
    pub(crate) ipc_format: String,
    /// The endpoint that the scheduler's PUSH connects to: Afterbay's `listen`.
    pub(crate) ingress: String,
    /// The reader's endpoint: Afterbay's `connect`.
    pub(crate) down: String,
    /// The kind of reader: `detokenizer`, `tokenizer` or `api_server`.
    pub(crate) down_kind: String,
    /// The directory of the tokenizer's files, or a name that is no path on this disk.
    pub(crate) tokenizer_path: Option<String>,
    pub(crate) model_path: Option<String>,
    /// The name of the model for clients, or a list of several.
    served_model_name: Option<serde_json::Value>,
    /// The reader's credit page, or the reason why it has none.
    pub(crate) credit: Option<PathBuf>,
    pub(crate) credit_none: Option<String>,
    /// The reason why no rows may be joined for the reader; none if nothing speaks against it.
    pub(crate) joins_none: Option<String>,
    /// The reason why a request's rows must stay single from its first tool call on; none if the reader reads joined ones right.
    pub(crate) single_calls: Option<String>,
    /// The tokenizer workers that Afterbay connects to. Empty if there is only one, or if Afterbay cannot connect to them.
    #[serde(default)]
    pub(crate) workers: Vec<Worker>,
    /// The endpoint where Afterbay binds a PUSH for aborts, or the reason why the scheduler takes none.
    pub(crate) abort: Option<String>,
    pub(crate) abort_none: Option<String>,
    /// The form of the scheduler's `AbortReq`.
    pub(crate) abort_req: Option<serde_json::Value>,
    /// The name of the engine's load file; empty if it has none.
    pub(crate) instance_id: Option<String>,
    /// In a scheduler's file: the endpoint that its detokenizer sends to, or the reason why that output does not pass Afterbay.
    pub(crate) text_ingress: Option<String>,
    pub(crate) text_none: Option<String>,
    pub(crate) dp_rank: Option<u32>,
    /// The content of the engine's introduction.
    pub(crate) introduction: Option<serde_json::Value>,
}

/// One of several tokenizer workers.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub(crate) struct Worker {
    /// The worker's endpoint, which rows name as their front end.
    pub(crate) ipc: String,
    /// The worker's credit page.
    pub(crate) credit: Option<PathBuf>,
}

/// The file that a scheduler of another node than the first writes in place of a rendezvous file, if it sends no output.
#[derive(Debug, Deserialize)]
pub(crate) struct SilentFile {
    pid: u32,
    /// The reason, in words.
    pub(crate) why: String,
}

impl SilentFile {
    /// Reads the file; `None` if there is none that can be read.
    pub(crate) fn read(path: &Path) -> Option<SilentFile> {
        serde_json::from_slice(&std::fs::read(path).ok()?).ok()
    }

    /// Whether the process that wrote the file runs.
    pub(crate) fn is_alive(&self) -> bool {
        is_alive(self.pid)
    }
}

/// A rendezvous file that exists and cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RendezvousError {
    #[error("rendezvous {path}: {error}")]
    Read { path: PathBuf, error: std::io::Error },
    #[error("rendezvous {path}: {error}")]
    Json { path: PathBuf, error: serde_json::Error },
    #[error("rendezvous {path}: format {found}, this version reads {FORMAT}")]
    Format { path: PathBuf, found: u32 },
    #[error(
        "rendezvous {path}: the scheduler sends messages of {found:?}, stream {stream:?} has engine = {engine:?}"
    )]
    Engine { path: PathBuf, found: String, stream: String, engine: &'static str },
}

impl RendezvousFile {
    /// Reads the file; `None` if it does not exist yet.
    pub(crate) fn read(path: &Path) -> Result<Option<RendezvousFile>, RendezvousError> {
        let text = match std::fs::read(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(RendezvousError::Read { path: path.to_owned(), error }),
        };
        let found: RendezvousFile = serde_json::from_slice(&text)
            .map_err(|error| RendezvousError::Json { path: path.to_owned(), error })?;
        if found.format != FORMAT {
            return Err(RendezvousError::Format { path: path.to_owned(), found: found.format });
        }
        Ok(Some(found))
    }

    /// Refuses the file of a scheduler whose messages are not those of the stream's engine.
    pub(crate) fn check(&self, path: &Path, stream: &config::Stream) -> Result<(), RendezvousError> {
        let engine = stream.engine.word();
        match self.engine == engine {
            true => Ok(()),
            false => Err(RendezvousError::Engine {
                path: path.to_owned(),
                found: self.engine.clone(),
                stream: stream.name.to_string(),
                engine,
            }),
        }
    }

    /// The model's name for clients, or its path.
    pub(crate) fn model(&self) -> Option<&str> {
        let served = self.served_model_name.as_ref();
        let served = served.and_then(|served| served.as_array().map_or(Some(served), |all| all.first()));
        served.and_then(serde_json::Value::as_str).or(self.model_path.as_deref())
    }

    /// The engine's name and version, for people.
    pub(crate) fn engine(&self) -> String {
        format!("{} {}", self.engine, self.version.as_deref().unwrap_or("of unknown version"))
    }

    /// A name of this life of the reader. Another one has other sockets, and has read nothing yet.
    pub(crate) fn reader_id(&self) -> String {
        // An engine without an id of its instance makes the name of a socket anew at every start.
        let instance = self.instance_id.as_deref().filter(|id| !id.is_empty()).unwrap_or(&self.down);
        format!("{instance}-{}", self.pid)
    }

    /// Whether both files name the same sockets of the same processes. Several detokenizers, and several schedulers
    /// of a front end, write the same file, so its time is ignored.
    pub(crate) fn is_same(&self, other: &RendezvousFile) -> bool {
        let is_shared = Engine::of_word(&self.engine).is_some_and(|it| it.traits().has_stream_per_front_end);
        let has_one_writer = self.leg != "text" && !is_shared;
        let written_unix_ns = if has_one_writer { self.written_unix_ns } else { other.written_unix_ns };
        RendezvousFile { written_unix_ns, ..self.clone() } == *other
    }

    /// Whether the process that wrote the file runs: a scheduler that ended leaves its file.
    pub(crate) fn is_alive(&self) -> bool {
        is_alive(self.pid)
    }
}

/// Whether a process exists and is no zombie.
pub fn is_alive(pid: u32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    // The line is `pid (name) state …`. A name may contain any character, so the last bracket ends it.
    stat.rsplit_once(')')
        .is_some_and(|(_, rest)| !matches!(rest.trim_start().chars().next(), Some('Z' | 'X')))
}
