//! Synthetic batches for a plugin, always the same, and the time that its calls take.

use afterbay_runtime::{
    ColumnSet, Columns, Component, Opened, OwnedColumns, PlainValues, Plugin, RowFacts, Strings, TokenId,
};
use rustix::time::{ClockId, clock_gettime};
use std::time::{Duration, Instant};

/// Synthetic requests, with one row each in every batch.
pub(crate) struct SyntheticLoad {
    pub(crate) rows: usize,
    requests: Vec<u64>,
    rids: Vec<String>,
    ids_a_row: usize,
}

/// The time that the calls took.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Timing {
    /// Wall-clock time.
    pub(crate) all: Duration,
    /// Processor time of the longest call, as a deadline counts it.
    pub(crate) longest: Duration,
    pub(crate) verdicts: u64,
}

impl SyntheticLoad {
    pub(crate) fn new(rows: usize, ids_a_row: usize) -> SyntheticLoad {
        let requests: Vec<u64> = (1..=rows as u64).collect();
        let rids = requests.iter().map(|number| format!("{number:032x}")).collect();
        SyntheticLoad { rows, requests, rids, ids_a_row }
    }

    fn steps(&self, batches: u64) -> Vec<OwnedColumns> {
        // Pseudo-random ids below 32,000, without repetitions that a plugin would look for.
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        let mut id = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            TokenId::try_from((state >> 33) % 32_000).unwrap_or_default()
        };
        let text = " word".repeat(self.ids_a_row);
        let mut step = |step: u64| {
            let completion_tokens = step * self.ids_a_row as u64;
            let values = PlainValues { completion_tokens, ..PlainValues::default() };
            let mut columns = OwnedColumns::default();
            for request in &self.requests {
                let ids: Vec<TokenId> = (0..self.ids_a_row).map(|_| id()).collect();
                columns.push(*request, &ids, Some(&text), values, &RowFacts::default());
            }
            columns
        };
        (1..=batches).map(&mut step).collect()
    }

    /// Calls `show` with the columns of `batches` batches, as a plugin that wants these columns sees them.
    pub(crate) fn with_columns<R>(
        &self,
        batches: u64,
        wants: ColumnSet,
        show: impl FnOnce(&[Columns<'_>]) -> R,
    ) -> R {
        let steps = self.steps(batches);
        let strings: Vec<Strings<'_>> = steps.iter().map(OwnedColumns::strings).collect();
        let steps = steps.iter().zip(&strings);
        let columns: Vec<Columns<'_>> =
            steps.map(|(step, strings)| step.columns(strings).select(wants)).collect();
        show(&columns)
    }

    fn opened(&self) -> Vec<Opened<'_>> {
        let requests = self.requests.iter().zip(&self.rids);
        let opened = requests.map(|(request, rid)| Opened {
            request: *request,
            rid,
            front_end: "",
            sink: "",
            arrived_ms: 0,
            prompt_tokens: 64,
            received_tokens: 0,
            resumed: false,
        });
        opened.collect()
    }

    /// A fresh instance that has opened the requests.
    pub(crate) fn started(&self, component: &Component, settings: &str) -> anyhow::Result<Plugin> {
        let mut plugin = component.instantiate(settings)?;
        plugin.open(&self.opened())?;
        Ok(plugin)
    }

    /// Measures a fresh instance with these batches.
    pub(crate) fn timed(
        &self,
        component: &Component,
        settings: &str,
        columns: &[Columns<'_>],
    ) -> anyhow::Result<Timing> {
        let mut plugin = component.instantiate(settings)?;
        let mut took = Timing::default();
        let begun = processor_time();
        plugin.open(&self.opened())?;
        took.longest = processor_time().saturating_sub(begun);
        let (begun, mut before) = (Instant::now(), processor_time());
        for columns in columns {
            took.verdicts += plugin.process(columns)?.len() as u64;
            let now = processor_time();
            took.longest = took.longest.max(now.saturating_sub(before));
            before = now;
        }
        took.all = begun.elapsed();
        Ok(took)
    }
}

fn processor_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or_default())
}
