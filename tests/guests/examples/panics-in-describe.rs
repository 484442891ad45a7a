//! Panics in `describe`.

use afterbay_plugin::abi::{Batch, Description, Guest};
use afterbay_plugin::{ConfigureError, Verdict};

struct PanicsInDescribe;

impl Guest for PanicsInDescribe {
    fn describe() -> Description {
        panic!("nothing to say")
    }

    fn configure(_: String) -> Result<(), ConfigureError> {
        Ok(())
    }

    fn process(_: Batch) -> Vec<Verdict> {
        Vec::new()
    }

    guests::silent_calls!();
}

guests::export_raw!(PanicsInDescribe);
