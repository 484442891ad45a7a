//! Answers that break the contract.

use afterbay_runtime::Verdict;

use super::*;

fn answer(name: &str) -> Result<Vec<Verdict>, Fault> {
    let mut plugin = start("malformed", &format!(r#"{{"answer": "{name}"}}"#));
    let answer = plugin.process(&batch_of(&[1, 2, 3]));
    assert_eq!(plugin.is_alive(), answer.is_ok());
    answer
}

#[test]
fn an_answer_against_the_contract_is_a_fault_with_the_reason() {
    for (name, expected) in [
        ("past the last row", "a verdict for row 3, the batch has 3 rows"),
        ("two for a row", "two verdicts for row 0"),
        ("a long reason", "a text of 257 bytes for row 0, at most 256"),
    ] {
        let fault = answer(name).unwrap_err();
        assert_eq!(fault.cause, FaultCause::Malformed { what: expected.into() });
    }
}

#[test]
fn an_answer_in_any_order_is_sorted_by_row() {
    let rows: Vec<u32> = answer("rows in reverse").unwrap().iter().map(|verdict| verdict.row).collect();
    assert_eq!(rows, [0, 1, 2]);
}
