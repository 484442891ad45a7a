//! Ends a request whose confidence collapses: the mean log-probability of its last tokens falls below a limit.

use std::collections::VecDeque;

use afterbay_plugin::{
    Batch, Columns, ConfigureError, Opened, Plugin, RequestId, Requests, Verdicts, bad_setting, metrics,
};

/// The matched stop that the reader of an ended request sees.
const COLLAPSED: &str = "confidence collapsed";
/// The largest window.
const WINDOW_MAX: usize = 4096;

/// The settings of the plugin.
#[derive(serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// The number of tokens whose mean counts, from 1 to 4096.
    window: usize,
    /// The request ends when the mean log-probability of a full window is lower. At most 0.
    logprob_min: f32,
}

impl Default for Settings {
    fn default() -> Self {
        Self { window: 32, logprob_min: -3.0 }
    }
}

/// The plugin that ends improbable answers.
pub struct Confidence {
    settings: Settings,
    requests: Requests<Window>,
}

/// The log-probabilities of a request's last tokens.
#[derive(Default)]
struct Window {
    logprobs: VecDeque<f64>,
    sum: f64,
}

impl Window {
    /// Adds tokens. Returns whether the mean of a full window is below the limit after one of them.
    fn add(&mut self, logprobs: &[f32], settings: &Settings) -> bool {
        let window = settings.window as f64;
        logprobs.iter().any(|logprob| {
            let logprob = f64::from(*logprob);
            self.logprobs.push_back(logprob);
            self.sum += logprob;
            if self.logprobs.len() > settings.window {
                self.sum -= self.logprobs.pop_front().unwrap_or_default();
            }
            self.logprobs.len() == settings.window && self.sum < f64::from(settings.logprob_min) * window
        })
    }
}

impl Plugin for Confidence {
    type Settings = Settings;
    const COLUMNS: Columns = Columns::OUTPUT_IDS.union(Columns::LOGPROBS).union(Columns::FINISHED);

    fn new(settings: Settings) -> Result<Self, ConfigureError> {
        if !(1..=WINDOW_MAX).contains(&settings.window) {
            let message = format!("the window has {} tokens, 1 to {WINDOW_MAX} are allowed", settings.window);
            return Err(bad_setting("/window", message));
        }
        if settings.logprob_min.is_nan() || settings.logprob_min > 0.0 {
            let message = format!("a log-probability is at most 0, this is {}", settings.logprob_min);
            return Err(bad_setting("/logprob_min", message));
        }
        Ok(Self { settings, requests: Requests::new() })
    }

    fn opened(&mut self, request: &Opened) {
        self.requests.insert(request.request, Window::default());
    }

    fn process(&mut self, batch: &Batch<'_>, verdicts: &mut Verdicts) {
        for row in batch {
            let Some(window) = self.requests.get_mut(row.request()) else { continue };
            // Empty if the client did not ask for log-probabilities: its request passes.
            let collapses = window.add(row.logprobs(), &self.settings);
            if collapses && !row.is_last() {
                metrics::counter_add("collapsed", &[], 1);
                verdicts.finish(row, COLLAPSED);
            }
        }
    }

    fn closed(&mut self, request: RequestId) {
        self.requests.remove(request);
    }
}

afterbay_plugin::export!(Confidence);

#[cfg(test)]
mod tests {
    use afterbay_plugin::FinishKind;
    use afterbay_plugin::testing::{Harness, Metric, TestRow};

    use super::*;

    fn plugin() -> Harness<Confidence> {
        let mut plugin = Harness::new(r#"{"window": 2, "logprob_min": -2}"#).unwrap();
        plugin.open(1);
        plugin
    }

    #[test]
    fn a_request_ends_with_the_token_that_makes_a_full_window_improbable() {
        let mut plugin = plugin();
        assert_eq!(plugin.process(&[TestRow::new(1).ids([10]).logprobs([-9.0])]), [], "half a window");
        assert_eq!(plugin.process(&[TestRow::new(1).ids([11, 12]).logprobs([-0.1, -0.1])]).len(), 1);
        assert_eq!(plugin.metric("collapsed"), Some(Metric::Counter(1)));
    }

    #[test]
    fn a_confident_request_and_one_without_log_probabilities_pass() {
        let mut plugin = plugin();
        for _ in 0..5 {
            assert_eq!(plugin.process(&[TestRow::new(1).ids([1, 2]).logprobs([-3.0, -0.5])]), []);
        }
        plugin.open(2);
        assert_eq!(plugin.process(&[TestRow::new(2).ids([1, 2, 3])]), []);
    }

    #[test]
    fn the_last_row_ends_as_the_scheduler_says() {
        let mut plugin = plugin();
        let last = TestRow::new(1).ids([1, 2]).logprobs([-5.0, -5.0]).finish(FinishKind::Length);
        assert_eq!(plugin.process(&[last]), []);
    }

    #[test]
    fn a_wrong_setting_is_refused() {
        for settings in [r#"{"window": 0}"#, r#"{"window": 5000}"#, r#"{"logprob_min": 1}"#] {
            assert!(Harness::<Confidence>::new(settings).is_err(), "{settings}");
        }
    }
}
