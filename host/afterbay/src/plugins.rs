//! The plugins of all streams, as an operator sees them: asked of the streams between two batches, over the admin address.
//!
//! Owns who is asked and how long is waited. What a plugin's place does is the stream's.

use afterbay_stream::Control;
use serde::Serialize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;

/// A stream that does not say by then what it was asked does not turn.
const ANSWER_MAX: Duration = Duration::from_secs(7);

/// The streams of a process that can be asked. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Plugins(Arc<Mutex<Vec<(String, Control)>>>);

/// What was changed.
#[derive(Debug, Serialize)]
pub(crate) struct Changed {
    plugin: String,
    /// Where.
    streams: Vec<String>,
}

/// Why nothing was changed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotChanged {
    #[error("there is no plugin {plugin:?}{}", of_stream(stream))]
    Unknown { plugin: String, stream: Option<String> },
    #[error("plugin {plugin:?}{} is not quarantined", of_stream(stream))]
    NotQuarantined { plugin: String, stream: Option<String> },
    #[error("plugin {plugin:?}{} is no shadow", of_stream(stream))]
    NotShadow { plugin: String, stream: Option<String> },
    #[error("stream {stream:?} does not answer in {} s", ANSWER_MAX.as_secs())]
    NoAnswer { stream: String },
}

fn of_stream(stream: &Option<String>) -> String {
    stream.as_ref().map_or_else(String::new, |stream| format!(" of stream {stream:?}"))
}

impl Plugins {
    /// A stream runs.
    pub(crate) fn add(&self, stream: &str, control: Control) {
        self.lock().push((stream.to_owned(), control));
    }

    /// Every stream has ended.
    pub(crate) fn clear(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(String, Control)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a plugin out of quarantine, in this stream or in every one that has a plugin of that name.
    pub(crate) async fn release(&self, plugin: &str, stream: Option<&str>) -> Result<Changed, NotChanged> {
        let changed = self.ask(plugin, stream, |control, reply| control.release(plugin, reply)).await?;
        let (plugin, stream) = (plugin.to_owned(), stream.map(str::to_owned));
        changed.ok_or(NotChanged::NotQuarantined { plugin, stream })
    }

    /// Makes a shadow live, in this stream or in every one that has a plugin of that name.
    pub(crate) async fn promote(&self, plugin: &str, stream: Option<&str>) -> Result<Changed, NotChanged> {
        let changed = self.ask(plugin, stream, |control, reply| control.promote(plugin, reply)).await?;
        let (plugin, stream) = (plugin.to_owned(), stream.map(str::to_owned));
        changed.ok_or(NotChanged::NotShadow { plugin, stream })
    }

    /// Asks each stream; `None`: those that have the plugin changed nothing.
    async fn ask(
        &self,
        plugin: &str,
        stream: Option<&str>,
        ask: impl Fn(&Control, Reply),
    ) -> Result<Option<Changed>, NotChanged> {
        let asked: Vec<(String, oneshot::Receiver<Option<bool>>)> = self
            .lock()
            .iter()
            .filter(|(name, _)| stream.is_none_or(|stream| stream == name))
            .map(|(name, control)| {
                let (reply, answer) = oneshot::channel();
                // Nobody waits any more where it fails.
                ask(control, Box::new(move |changed| _ = reply.send(changed)));
                (name.clone(), answer)
            })
            .collect();
        let (mut streams, mut is_known) = (Vec::new(), false);
        for (name, answer) in asked {
            match tokio::time::timeout(ANSWER_MAX, answer).await {
                Ok(Ok(Some(has_changed))) => {
                    is_known = true;
                    if has_changed {
                        streams.push(name);
                    }
                }
                // It has none of that name, or has ended.
                Ok(Ok(None) | Err(_)) => {}
                Err(_) => return Err(NotChanged::NoAnswer { stream: name }),
            }
        }
        let plugin = plugin.to_owned();
        match (streams.is_empty(), is_known) {
            (false, _) => Ok(Some(Changed { plugin, streams })),
            (true, true) => Ok(None),
            (true, false) => Err(NotChanged::Unknown { plugin, stream: stream.map(str::to_owned) }),
        }
    }
}

/// What a stream says: whether anything has changed; `None`: it has no such plugin.
type Reply = Box<dyn FnOnce(Option<bool>) + Send>;
