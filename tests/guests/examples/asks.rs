//! Asks a service about each row, and holds the row until the answer. A call that fails releases the row, too.

use std::time::Duration;

use afterbay_plugin::call::Answer;
use afterbay_plugin::{Batch, Columns, ConfigureError, NoSettings, Plugin, RequestVerdicts, Verdicts, call};

struct Asks;

impl Plugin for Asks {
    type Settings = NoSettings;
    const COLUMNS: Columns = Columns::OUTPUT_IDS;

    fn new(_: NoSettings) -> Result<Self, ConfigureError> {
        Ok(Self)
    }

    fn process(&mut self, batch: &Batch<'_>, verdicts: &mut Verdicts) {
        for row in batch {
            call::send("service", row.request(), format!("{:?}", row.ids()).as_bytes());
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
