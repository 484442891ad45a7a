//! One instance of a plugin, for one stream: the calls of its life, each within its limits, each answer checked.

use std::sync::Arc;
use std::time::{Duration, Instant};

use wasmtime::{Store, Trap};

use crate::batch::{ColumnSet, Columns, Opened, RequestId, Verdict, check_verdicts};
use crate::bindings::afterbay::plugin::{signals, types};
use crate::bindings::exports::afterbay::plugin::plugin::{self, BadSetting, ConfigureError, StateError};
use crate::bindings::{Transform, TransformPre};
use crate::component::Component;
use crate::deadline::Stop;
use crate::fault::{Call, Fault, FaultKind};
use crate::grants::Grants;
use crate::guest::Guest;
use crate::host::Host;
use crate::limits::{Limits, OPEN_REQUESTS_MAX, SETTINGS_BYTES_MAX, STATE_BYTES_MAX};
use crate::log::LogLine;

/// Why there is no instance. Each message names the plugin.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The settings are no JSON, or too long.
    #[error("plugin \"{name}\": settings {message}")]
    BadSettings {
        /// The operator's name of the plugin.
        name: String,
        /// What is wrong.
        message: String,
    },
    /// The plugin does not want them.
    #[error("plugin \"{name}\": refuses its settings: {}{message}", place(pointer))]
    Refused {
        /// The operator's name of the plugin.
        name: String,
        /// Where the setting stands that is wrong, as a JSON pointer; empty: not said.
        pointer: String,
        /// In the plugin's words.
        message: String,
    },
    /// What it needs with these settings is not there.
    #[error("plugin \"{name}\": cannot start: {what}")]
    Missing {
        /// The operator's name of the plugin.
        name: String,
        /// In the plugin's words.
        what: String,
    },
    /// It faulted over `describe` or `configure`, or there was no room for it.
    #[error(transparent)]
    Fault(#[from] Fault),
}

fn place(pointer: &str) -> String {
    match pointer {
        "" => String::new(),
        pointer => format!("{pointer}: "),
    }
}

/// An instance, configured. Called from its stream's thread only.
///
/// After a fault it is dead, and every call says so.
pub struct Plugin {
    component: Component,
    live: Option<Live>,
    /// What a dead instance had logged.
    last_lines: Vec<LogLine>,
    is_off_path: bool,
}

impl Plugin {
    pub(crate) fn start(component: &Component, settings: &str) -> Result<Self, StartError> {
        let inner = &component.inner;
        check_settings(settings)
            .map_err(|message| StartError::BadSettings { name: inner.name.clone(), message })?;
        let mut live = Live::new(&inner.host, &inner.name, &inner.pre, &inner.limits, &inner.grants)?;
        let limit = inner.limits.start_deadline;
        let fault = |call, kind| Fault { plugin: inner.name.clone(), call, kind };
        // The answer is known: with no clock and no chance, every instance says the same.
        live.call(&inner.host, limit, |guest, store| guest.call_describe(store))
            .map_err(|kind| fault(Call::Describe, kind))?;
        live.call(&inner.host, limit, |guest, store| guest.call_configure(store, settings))
            .map_err(|kind| fault(Call::Configure, kind))?
            .map_err(|error| refusal(inner.name.clone(), error))?;
        Ok(Self {
            component: component.clone(),
            live: Some(live),
            last_lines: Vec::new(),
            is_off_path: false,
        })
    }

    /// Asks a component what it is, on an instance of its own.
    pub(crate) fn describe(
        host: &Host,
        name: &str,
        pre: &TransformPre<Guest>,
        limits: &Limits,
        grants: &Grants,
    ) -> Result<types::Description, Fault> {
        Live::new(host, name, pre, limits, grants)?
            .call(host, limits.start_deadline, |guest, store| guest.call_describe(store))
            .map_err(|kind| Fault { plugin: name.to_owned(), call: Call::Describe, kind })
    }

    /// What this is an instance of. Another, after a fault: `plugin.component().instantiate(settings)`.
    pub fn component(&self) -> &Component {
        &self.component
    }

    /// The columns it wants; others are not passed even when they are given.
    pub fn wants(&self) -> ColumnSet {
        self.component.description().columns
    }

    /// Whether it is called off the path from now on, where no batch waits for it: a call may take as long as `configure` then.
    pub fn set_off_path(&mut self, is_off_path: bool) {
        self.is_off_path = is_off_path;
    }

    /// Of one call that a batch waits for.
    fn deadline(&self) -> Duration {
        let limits = self.component.limits();
        if self.is_off_path { limits.start_deadline } else { limits.deadline }
    }

