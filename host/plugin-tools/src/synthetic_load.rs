//! Synthetic batches for a plugin, always the same, and the time that its calls take.

use afterbay_runtime::{ColumnSet, Columns, Component, FinishKind, Opened, Plugin, TokenId};
use rustix::time::{ClockId, clock_gettime};
use std::time::{Duration, Instant};

/// Synthetic requests, with one row each in every batch.
pub(crate) struct SyntheticLoad {
    pub(crate) rows: usize,
    requests: Vec<u64>,
    rids: Vec<String>,
    ids_a_row: usize,
}

/// The columns of one step.
struct Step {
    ids: Vec<TokenId>,
    ends: Vec<u32>,
    completion_tokens: Vec<u64>,
    finished: Vec<FinishKind>,
    texts: Vec<String>,
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

    fn steps(&self, batches: u64) -> Vec<Step> {
        // Pseudo-random ids below 32,000, without repetitions that a plugin would look for.
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        let mut id = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            TokenId::try_from((state >> 33) % 32_000).unwrap_or_default()
        };
        (1..=batches)
            .map(|step| Step {
                ids: (0..self.rows * self.ids_a_row).map(|_| id()).collect(),
                ends: (1..=self.rows).map(|row| (row * self.ids_a_row) as u32).collect(),
                completion_tokens: vec![step * self.ids_a_row as u64; self.rows],
                finished: vec![FinishKind::Running; self.rows],
                texts: (0..self.rows).map(|_| " word".repeat(self.ids_a_row)).collect(),
            })
            .collect()
    }

    /// Calls `show` with the columns of `batches` batches, as a plugin that wants these columns sees them.
    pub(crate) fn with_columns<R>(
        &self,
        batches: u64,
        wants: ColumnSet,
        show: impl FnOnce(&[Columns<'_>]) -> R,
    ) -> R {
        let steps = self.steps(batches);
        let texts: Vec<Vec<&str>> =
            steps.iter().map(|step| step.texts.iter().map(String::as_str).collect()).collect();
        let waiting = vec![0; self.rows];
        let columns: Vec<Columns<'_>> = steps
            .iter()
            .zip(&texts)
            .map(|(step, texts)| Columns {
                requests: &self.requests,
                output_ids: if wants.output_ids { &step.ids } else { &[] },
                output_ends: if wants.output_ids { &step.ends } else { &[] },
                completion_tokens: if wants.completion_tokens { &step.completion_tokens } else { &[] },
                finished: if wants.finished { &step.finished } else { &[] },
                texts: if wants.texts { texts } else { &[] },
                waiting: if wants.waiting { &waiting } else { &[] },
            })
            .collect();
        show(&columns)
    }

    fn opened(&self) -> Vec<Opened<'_>> {
        let requests = self.requests.iter().zip(&self.rids);
        let opened = requests.map(|(request, rid)| Opened {
            request: *request,
            rid,
            http_worker_ipc: "",
            sink: "",
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
