//! One instance of a plugin: the contract's calls on one side, the author's trait on the other. For
//! [`export!`](crate::export) and [`testing`](crate::testing); not for plugin authors.

#![allow(missing_docs, reason = "the functions of wit/transform.wit, where each is documented")]

use std::cell::RefCell;

use crate::abi::{Answer, Batch, Description, RequestVerdict, Verdict};
use crate::{ConfigureError, Opened, Plugin, RequestId, RequestVerdicts, StateError, Verdicts};

/// A plugin, from `configure` on.
pub struct Instance<P>(RefCell<Option<P>>);

impl<P: Plugin> Instance<P> {
    #[must_use]
    pub const fn new() -> Self {
        Self(RefCell::new(None))
    }

    pub fn configure(&self, settings: &str) -> Result<(), ConfigureError> {
        let mut json = serde_json::Deserializer::from_str(settings);
        let settings = serde_path_to_error::deserialize(&mut json).map_err(crate::error::from_serde)?;
        *self.0.borrow_mut() = Some(P::new(settings)?);
        Ok(())
    }

    pub fn open(&self, requests: &[Opened]) {
        self.with(|plugin| requests.iter().for_each(|request| plugin.opened(request)));
    }

    pub fn process(&self, batch: &Batch) -> Vec<Verdict> {
        let mut verdicts = Verdicts::new();
        self.with(|plugin| plugin.process(&crate::Batch::new(batch), &mut verdicts));
        verdicts.into_list()
    }

    pub fn close(&self, requests: &[RequestId]) {
        self.with(|plugin| requests.iter().for_each(|&request| plugin.closed(request)));
    }

    pub fn changed(&self, requests: &[RequestId]) {
        self.with(|plugin| requests.iter().for_each(|&request| plugin.changed(request)));
    }

    pub fn pressure(&self) {
        self.with(Plugin::pressure);
    }

    pub fn answered(&self, answers: &[Answer]) -> Vec<RequestVerdict> {
        let mut verdicts = RequestVerdicts::new();
        self.with(|plugin| plugin.answered(answers, &mut verdicts));
        verdicts.into_list()
    }

    pub fn due(&self, time_ms: u64, requests: &[RequestId]) -> Vec<RequestVerdict> {
        let mut verdicts = RequestVerdicts::new();
        self.with(|plugin| plugin.due(time_ms, requests, &mut verdicts));
        verdicts.into_list()
    }

    pub fn export_state(&self) -> Vec<u8> {
        self.with(Plugin::export_state).unwrap_or_default()
    }

    pub fn import_state(&self, version: &str, state: &[u8]) -> Result<(), StateError> {
        self.with(|plugin| plugin.import_state(version, state)).unwrap_or(Ok(()))
    }

    /// The host configures an instance first. Without that there is nothing to call.
    fn with<R>(&self, call: impl FnOnce(&mut P) -> R) -> Option<R> {
        self.0.borrow_mut().as_mut().map(call)
    }
}

impl<P: Plugin> Default for Instance<P> {
    fn default() -> Self {
        Self::new()
    }
}

/// The first call on an instance. It sets a panic hook that writes the panic's text to the host's log.
pub fn describe<P: Plugin>(name: &str, version: &str) -> Description {
    #[cfg(target_arch = "wasm32")]
    std::panic::set_hook(Box::new(crate::log::panicked));
    let schema = schemars::schema_for!(P::Settings);
    Description {
        name: name.replace('_', "-"),
        version: version.to_owned(),
        settings_schema: schema.as_value().to_string(),
        columns: P::COLUMNS,
        wants: P::WANTS,
        writes: P::WRITES,
    }
}
