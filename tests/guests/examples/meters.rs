//! Counts, sets and observes under the names that its settings give.

use afterbay_plugin::{Batch, Columns, ConfigureError, Plugin, Verdicts, metrics};

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Meters {
    counter: String,
    gauge: String,
    histogram: String,
}

impl Plugin for Meters {
    type Settings = Meters;
    const COLUMNS: Columns = Columns::empty();

    fn new(settings: Meters) -> Result<Self, ConfigureError> {
        Ok(settings)
    }

    fn process(&mut self, batch: &Batch<'_>, _: &mut Verdicts) {
        metrics::counter_add(&self.counter, batch.len() as u64);
        metrics::gauge_set(&self.gauge, batch.len() as f64);
        metrics::histogram_observe(&self.histogram, 0.003);
    }
}

afterbay_plugin::export!(Meters);
