//! The rendezvous file: what the SGLang connector found out about the scheduler it runs in.
//!
//! Owns its reading. Its writer is `host/sglang`, whose README says each field.

use serde::Deserialize;
use std::path::{Path, PathBuf};

/// The format this program reads.
const FORMAT: u32 = 1;

/// What the connector wrote. Fields this version has no use for are passed over.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub(crate) struct Rendezvous {
    format: u32,
    /// `tokens`, a scheduler's output, or `text`, a detokenizer's; none before that was told.
    leg: Option<String>,
    /// The scheduler's process, or the one that started the detokenizers: another one means other sockets.
    pub(crate) pid: u32,
    pub(crate) written_unix_ns: u64,
    /// SGLang's version, where it is known.
    pub(crate) sglang: Option<String>,
    pub(crate) mode: String,
    pub(crate) ipc_format: String,
    /// Where the scheduler connects its PUSH: Afterbay's `listen`.
    pub(crate) ingress: String,
    /// Where the reader is: Afterbay's `connect`.
    pub(crate) down: String,
    /// Whose that is: `detokenizer` or `tokenizer`.
    pub(crate) down_kind: String,
    /// Where the tokenizer's files are, or a name that is none on this disk.
    pub(crate) tokenizer_path: Option<String>,
    pub(crate) model_path: Option<String>,
    /// The page where the reader counts, and why there is none.
    pub(crate) credit: Option<PathBuf>,
    pub(crate) credit_none: Option<String>,
    /// The tokenizers behind that reader to which Afterbay connects itself; none where there is one, or where they cannot
    /// be met.
    #[serde(default)]
    pub(crate) workers: Vec<Worker>,
    /// Where the scheduler takes aborts: Afterbay binds PUSH there. And why it takes none.
    pub(crate) abort: Option<String>,
    pub(crate) abort_none: Option<String>,
    /// What its `AbortReq` is.
    pub(crate) abort_req: Option<serde_json::Value>,
    /// Names SGLang's load file; empty before 0.5.13.
    pub(crate) instance_id: Option<String>,
    /// Of a scheduler's: where its detokenizer sends, where that is re-routed too; else why it is not.
    pub(crate) text_ingress: Option<String>,
    pub(crate) text_none: Option<String>,
    pub(crate) dp_rank: Option<u32>,
    /// The msgpack layout of the installed version; none before 0.5.15.
    pub(crate) layout: Option<serde_json::Value>,
}

/// One of several tokenizers.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub(crate) struct Worker {
    /// Where it reads, and how rows name it: their `http_worker_ipc`.
    pub(crate) ipc: String,
    /// The page where it counts.
    pub(crate) credit: Option<PathBuf>,
}

/// Why a rendezvous file could not be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RendezvousError {
    #[error("rendezvous {path}: {error}")]
    Read { path: PathBuf, error: std::io::Error },
    #[error("rendezvous {path}: {error}")]
    Json { path: PathBuf, error: serde_json::Error },
    #[error("rendezvous {path}: format {found}, this version reads {FORMAT}")]
    Format { path: PathBuf, found: u32 },
}

impl Rendezvous {
    /// Reads the file. `None`: it is not there yet.
    pub(crate) fn read(path: &Path) -> Result<Option<Rendezvous>, RendezvousError> {
        let text = match std::fs::read(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(RendezvousError::Read { path: path.to_owned(), error }),
        };
        let found: Rendezvous = serde_json::from_slice(&text)
            .map_err(|error| RendezvousError::Json { path: path.to_owned(), error })?;
        if found.format != FORMAT {
            return Err(RendezvousError::Format { path: path.to_owned(), found: found.format });
        }
        Ok(Some(found))
    }

    /// Whether it names the same sockets of the same processes. Several detokenizers write the same: when does not matter.
    pub(crate) fn is_same(&self, other: &Rendezvous) -> bool {
        let is_text = self.leg.as_deref() == Some("text");
        let written_unix_ns = if is_text { other.written_unix_ns } else { self.written_unix_ns };
        Rendezvous { written_unix_ns, ..self.clone() } == *other
    }

    /// Whether the process that wrote it is alive: a file may be left of a scheduler that is gone.
    pub(crate) fn is_alive(&self) -> bool {
        is_alive(self.pid)
    }
}

/// A process that is there and not a zombie.
pub(crate) fn is_alive(pid: u32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    // `pid (name) state …`; a name may have any character, so the last bracket counts.
    stat.rsplit_once(')')
        .is_some_and(|(_, rest)| !matches!(rest.trim_start().chars().next(), Some('Z' | 'X')))
}
