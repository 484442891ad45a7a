//! The new process's side of a hand-over: it takes the place of a running Afterbay with the same journal.
//!
//! Everything that takes long is done before it asks: the configuration is checked, plugins are compiled, tokenizers are read.
//! `hand_over.rs` is the running process's side.

use crate::attributes::HandedAttributes;
use crate::handed::{ATTRIBUTES_PART, AttributesPart, LOCK, SOCKET, STREAM_PART, versions};
use crate::{grants, rendezvous};
use afterbay_config::Config;
use afterbay_journal::reader::JournalReader;
use afterbay_plugin_loader::Tokenizers;
use afterbay_stream::StreamState;
use afterbay_supervision::fdstore::FdName;
use afterbay_supervision::hand_over::{Confirmation, NamedFds, Predecessor, StreamId, Taken};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::Path;

/// This process did not take over. The running one goes on, if there is one.
#[derive(Debug, thiserror::Error)]
#[error("take-over: {0}")]
pub struct NotTakenOver(String);

impl NotTakenOver {
    pub(crate) fn new(why: impl std::fmt::Display) -> NotTakenOver {
        NotTakenOver(why.to_string())
    }
}

/// The state and the descriptors of the running process, which stands still until [`TakeOver::confirm`].
pub(crate) struct TakeOver {
    pub(crate) from: String,
    pub(crate) from_pid: u32,
    /// The state of each stream that the process before ran, by name.
    pub(crate) states: BTreeMap<String, StreamState>,
    pub(crate) attributes: Vec<HandedAttributes>,
    /// The lock of the journal. `None` if its disk has no room for the directory.
    pub(crate) lock: Option<OwnedFd>,
    /// The socket of hand-overs.
    pub(crate) socket: Option<OwnedFd>,
    /// The sockets of streams and admin addresses.
    pub(crate) fds: Vec<(FdName, Vec<OwnedFd>)>,
    confirmation: Confirmation,
}

impl TakeOver {
    /// Asks the process that runs with the journal of this configuration, and receives its state.
    pub(crate) fn ask(config: &Config, descriptors: u64) -> Result<TakeOver, NotTakenOver> {
        let dir = &config.journal.dir;
        let found = Predecessor::connect(dir);
        let found =
            found.map_err(|error| NotTakenOver::new(format!("journal {}: {error}", dir.display())))?;
        let predecessor = found.ok_or_else(|| {
            NotTakenOver::new(format!(
                "no Afterbay that can hand over runs with the journal {}: start without --take-over",
                dir.display()
            ))
        })?;
        let streams = config
            .streams
            .iter()
            .map(|stream| StreamId { name: stream.name.to_string(), listen: stream.listen.to_string() });
        let taken =
            predecessor.ask(&versions(), descriptors, streams.collect()).map_err(NotTakenOver::new)?;
        TakeOver::read(taken, config)
    }

    fn read(taken: Taken, config: &Config) -> Result<TakeOver, NotTakenOver> {
        let Taken { parts, fds, afterbay: from, pid: from_pid, confirmation } = taken;
        let (lock, socket, attributes, states) = (None, None, Vec::new(), BTreeMap::new());
        let mut this =
            TakeOver { from, from_pid, states, attributes, lock, socket, fds: Vec::new(), confirmation };
        for part in parts {
            if let Err(error) = this.part(&part.name, part.state) {
                return Err(this.fail(format!("the state of {}: {error}", part.name)));
            }
        }
        for NamedFds { name, mut fds } in fds {
            match (name.as_str(), FdName::new(name.as_str())) {
                (LOCK, _) => this.lock = fds.pop(),
                (SOCKET, _) => this.socket = fds.pop(),
                (_, Ok(name)) => this.fds.push((name, fds)),
                (_, Err(error)) => return Err(this.fail(error)),
            }
        }
        let is_known = |name: &String| config.streams.iter().any(|stream| stream.name.as_str() == name);
        match this.states.keys().find(|name| !is_known(name)).cloned() {
            // The running process refuses earlier, so this is a fault of the protocol.
            Some(name) => Err(this.fail(format!("the configuration has no stream {name:?}"))),
            None => Ok(this),
        }
    }

    /// Reads one part. A part that this version does not know is ignored.
    fn part(&mut self, name: &str, state: serde_json::Value) -> serde_json::Result<()> {
        if name == ATTRIBUTES_PART {
            self.attributes.extend(serde_json::from_value::<AttributesPart>(state)?.entries);
        } else if let Some(stream) = name.strip_prefix(STREAM_PART) {
            self.states.insert(stream.to_owned(), serde_json::from_value(state)?);
        }
        Ok(())
    }

    /// Tells the running process why this one cannot take over.
    pub(crate) fn fail(self, why: impl std::fmt::Display) -> NotTakenOver {
        let why = why.to_string();
        self.confirmation.fail(&why);
        NotTakenOver(why)
    }

    /// Says that everything is built, and waits for the release. From then on, this process runs.
    pub(crate) fn confirm(self) -> Result<(), NotTakenOver> {
        self.confirmation.wait_until_released().map_err(NotTakenOver::new)
    }
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
