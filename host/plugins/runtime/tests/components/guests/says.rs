//! Answers that the ids of a batch spell.

use afterbay_runtime::{Action, Ending, FinishReason, Replacement, Verdict};

use super::*;

fn answer(ids: &[i64]) -> Result<Vec<Verdict>, Fault> {
    let ends = [ids.len() as u32; 2];
    start("says", "{}").process(&Columns { output_ids: ids, output_ends: &ends, ..batch_of(&[1, 2]) })
}

#[test]
fn an_answer_is_the_verdicts_that_the_ids_spell() {
    // Two verdicts: row 1 is dropped because "xxx", and row 0 ends with one other token, 9.
    let ids = [2, 1, 1, 3, 0, 2, 2, 1, 1, 9, 0];
    let replacement = Some(Replacement { ids: vec![9], text: None });
    let ending = Ending { reason: FinishReason::Stop("xx".into()), replacement };
    let expected = [
        Verdict { row: 0, action: Action::Finish(ending) },
        Verdict { row: 1, action: Action::Drop("xxx".into()) },
    ];
    assert_eq!(format!("{:?}", answer(&ids).unwrap()), format!("{expected:?}"));
    assert!(answer(&[0]).unwrap().is_empty());
    // Row 9 is past the last row.
    assert!(matches!(answer(&[1, 9, 9]).unwrap_err().cause, FaultCause::Malformed { .. }));
}
