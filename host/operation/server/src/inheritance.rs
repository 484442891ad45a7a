//! The descriptors that an earlier process left, for each stream of the configuration.

use crate::mutex::lock;
use afterbay_config::Config;
use afterbay_events::Events;
use afterbay_events::event::{DescriptorsLeftOver, DescriptorsNotKept, SupervisorFailed};
use afterbay_supervision::fdstore::{FdName, FdStore, Inherited, Notice, Supervisor};
use std::collections::BTreeMap;
use std::sync::Mutex;

/// Opens the store of descriptors: with the supervisor of the environment, or without one.
pub(crate) fn open_store(events: &Events) -> FdStore {
    let supervisor = Supervisor::from_env().unwrap_or_else(|error| {
        events.publish(SupervisorFailed { why: error.to_string() });
        None
    });
    let Some(supervisor) = supervisor else { return FdStore::new() };
    let events = events.clone();
    FdStore::with_supervisor(supervisor, move |notice| match notice {
        Notice::NotKept { name, reason } => {
            events.publish(DescriptorsNotKept { name: name.to_string(), why: reason });
        }
        Notice::LeftOver { name, why } => events.publish(DescriptorsLeftOver { name, why }),
    })
}

/// The descriptors of the environment. An error is an event: the streams then bind and connect anew.
pub(crate) fn of_environment(store: &FdStore, events: &Events) -> Inherited {
    Inherited::from_env(store).unwrap_or_else(|error| {
        events.publish(SupervisorFailed { why: format!("LISTEN_FDS: {error}") });
        Inherited::default()
    })
}

/// The descriptors of streams that have not started yet, by stream.
#[derive(Debug, Default)]
pub(crate) struct Inheritance {
    streams: Mutex<BTreeMap<String, Inherited>>,
    /// The descriptors that belong to no stream.
    process: Mutex<Inherited>,
}

impl Inheritance {
    /// Gives each stream of the configuration its descriptors. The rest is the process's.
    pub(crate) fn distribute(&self, config: &Config, mut inherited: Inherited) {
        let mut streams = lock(&self.streams);
        for stream in &config.streams {
            streams.insert(stream.name.to_string(), inherited.split(&FdName::of_stream(&stream.name)));
        }
        *lock(&self.process) = inherited;
    }

    /// Takes the descriptors that belong to no stream of the configuration. The drop closes those that nobody took, and reports
    /// each.
    pub(crate) fn take_process(&self) -> Inherited {
        std::mem::take(&mut *lock(&self.process))
    }

    /// Takes the descriptors of a stream that starts. Nothing at its second start.
    pub(crate) fn take(&self, stream: &str) -> Inherited {
        lock(&self.streams).remove(stream).unwrap_or_default()
    }
}
