//! Gives each row's ids to the detector of its request, and the verdict to the host.

use afterbay_plugin::{
    Batch, Columns, ConfigureError, FinishReason, Opened, Plugin, RequestId, Requests, Row, Verdicts, health,
    metrics,
};

use crate::detector::{Detector, GRACE, Kind, Loop};
use crate::settings::{Consequence, Settings};
use crate::share::Share;

/// The finish reason of a request in a loop, and the beginning of its note.
const NAME: &str = "stop-loop";

/// The time between two updates of the gauge.
const GAUGE_EACH_MS: u64 = 1_000;

/// The plugin that ends loops.
pub struct StopLoop {
    settings: Settings,
    requests: Requests<Watched>,
    share: Share,
    /// The time of the last batch.
    now_ms: u64,
    /// The time of the gauge's next update.
    gauge_at_ms: u64,
    /// Whether the stream is marked as not ready.
    is_marked: bool,
}

/// A request.
enum Watched {
    /// The ids so far. No loop is shorter than them, and most requests that begin together get their detector in
    /// different batches.
    Early(Vec<u32>),
    /// The request has a detector.
    Watched(Box<Detector>),
    /// The request is in a loop.
    Looping,
}

impl Watched {
    /// Reads the new ids of a request. Returns the loop that they complete.
    fn read(&mut self, request: RequestId, ids: &[i64], turns: usize) -> Option<Loop> {
        // A token id has less than 32 bits.
        let ids = ids.iter().map(|id| *id as u32);
        if let Watched::Early(early) = self {
            early.extend(ids.clone());
            if early.len() < GRACE / 2 + request as usize % (GRACE / 2) {
                return None;
            }
            let mut detector = Box::<Detector>::default();
            let found = early.iter().find_map(|id| detector.push(*id, turns));
            *self = Watched::Watched(detector);
            return found;
        }
        let Watched::Watched(detector) = self else { return None };
        ids.into_iter().find_map(|id| detector.push(id, turns))
    }
}

impl Plugin for StopLoop {
    type Settings = Settings;
    const COLUMNS: Columns = Columns::OUTPUT_IDS;

    fn new(settings: Settings) -> Result<Self, ConfigureError> {
        settings.check()?;
        let share = Share::new(settings.not_ready.unwrap_or_default());
        Ok(Self { settings, requests: Requests::new(), share, now_ms: 0, gauge_at_ms: 0, is_marked: false })
    }

    fn opened(&mut self, request: &Opened) {
        self.requests.insert(request.request, Watched::Early(Vec::with_capacity(GRACE)));
    }

    fn process(&mut self, batch: &Batch<'_>, verdicts: &mut Verdicts) {
        self.now_ms = batch.time_ms();
        for row in batch {
            let Some(watched) = self.requests.get_mut(row.request()) else { continue };
            if let Some(found) = watched.read(row.request(), row.ids(), self.settings.turns) {
                *watched = Watched::Looping;
                report(row.request(), found);
                if self.settings.action == Consequence::Annotate {
                    let Loop { kind, period, length } = found;
                    verdicts.annotate(
                        row,
                        format!("{NAME}: {} loop of {period} ids, {length} ids long", kind.word()),
                    );
                }
            }
            // The host ignores the verdicts on replayed rows, so the request's next row gets it again.
            if matches!(watched, Watched::Looping) {
                end(self.settings.action, row, verdicts);
            }
        }
        self.watch_share();
    }

    fn closed(&mut self, request: RequestId) {
        if let Some(watched) = self.requests.remove(request) {
            self.share.ended(self.now_ms, matches!(watched, Watched::Looping));
            self.gauge_at_ms = 0;
        }
    }
}

impl StopLoop {
    /// Shows the share of stopped requests, and marks the stream.
    fn watch_share(&mut self) {
        if self.now_ms < self.gauge_at_ms {
            return;
        }
        self.gauge_at_ms = self.now_ms + GAUGE_EACH_MS;
        metrics::gauge_set("stopped_share", &[], self.share.of_stopped(self.now_ms));
        if self.settings.not_ready.is_none() {
            return;
        }
        let reason = self.share.reason(self.now_ms);
        // A mark ends by itself, so it is set again and again.
        if reason.is_some() || self.is_marked {
            self.is_marked = reason.is_some();
            health::set_not_ready(reason.as_deref());
        }
    }
}

