//! The host's side of one instance: its memory limit, clock, log and granted imports.
//!
//! The host provides the interfaces of `afterbay:plugin` that the operator grants, the environment that the component carries, no directories, a
//! clock that always reads 0 (for libraries that measure themselves), and random numbers that are the same in every instance
//! (for the hash seeds of a guest's maps). Standard output and standard error go to the plugin's log. Every other WASI
//! import exists, because a guest's libc links it, and traps when it is called.

mod outside;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use wasmtime::component::{
    Component, ComponentType, HasSelf, Linker, LinkerInstance, Lower, Resource, WasmList, WasmStr,
};
use wasmtime::{Engine, ResourceLimiter, Store, StoreContextMut, UpdateDeadline};

use crate::bindings::afterbay::plugin::{request, signals, timer};
use crate::columns::{RequestId, TokenId};
use crate::deadline::{CallClock, Stop};
use crate::effects::Effects;
use crate::environment::Environment;
use crate::grants::{EncodeError, Grants, Labels, Meter, MeterError};
use crate::limits::{
    CORE_INSTANCES_MAX, HANDED_OVER_BYTES_MAX, LABEL_NAME_BYTES_MAX, LABEL_VALUE_BYTES_MAX, LABELS_MAX,
    LOG_LINE_BYTES_MAX, Limits, MEMORIES_MAX, METRIC_NAME_BYTES_MAX, RANDOM_BYTES_MAX, TABLES_MAX,
    TOKEN_COST_BYTES, TOKENS_AT_ONCE,
};
use crate::lines::SourceLines;
use crate::log::{Level, LogBook};
use crate::meter::{Label, Mistakes, Written};
use crate::timers::Timers;

/// The start of the random numbers and the seed of maps. It is the same in every instance, so that a plugin that sees the
/// same rows again does the same again. A plugin's maps are keyed by request numbers, which the host chooses, so a known
/// seed does not let anyone slow them down.
const HASH_SEED: (u64, u64) = (0x0af7_e2ba_1157_5eed, 0x1157_5eed_0af7_e2ba);

/// The random numbers of a guest: SplitMix64, from the same seed in every instance.
struct Sequence(u64);

impl Sequence {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

/// The record of what a scheduler was asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AskedRequest {
    /// All but the prompt's ids, as a JSON object.
    pub asked: String,
    /// The ids of the prompt, if they are kept.
    pub prompt_ids: Option<Vec<TokenId>>,
}

/// Reads what the scheduler was asked for. Called for each question of a plugin, within the plugin's call.
pub type RecordReader = Arc<dyn Fn() -> Option<AskedRequest> + Send + Sync>;

/// The data in an instance's store.
pub(crate) struct Guest {
    pub(crate) clock: CallClock,
    pub(crate) log: LogBook,
    /// The signals, as the stream has set them.
    pub(crate) signals: signals::Snapshot,
    /// The attributes of open requests, as the stream has set them.
    pub(crate) attributes: HashMap<RequestId, Arc<str>>,
    /// Readers of what the scheduler was asked for, for open requests that have a record.
    pub(crate) records: HashMap<RequestId, RecordReader>,
    pub(crate) effects: Effects,
    pub(crate) timers: Timers,
    grants: Grants,
    /// The source lines of the component, for messages of faults.
    pub(crate) lines: Arc<SourceLines>,
    mistakes: Mistakes,
    random: Sequence,
    memory_bytes: u64,
    memory_bytes_max: u64,
}

