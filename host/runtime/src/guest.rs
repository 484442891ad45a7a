//! The host's side of one instance: its memory limit, its clock, its log, and the imports that it is granted.
//!
//! Granted are the interfaces of `afterbay:plugin` that the operator names, an empty environment, one fixed hash seed (a
//! Rust guest's `HashMap` and panic message ask for them) and a clock that stands still (libraries that measure themselves
//! ask for one). Every other WASI import is there, as a guest's libc wants it linked, and traps when called.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use wasmtime::component::{Component, HasSelf, Linker};
use wasmtime::{Engine, ResourceLimiter, Store, StoreContextMut, UpdateDeadline};

use crate::batch::{RequestId, TokenId};
use crate::bindings::afterbay::plugin::{log, metrics, request, signals, tokenizer};
use crate::deadline::{CallClock, Stop};
use crate::grants::{EncodeError, Grants, Meter, MeterError};
use crate::limits::{CORE_INSTANCES_MAX, Limits, MEMORIES_MAX, TABLES_MAX};
use crate::log::{Level, LogBook};
use crate::meter::Mistakes;

/// The same in every instance, so that a plugin given the same rows again does the same again. A plugin's maps are
/// keyed by request numbers, which the host chooses, so a seed that is known gives nobody a way to make them slow.
const HASH_SEED: (u64, u64) = (0x0af7_e2ba_1157_5eed, 0x1157_5eed_0af7_e2ba);

/// What the store of an instance holds.
pub(crate) struct Guest {
    pub(crate) clock: CallClock,
    pub(crate) log: LogBook,
    /// How things stand, as the stream has set it.
    pub(crate) signals: signals::Snapshot,
    /// Of open requests, as the stream has set them.
    pub(crate) attributes: HashMap<RequestId, Arc<str>>,
    grants: Grants,
    mistakes: Mistakes,
    memory_bytes: u64,
    memory_bytes_max: u64,
}

impl Guest {
    /// A store for one instance, its limits in force.
    pub(crate) fn store(engine: &Engine, limits: &Limits, grants: &Grants) -> Store<Guest> {
        let guest = Guest {
            clock: CallClock::start(limits.start_deadline),
            log: LogBook::new(Instant::now()),
            signals: nothing_yet(),
            attributes: HashMap::new(),
            grants: grants.clone(),
            mistakes: Mistakes::default(),
            memory_bytes: 0,
            memory_bytes_max: limits.memory_bytes,
        };
        let mut store = Store::new(engine, guest);
        store.limiter(|guest| guest);
        // Never used up. An error where the engine does not count: then there is nothing to fill.
        let _counted = store.set_fuel(u64::MAX);
        store.epoch_deadline_callback(|mut context| {
            context.data_mut().clock.check()?;
            Ok(UpdateDeadline::Continue(1))
        });
        // What one call may hand over: lists that share their memory could otherwise be copied to any size.
        store.set_hostcall_fuel(usize::try_from(limits.memory_bytes).unwrap_or(usize::MAX));
        store
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }
}

impl ResourceLimiter for Guest {
    fn memory_growing(&mut self, current: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        let wanted = self.memory_bytes.saturating_sub(current as u64).saturating_add(desired as u64);
        if wanted > self.memory_bytes_max {
            // A trap, not a failed growth: the guest's allocator would answer that with a trap of its own, unnamed.
            return Err(Stop::Memory { wanted }.into());
        }
        self.memory_bytes = wanted;
        Ok(true)
    }

    fn table_growing(&mut self, _: usize, _: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        Ok(true) // The pool's tables end at TABLE_ELEMENTS_MAX.
    }

    fn instances(&self) -> usize {
        CORE_INSTANCES_MAX as usize
    }

    fn tables(&self) -> usize {
        TABLES_MAX as usize
    }

    fn memories(&self) -> usize {
        MEMORIES_MAX as usize
    }
}

fn nothing_yet() -> signals::Snapshot {
    let ingress = signals::Queue { frames: 0, rows: 0, bytes: 0, oldest_age_ms: 0 };
    signals::Snapshot { ingress, sinks: Vec::new(), live_requests: 0, scheduler: None }
}

impl log::Host for Guest {
    fn log(&mut self, level: Level, request: Option<u64>, message: String) -> wasmtime::Result<()> {
        self.log.write(Instant::now(), level, request, message);
        Ok(())
    }
}

impl Guest {
    fn enter(&mut self, name: &str, enter: impl FnOnce(&dyn Meter) -> Result<(), MeterError>) {
        // A component that imports them was granted them.
        let Some(meter) = self.grants.metrics.clone() else { return };
        if let Some(mistake) = self.mistakes.enter(&*meter, name, enter) {
            self.log.write(Instant::now(), Level::Warn, None, mistake);
        }
    }
}

impl metrics::Host for Guest {
    fn counter_add(&mut self, name: String, delta: u64) -> wasmtime::Result<()> {
        self.enter(&name, |meter| meter.add(&name, delta));
        Ok(())
    }

