//! Answers with lists that all lie in the same memory: 4 MiB in the guest, 4 GiB for whoever copies them.

use afterbay_plugin::abi::{Batch, Description, Guest};
use afterbay_plugin::{
    Action, Calls, Columns, ConfigureError, IdShape, Opened, Replacement, RequestId, StateError, Verdict,
};

struct Amplifies;

impl Guest for Amplifies {
    fn describe() -> Description {
        Description {
            name: "amplifies".into(),
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

    fn process(batch: Batch) -> Vec<Verdict> {
        let ids: &mut [i64] = vec![7_i64; 1 << 19].leak();
        (0..batch.requests.len() as u32)
            .map(|row| {
                // SAFETY: none. The lists alias, and the host that copies them stops before they would be freed twice.
                let alias = unsafe { Vec::from_raw_parts(ids.as_mut_ptr(), ids.len(), ids.len()) };
                Verdict { row, action: Action::Replace(Replacement { ids: alias, text: None }) }
            })
            .collect()
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

guests::export_raw!(Amplifies);
