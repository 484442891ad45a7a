//! The engine of the process: its compiler settings, its pool of instances, and its cache of compiled code.

use std::path::PathBuf;
use std::sync::Arc;

use wasmtime::{
    Config, Enabled, Engine, InstanceAllocationStrategy, PoolingAllocationConfig, WasmBacktraceDetails,
};

use crate::cache::{Cache, CacheError};
use crate::deadline::Ticker;
use crate::limits::{
    CORE_INSTANCES_MAX, INSTANCES_MAX, MEMORIES_MAX, MEMORY_BYTES_MAX, RESIDENT_BYTES_MAX, STACK_BYTES_MAX,
    TABLE_ELEMENTS_MAX, TABLES_MAX,
};

/// The options of a [`Host`].
#[derive(Clone, Debug, Default)]
pub struct HostOptions {
    /// The directory for compiled code, created with mode 0700 if it is missing. `None`: components are compiled at each
    /// start.
    pub cache_dir: Option<PathBuf>,
    /// Whether the work of a call is counted ([`crate::Plugin::fuel_used`]). Counting makes the code slower. Use it in
    /// benchmarks, never in a serving host.
    pub counts_fuel: bool,
    /// Whether a component is compiled on all processors. That halves the time on two processors, and slows down everything
    /// beside it. Use it in commands that wait for the result, never in a serving host. The code is the same.
    pub compiles_in_parallel: bool,
}

/// The reason why a host cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The directory for compiled code cannot be used.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// wasmtime refused, usually for lack of address space.
    #[error("webassembly engine: {message}")]
    Engine {
        /// wasmtime's error.
        message: String,
    },
    /// The ticker's thread could not be started.
    #[error("plugin ticker thread: {0}")]
    Thread(std::io::Error),
}

impl From<wasmtime::Error> for HostError {
    fn from(error: wasmtime::Error) -> Self {
        HostError::Engine { message: format!("{error:#}") }
    }
}

/// The plugin host of a process. Clones share one engine.
#[derive(Clone)]
pub struct Host {
    pub(crate) shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) engine: Engine,
    pub(crate) ticker: Ticker,
    pub(crate) cache: Option<Cache>,
}

impl Host {
    /// Makes an engine with nothing loaded.
    ///
    /// # Errors
    /// If the cache directory is not this user's own, or the address space of the pool (about 2 TiB, reserved, not used) is
    /// not available.
    pub fn new(options: HostOptions) -> Result<Self, HostError> {
        let engine = Engine::new(&config(&options))?;
        let cache = options.cache_dir.map(|directory| Cache::open(&directory, &engine)).transpose()?;
        let ticker = Ticker::start(engine.clone()).map_err(HostError::Thread)?;
        Ok(Self { shared: Arc::new(Shared { engine, ticker, cache }) })
    }
}

fn config(options: &HostOptions) -> Config {
    let mut pool = PoolingAllocationConfig::new();
    pool.total_component_instances(INSTANCES_MAX)
        .total_core_instances(INSTANCES_MAX * 8)
        .total_memories(INSTANCES_MAX)
        .total_tables(INSTANCES_MAX * 4)
        .max_core_instances_per_component(CORE_INSTANCES_MAX)
        .max_memories_per_component(MEMORIES_MAX)
        .max_tables_per_component(TABLES_MAX)
        .max_tables_per_module(TABLES_MAX)
        .table_elements(TABLE_ELEMENTS_MAX)
        // The next instance gets its pages at once. The first touch of a new page takes 1 to 3 us, and a swap touches
        // hundreds.
        .linear_memory_keep_resident(RESIDENT_BYTES_MAX)
        .table_keep_resident(RESIDENT_BYTES_MAX)
        // For any component: otherwise each version of a plugin would reserve this memory for itself.
        .max_unused_warm_slots(0)
        .pagemap_scan(Enabled::Auto)
        .max_memory_size(usize::try_from(MEMORY_BYTES_MAX).unwrap_or(usize::MAX));
    let mut config = Config::new();
    config
        // The lines come from this crate's own table. An environment variable would switch wasmtime's on.
        .wasm_backtrace_details(WasmBacktraceDetails::Disable)
        .allocation_strategy(InstanceAllocationStrategy::Pooling(pool))
        .epoch_interruption(true)
        // A part of the key of compiled code: code that counts is never used in place of code that does not.
        .consume_fuel(options.counts_fuel)
        .parallel_compilation(options.compiles_in_parallel)
        .max_wasm_stack(STACK_BYTES_MAX)
        // The same rows must give the same verdicts on every machine.
        .relaxed_simd_deterministic(true);
    config
}

#[cfg(test)]
mod tests {
    use wasmtime::{Instance, Module, Store};

    use super::*;

    #[test]
    fn memory_of_a_dropped_instance_serves_the_next_one_of_any_component() {
        let engine = Engine::new(&config(&HostOptions::default())).unwrap();
        for version in 0..20 {
            // A memory of one page, and a custom section named by a number.
            let wasm = [&b"\0asm\x01\0\0\0\x05\x03\x01\0\x01\0\x02\x01"[..], &[version]].concat();
            let module = Module::new(&engine, wasm).unwrap();
            Instance::new(Store::new(&engine, ()), &module, &[]).unwrap();
        }
        let kept = engine.pooling_allocator_metrics().unwrap().unused_warm_memories();
        assert_eq!(kept, 1);
    }
}
