//! The new process's side of a hand-over: it takes the place of the Afterbay that started it.
//!
//! Everything that takes long is done before it asks: the configuration is checked, plugins are compiled, tokenizers are read.
//! `hand_over.rs` is the running process's side.

use crate::attributes::HandedEntry;
use crate::{grants, rendezvous};
use afterbay_config::Config;
use afterbay_journal::reader::JournalReader;
use afterbay_plugin_loader::Tokenizers;
use afterbay_stream::StreamState;
use afterbay_supervision::hand_over::{Predecessor, Taken};
use anyhow::Context;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The version of the state in a hand-over.
const STATE_VERSION: u32 = 2;

/// The version of each format that this binary reads and writes, in words: the journal, the store of plugins, and the state in a
/// hand-over. A process takes over only from one with the same formats.
pub fn formats() -> String {
    let (journal, store) =
        (afterbay_journal::FORMAT_VERSION, afterbay_plugin_services::store::FORMAT_VERSION);
    format!("journal {journal}, store {store}, hand-over {STATE_VERSION}")
}

/// The state that a crash would lose.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct HandedState {
    /// The version of the process before.
    pub(crate) from: String,
    pub(crate) streams: Vec<StreamState>,
    pub(crate) attributes: Vec<HandedEntry>,
    /// The figures of the last hour and day, in a form of their own.
    pub(crate) history: String,
}

/// The state and the descriptors of the running process, which stands still until [`TakeOver::confirm`].
pub(crate) struct TakeOver {
    pub(crate) taken: Taken,
    /// The state, without the parts that were taken out of it.
    pub(crate) state: HandedState,
    predecessor: Predecessor,
}

impl TakeOver {
    /// Asks the process that started this one, and receives its descriptors and its state.
    pub(crate) fn ask(config: &Config) -> anyhow::Result<TakeOver> {
        let predecessor = Predecessor::from_stdin()?;
        let mut taken = predecessor.ask(env!("CARGO_PKG_VERSION"), &formats()).context("take-over")?;
        let state = serde_json::from_slice(&std::mem::take(&mut taken.state));
        let why = match state {
            Ok(state) => match missing(&state, config) {
                None => return Ok(TakeOver { taken, state, predecessor }),
                Some(why) => why,
            },
            Err(error) => format!("the state of the running process: {error}"),
        };
        predecessor.fail(&why);
        anyhow::bail!("take-over: {why}")
    }

    /// Takes the state of a stream.
    pub(crate) fn stream(&mut self, name: &str) -> Option<StreamState> {
        let index = self.state.streams.iter().position(|state| state.stream == name)?;
        Some(self.state.streams.swap_remove(index))
    }

    /// Tells the running process why this one cannot take over. Returns the reason.
    pub(crate) fn fail(self, why: anyhow::Error) -> anyhow::Error {
        self.predecessor.fail(&format!("{why:#}"));
        why.context("take-over")
    }

    /// Says that everything is built, and waits for the release. From then on, this process runs.
    pub(crate) fn confirm(self) -> anyhow::Result<()> {
        self.predecessor.wait_until_released().context("take-over")
    }
}

/// The reason why this configuration cannot continue the streams of the process before.
fn missing(state: &HandedState, config: &Config) -> Option<String> {
    let is_configured =
        |state: &&StreamState| config.streams.iter().any(|it| it.name.as_str() == state.stream);
    let missing = state.streams.iter().find(|state| !is_configured(state))?;
    Some(format!(
        "its configuration has no stream {:?}, whose connections would be closed: remove the stream by a reload first",
        missing.stream
    ))
}

/// Reads files that the streams need, so that they are in memory while the streams of the running process stand still: the
/// journal's index, and the tokenizers that rendezvous files name. An error shows itself when the streams are built.
pub(crate) fn warm(config: &Config, rendezvous: Option<&Path>, tokenizers: &Tokenizers) {
    if let Ok(journal) = JournalReader::open(&config.journal.dir) {
        for stream in &config.streams {
            let _read = journal.stream(stream.name.as_str());
        }
    }
    let Ok(Some(sockets)) = rendezvous::find(config, rendezvous) else { return };
    for (stream, sockets) in config.streams.iter().zip(&sockets) {
        if let Some(path) = sockets.file().and_then(|file| file.tokenizer_path.as_ref()) {
            let _read = tokenizers.vocabulary(Path::new(path));
        }
        for plugin in &stream.plugins {
            let _read = grants::model(stream, plugin, sockets.file(), tokenizers);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use afterbay_config::Stream;

    #[test]
    fn a_configuration_without_a_running_stream_cannot_take_over() {
        let endpoint = |name: &str| format!("ipc:///run/{name}").parse().unwrap();
        let stream = Stream::new("a".parse().unwrap(), endpoint("in"), endpoint("out"));
        let config = Config::new(stream, "/var/lib/afterbay");
        let state = |stream: &str| {
            let json = format!(
                r#"{{"from":"0.1.0","attributes":[],"history":"","streams":[{{"stream":"{stream}","plugins":{{"plugins":[]}},"holds":[]}}]}}"#
            );
            serde_json::from_str::<HandedState>(&json).unwrap()
        };
        assert_eq!(missing(&state("a"), &config), None);
        assert!(missing(&state("b"), &config).unwrap().starts_with("its configuration has no stream \"b\""));
    }
}
