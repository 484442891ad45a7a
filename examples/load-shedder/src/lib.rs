//! Notes the number of different tokens at the end of each request, and skips that work while the stream is
//! under pressure.

use std::collections::HashSet;

use afterbay_plugin::{
    Batch, Calls, Columns, ConfigureError, FinishKind, Opened, Plugin, RequestId, Requests, SinkState,
    TokenId, Verdicts, metrics, signals,
};

/// The settings of the plugin.
#[derive(serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// The plugin skips its work while more requests than this wait for the scheduler, and while a reader is
    /// behind.
    waiting_max: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self { waiting_max: 64 }
    }
}

/// The plugin that sheds its load.
pub struct LoadShedder {
    settings: Settings,
    is_shedding: bool,
    requests: Requests<TokenCount>,
}

#[derive(Default)]
struct TokenCount {
    different: HashSet<TokenId>,
    counted: usize,
    skipped: usize,
}

impl Plugin for LoadShedder {
    type Settings = Settings;
    const COLUMNS: Columns = Columns::OUTPUT_IDS.union(Columns::FINISHED);
    const WANTS: Calls = Calls::PRESSURE;

    fn new(settings: Settings) -> Result<Self, ConfigureError> {
        Ok(Self { settings, is_shedding: false, requests: Requests::new() })
    }

    fn opened(&mut self, request: &Opened) {
        // This instance did not see the tokens before it either.
        let skipped = request.received_tokens as usize;
        self.requests.insert(request.request, TokenCount { skipped, ..TokenCount::default() });
    }

    fn pressure(&mut self) {
        let now = signals();
        // A stale value says nothing about the present.
        let scheduler = now.scheduler.filter(|load| !load.stale);
        let waiting = scheduler.and_then(|load| load.waiting).unwrap_or(0);
        // Use the sinks' states only: `pressure` is called when a state changes, not when a row gets older.
        let is_behind = |state| matches!(state, SinkState::Behind | SinkState::Stalled);
        let behind = now.sinks.iter().filter(|sink| is_behind(sink.state)).count();
        let sheds = waiting > self.settings.waiting_max || behind > 0;
        if sheds != self.is_shedding {
            afterbay_plugin::info!(
                "{}: {waiting} requests wait, {behind} readers are behind",
                if sheds { "shedding work" } else { "working again" }
            );
            metrics::gauge_set("shedding", &[], if sheds { 1.0 } else { 0.0 });
        }
        self.is_shedding = sheds;
    }

    fn process(&mut self, batch: &Batch<'_>, verdicts: &mut Verdicts) {
        for row in batch {
            let Some(request) = self.requests.get_mut(row.request()) else { continue };
            if self.is_shedding {
                request.skipped += row.ids().len();
                metrics::counter_add("rows_shed", &[], 1);
            } else {
                request.counted += row.ids().len();
                request.different.extend(row.ids());
            }
            if row.finish() != Some(FinishKind::Running) {
                verdicts.annotate(row, request.note());
            }
        }
    }

    fn closed(&mut self, request: RequestId) {
        self.requests.remove(request);
    }
}

impl TokenCount {
    fn note(&self) -> String {
        let note = format!("{} of {} tokens different", self.different.len(), self.counted);
        match self.skipped {
            0 => note,
            skipped => format!("{note}, {skipped} more skipped"),
        }
    }
}

afterbay_plugin::export!(LoadShedder);

#[cfg(test)]
mod tests {
    use afterbay_plugin::testing::{Harness, Metric, TestRow, nothing_waits};
    use afterbay_plugin::{Action, Load, Queue, Sink, Snapshot};

    use super::*;

    fn waiting(waiting: u64, stale: bool) -> Snapshot {
        let load = Load { age_ms: 3, stale, running: None, waiting: Some(waiting), kv_cache_usage: None };
        Snapshot { scheduler: Some(load), ..nothing_waits() }
    }

    #[test]
    fn under_pressure_tokens_are_skipped_and_the_note_says_so() {
        let mut plugin = Harness::<LoadShedder>::new(r#"{"waiting_max": 10}"#).unwrap();
        plugin.open(1);
        plugin.process(&[TestRow::new(1).ids([7, 7, 8])]);
        plugin.set_signals(waiting(11, false));
        plugin.process(&[TestRow::new(1).ids([9])]);
        assert_eq!(
            (plugin.metric("rows_shed"), plugin.metric("shedding")),
            (Some(Metric::Counter(1)), Some(Metric::Gauge(1.0)))
        );
        plugin.set_signals(waiting(10, false));
        let verdicts = plugin.process(&[TestRow::new(1).ids([9]).finish(FinishKind::Stop)]);
        let note = "3 of 4 tokens different, 1 more skipped";
        assert_eq!(verdicts[0].action, Action::Annotate(note.into()));
        assert_eq!(plugin.logged().len(), 2);
    }

    fn reader(state: SinkState) -> Snapshot {
        let backlog = Queue { frames: 1, rows: 1, bytes: 100, oldest_age_ms: 0 };
        let (backlog_tokens, lag_frames) = (1, None);
        let name = "reader".into();
        let sink = Sink { name, state, backlog, backlog_tokens, lag_frames };
        Snapshot { sinks: vec![sink], ..nothing_waits() }
    }

    #[test]
    fn a_reader_that_is_behind_or_stalled_is_pressure_until_it_keeps_up() {
        let mut plugin = Harness::<LoadShedder>::new("{}").unwrap();
        for (state, shedding) in [
            (SinkState::KeepingUp, None),
            (SinkState::Behind, Some(1.0)),
            (SinkState::Stalled, Some(1.0)),
            (SinkState::KeepingUp, Some(0.0)),
        ] {
            plugin.set_signals(reader(state));
            assert_eq!(plugin.metric("shedding"), shedding.map(Metric::Gauge), "{state:?}");
        }
    }

    #[test]
    fn a_stale_load_is_no_pressure() {
        let mut plugin = Harness::<LoadShedder>::new("{}").unwrap();
        plugin.set_signals(waiting(1_000_000, true));
        assert_eq!(plugin.logged(), []);
    }
}