    fn gauge_set(&mut self, name: String, value: f64) -> wasmtime::Result<()> {
        self.enter(&name, |meter| meter.set(&name, value));
        Ok(())
    }

    fn histogram_observe(&mut self, name: String, value: f64) -> wasmtime::Result<()> {
        self.enter(&name, |meter| meter.observe(&name, value));
        Ok(())
    }
}

impl signals::Host for Guest {
    fn read(&mut self) -> wasmtime::Result<signals::Snapshot> {
        Ok(self.signals.clone())
    }
}

impl request::Host for Guest {
    fn attributes(&mut self, request: RequestId) -> wasmtime::Result<Option<String>> {
        Ok(self.attributes.get(&request).map(|attributes| attributes.to_string()))
    }
}

impl tokenizer::Host for Guest {
    fn size(&mut self) -> wasmtime::Result<u32> {
        Ok(self.grants.tokenizer.as_ref().map_or(0, |tokens| tokens.size()))
    }

    fn decode(&mut self, ids: Vec<TokenId>) -> wasmtime::Result<Vec<u8>> {
        let Some(tokens) = &self.grants.tokenizer else { return Ok(Vec::new()) };
        Ok(ids.iter().flat_map(|id| tokens.bytes(*id)).copied().collect())
    }

    fn token_bytes(&mut self, first: TokenId, count: u32) -> wasmtime::Result<Vec<Vec<u8>>> {
        let Some(tokens) = &self.grants.tokenizer else { return Ok(Vec::new()) };
        // Past the last there is nothing: what a guest asks for bounds nothing that the host makes.
        let end = first.saturating_add(count.into()).min(tokens.size().into());
        Ok((first..end).map(|id| tokens.bytes(id).to_vec()).collect())
    }

    fn special(&mut self) -> wasmtime::Result<Vec<TokenId>> {
        Ok(self.grants.tokenizer.as_ref().map_or(Vec::new(), |tokens| tokens.special().to_vec()))
    }

    fn end_of_text(&mut self) -> wasmtime::Result<Vec<TokenId>> {
        Ok(self.grants.tokenizer.as_ref().map_or(Vec::new(), |tokens| tokens.end_of_text().to_vec()))
    }

    fn encode(&mut self, text: String) -> wasmtime::Result<Result<Vec<TokenId>, EncodeError>> {
        let Guest { clock, grants, .. } = self;
        let Some(tokens) = &grants.tokenizer else { return Ok(Ok(Vec::new())) };
        Ok(clock.charge(|| tokens.encode(&text)))
    }
}

/// The imports of one component: what is granted, and a trap for each function that is not.
///
/// Each is defined under the very name that the component has for it, version and all: that is what a trap would
/// otherwise be defined for.
pub(crate) fn linker(engine: &Engine, component: &Component) -> wasmtime::Result<Linker<Guest>> {
    let mut linker = Linker::new(engine);
    for (name, _) in component.component_type().imports(engine) {
        match name.split('@').next().unwrap_or(name) {
            "afterbay:plugin/log" => {
                log::add_to_linker_instance::<_, HasSelf<_>>(&mut linker.instance(name)?, |guest| guest)?;
            }
            "afterbay:plugin/metrics" => {
                metrics::add_to_linker_instance::<_, HasSelf<_>>(&mut linker.instance(name)?, |guest| guest)?;
            }
            "afterbay:plugin/signals" => {
                signals::add_to_linker_instance::<_, HasSelf<_>>(&mut linker.instance(name)?, |guest| guest)?;
            }
            "afterbay:plugin/request" => {
                request::add_to_linker_instance::<_, HasSelf<_>>(&mut linker.instance(name)?, |guest| guest)?;
            }
            "afterbay:plugin/tokenizer" => {
                tokenizer::add_to_linker_instance::<_, HasSelf<_>>(&mut linker.instance(name)?, |guest| {
                    guest
                })?;
            }
            "wasi:cli/environment" => {
                let nothing = |_: StoreContextMut<'_, Guest>, ()| Ok((Vec::<(String, String)>::new(),));
                linker.instance(name)?.func_wrap("get-environment", nothing)?;
            }
            // At 0, for ever: what a plugin does must not hang on the time. Its `subscribe`s trap: nothing waits.
            "wasi:clocks/monotonic-clock" => {
                linker.instance(name)?.func_wrap("now", |_, ()| Ok((0_u64,)))?;
                linker.instance(name)?.func_wrap("resolution", |_, ()| Ok((1_u64,)))?;
            }
            "wasi:random/insecure-seed" => {
                linker.instance(name)?.func_wrap("insecure-seed", |_, ()| Ok((HASH_SEED,)))?;
            }
            _ => {}
        }
    }
    linker.define_unknown_imports_as_traps(component)?;
    Ok(linker)
}
