//! Counts, sets and observes under the names that its settings give, and observes what they say.

use afterbay_plugin::{Batch, Columns, ConfigureError, Plugin, Verdicts, metrics};

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Meters {
    counter: String,
    gauge: String,
    histogram: String,
    /// How often the counter's name is said in the name that it is counted under.
    #[serde(default)]
    times: Option<usize>,
    /// What is observed, as Rust reads it.
    #[serde(default)]
    observed: Option<String>,
}

impl Plugin for Meters {
    type Settings = Meters;
    const COLUMNS: Columns = Columns::empty();

    fn new(settings: Meters) -> Result<Self, ConfigureError> {
        Ok(Meters { counter: settings.counter.repeat(settings.times.unwrap_or(1)), ..settings })
    }

    fn process(&mut self, batch: &Batch<'_>, _: &mut Verdicts) {
        metrics::counter_add(&self.counter, batch.len() as u64);
        metrics::gauge_set(&self.gauge, batch.len() as f64);
        let observed = self.observed.as_deref().and_then(|value| value.parse().ok());
        metrics::histogram_observe(&self.histogram, observed.unwrap_or(0.003));
    }
}

afterbay_plugin::export!(Meters);
