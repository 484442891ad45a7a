//! Reads every id and gives no verdict, to measure the cost of the interface.

use afterbay_plugin::{Batch, Columns, ConfigureError, NoSettings, Plugin, Verdicts};

struct Nothing {
    sum: i64,
}

impl Plugin for Nothing {
    type Settings = NoSettings;
    const COLUMNS: Columns = Columns::OUTPUT_IDS;

    fn new(_: NoSettings) -> Result<Self, ConfigureError> {
        Ok(Self { sum: 0 })
    }

    fn process(&mut self, batch: &Batch<'_>, _: &mut Verdicts) {
        for row in batch {
            self.sum = row.ids().iter().fold(self.sum, |sum, id| sum.wrapping_add(*id));
        }
        std::hint::black_box(self.sum);
    }
}

afterbay_plugin::export!(Nothing);
