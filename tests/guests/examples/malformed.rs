//! Answers what the contract does not allow, as its settings name it.

use std::cell::RefCell;

use afterbay_plugin::abi::{Batch, Description, Guest};
use afterbay_plugin::{
    Action, Calls, Columns, ConfigureError, IdShape, Opened, RequestId, StateError, Verdict,
};

thread_local! {
    static ANSWER: RefCell<String> = const { RefCell::new(String::new()) };
}

struct Malformed;

impl Guest for Malformed {
    fn describe() -> Description {
        Description {
            name: "malformed".into(),
            version: "1".into(),
            settings_schema: String::new(),
            columns: Columns::empty(),
            wants: Calls::empty(),
            writes: IdShape::Delta,
        }
    }

    fn configure(settings: String) -> Result<(), ConfigureError> {
        ANSWER.set(settings.trim_matches('"').to_owned());
        Ok(())
    }

    fn open(_: Vec<Opened>) {}

    fn process(batch: Batch) -> Vec<Verdict> {
        let rows = batch.requests.len() as u32;
        let drop = |row: u32, reason: String| Verdict { row, action: Action::Drop(reason) };
        ANSWER.with_borrow(|answer| match answer.as_str() {
            "past the last row" => vec![drop(rows, "x".into())],
            "two for a row" => vec![drop(0, "x".into()), drop(0, "y".into())],
            "a long reason" => vec![drop(0, "x".repeat(257))],
            "rows in reverse" => (0..rows).rev().map(|row| drop(row, "x".into())).collect(),
            other => panic!("no such answer: {other}"),
        })
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

guests::export_raw!(Malformed);
