//! The kinds of batches and their encodings.

use std::fmt;

/// The messages that have rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BatchKind {
    /// `BatchTokenIDOutput`: from the scheduler to the detokenizer, or to the tokenizer if there is no detokenizer.
    TokenId,
    /// `BatchStrOutput`: from the detokenizer to the tokenizer.
    Str,
    /// `BatchEmbeddingOutput`: from the scheduler through the detokenizer to the tokenizer. It has no tokens.
    Embedding,
    /// vLLM's `EngineCoreOutputs`: from the engine to a front end. It has tokens and no text.
    EngineCore,
}

/// The encoding of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wire {
    /// msgpack, in the layout of these versions of SGLang, for example `0.5.21..0.5.23`.
    Msgpack {
        /// The first and the last version.
        versions: String,
    },
    /// A pickle.
    Pickle {
        /// The pickle protocol, 0 to 5. SGLang writes 4 up to 0.5.14 and 5 since 0.5.15.
        protocol: u8,
    },
    /// vLLM's msgpack, in the layout of these versions of vLLM, for example `0.29.0..0.30.0`.
    EngineCore {
        /// The first and the last version, or `unknown`.
        versions: &'static str,
    },
}

impl BatchKind {
    /// The kinds of SGLang.
    pub const SGLANG: [BatchKind; 3] = [BatchKind::TokenId, BatchKind::Str, BatchKind::Embedding];

    /// The name of the engine's class.
    pub fn class(self) -> &'static str {
        match self {
            BatchKind::TokenId => "BatchTokenIDOutput",
            BatchKind::Str => "BatchStrOutput",
            BatchKind::Embedding => "BatchEmbeddingOutput",
            BatchKind::EngineCore => "EngineCoreOutputs",
        }
    }

    /// The kind of SGLang's class. vLLM's messages do not name their class.
    pub fn of_class(class: &str) -> Option<BatchKind> {
        BatchKind::SGLANG.into_iter().find(|kind| kind.class() == class)
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
            Wire::Msgpack { versions } => write!(f, "msgpack of {versions}"),
            Wire::Pickle { protocol } => write!(f, "pickle of protocol {protocol}"),
            Wire::EngineCore { versions } => write!(f, "msgpack of vLLM {versions}"),
        }
    }
}
