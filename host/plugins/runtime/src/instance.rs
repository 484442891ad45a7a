//! One instance of a plugin, for one stream: the calls of its life. Each call has limits, and each answer is checked.

use std::sync::Arc;
use std::time::{Duration, Instant};

use wasmtime::Store;

use crate::bindings::afterbay::plugin::{signals, types};
use crate::bindings::exports::afterbay::plugin::plugin::{
    Answer, BadSetting, ConfigureError, Guest as Exports, RequestVerdict, StateError,
};
use crate::bindings::{Transform, TransformPre};
use crate::columns::{ColumnSet, Columns, Opened, RequestId};
use crate::component::{CallSet, Component, Inner};
use crate::deadline::Stop;
use crate::effects::{CallId, SentCall};
use crate::explain::{self, Explanation};
use crate::fault::{Call, Fault, FaultCause};
use crate::grants::Grants;
use crate::guest::{Guest, RecordReader};
use crate::host::Host;
use crate::limits::{Limits, OPEN_REQUESTS_MAX, SETTINGS_BYTES_MAX, STATE_BYTES_MAX};
use crate::lines::{GuestFrame, SourceLines};
use crate::log::LogLine;
use crate::verdict::{Verdict, check_request_verdicts, check_verdicts};

/// The reason why an instance cannot be made. Each message names the plugin.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The settings are not JSON, or too long.
    #[error("plugin \"{name}\": settings {message}")]
    BadSettings {
        /// The operator's name of the plugin.
        name: String,
        /// The reason.
        message: String,
    },
    /// The plugin refuses the settings.
    #[error("plugin \"{name}\": refuses its settings: {}{message}", place(pointer))]
    Refused {
        /// The operator's name of the plugin.
        name: String,
        /// The wrong setting, as a JSON pointer. Empty if the plugin does not say.
        pointer: String,
        /// The plugin's own words.
        message: String,
    },
    /// The plugin lacks something that it needs with these settings.
    #[error("plugin \"{name}\": cannot start: {what}")]
    Missing {
        /// The operator's name of the plugin.
        name: String,
        /// The plugin's own words.
        what: String,
    },
    /// The plugin faulted in `describe` or `configure`, or the instance pool is full.
    #[error(transparent)]
    Fault(#[from] Fault),
}

fn place(pointer: &str) -> String {
    match pointer {
        "" => String::new(),
        pointer => format!("{pointer}: "),
    }
}

/// A configured instance. Only its stream's thread calls it.
///
/// After a fault it is dead, and every call fails.
pub struct Plugin {
    component: Component,
    live: Option<Live>,
    /// The log of a dead instance.
    last_lines: Vec<LogLine>,
    is_off_path: bool,
}

impl Component {
    /// Makes an instance, which is described and configured. Its next call is `open`. `settings` is JSON text, `{}` if the
    /// operator gave none.
    ///
    /// # Errors
    /// If the plugin refuses the settings, faults on them, or the instance pool is full.
    pub fn instantiate(&self, settings: &str) -> Result<Plugin, StartError> {
        Plugin::start(self, settings)
    }
}

impl Plugin {
    fn start(component: &Component, settings: &str) -> Result<Self, StartError> {
        let inner = &component.inner;
        check_settings(settings)
            .map_err(|message| StartError::BadSettings { name: inner.name.clone(), message })?;
        let mut live = Live::of(component)?;
        let limit = inner.limits.start_deadline;
        // The answer is known already: without a clock and randomness, every instance answers the same.
        live.call(&inner.host, limit, |plugin, store| plugin.call_describe(store))
            .map_err(|failure| failure.of(&inner.name, Call::Describe))?;
        live.call(&inner.host, limit, |plugin, store| plugin.call_configure(store, settings))
            .map_err(|failure| failure.of(&inner.name, Call::Configure))?
            .map_err(|error| refusal(inner.name.clone(), error))?;
        Ok(Self {
            component: component.clone(),
            live: Some(live),
            last_lines: Vec::new(),
            is_off_path: false,
        })
    }