/// Counts and logs a loop.
fn report(request: RequestId, Loop { kind, period, length }: Loop) {
    metrics::counter_add("stops", &[("kind", kind.word())], 1);
    match kind {
        Kind::LowEntropy => {
            afterbay_plugin::info!(request: request, "a loop: the last {length} ids are only a few different ones");
        }
        _ => {
            let kind = kind.word();
            afterbay_plugin::info!(request: request, "a loop ({kind}): the last {length} ids repeat {period}");
        }
    }
}

/// Ends a request in a loop.
fn end(action: Consequence, row: Row<'_>, verdicts: &mut Verdicts) {
    match action {
        Consequence::Finish => verdicts.finish(row, NAME),
        Consequence::Abort => {
            verdicts.finish(row, FinishReason::Abort(format!("{NAME}: the output repeats itself")))
        }
        Consequence::Annotate => {}
    }
}

#[cfg(test)]
mod tests {
    use afterbay_plugin::testing::{Harness, Metric, TestRow};
    use afterbay_plugin::{Action, Ending, Verdict};

    use super::*;

    fn plugin(settings: &str) -> Harness<StopLoop> {
        Harness::new(settings).unwrap()
    }

    /// A request of these ids, one in each row. Returns the indexes of the rows with a verdict, and the verdicts.
    fn verdicts(plugin: &mut Harness<StopLoop>, ids: impl IntoIterator<Item = i64>) -> Vec<(usize, Verdict)> {
        plugin.open(1);
        let rows = ids.into_iter().enumerate();
        let verdicts = rows.flat_map(|(row, id)| {
            let verdicts = plugin.process(&[TestRow::new(1).ids([id])]);
            verdicts.into_iter().map(move |verdict| (row, verdict)).collect::<Vec<_>>()
        });
        let verdicts = verdicts.collect();
        plugin.close(1);
        verdicts
    }

    fn finish(reason: FinishReason) -> Verdict {
        Verdict { row: 0, action: Action::Finish(Ending { reason, replacement: None }) }
    }

    /// Ten ids, over and over.
    fn looping() -> impl Iterator<Item = i64> {
        (100..110).cycle().take(80)
    }

    #[test]
    fn a_loop_ends_its_request_32_ids_after_the_fourth_turn_and_again_at_the_next_row() {
        let stop = finish(FinishReason::Stop("stop-loop".to_owned()));
        let got = verdicts(&mut plugin("{}"), (0..50).chain(looping()));
        assert_eq!(got[0], (50 + 40 + 32 - 1, stop.clone()));
        assert_eq!(got.len(), 9, "every later row repeats the verdict");
        assert_eq!(got[8], (129, stop));
    }

