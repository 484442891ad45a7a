//! Describes itself by a name that is not allowed.

use afterbay_plugin::abi::{Batch, Description, Guest};
use afterbay_plugin::{Calls, Columns, ConfigureError, IdShape, Opened, RequestId, StateError, Verdict};

struct BadName;

impl Guest for BadName {
    fn describe() -> Description {
        Description {
            name: "Bad Name".into(),
            version: "1".into(),
            settings_schema: String::new(),
            columns: Columns::empty(),
            wants: Calls::empty(),
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

    fn changed(_: Vec<RequestId>) {}

    fn pressure() {}

    fn export_state() -> Vec<u8> {
        Vec::new()
    }

    fn import_state(_: String, _: Vec<u8>) -> Result<(), StateError> {
        Ok(())
    }
}

guests::export_raw!(BadName);
