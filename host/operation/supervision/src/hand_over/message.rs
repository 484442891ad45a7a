//! The messages, as the crate's documentation lists them.

use crate::hand_over::bounds::WHY_BYTES_MAX;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// The version of each format by its name, for example `journal`.
pub type Formats = BTreeMap<String, u32>;

/// A message of either side.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Message {
    Hello(Hello),
    Refused(Why),
    State(Head),
    Part(Part),
    Descriptors(Group),
    Ready(Nothing),
    Failed(Why),
    Released(Nothing),
    Running(Nothing),
}

/// The versions and the streams of the process that wants to take over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The version of Afterbay.
    pub afterbay: String,
    /// The version of each format that the process reads.
    pub formats: Formats,
    /// The process's limit of open files.
    pub descriptors: u64,
    /// The streams of the process's configuration.
    pub streams: Vec<StreamId>,
}

/// A stream of a configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamId {
    /// The name.
    pub name: String,
    /// The endpoint that the scheduler connects to, as the configuration writes it.
    pub listen: String,
}

/// A reason, for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Why {
    pub why: String,
}

/// The head of the state: the running process, and the numbers of the parts and descriptors that follow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Head {
    pub afterbay: String,
    pub pid: u32,
    pub parts: usize,
    pub descriptors: usize,
}

/// The state of one part of the process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// The name of the part.
    pub name: String,
    /// The state. Whoever wrote the part defines its form and its version.
    pub state: Value,
}

/// The names of the descriptors that a message carries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Group {
    pub entries: Vec<Entry>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub name: String,
    pub count: usize,
}

/// A message without fields.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Nothing {}

impl Message {
    /// The name on the wire.
    pub fn name(&self) -> &'static str {
        match self {
            Message::Hello(_) => "hello",
            Message::Refused(_) => "refused",
            Message::State(_) => "state",
            Message::Part(_) => "part",
            Message::Descriptors(_) => "descriptors",
            Message::Ready(_) => "ready",
            Message::Failed(_) => "failed",
            Message::Released(_) => "released",
            Message::Running(_) => "running",
        }
    }
}

impl Why {
    /// Cuts the reason to [`WHY_BYTES_MAX`].
    pub fn new(why: &str) -> Why {
        let end = (0..=WHY_BYTES_MAX.min(why.len())).rev().find(|&end| why.is_char_boundary(end));
        Why { why: why[..end.unwrap_or(0)].to_owned() }
    }
}
