//! Answers with lists that share the same memory: 4 MiB in the guest, 4 GiB once copied.

use afterbay_plugin::abi::{Batch, Description, Guest};
use afterbay_plugin::{Action, ConfigureError, Replacement, Verdict};

struct Amplifies;

impl Guest for Amplifies {
    fn describe() -> Description {
        guests::description("amplifies")
    }

    fn configure(_: String) -> Result<(), ConfigureError> {
        Ok(())
    }

    fn process(batch: Batch) -> Vec<Verdict> {
        let ids: &mut [i64] = vec![7_i64; 1 << 19].leak();
        (0..batch.requests.len() as u32)
            .map(|row| {
                // SAFETY: none. The lists alias, but the host stops copying them before they would be freed
                // twice.
                let alias = unsafe { Vec::from_raw_parts(ids.as_mut_ptr(), ids.len(), ids.len()) };
                Verdict { row, action: Action::Replace(Replacement { ids: alias, text: None }) }
            })
            .collect()
    }

    guests::silent_calls!();
}

guests::export_raw!(Amplifies);
