//! Reads every column and gives no verdict: the minimum cost of any plugin. `afterbay plugin bench` measures
//! it beside the benchmarked plugin, with the same columns.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

use afterbay_plugin::{Batch, Columns, ConfigureError, NoSettings, Plugin, Verdicts};

/// A plugin that does nothing.
pub struct Floor;

impl Plugin for Floor {
    type Settings = NoSettings;
    const COLUMNS: Columns = Columns::all();

    fn new(_: NoSettings) -> Result<Self, ConfigureError> {
        Ok(Self)
    }

    fn process(&mut self, _: &Batch<'_>, _: &mut Verdicts) {}
}

afterbay_plugin::export!(Floor);

#[cfg(test)]
mod tests {
    use super::*;
    use afterbay_plugin::testing::{Harness, TestRow};

    #[test]
    fn it_gives_no_verdict() {
        let mut floor = Harness::<Floor>::new("{}").unwrap();
        floor.open(1);
        assert!(floor.process(&[TestRow::new(1).ids([1, 2])]).is_empty());
    }
}
