//! Describes itself by an invalid name.

use afterbay_plugin::abi::{Batch, Description, Guest};
use afterbay_plugin::{ConfigureError, Verdict};

struct BadName;

impl Guest for BadName {
    fn describe() -> Description {
        guests::description("Bad Name")
    }

    fn configure(_: String) -> Result<(), ConfigureError> {
        Ok(())
    }

    fn process(_: Batch) -> Vec<Verdict> {
        Vec::new()
    }

    guests::silent_calls!();
}

guests::export_raw!(BadName);
