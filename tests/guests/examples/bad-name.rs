//! Describes itself by a name that is not allowed.

use afterbay_plugin::abi::{Batch, Description, Guest};
use afterbay_plugin::{Columns, ConfigureError, IdShape, Opened, RequestId, Verdict};

struct BadName;

impl Guest for BadName {
    fn describe() -> Description {
        Description {
            name: "Bad Name".into(),
            version: "1".into(),
            settings_schema: String::new(),
            columns: Columns::empty(),
            writes: IdShape::Delta,
        }
    }

    fn configure(_: String) -> Result<(), ConfigureError> {
        Ok(())
    }

    fn open(_: Vec<Opened>) {}

    fn process(_: Batch) -> Vec<Verdict> {
        Vec::new()
    }

    fn close(_: Vec<RequestId>) {}
}

guests::export_raw!(BadName);
