//! Panics before it has said what it is.

use afterbay_plugin::abi::{Batch, Description, Guest};
use afterbay_plugin::{ConfigureError, Opened, RequestId, StateError, Verdict};

struct PanicsInDescribe;

impl Guest for PanicsInDescribe {
    fn describe() -> Description {
        panic!("nothing to say")
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

guests::export_raw!(PanicsInDescribe);
