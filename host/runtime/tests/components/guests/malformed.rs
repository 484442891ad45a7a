//! Answers that the contract does not allow.

use afterbay_runtime::Verdict;

use super::*;

fn answer(settings: &str) -> Result<Vec<Verdict>, Fault> {
    let mut plugin = start("malformed", settings);
    let answer = plugin.process(&batch_of(&[1, 2, 3]));
    assert_eq!(plugin.is_alive(), answer.is_ok());
    answer
}

#[test]
fn an_answer_against_the_contract_is_a_fault_that_says_how() {
    for (settings, expected) in [
        (r#""past the last row""#, "a verdict for row 3, the batch has 3 rows"),
        (r#""two for a row""#, "two verdicts for row 0"),
        (r#""a long reason""#, "a text of 257 bytes for row 0, at most 256"),
    ] {
        let fault = answer(settings).unwrap_err();
        assert_eq!(fault.kind, FaultKind::Malformed { what: expected.into() });
    }
}

#[test]
fn an_answer_in_any_order_is_taken_in_the_batchs_order() {
    let rows: Vec<u32> = answer(r#""rows in reverse""#).unwrap().iter().map(|verdict| verdict.row).collect();
    assert_eq!(rows, [0, 1, 2]);
}