    /// Asks a component for its description, in an instance of its own.
    pub(crate) fn describe(
        host: &Host,
        name: &str,
        linked: &TransformPre<Guest>,
        limits: &Limits,
        grants: &Grants,
        lines: &Arc<SourceLines>,
    ) -> Result<types::Description, Fault> {
        Live::new(host, name, linked, limits, grants, lines)?
            .call(host, limits.start_deadline, |plugin, store| plugin.call_describe(store))
            .map_err(|failure| failure.of(name, Call::Describe))
    }

    /// The component of this instance. After a fault, `plugin.component().instantiate(settings)` makes another instance.
    pub fn component(&self) -> &Component {
        &self.component
    }

    /// The columns that the plugin asks for. It does not get others.
    pub fn wants(&self) -> ColumnSet {
        self.component.description().columns
    }

    fn wants_call(&self, call: CallSet) -> bool {
        self.component.description().wants.contains(call)
    }

    /// Whether the instance is called off the path from now on. No batch waits for it then, and a call has the deadline of
    /// `configure`.
    pub fn set_off_path(&mut self, is_off_path: bool) {
        self.is_off_path = is_off_path;
    }

    /// Lets the plugin's effects take place from now on, or not: changes of `store` and calls of `call`. They do not at
    /// first, nor may they during a replay.
    pub fn set_effects(&mut self, are_enabled: bool) {
        if let Some(live) = &mut self.live {
            live.store.data_mut().effects.are_enabled = are_enabled;
        }
    }

    /// Lets calls that are made off the path keep their bodies, so that the caller can tell which of them an earlier instance
    /// had made, too. They are not to be sent during a replay.
    pub fn set_keeps_calls(&mut self, keeps_calls: bool) {
        if let Some(live) = &mut self.live {
            live.store.data_mut().effects.keeps_calls = keeps_calls;
        }
    }

    /// Gives the next call a number after this one, for an instance that imports the state of another: the calls of both have
    /// different numbers.
    pub fn continue_calls_after(&mut self, call: CallId) {
        if let Some(live) = &mut self.live {
            live.store.data_mut().effects.last_call = call;
        }
    }

    /// Whether [`Plugin::drain_calls`] returns any. It is cheap, so call it after each call.
    pub fn has_calls(&self) -> bool {
        self.live.as_ref().is_some_and(|live| live.store.data().effects.has_calls())
    }

    /// Takes the calls that the plugin made since the last time, in order. The answers go to [`Plugin::answered`]. The calls
    /// of a dead instance are lost.
    pub fn drain_calls(&mut self) -> Vec<SentCall> {
        self.live.as_mut().map_or_else(Vec::new, |live| live.store.data_mut().effects.drain_calls())
    }

    /// The reason why the stream is not ready, as the plugin says. `None` if it is ready, or the instance is dead.
    pub fn not_ready(&self) -> Option<&str> {
        self.live.as_ref()?.store.data().effects.not_ready.as_deref()
    }

    /// Whether the plugin has set or removed [`Plugin::not_ready`] since the last time this was called.
    pub fn take_health_change(&mut self) -> bool {
        let live = self.live.as_mut();
        live.is_some_and(|live| std::mem::take(&mut live.store.data_mut().effects.has_health_changed))
    }

    /// The deadline of a call for which a batch waits.
    fn deadline(&self) -> Duration {
        let limits = self.component.limits();
        if self.is_off_path { limits.start_deadline } else { limits.deadline }
    }