impl Guest {
    /// A store for one instance, with its limits in force.
    pub(crate) fn store(
        engine: &Engine,
        limits: &Limits,
        grants: &Grants,
        lines: &Arc<SourceLines>,
    ) -> Store<Guest> {
        let guest = Guest {
            clock: CallClock::start(limits.start_deadline),
            log: LogBook::new(Instant::now()),
            signals: nothing_yet(),
            attributes: HashMap::new(),
            records: HashMap::new(),
            effects: Effects::default(),
            timers: Timers::default(),
            grants: grants.clone(),
            lines: Arc::clone(lines),
            mistakes: Mistakes::default(),
            random: Sequence(HASH_SEED.0),
            memory_bytes: 0,
            memory_bytes_max: limits.memory_bytes,
        };
        let mut store = Store::new(engine, guest);
        store.limiter(|guest| guest);
        // Never used up. Fails if the engine does not count, and then nothing needs to be filled.
        let _counted = store.set_fuel(u64::MAX);
        store.epoch_deadline_callback(|mut context| {
            context.data_mut().clock.check()?;
            Ok(UpdateDeadline::Continue(1))
        });
        // The bound of the bytes that one call may hand over. Lists that share their memory could otherwise be copied to any
        // size.
        let handed_over_max = usize::try_from(limits.memory_bytes).unwrap_or(usize::MAX);
        store.set_hostcall_fuel(handed_over_max.min(HANDED_OVER_BYTES_MAX));
        store
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    fn record(&self, request: RequestId) -> Option<AskedRequest> {
        self.records.get(&request).and_then(|read| read())
    }
}

impl ResourceLimiter for Guest {
    fn memory_growing(&mut self, current: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        let wanted = self.memory_bytes.saturating_sub(current as u64).saturating_add(desired as u64);
        if wanted > self.memory_bytes_max {
            // A trap, not a failed growth: a guest's allocator would answer a failed growth with a trap that names no
            // reason.
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

impl signals::Host for Guest {
    fn read(&mut self) -> wasmtime::Result<signals::Snapshot> {
        Ok(self.signals.clone())
    }
}

impl timer::Host for Guest {
    fn set(&mut self, request: RequestId, time_ms: u64) -> wasmtime::Result<()> {
        self.timers.set(request, time_ms)
    }

    fn clear(&mut self, request: RequestId) -> wasmtime::Result<()> {
        self.timers.clear(request);
        Ok(())
    }
}

impl request::Host for Guest {
    fn attributes(&mut self, request: RequestId) -> wasmtime::Result<Option<String>> {
        Ok(self.attributes.get(&request).map(|attributes| attributes.to_string()))
    }

    fn asked(&mut self, request: RequestId) -> wasmtime::Result<Option<String>> {
        Ok(self.record(request).map(|record| record.asked))
    }

    fn prompt_ids(&mut self, request: RequestId) -> wasmtime::Result<Option<Vec<TokenId>>> {
        Ok(self.record(request).and_then(|record| record.prompt_ids))
    }
}

/// A guest's store in a call of an import.
type Caller<'a> = StoreContextMut<'a, Guest>;

/// The first `bytes_max` bytes of a guest's string, cut at a character, and the length of the whole string in bytes.
///
/// Only these bytes are copied. The guest's deadline pays for reading the rest.
fn cut(caller: &mut Caller<'_>, text: &WasmStr, bytes_max: usize) -> wasmtime::Result<(String, usize)> {
    let text = text.to_str(&*caller)?;
    let (kept, bytes) = (text[..text.floor_char_boundary(bytes_max)].to_owned(), text.len());
    caller.data_mut().clock.charge_bytes(bytes)?;
    Ok((kept, bytes))
}

fn write_line(
    mut caller: Caller<'_>,
    (level, request, message): (Level, Option<RequestId>, WasmStr),
) -> wasmtime::Result<()> {
    let (message, _) = cut(&mut caller, &message, LOG_LINE_BYTES_MAX)?;
    caller.data_mut().log.write(Instant::now(), level, request, message);
    Ok(())
}

/// The labels of a metric in the guest's memory.
type WasmLabels = WasmList<(WasmStr, WasmStr)>;

/// Copies the labels of a metric. Of too many, none is copied.
fn labels(caller: &mut Caller<'_>, labels: WasmLabels) -> wasmtime::Result<Vec<Label>> {
    let mut copied = Vec::new();
    if labels.len() > LABELS_MAX {
        return Ok(vec![Label::default(); labels.len().min(LABELS_MAX + 1)]);
    }
    for index in 0..labels.len() {
        let Some(label) = labels.get(&mut *caller, index) else { break };
        let (name, value) = label?;
        let (name, name_bytes) = cut(caller, &name, LABEL_NAME_BYTES_MAX)?;
        let (value, _) = cut(caller, &value, LABEL_VALUE_BYTES_MAX)?;
        copied.push(Label { name, name_bytes, value });
    }
    Ok(copied)
}

/// Passes a value of the plugin's own metric to the meter.
fn enter(
    mut caller: Caller<'_>,
    name: &WasmStr,
    labels: WasmLabels,
    enter: impl FnOnce(&dyn Meter, &str, Labels<'_>) -> Result<(), MeterError>,
) -> wasmtime::Result<()> {
    let (name, bytes) = cut(&mut caller, name, METRIC_NAME_BYTES_MAX)?;
    let labels = self::labels(&mut caller, labels)?;
    let guest = caller.data_mut();
    // A component that imports this interface was granted it.
    let Some(meter) = guest.grants.metrics.clone() else { return Ok(()) };
    if let Some(mistake) = guest.mistakes.enter(&*meter, Written { name: &name, bytes, labels }, enter) {
        guest.log.write(Instant::now(), Level::Warn, None, mistake);
    }
    Ok(())
}

/// The bytes of tokens, concatenated.
fn decode(mut caller: Caller<'_>, (ids,): (WasmList<TokenId>,)) -> wasmtime::Result<(Vec<u8>,)> {
    let Guest { mut clock, ref grants, .. } = *caller.data();
    let Some(tokens) = grants.tokenizer.clone() else { return Ok((Vec::new(),)) };
    let mut text = Vec::new();
    for ids in ids.as_le_slice(&caller).chunks(TOKENS_AT_ONCE) {
        let before = text.len();
        ids.iter().for_each(|id| text.extend_from_slice(tokens.bytes(TokenId::from_le(*id))));
        clock.charge_bytes(size_of_val(ids) + text.len() - before)?;
    }
    caller.data_mut().clock = clock;
    Ok((text,))
}

/// The bytes of each token of a range.
fn token_bytes(mut caller: Caller<'_>, (first, count): (TokenId, u32)) -> wasmtime::Result<(Vec<Vec<u8>>,)> {
    let Guest { clock, grants, .. } = caller.data_mut();
    let Some(tokens) = &grants.tokenizer else { return Ok((Vec::new(),)) };
    // There is nothing past the last token. Without this check, a guest's argument would decide how much the host allocates.
    let end = first.saturating_add(count.into()).min(tokens.size().into());
    let mut all = Vec::new();
    for id in first..end {
        let bytes = tokens.bytes(id).to_vec();
        clock.charge_bytes_in_full(TOKEN_COST_BYTES + bytes.len())?;
        all.push(bytes);
    }
    Ok((all,))
}

/// The ids of a text.
fn encode(
    mut caller: Caller<'_>,
    (text,): (WasmStr,),
) -> wasmtime::Result<(Result<Vec<TokenId>, EncodeError>,)> {
    let Guest { mut clock, ref grants, .. } = *caller.data();
    let Some(tokens) = grants.tokenizer.clone() else { return Ok((Ok(Vec::new()),)) };
    let text = text.to_str(&caller)?;
    clock.charge_bytes(text.len())?;
    let ids = clock.charge(|| tokens.encode(&text))?;
    caller.data_mut().clock = clock;
    Ok((ids,))
}

/// The imports of one component: granted functions, and a trap for every other function.
///
/// Each import is defined under the exact name in the component, including its version. Otherwise wasmtime would define a
/// trap for that name.
pub(crate) fn linker(
    engine: &Engine,
    component: &Component,
    environment: Environment,
) -> wasmtime::Result<Linker<Guest>> {
    let mut linker = Linker::new(engine);
    let environment_bytes = environment.iter().map(|(name, value)| name.len() + value.len()).sum();
    let environment: Arc<[(String, String)]> = environment.into();
    for (name, _) in component.component_type().imports(engine) {
        match name.split('@').next().unwrap_or(name) {
            "afterbay:plugin/log" => {
                linker.instance(name)?.func_wrap("log", write_line)?;
            }
            "afterbay:plugin/metrics" => link_metrics(linker.instance(name)?)?,
            "afterbay:plugin/health" => outside::link_health(linker.instance(name)?)?,
            "afterbay:plugin/store" => outside::link_store(linker.instance(name)?)?,
            "afterbay:plugin/call" => outside::link_call(linker.instance(name)?)?,
            "afterbay:plugin/signals" => {
                signals::add_to_linker_instance::<_, HasSelf<_>>(&mut linker.instance(name)?, |guest| guest)?;
            }
            "afterbay:plugin/timer" => {
                timer::add_to_linker_instance::<_, HasSelf<_>>(&mut linker.instance(name)?, |guest| guest)?;
            }
            "afterbay:plugin/request" => {
                request::add_to_linker_instance::<_, HasSelf<_>>(&mut linker.instance(name)?, |guest| guest)?;
            }
            "afterbay:plugin/tokenizer" => {
                let mut instance = linker.instance(name)?;
                instance.func_wrap("size", |caller: Caller<'_>, ()| {
                    Ok((caller.data().grants.tokenizer.as_ref().map_or(0, |tokens| tokens.size()),))
                })?;
                instance.func_wrap("decode", decode)?;
                instance.func_wrap("token-bytes", token_bytes)?;
                instance.func_wrap("special", |caller: Caller<'_>, ()| {
                    let tokens = &caller.data().grants.tokenizer;
                    Ok((tokens.as_ref().map_or(Vec::new(), |tokens| tokens.special().to_vec()),))
                })?;
                instance.func_wrap("end-of-text", |caller: Caller<'_>, ()| {
                    let tokens = &caller.data().grants.tokenizer;
                    Ok((tokens.as_ref().map_or(Vec::new(), |tokens| tokens.end_of_text().to_vec()),))
                })?;
                instance.func_wrap("encode", encode)?;
            }
            "wasi:cli/environment" => {
                let variables = environment.clone();
                let mut instance = linker.instance(name)?;
                instance.func_wrap("get-environment", move |mut caller: Caller<'_>, ()| {
                    caller.data_mut().clock.charge_bytes_in_full(environment_bytes)?;
                    Ok((variables.to_vec(),))
                })?;
                // CPython calls both when it starts.
                instance.func_wrap("get-arguments", |_, ()| Ok((Vec::<String>::new(),)))?;
                instance.func_wrap("initial-cwd", |_, ()| Ok((None::<String>,)))?;
            }
            // Always 0: a plugin's behaviour must not depend on the time. `subscribe` traps, because nothing can wait.
            "wasi:clocks/monotonic-clock" => {
                linker.instance(name)?.func_wrap("now", |_, ()| Ok((0_u64,)))?;
                linker.instance(name)?.func_wrap("resolution", |_, ()| Ok((1_u64,)))?;
            }
            "wasi:cli/stderr" => {
                linker.instance(name)?.func_wrap("get-stderr", |_, ()| Ok((output(),)))?;
            }
            "wasi:cli/stdout" => {
                linker.instance(name)?.func_wrap("get-stdout", |_, ()| Ok((output(),)))?;
            }
            // No terminal, so that a libc does not ask for its width.
            "wasi:cli/terminal-stderr" => {
                linker.instance(name)?.func_wrap("get-terminal-stderr", |_, ()| Ok((no_terminal(),)))?;
            }
            "wasi:cli/terminal-stdout" => {
                linker.instance(name)?.func_wrap("get-terminal-stdout", |_, ()| Ok((no_terminal(),)))?;
            }
            "wasi:io/streams" => print_to_log(linker.instance(name)?)?,
            // A guest can only wait for an output stream, which always has room.
            "wasi:io/poll" => {
                let mut poll = linker.instance(name)?;
                poll.func_wrap("[method]pollable.ready", |_, (_,): (Nothing,)| Ok((true,)))?;
                poll.func_wrap("[method]pollable.block", |_, (_,): (Nothing,)| Ok(()))?;
                poll.func_wrap("poll", |mut caller: Caller<'_>, (all,): (Vec<Nothing>,)| {
                    caller.data_mut().clock.charge_bytes_in_full(size_of_val(&*all))?;
                    Ok(((0..).take(all.len()).collect::<Vec<u32>>(),))
                })?;
            }
            // No directory. CPython looks for the source lines of a traceback here.
            "wasi:filesystem/preopens" => {
                linker
                    .instance(name)?
                    .func_wrap("get-directories", |_, ()| Ok((Vec::<(Nothing, String)>::new(),)))?;
            }
            // CPython reads its hash seed when it starts.
            "wasi:random/random" => {
                let mut random = linker.instance(name)?;
                random.func_wrap("get-random-bytes", |mut caller: Caller<'_>, (bytes,): (u64,)| {
                    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
                    if bytes > RANDOM_BYTES_MAX {
                        wasmtime::bail!("wanted {bytes} random bytes, the limit is {RANDOM_BYTES_MAX}");
                    }
                    let Guest { clock, random, .. } = caller.data_mut();
                    clock.charge_bytes_in_full(bytes)?;
                    Ok(((0..bytes).map(|_| random.next().to_le_bytes()[0]).collect::<Vec<u8>>(),))
                })?;
                random.func_wrap("get-random-u64", |mut caller: Caller<'_>, ()| {
                    Ok((caller.data_mut().random.next(),))
                })?;
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

fn link_metrics(mut instance: LinkerInstance<'_, Guest>) -> wasmtime::Result<()> {
    instance.func_wrap("counter-add", |caller, (name, labels, delta): (WasmStr, WasmLabels, u64)| {
        enter(caller, &name, labels, |meter, name, labels| meter.add(name, labels, delta))
    })?;
    instance.func_wrap("gauge-set", |caller, (name, labels, value): (WasmStr, WasmLabels, f64)| {
        enter(caller, &name, labels, |meter, name, labels| meter.set(name, labels, value))
    })?;
    instance.func_wrap(
        "histogram-observe",
        |caller, (name, labels, value): (WasmStr, WasmLabels, f64)| {
            enter(caller, &name, labels, |meter, name, labels| meter.observe(name, labels, value))
        },
    )?;
    instance.func_wrap("remove", |caller, (name, labels): (WasmStr, WasmLabels)| {
        enter(caller, &name, labels, |meter, name, labels| {
            meter.remove(name, labels);
            Ok(())
        })
    })
}

/// A guest's resource without content. `define_unknown_imports_as_traps` defines each resource as this type.
type Nothing = Resource<()>;

/// WASI's `stream-error`, as a type only: writing output never fails.
#[derive(ComponentType, Lower)]
#[component(variant)]
#[allow(dead_code, reason = "the canonical ABI wants every case")]
enum StreamError {
    #[component(name = "last-operation-failed")]
    LastOperationFailed(Nothing),
    #[component(name = "closed")]
    Closed,
}

/// An output stream: standard output and standard error are the same one. Also the pollable of its room.
fn output() -> Nothing {
    Resource::new_own(0)
}

fn no_terminal() -> Option<Nothing> {
    None
}

/// Defines the functions by which a guest writes to an output stream. The text goes to the plugin's log.
fn print_to_log(mut streams: LinkerInstance<'_, Guest>) -> wasmtime::Result<()> {
    type Written = (Result<(), StreamError>,);
    streams.resource("output-stream", wasmtime::component::ResourceType::host::<()>(), |_, _| Ok(()))?;
    let room = |_: Caller<'_>, (_,): (Nothing,)| Ok((Ok::<u64, StreamError>(LOG_LINE_BYTES_MAX as u64),));
    streams.func_wrap("[method]output-stream.check-write", room)?;
    streams.func_wrap("[method]output-stream.subscribe", |_, (_,): (Nothing,)| Ok((output(),)))?;
    for write in ["write", "blocking-write-and-flush"] {
        let write_to_log =
            |mut store: Caller<'_>, (_, bytes): (Nothing, WasmList<u8>)| -> wasmtime::Result<Written> {
                // Only the end of the text is copied, whatever its length.
                let bytes = bytes.as_le_slice(&store);
                let end = bytes[bytes.len().saturating_sub(LOG_LINE_BYTES_MAX)..].to_vec();
                let Guest { clock, log, .. } = store.data_mut();
                clock.charge_bytes(end.len())?;
                log.print(&end);
                Ok((Ok(()),))
            };
        streams.func_wrap(&format!("[method]output-stream.{write}"), write_to_log)?;
    }
    for flush in ["flush", "blocking-flush"] {
        let nothing = |_: Caller<'_>, (_,): (Nothing,)| -> wasmtime::Result<Written> { Ok((Ok(()),)) };
        streams.func_wrap(&format!("[method]output-stream.{flush}"), nothing)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_numbers_differ_each_time_and_are_the_same_in_every_instance() {
        let numbers = || {
            let mut random = Sequence(HASH_SEED.0);
            [random.next(), random.next(), random.next()]
        };
        let [first, second, third] = numbers();
        assert!(first != second && second != third);
        assert_eq!(numbers(), [first, second, third]);
    }
}
