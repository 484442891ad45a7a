//! Asks a service about each row, and holds the row until the answer. A call that fails releases the row, too. With `each_batch`
//! it asks once for each batch, and holds nothing.

use std::time::Duration;

use afterbay_plugin::call::Answer;
use afterbay_plugin::{Batch, Columns, ConfigureError, Plugin, RequestVerdicts, Verdicts, call};

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Asks {
    #[serde(default)]
    each_batch: bool,
}

impl Plugin for Asks {
    type Settings = Asks;
    const COLUMNS: Columns = Columns::OUTPUT_IDS;

    fn new(settings: Asks) -> Result<Self, ConfigureError> {
        Ok(settings)
    }

    fn process(&mut self, batch: &Batch<'_>, verdicts: &mut Verdicts) {
        for row in batch {
            call::send("service", row.request(), format!("{:?}", row.ids()).as_bytes());
            if self.each_batch {
                return;
            }
            verdicts.hold(row, Duration::from_secs(600));
        }
    }

    fn answered(&mut self, answers: &[Answer], verdicts: &mut RequestVerdicts) {
        for answer in answers {
            verdicts.release(answer.request, 1);
        }
    }
}

afterbay_plugin::export!(Asks);
