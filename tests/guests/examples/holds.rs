//! Gives the verdict that a token id of a row asks for (see `ids`).

use std::time::Duration;

use afterbay_plugin::{Batch, Columns, ConfigureError, Plugin, Verdicts, info};

use ids::{DROP, FINISH, HOLD, PANIC, RELEASE, RELEASE_AND_HOLD, RELEASE_AS};

#[path = "../../src/holds/ids.rs"]
mod ids;

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Holds {
    /// The time of a hold in milliseconds.
    millis: u64,
    /// The id that holds a row instead of 101.
    #[serde(default = "hold")]
    at: i64,
    /// The ids of the released row.
    #[serde(default = "seven")]
    replacement: Vec<i64>,
    /// Uses the remainder of a row's last id by 7: 3 holds, 5 releases.
    #[serde(default)]
    by_remainder: bool,
    /// Logs each row that it sees.
    #[serde(default)]
    logs: bool,
}

fn hold() -> i64 {
    HOLD
}

fn seven() -> Vec<i64> {
    vec![7]
}

impl Plugin for Holds {
    type Settings = Holds;
    const COLUMNS: Columns = Columns::OUTPUT_IDS.union(Columns::WAITING).union(Columns::TEXTS);

    fn new(settings: Holds) -> Result<Self, ConfigureError> {
        Ok(settings)
    }

    fn process(&mut self, batch: &Batch<'_>, verdicts: &mut Verdicts) {
        for row in batch {
            if self.logs {
                let waiting = row.waiting().unwrap_or(u32::MAX);
                info!(request: row.request(), "shown {:?}, {waiting} wait", row.ids());
            }
            if self.by_remainder {
                match row.ids().last().map(|id| id % 7) {
                    Some(3) => verdicts.hold(row, Duration::from_millis(self.millis)),
                    Some(5) => verdicts.release(row),
                    _ => {}
                }
                continue;
            }
            let has = |id: i64| row.ids().contains(&id);
            assert!(!has(PANIC), "as requested");
            if has(self.at) {
                verdicts.hold(row, Duration::from_millis(self.millis));
            } else if has(RELEASE_AND_HOLD) {
                verdicts.release_and_hold(row, Duration::from_millis(self.millis));
            } else if has(RELEASE) {
                verdicts.release(row);
            } else if has(RELEASE_AS) {
                match row.text() {
                    Some(_) => verdicts.release_as_with_text(row, &self.replacement[..], "seven"),
                    None => verdicts.release_as(row, &self.replacement[..]),
                }
            } else if has(DROP) {
                verdicts.drop(row, "as requested");
            } else if has(FINISH) {
                verdicts.finish(row, "as requested");
            }
        }
    }
}

afterbay_plugin::export!(Holds);