    /// Some requests begin. Given to the guest in groups of [`OPEN_REQUESTS_MAX`].
    ///
    /// # Errors
    /// A fault; the instance is dead.
    pub fn open(&mut self, requests: &[Opened<'_>]) -> Result<(), Fault> {
        let limit = self.deadline();
        requests
            .chunks(OPEN_REQUESTS_MAX)
            .try_for_each(|group| self.call(Call::Open, limit, |guest, store| guest.call_open(store, group)))
    }

    /// Judges a batch: what is to be done with its rows, sorted by row; a row without a verdict goes on as it is.
    /// A batch without rows is not shown to the guest.
    ///
    /// # Errors
    /// A fault; the instance is dead. What becomes of the batch is the caller's.
    pub fn process(&mut self, columns: &Columns<'_>) -> Result<Vec<Verdict>, Fault> {
        if columns.rows() == 0 {
            return Ok(Vec::new());
        }
        let batch = columns.select(self.wants());
        let limit = self.deadline();
        let verdicts = self.call(Call::Process, limit, |guest, store| guest.call_process(store, batch))?;
        check_verdicts(verdicts, columns.rows())
            .map_err(|what| self.die(Call::Process, FaultKind::Malformed { what }))
    }

    /// Some requests have ended. Given to the guest in groups of [`OPEN_REQUESTS_MAX`].
    ///
    /// # Errors
    /// A fault; the instance is dead.
    pub fn close(&mut self, requests: &[RequestId]) -> Result<(), Fault> {
        let limit = self.deadline();
        requests.chunks(OPEN_REQUESTS_MAX).try_for_each(|group| {
            self.call(Call::Close, limit, |guest, store| guest.call_close(store, group))
        })
    }

    /// Attributes of some open requests are others now ([`Plugin::set_attributes`]). Not called where the plugin did not ask.
    ///
    /// # Errors
    /// A fault; the instance is dead.
    pub fn changed(&mut self, requests: &[RequestId]) -> Result<(), Fault> {
        if !self.component.description().wants.changed {
            return Ok(());
        }
        let limit = self.deadline();
        requests.chunks(OPEN_REQUESTS_MAX).try_for_each(|group| {
            self.call(Call::Changed, limit, |guest, store| guest.call_changed(store, group))
        })
    }

    /// How things stand has changed ([`Plugin::set_signals`]). Not called where the plugin did not ask.
    ///
    /// # Errors
    /// A fault; the instance is dead.
    pub fn pressure(&mut self) -> Result<(), Fault> {
        if !self.component.description().wants.pressure {
            return Ok(());
        }
        let limit = self.deadline();
        self.call(Call::Pressure, limit, |guest, store| guest.call_pressure(store))
    }

    /// All that it knows of its open requests, for the instance that follows; `None` where it has no such call.
    ///
    /// # Errors
    /// A fault; the instance is dead.
    pub fn export_state(&mut self) -> Result<Option<Vec<u8>>, Fault> {
        if !self.component.description().wants.state {
            return Ok(None);
        }
        let limit = self.component.limits().state_deadline;
        let state = self.call(Call::ExportState, limit, |guest, store| guest.call_export_state(store))?;
        if state.len() > STATE_BYTES_MAX {
            let what = format!("a state of {} bytes, at most {STATE_BYTES_MAX}", state.len());
            return Err(self.die(Call::ExportState, FaultKind::Malformed { what }));
        }
        Ok(Some(state))
    }

    /// Takes over what an instance of this version of the component has exported. Before any request is opened, and off the path.
    /// `None` where it has no such call.
    ///
    /// # Errors
    /// A fault; the instance is dead.
    pub fn import_state(
        &mut self,
        version: &str,
        state: &[u8],
    ) -> Result<Option<Result<(), StateError>>, Fault> {
        if !self.component.description().wants.state {
            return Ok(None);
        }
        let limit = self.component.limits().start_deadline;
        self.call(Call::ImportState, limit, |guest, store| guest.call_import_state(store, version, state))
            .map(Some)
    }

    /// What `signals.read` says from now on.
    pub fn set_signals(&mut self, now: signals::Snapshot) {
        if let Some(live) = &mut self.live {
            live.store.data_mut().signals = now;
        }
    }

    /// What `request.attributes` says of a request from now on. To be taken out when it has ended.
    pub fn set_attributes(&mut self, request: RequestId, attributes: Option<Arc<str>>) {
        let Some(live) = &mut self.live else { return };
        let known = &mut live.store.data_mut().attributes;
        match attributes {
            Some(attributes) => known.insert(request, attributes),
            None => known.remove(&request),
        };
    }

    /// False after a fault.
    pub fn is_alive(&self) -> bool {
        self.live.is_some()
    }

    /// Whether [`Plugin::drain_log`] may have something. Cheap: to be asked after each call.
    pub fn has_log(&self) -> bool {
        !self.last_lines.is_empty()
            || self.live.as_ref().is_some_and(|live| !live.store.data().log.is_empty())
    }

    /// What the plugin has logged since the last time, oldest first; after a fault, what the dead instance had to say.
    pub fn drain_log(&mut self) -> Vec<LogLine> {
        let mut lines = std::mem::take(&mut self.last_lines);
        if let Some(live) = &mut self.live {
            lines.extend(live.store.data_mut().log.drain(Instant::now()));
        }
        lines
    }

    /// The memory that the instance has now; 0 when it is dead.
    pub fn memory_bytes(&self) -> u64 {
        self.live.as_ref().map_or(0, |live| live.store.data().memory_bytes())
    }

    /// What the instance has done so far, in wasmtime's units, about one an instruction: the same for the same calls on
    /// every machine. `None` where the host does not count ([`crate::HostOptions::counts_fuel`]), or it is dead.
    pub fn fuel_used(&self) -> Option<u64> {
        let left = self.live.as_ref()?.store.get_fuel().ok()?;
        Some(u64::MAX - left)
    }

    /// Lets it go. Its memory is given back on a thread of its own: of a few MiB that takes as long as several batches.
    pub fn retire(self) {
        if self.is_alive() {
            // Where there can be no thread it is given back here.
            let _started = std::thread::Builder::new().name("plugin-retire".into()).spawn(move || drop(self));
        }
    }

    fn call<R>(
        &mut self,
        call: Call,
        deadline: Duration,
        run: impl FnOnce(&plugin::Guest, &mut Store<Guest>) -> wasmtime::Result<R>,
    ) -> Result<R, Fault> {
        let ended = match &mut self.live {
            Some(live) => live.call(&self.component.inner.host, deadline, run),
            None => Err(FaultKind::Dead),
        };
        ended.map_err(|kind| self.die(call, kind))
    }

    /// The instance goes, with its memory; what it logged stays.
    fn die(&mut self, call: Call, kind: FaultKind) -> Fault {
        self.last_lines = self.drain_log();
        self.live = None;
        Fault { plugin: self.component.name().to_owned(), call, kind }
    }
}

impl std::fmt::Debug for Plugin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Plugin({:?}, alive: {})", self.component, self.is_alive())
    }
}

