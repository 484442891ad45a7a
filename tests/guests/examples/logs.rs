//! Logs as many lines in each batch as its settings say, the first of them 5,000 bytes long.

use afterbay_plugin::{Batch, Columns, ConfigureError, Plugin, Verdicts};

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Logs {
    lines: usize,
}

impl Plugin for Logs {
    type Settings = Logs;
    const COLUMNS: Columns = Columns::empty();

    fn new(settings: Logs) -> Result<Self, ConfigureError> {
        Ok(settings)
    }

    fn process(&mut self, batch: &Batch<'_>, _: &mut Verdicts) {
        let request = batch.rows().next().map_or(0, |row| row.request());
        for line in 0..self.lines {
            match line {
                0 => afterbay_plugin::warn!("{}", "x".repeat(5_000)),
                _ => afterbay_plugin::debug!(request: request, "line {line}"),
            }
        }
    }
}

afterbay_plugin::export!(Logs);
