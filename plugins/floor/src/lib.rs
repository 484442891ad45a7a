//! Asks for every column and says nothing: what any plugin costs at least. `afterbay plugin bench` measures it beside
//! the plugin in question, and gives both the same columns.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

use afterbay_plugin::{Batch, Columns, ConfigureError, NoSettings, Plugin, Verdicts};

/// The plugin.
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
    fn it_says_nothing() {
        let mut floor = Harness::<Floor>::new("{}").unwrap();
        floor.open(1);
        assert!(floor.process(&[TestRow::new(1).ids([1, 2])]).is_empty());
    }
}
