//! The figures of the plugins of a trial: rows, time, verdicts and faults.

use afterbay_stream::{PluginState, Trial};
use std::collections::BTreeMap;

/// The figures of one plugin.
#[derive(Clone, Debug, Default)]
pub(crate) struct PluginFigure {
    pub(crate) plugin: String,
    /// `live`, `shadow`, `down` or `quarantined`.
    pub(crate) state: &'static str,
    pub(crate) rows: u64,
    ns: u128,
    pub(crate) verdicts: BTreeMap<&'static str, u64>,
    pub(crate) faults: BTreeMap<&'static str, u64>,
}

/// The figures of all plugins, in the order of the chain.
#[derive(Clone, Debug, Default)]
pub(crate) struct PluginFigures(pub(crate) Vec<PluginFigure>);

impl PluginFigures {
    /// The figures since the start of the trial.
    pub(crate) fn of(trial: &Trial) -> PluginFigures {
        let figure = |it: afterbay_stream::TrialPlugin| PluginFigure {
            plugin: it.status.plugin,
            state: match it.status.state {
                PluginState::Live => "live",
                PluginState::Shadow => "shadow",
                PluginState::Down => "down",
                PluginState::Quarantined => "quarantined",
            },
            rows: it.counters.rows.get(),
            ns: it.counters.batch_seconds.sum().as_nanos(),
            verdicts: it.counters.verdicts.each().collect(),
            faults: it.counters.faults.each().collect(),
        };
        PluginFigures(trial.plugins().into_iter().map(figure).collect())
    }

    /// Leaves the figures since `before`.
    pub(crate) fn subtract(&mut self, before: Option<&PluginFigures>) {
        for (index, figure) in self.0.iter_mut().enumerate() {
            let before = before.and_then(|before| before.0.get(index));
            if let Some(before) = before.filter(|before| before.plugin == figure.plugin) {
                figure.rows -= before.rows;
                figure.ns -= before.ns;
                let less = |counts: &mut BTreeMap<&'static str, u64>,
                            before: &BTreeMap<&'static str, u64>| {
                    counts.iter_mut().for_each(|(name, count)| *count -= before.get(name).unwrap_or(&0));
                };
                less(&mut figure.verdicts, &before.verdicts);
                less(&mut figure.faults, &before.faults);
            }
            figure.verdicts.retain(|_, count| *count > 0);
            figure.faults.retain(|_, count| *count > 0);
        }
    }
}

impl PluginFigure {
    /// Nanoseconds for each row; `None` without rows.
    pub(crate) fn ns_a_row(&self) -> Option<u64> {
        let ns = self.ns.checked_div(u128::from(self.rows))?;
        u64::try_from(ns).ok()
    }
}