    /// Opens requests, in groups of [`OPEN_REQUESTS_MAX`].
    ///
    /// # Errors
    /// A fault. The instance is dead.
    pub fn open(&mut self, requests: &[Opened<'_>]) -> Result<(), Fault> {
        let limit = self.deadline();
        requests.chunks(OPEN_REQUESTS_MAX).try_for_each(|group| {
            self.call(Call::Open, limit, |plugin, store| plugin.call_open(store, group))
        })
    }

    /// Lets the plugin judge a batch. Returns verdicts, sorted by row; a row without a verdict passes unchanged. The guest
    /// does not see a batch without rows.
    ///
    /// # Errors
    /// A fault. The instance is dead, and the caller decides what happens to the batch.
    pub fn process(&mut self, columns: &Columns<'_>) -> Result<Vec<Verdict>, Fault> {
        if columns.rows() == 0 {
            return Ok(Vec::new());
        }
        let batch = columns.select(self.wants());
        let limit = self.deadline();
        let verdicts = self.call(Call::Process, limit, |plugin, store| plugin.call_process(store, batch))?;
        check_verdicts(verdicts, columns.rows())
            .map_err(|what| self.die(Call::Process, FaultCause::Malformed { what }))
    }

    /// Closes requests, in groups of [`OPEN_REQUESTS_MAX`].
    ///
    /// # Errors
    /// A fault. The instance is dead.
    pub fn close(&mut self, requests: &[RequestId]) -> Result<(), Fault> {
        let limit = self.deadline();
        requests.chunks(OPEN_REQUESTS_MAX).try_for_each(|group| {
            self.call(Call::Close, limit, |plugin, store| plugin.call_close(store, group))
        })
    }

    /// Tells the plugin that attributes of open requests have changed ([`Plugin::set_attributes`]). No call if the plugin
    /// did not ask for it.
    ///
    /// # Errors
    /// A fault. The instance is dead.
    pub fn changed(&mut self, requests: &[RequestId]) -> Result<(), Fault> {
        if !self.wants_call(CallSet::CHANGED) {
            return Ok(());
        }
        let limit = self.deadline();
        requests.chunks(OPEN_REQUESTS_MAX).try_for_each(|group| {
            self.call(Call::Changed, limit, |plugin, store| plugin.call_changed(store, group))
        })
    }

    /// Tells the plugin that the signals have changed ([`Plugin::set_signals`]). No call if the plugin did not ask for it.
    ///
    /// # Errors
    /// A fault. The instance is dead.
    pub fn pressure(&mut self) -> Result<(), Fault> {
        if !self.wants_call(CallSet::PRESSURE) {
            return Ok(());
        }
        let limit = self.deadline();
        self.call(Call::Pressure, limit, |plugin, store| plugin.call_pressure(store))
    }

    /// Passes the outcomes of calls to the plugin, in groups of [`OPEN_REQUESTS_MAX`]. Returns the verdicts about requests, at
    /// most one each in a group. The stream checks that the requests are open.
    ///
    /// # Errors
    /// A fault. The instance is dead.
    pub fn answered(&mut self, answers: &[Answer]) -> Result<Vec<RequestVerdict>, Fault> {
        let limit = self.deadline();
        let mut all = Vec::new();
        for group in answers.chunks(OPEN_REQUESTS_MAX) {
            let verdicts =
                self.call(Call::Answered, limit, |plugin, store| plugin.call_answered(store, group))?;
            check_request_verdicts(&verdicts)
                .map_err(|what| self.die(Call::Answered, FaultCause::Malformed { what }))?;
            all.extend(verdicts);
        }
        Ok(all)
    }

    /// The time of the plugin's first timer, in milliseconds since 1970. `None` if it did not ask for `due`.
    pub fn next_timer_ms(&self) -> Option<u64> {
        self.live.as_ref().filter(|_| self.wants_call(CallSet::TIMER))?.store.data().timers.next_ms()
    }

    /// Tells the plugin of the timers that are due, of at most [`OPEN_REQUESTS_MAX`] requests. Returns the verdicts about
    /// requests, at most one each. The stream checks that the requests are open. No call if none is due.
    ///
    /// # Errors
    /// A fault. The instance is dead.
    pub fn due(&mut self, time_ms: u64) -> Result<Vec<RequestVerdict>, Fault> {
        if self.next_timer_ms().is_none_or(|next| next > time_ms) {
            return Ok(Vec::new());
        }
        let Some(live) = &mut self.live else { return Ok(Vec::new()) };
        let due = live.store.data_mut().timers.take_due(time_ms, OPEN_REQUESTS_MAX);
        let limit = self.deadline();
        let verdicts = self.call(Call::Due, limit, |plugin, store| plugin.call_due(store, time_ms, &due))?;
        check_request_verdicts(&verdicts)
            .map_err(|what| self.die(Call::Due, FaultCause::Malformed { what }))?;
        Ok(verdicts)
    }

    /// Exports the state of the open requests for the next instance. `None` if the plugin has no such call.
    ///
    /// # Errors
    /// A fault. The instance is dead.
    pub fn export_state(&mut self) -> Result<Option<Vec<u8>>, Fault> {
        if !self.wants_call(CallSet::STATE) {
            return Ok(None);
        }
        let limit = self.component.limits().state_deadline;
        let state = self.call(Call::ExportState, limit, |plugin, store| plugin.call_export_state(store))?;
        if state.len() > STATE_BYTES_MAX {
            let what = format!("a state of {} bytes, at most {STATE_BYTES_MAX}", state.len());
            return Err(self.die(Call::ExportState, FaultCause::Malformed { what }));
        }
        Ok(Some(state))
    }

    /// Imports the state that an instance of component version `version` exported. Called off the path, before any request
    /// is opened. `None` if the plugin has no such call.
    ///
    /// # Errors
    /// A fault. The instance is dead.
    pub fn import_state(
        &mut self,
        version: &str,
        state: &[u8],
    ) -> Result<Option<Result<(), StateError>>, Fault> {
        if !self.wants_call(CallSet::STATE) {
            return Ok(None);
        }
        let limit = self.component.limits().start_deadline;
        self.call(Call::ImportState, limit, |plugin, store| plugin.call_import_state(store, version, state))
            .map(Some)
    }

    /// Sets the result of `signals.read`.
    pub fn set_signals(&mut self, now: signals::Snapshot) {
        if let Some(live) = &mut self.live {
            live.store.data_mut().signals = now;
        }
    }

    /// Sets the source of `request.asked` and `request.prompt-ids` for a request.
    pub fn set_record(&mut self, request: RequestId, record: Option<RecordReader>) {
        if let (Some(live), Some(record)) = (&mut self.live, record) {
            live.store.data_mut().records.insert(request, record);
        }
    }

    /// Forgets what was set for a request, which has ended.
    pub fn forget(&mut self, request: RequestId) {
        let Some(live) = &mut self.live else { return };
        let guest = live.store.data_mut();
        guest.attributes.remove(&request);
        guest.records.remove(&request);
        guest.timers.clear(request);
    }

    /// Sets the result of `request.attributes` for a request.
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

    /// Whether [`Plugin::drain_log`] may return lines. It is cheap, so call it after each call.
    pub fn has_log(&self) -> bool {
        !self.last_lines.is_empty()
            || self.live.as_ref().is_some_and(|live| !live.store.data().log.is_empty())
    }

    /// Takes the lines that the plugin logged since the last time, oldest first. After a fault, these are the dead
    /// instance's lines.
    pub fn drain_log(&mut self) -> Vec<LogLine> {
        let mut lines = std::mem::take(&mut self.last_lines);
        if let Some(live) = &mut self.live {
            lines.extend(live.store.data_mut().log.drain(Instant::now()));
        }
        lines
    }

    /// The memory of the instance, in bytes. 0 if it is dead.
    pub fn memory_bytes(&self) -> u64 {
        self.live.as_ref().map_or(0, |live| live.store.data().memory_bytes())
    }

    /// The work of the instance so far, in wasmtime's units of about one instruction. The same calls give the same number on
    /// every machine. `None` if the host does not count ([`crate::HostOptions::counts_fuel`]), or the instance is dead.
    pub fn fuel_used(&self) -> Option<u64> {
        let left = self.live.as_ref()?.store.get_fuel().ok()?;
        Some(u64::MAX - left)
    }

    /// Drops the instance. A thread of its own gives its memory back, since a few MiB take as long as several batches.
    pub fn retire(self) {
        if self.is_alive() {
            // Without a thread, the memory is given back here.
            let _started = std::thread::Builder::new().name("plugin-retire".into()).spawn(move || drop(self));
        }
    }

    fn call<R>(
        &mut self,
        call: Call,
        deadline: Duration,
        run: impl FnOnce(&Exports, &mut Store<Guest>) -> wasmtime::Result<R>,
    ) -> Result<R, Fault> {
        let ended = match &mut self.live {
            Some(live) => live.call(&self.component.inner.host, deadline, run),
            None => Err(FaultCause::Dead.into()),
        };
        ended.map_err(|failure| self.die(call, failure))
    }

    /// Drops the instance and its memory, but not its log.
    fn die(&mut self, call: Call, failure: impl Into<Failure>) -> Fault {
        self.last_lines = self.drain_log();
        self.live = None;
        failure.into().of(self.component.name(), call)
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
    fn of(component: &Component) -> Result<Self, Fault> {
        let Inner { host, name, linked, limits, grants, lines, .. } = &*component.inner;
        Live::new(host, name, linked, limits, grants, lines)
    }

    fn new(
        host: &Host,
        name: &str,
        linked: &TransformPre<Guest>,
        limits: &Limits,
        grants: &Grants,
        lines: &Arc<SourceLines>,
    ) -> Result<Self, Fault> {
        let mut store = Guest::store(&host.shared.engine, limits, grants, lines);
        let world = within(host, &mut store, limits.start_deadline, |store| linked.instantiate(store));
        match world {
            Ok(world) => Ok(Self { store, world, limits: limits.clone() }),
            Err(error) => {
                let failure = Failure::new(&error, &store, limits, limits.start_deadline);
                Err(failure.of(name, Call::Start))
            }
        }
    }

    fn call<R>(
        &mut self,
        host: &Host,
        deadline: Duration,
        run: impl FnOnce(&Exports, &mut Store<Guest>) -> wasmtime::Result<R>,
    ) -> Result<R, Failure> {
        let plugin = self.world.afterbay_plugin_plugin();
        within(host, &mut self.store, deadline, |store| run(plugin, store))
            .map_err(|error| Failure::new(&error, &self.store, &self.limits, deadline))
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

/// A failed call, before its name is known.
struct Failure {
    cause: FaultCause,
    stack: Vec<GuestFrame>,
}

impl Failure {
    fn new(error: &wasmtime::Error, store: &Store<Guest>, limits: &Limits, deadline: Duration) -> Failure {
        let guest = store.data();
        let cause = match error.downcast_ref::<Stop>() {
            Some(Stop::Deadline) => FaultCause::Deadline { limit: deadline },
            Some(&Stop::Memory { wanted }) => FaultCause::Memory { wanted, limit: limits.memory_bytes },
            None => {
                let Explanation { message, stack } = explain::trap(error, &guest.lines, &guest.log);
                return Failure { cause: FaultCause::Trap { message }, stack };
            }
        };
        Failure { cause, stack: explain::stack(error, &guest.lines) }
    }

    fn of(self, plugin: &str, call: Call) -> Fault {
        let Failure { cause, stack } = self;
        Fault { plugin: plugin.to_owned(), call, cause, stack }
    }
}

impl From<FaultCause> for Failure {
    fn from(cause: FaultCause) -> Failure {
        Failure { cause, stack: Vec::new() }
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
        Err(error) => Err(format!("are not JSON: {error}")),
    }
}
