//! Gives an answer that breaks the contract, by the name in its settings.

use std::cell::RefCell;

use afterbay_plugin::abi::{Batch, Description, Guest};
use afterbay_plugin::{Action, ConfigureError, Verdict};

thread_local! {
    static ANSWER: RefCell<String> = const { RefCell::new(String::new()) };
}

struct Malformed;

impl Guest for Malformed {
    fn describe() -> Description {
        guests::description("malformed")
    }

    fn configure(settings: String) -> Result<(), ConfigureError> {
        // The settings are {"answer": NAME}.
        ANSWER.set(settings.rsplit('"').nth(1).unwrap_or_default().to_owned());
        Ok(())
    }

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

    guests::silent_calls!();
}

guests::export_raw!(Malformed);
