//! Logs a number of lines in each batch: the first one with 5,000 bytes, or all with the same length.

use afterbay_plugin::{Batch, Columns, ConfigureError, Plugin, Verdicts};

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Logs {
    lines: usize,
    /// The length of each line in bytes.
    #[serde(default)]
    bytes: Option<usize>,
}

impl Plugin for Logs {
    type Settings = Logs;
    const COLUMNS: Columns = Columns::empty();

    fn new(settings: Logs) -> Result<Self, ConfigureError> {
        Ok(settings)
    }

    fn process(&mut self, batch: &Batch<'_>, _: &mut Verdicts) {
        if let Some(bytes) = self.bytes {
            let line = "x".repeat(bytes);
            return (0..self.lines)
                .for_each(|_| afterbay_plugin::log(afterbay_plugin::Level::Info, None, &line));
        }
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
