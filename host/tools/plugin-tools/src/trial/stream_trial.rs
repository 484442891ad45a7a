//! One stream under trial: its plugins see each recorded frame, and a comparison gets what they did.

use super::compare::{Comparison, RecordedFrame, Window};
use super::figures::PluginFigures;
use super::report::{Different, Report};
use crate::StartTrial;
use crate::plugin_args::UsageError;
use afterbay_config as config;
use afterbay_journal::reader::{FramesWithOutcomes, StoredFrame};
use afterbay_journal::{OPERATOR, Outcome, RequestNo};
use afterbay_stream::Trial;
use afterbay_terminal as screen;
use bytes::Bytes;
use std::collections::HashSet;

/// One stream under trial.
pub(super) struct StreamTrial {
    trial: Trial,
    window: Window,
    comparison: Comparison,
    /// The figures of the plugins at the first compared frame.
    before: Option<PluginFigures>,
    report: Report,
}

impl StreamTrial {
    /// Starts the plugins of a stream whose first frame was received at `begins`, in Unix nanoseconds.
    ///
    /// # Errors
    /// A plugin does not start.
    pub(super) fn start(
        stream: &config::Stream,
        window: Window,
        begins: u64,
        start: &StartTrial,
    ) -> anyhow::Result<StreamTrial> {
        let (trial, missing) = start(&stream.name, begins)
            .map_err(|error| UsageError(format!("stream {}: {error:#}", stream.name)))?;
        let report = Report { missing, ..Report::default() };
        let comparison = Comparison::of(window);
        Ok(StreamTrial { trial, window, comparison, before: None, report })
    }

    /// Does not compare these requests, by their numbers in the journal: they were erased.
    pub(super) fn leave_out(&mut self, erased: HashSet<u64>) {
        if !erased.is_empty() {
            let erased = screen::count(erased.len() as u64);
            self.report.missing.push(format!("erased requests are not compared: {erased}"));
        }
        self.comparison.erased = erased;
    }

    /// Carries a recorded frame, and compares. `outcome` is the recorded one; `frames` knows the rids of its requests.
    pub(super) fn frame(
        &mut self,
        frame: StoredFrame,
        outcome: Option<&Outcome<'static>>,
        frames: &FramesWithOutcomes,
    ) {
        let at = frame.received_unix_ns;
        let is_compared = self.window.has(at);
        if is_compared {
            self.before.get_or_insert_with(|| PluginFigures::of(&self.trial));
            self.report.begins_unix_ns.get_or_insert(at);
            self.report.ends_unix_ns = Some(at);
        }
        let recorded = outcome.map(|outcome| RecordedFrame { frame: frame.position.frame.0, outcome });
        // The trial makes its own release markers.
        if frame.is_release_marker() {
            recorded.iter().for_each(|recorded| self.comparison.released_then(recorded));
            return;
        }
        for request in outcome.into_iter().flat_map(operator_aborts) {
            let Some(rid) = frames.rid(request) else { continue };
            self.trial.abort(rid);
        }
        let in_trial = self.trial.frame(Bytes::from(frame.bytes), at);
        let rid = |request| frames.rid(request).map_or_else(|| format!("(request {request})"), str::to_owned);
        self.comparison.frame(recorded, in_trial.0, &self.trial.take_records(), rid);
        let events = self.trial.take_events();
        if is_compared {
            self.comparison.events(&events);
        }
    }

    /// The requests that were compared since the last call.
    pub(super) fn take_compared(&mut self) -> Vec<Different> {
        self.comparison.take_compared(false)
    }

    /// Ends the requests that are left. Returns them, and the report.
    pub(super) fn end(mut self) -> (Vec<Different>, Report) {
        self.trial.end();
        self.trial.take_records().iter().for_each(|record| self.comparison.without_frame(record));
        self.comparison.events(&self.trial.take_events());
        let rest = self.comparison.take_compared(true);
        let mut report = self.report;
        report.plugins = PluginFigures::of(&self.trial);
        report.plugins.subtract(self.before.as_ref());
        if self.trial.lacks_signals() {
            report.missing.push("no plugin gets signals: the journal has none".to_owned());
        }
        if self.trial.calls_not_sent() > 0 {
            let calls = screen::count(self.trial.calls_not_sent());
            report.missing.push(format!("{calls} calls of plugins were not sent and got no answer"));
        }
        report.sums = self.comparison.sums;
        (rest, report)
    }
}

/// The requests that an operator ended with this frame.
fn operator_aborts(outcome: &Outcome<'_>) -> Vec<RequestNo> {
    let ends = outcome.actions.iter().filter(|action| action.plugin == OPERATOR && action.ends_request());
    ends.filter_map(|action| outcome.requests.get(action.row as usize).copied()).collect()
}
