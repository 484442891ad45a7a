//! The kinds of batches and their encodings.

use std::fmt;

use afterbay_types::Engine;

/// The messages that have rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BatchKind {
    /// `BatchTokenIDOutput`: from the scheduler to the detokenizer, or to the tokenizer if there is no detokenizer.
    TokenId,
    /// `BatchStrOutput`: from the detokenizer to the tokenizer.
    Str,
    /// `BatchEmbeddingOutput`: from the scheduler through the detokenizer to the tokenizer. It has no tokens.
    Embedding,
    /// `EngineCoreOutputs`: from the engine to a front end that makes the text itself. It has tokens and no text.
    Outputs,
}

/// The encoding of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wire {
    /// msgpack, in the layout of these versions of the engine, for example `0.5.21..0.5.23`.
    Msgpack {
        /// The engine.
        engine: Engine,
        /// The first and the last version, or `unknown`.
        versions: String,
    },
    /// A pickle.
    Pickle {
        /// The pickle protocol: 4 or 5.
        protocol: u8,
    },
}

/// The form of an abort, as the scheduler's last batch shows it. A scheduler's input socket has the encoding of its output socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AbortShape {
    /// A msgpack struct.
    Msgpack,
    /// A pickled msgspec struct.
    Struct,
    /// A pickled dataclass.
    Dataclass,
    /// Two parts: the kind of message, and a msgpack array of the names of requests. The scheduler sends no row for it.
    Names,
    /// The same two parts. The scheduler answers with a last row.
    AnsweredNames,
}

impl BatchKind {
    /// The kinds whose messages are structs of columns, which name their class.
    pub const WITH_COLUMNS: [BatchKind; 3] = [BatchKind::TokenId, BatchKind::Str, BatchKind::Embedding];

    /// The name of the engine's class.
    pub fn class(self) -> &'static str {
        match self {
            BatchKind::TokenId => "BatchTokenIDOutput",
            BatchKind::Str => "BatchStrOutput",
            BatchKind::Embedding => "BatchEmbeddingOutput",
            BatchKind::Outputs => "EngineCoreOutputs",
        }
    }

    /// The kind of a class that messages name.
    pub fn of_class(class: &str) -> Option<BatchKind> {
        BatchKind::WITH_COLUMNS.into_iter().find(|kind| kind.class() == class)
    }
}

impl fmt::Display for BatchKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.class())
    }
}

impl fmt::Display for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wire::Msgpack { engine, versions } => write!(f, "msgpack of {} {versions}", engine.name()),
            Wire::Pickle { protocol } => write!(f, "pickle of protocol {protocol}"),
        }
    }
}
