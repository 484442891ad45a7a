//! The facts about engines in a stream's frames: their load, of which one of many frames is read, and what their connectors say.

use afterbay_batch::Decoded;
use afterbay_wire::{Barrier, Batch, EngineLoad};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Time between two frames whose load is read. Plugins get a snapshot as often.
const READ_EVERY: Duration = Duration::from_millis(100);

/// Most engines whose load is known. That of a further one is left out.
const ENGINES_MAX: usize = 256;

/// The load of all engines of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FrameLoad {
    /// Requests that run.
    pub running: u64,
    /// Requests that wait.
    pub waiting: u64,
    /// The used share of the fullest KV cache, from 0 to 1.
    pub kv_cache_usage: f64,
}

/// Takes a load. Must not block.
pub type FrameLoads = Box<dyn Fn(FrameLoad) + Send>;

/// Takes a message of the engine's connector. Called once for each, before the frames that it is of. Must not block.
pub type ConnectorMessages = Box<dyn Fn(&Barrier) + Send>;

/// Reads the load of some frames, and every message of a connector.
#[derive(Default)]
pub(crate) struct FrameLoadReader {
    loads: Option<FrameLoads>,
    connector: Option<ConnectorMessages>,
    /// The last load of each engine, and when it was read.
    engines: BTreeMap<u64, (Instant, EngineLoad)>,
}

impl FrameLoadReader {
    pub(crate) fn new(loads: Option<FrameLoads>, connector: Option<ConnectorMessages>) -> FrameLoadReader {
        FrameLoadReader { loads, connector, ..FrameLoadReader::default() }
    }

    /// Hands on the load with that of the frame, unless the engine's load was read shortly before.
    pub(crate) fn observe(&mut self, decoded: &Decoded) {
        self.hand_on(decoded);
        let Some(loads) = &self.loads else { return };
        let at = decoded.persisted().at().instant;
        let load = match decoded {
            Decoded::Batch(decoded) if self.was_read_shortly_before(decoded.batch(), at) => None,
            Decoded::Batch(decoded) => decoded.batch().load(),
            // An idle engine sends one frame without rows, and then none: its load is never left out.
            Decoded::Barrier(decoded) => decoded.barrier().load(),
        };
        let Some(load) = load else { return };
        if self.engines.contains_key(&load.engine) || self.engines.len() < ENGINES_MAX {
            self.engines.insert(load.engine, (at, load));
            loads(self.all());
        }
    }

    /// Hands on the frame if it is a message of the connector.
    pub(crate) fn hand_on(&self, decoded: &Decoded) {
        if let Decoded::Barrier(decoded) = decoded
            && decoded.barrier().is_internal()
            && let Some(take) = &self.connector
        {
            take(decoded.barrier());
        }
    }

    fn was_read_shortly_before(&self, batch: &Batch, at: Instant) -> bool {
        let last = batch.engine_index().and_then(|engine| self.engines.get(&engine));
        last.is_some_and(|(read, _)| at < *read + READ_EVERY)
    }

    fn all(&self) -> FrameLoad {
        self.engines.values().fold(FrameLoad::default(), |all, (_, load)| FrameLoad {
            running: all.running.saturating_add(load.running),
            waiting: all.waiting.saturating_add(load.waiting),
            kv_cache_usage: all.kv_cache_usage.max(load.kv_cache_usage),
        })
    }
}

#[cfg(test)]
mod tests;
