//! Updates a counter, a gauge and a histogram under the names of its settings.

use afterbay_plugin::{Batch, Columns, ConfigureError, Plugin, Verdicts, metrics};

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Meters {
    counter: String,
    gauge: String,
    histogram: String,
    /// The number of times that the counter's name is repeated in the name that it uses.
    #[serde(default)]
    times: Option<usize>,
    /// The observed value, in Rust's syntax.
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
        metrics::counter_add(&self.counter, &[], batch.len() as u64);
        metrics::gauge_set(&self.gauge, &[], batch.len() as f64);
        let observed = self.observed.as_deref().and_then(|value| value.parse().ok());
        metrics::histogram_observe(&self.histogram, &[], observed.unwrap_or(0.003));
    }
}

afterbay_plugin::export!(Meters);