    #[test]
    fn a_request_may_be_aborted_or_only_noted() {
        let got = verdicts(&mut plugin(r#"{"action": "abort"}"#), looping());
        assert_eq!(got[0].1, finish(FinishReason::Abort("stop-loop: the output repeats itself".to_owned())));
        let got = verdicts(&mut plugin(r#"{"action": "annotate"}"#), looping());
        let note = Action::Annotate("stop-loop: exact loop of 10 ids, 72 ids long".to_owned());
        assert_eq!(got, [(71, Verdict { row: 0, action: note })]);
    }

    #[test]
    fn a_loop_within_one_row_and_a_loop_over_long_rows_are_found() {
        let mut plugin = plugin("{}");
        (1..=3).for_each(|request| plugin.open(request));
        let rows = [
            TestRow::new(1).ids(looping().collect::<Vec<_>>()),
            TestRow::new(2).ids((0..500).collect::<Vec<_>>()),
            TestRow::new(3).ids(looping().take(40).collect::<Vec<_>>()),
        ];
        assert_eq!(plugin.process(&rows).iter().map(|verdict| verdict.row).collect::<Vec<_>>(), [0]);
        let rest = TestRow::new(3).ids(looping().take(40).collect::<Vec<_>>());
        assert_eq!(plugin.process(&[rest]).len(), 1);
    }

    #[test]
    fn loops_are_counted_by_kind_and_logged_with_their_period() {
        let mut plugin = plugin("{}");
        verdicts(&mut plugin, looping());
        verdicts(&mut plugin, std::iter::repeat_n(7, 300));
        verdicts(&mut plugin, 0..300);
        assert_eq!(plugin.metric_with("stops", &[("kind", "exact")]), Some(Metric::Counter(1)));
        assert_eq!(plugin.metric_with("stops", &[("kind", "one-token")]), Some(Metric::Counter(1)));
        let logged = plugin.logged();
        assert_eq!(logged.len(), 2);
        assert_eq!(logged[0].message, "a loop (exact): the last 72 ids repeat 10");
    }

    #[test]
    fn every_request_in_a_loop_is_found_wherever_its_detector_begins() {
        let mut plugin = plugin("{}");
        for request in 0..64 {
            plugin.open(request);
            let found =
                looping().position(|id| !plugin.process(&[TestRow::new(request).ids([id])]).is_empty());
            assert_eq!(found, Some(71), "request {request}");
        }
    }

    #[test]
    fn the_stream_is_not_ready_while_too_many_requests_of_the_window_are_in_loops() {
        let settings = r#"{"not_ready": {"share": 0.5, "requests": 4, "window": "1m"}}"#;
        let mut plugin = plugin(settings);
        plugin.set_time_ms(1_000_000);
        for (number, is_loop) in [true, false, true].into_iter().enumerate() {
            let last = if is_loop { 10 } else { 1_000 };
            verdicts(&mut plugin, (0..).map(|id| id % last).take(80));
            assert_eq!(plugin.not_ready(), None, "after {number}");
        }
        verdicts(&mut plugin, 0..80);
        plugin.open(2);
        plugin.process(&[TestRow::new(2).ids([1])]);
        assert_eq!(plugin.not_ready().unwrap(), "2 of the last 4 requests ended in a loop, within 1m");
        assert_eq!(plugin.metric("stopped_share"), Some(Metric::Gauge(0.5)));
        plugin.set_time_ms(1_070_000);
        plugin.process(&[TestRow::new(2).ids([2])]);
        assert_eq!(plugin.not_ready(), None, "the window is over");
        assert_eq!(plugin.metric("stopped_share"), Some(Metric::Gauge(0.0)));
    }

    #[test]
    fn without_the_setting_the_stream_stays_ready() {
        let mut plugin = plugin("{}");
        plugin.set_time_ms(1_000);
        (0..40).for_each(|_| drop(verdicts(&mut plugin, looping())));
        plugin.open(2);
        plugin.process(&[TestRow::new(2).ids([1])]);
        assert_eq!(plugin.metric("stopped_share"), Some(Metric::Gauge(1.0)));
        assert_eq!(plugin.not_ready(), None);
    }

    #[test]
    fn settings_out_of_range_are_refused_with_the_limit() {
        let refuse = |settings| Harness::<StopLoop>::new(settings).err().unwrap().message();
        assert_eq!(refuse(r#"{"turns": 3}"#), "/turns: is 3, must be from 4 to 100");
        let share = r#"{"not_ready": {"share": 1.5}}"#;
        assert_eq!(refuse(share), "/not_ready/share: is 1.5, must be more than 0 and at most 1");
        let requests = r#"{"not_ready": {"requests": 0}}"#;
        assert_eq!(refuse(requests), "/not_ready/requests: is 0, must be from 1 to 10000");
        let window = r#"{"not_ready": {"window": "2h"}}"#;
        assert_eq!(refuse(window), "/not_ready/window: is 2h, must be at most 1h");
        assert!(refuse(r#"{"action": "stop"}"#).contains("unknown variant `stop`"));
    }
}
