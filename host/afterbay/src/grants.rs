//! What plugins are granted, as their configuration says, and where the host gets it from.

use crate::rendezvous::Rendezvous;
use crate::vocabularies::Vocabularies;
use afterbay_config as config;
use afterbay_events::{Metrics, OWN_NAMES_MAX, OwnError, OwnMetrics};
use afterbay_runtime::{Digest, EncodeError, Grants, Limits, Meter, MeterError, Terms, Tokens};
use afterbay_text::{Encoder, MAX_TEXT_BYTES, TokenizerFiles, VocabularyError};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What a plugin is loaded on; `meter` is where its own figures go.
pub(crate) fn terms(plugin: &config::Plugin, meter: Arc<dyn Meter>, model: Option<Arc<Model>>) -> Terms {
    let config::Limits { memory_bytes, deadline, hold } = plugin.limits;
    let limits = Limits { memory_bytes, deadline, hold, ..Limits::default() };
    let has = |grant| plugin.grant.contains(&grant);
    let grants = Grants {
        log: has(config::Grant::Log),
        metrics: has(config::Grant::Metrics).then_some(meter),
        signals: has(config::Grant::Signals),
        request: has(config::Grant::Request),
        tokenizer: model.map(|model| model as Arc<dyn Tokens>),
    };
    Terms { limits, grants, digest: plugin.sha256.map(Digest) }
}

/// The tokenizer of a stream's model, where the plugin is granted it: that of the first sink that names one, else the
/// connector's. The error is for people.
pub(crate) fn model(
    stream: &config::Stream,
    plugin: &config::Plugin,
    met: Option<&Rendezvous>,
    vocabularies: &Vocabularies,
) -> Result<Option<Arc<Model>>, String> {
    if !plugin.grant.contains(&config::Grant::Tokenizer) {
        return Ok(None);
    }
    let named = stream.sinks.iter().find_map(|sink| sink.tokenizer.clone());
    let found = met.and_then(|met| met.tokenizer_path.as_ref().or(met.model_path.as_ref()));
    let path = named.or_else(|| found.map(PathBuf::from));
    let path = path.ok_or("is granted the tokenizer, and no sink of its stream names one: sink.tokenizer")?;
    vocabularies.model(&path).map(Some).map_err(|error| format!("tokenizer: {error}"))
}

/// A model's tokens for plugins. Its encoder takes some tenths of a second to make, so it is there before a stream asks.
pub(crate) struct Model {
    tokens: afterbay_text::Tokens,
    encoder: Result<Encoder, String>,
}

impl Model {
    pub(crate) fn load(path: &Path) -> Result<Model, VocabularyError> {
        let files = TokenizerFiles::read(path)?;
        // A plugin that encodes nothing does without.
        let encoder = files.encoder().map_err(|error| error.to_string());
        Ok(Model { tokens: files.tokens()?, encoder })
    }
}

impl Tokens for Model {
    fn size(&self) -> u32 {
        self.tokens.size()
    }

    fn bytes(&self, id: i64) -> &[u8] {
        self.tokens.bytes(id)
    }

    fn special(&self) -> &[i64] {
        self.tokens.special()
    }

    fn end_of_text(&self) -> &[i64] {
        self.tokens.eos()
    }

    fn encode(&self, text: &str) -> Result<Vec<i64>, EncodeError> {
        let encoder = self.encoder.as_ref().map_err(|why| EncodeError::Failed(why.clone()))?;
        encoder.encode(text).map_err(|error| match error {
            afterbay_text::EncodeError::TooLong { .. } => EncodeError::TooLong(MAX_TEXT_BYTES as u32),
            error => EncodeError::Failed(error.to_string()),
        })
    }
}

/// To `/metrics`.
pub(crate) fn meter(metrics: &Metrics, stream: &str, plugin: &str) -> Arc<dyn Meter> {
    Arc::new(Own(metrics.own(stream, plugin)))
}

struct Own(OwnMetrics);

fn refused(error: OwnError) -> MeterError {
    match error {
        OwnError::Full => MeterError::Full { limit: OWN_NAMES_MAX },
        OwnError::OtherKind => MeterError::OtherKind,
        OwnError::NotFinite { value } => MeterError::NotFinite { value },
    }
}

impl Meter for Own {
    fn add(&self, name: &str, delta: u64) -> Result<(), MeterError> {
        self.0.add(name, delta).map_err(refused)
    }

    fn set(&self, name: &str, value: f64) -> Result<(), MeterError> {
        self.0.set(name, value).map_err(refused)
    }

    fn observe(&self, name: &str, value: f64) -> Result<(), MeterError> {
        self.0.observe(name, value).map_err(refused)
    }
}