/// An instance in its store.
struct Live {
    store: Store<Guest>,
    world: Transform,
    limits: Limits,
}

impl Live {
    fn new(
        host: &Host,
        name: &str,
        pre: &TransformPre<Guest>,
        limits: &Limits,
        grants: &Grants,
    ) -> Result<Self, Fault> {
        let mut store = Guest::store(&host.shared.engine, limits, grants);
        let world = within(host, &mut store, limits.start_deadline, |store| pre.instantiate(store));
        match world {
            Ok(world) => Ok(Self { store, world, limits: limits.clone() }),
            Err(error) => {
                let kind = kind_of(&error, &store, limits, limits.start_deadline);
                Err(Fault { plugin: name.to_owned(), call: Call::Start, kind })
            }
        }
    }

    fn call<R>(
        &mut self,
        host: &Host,
        deadline: Duration,
        run: impl FnOnce(&plugin::Guest, &mut Store<Guest>) -> wasmtime::Result<R>,
    ) -> Result<R, FaultKind> {
        let guest = self.world.afterbay_plugin_plugin();
        within(host, &mut self.store, deadline, |store| run(guest, store))
            .map_err(|error| kind_of(&error, &self.store, &self.limits, deadline))
    }
}

/// Runs guest code under a deadline.
fn within<R>(
    host: &Host,
    store: &mut Store<Guest>,
    deadline: Duration,
    run: impl FnOnce(&mut Store<Guest>) -> wasmtime::Result<R>,
) -> wasmtime::Result<R> {
    let guest = store.data_mut();
    guest.log.begin_call();
    guest.clock.restart(deadline);
    store.set_epoch_deadline(1);
    let ended = {
        let _under_way = host.shared.ticker.enter();
        run(store)
    };
    store.data_mut().log.end_call();
    ended
}

fn kind_of(error: &wasmtime::Error, store: &Store<Guest>, limits: &Limits, deadline: Duration) -> FaultKind {
    match error.downcast_ref::<Stop>() {
        Some(Stop::Deadline) => return FaultKind::Deadline { limit: deadline },
        Some(&Stop::Memory { wanted }) => return FaultKind::Memory { wanted, limit: limits.memory_bytes },
        None => {}
    }
    let trap = match error.downcast_ref::<Trap>() {
        Some(trap) => trap.to_string(),
        None => in_our_words(error.root_cause().to_string()),
    };
    let message = match store.data().log.said() {
        Some(said) => format!("{trap}; it said: {said}"),
        None => trap,
    };
    FaultKind::Trap { message }
}

/// wasmtime speaks of what is not defined; an operator knows what is not granted.
fn in_our_words(message: String) -> String {
    match message.strip_prefix("unknown import: `").and_then(|rest| rest.split_once('`')) {
        Some((import, _)) => format!("called {import}, which is not granted"),
        None => message,
    }
}

fn refusal(name: String, error: ConfigureError) -> StartError {
    match error {
        ConfigureError::Setting(BadSetting { pointer, message }) => {
            StartError::Refused { name, pointer, message }
        }
        ConfigureError::Missing(what) => StartError::Missing { name, what },
    }
}

fn check_settings(settings: &str) -> Result<(), String> {
    if settings.len() > SETTINGS_BYTES_MAX {
        return Err(format!("have {} bytes, at most {SETTINGS_BYTES_MAX} are allowed", settings.len()));
    }
    match serde_json::from_str::<serde_json::Value>(settings) {
        Ok(_) => Ok(()),
        Err(error) => Err(format!("are no JSON: {error}")),
    }
}
