//! The verdicts of a plugin that behaves.

use afterbay_runtime::{Action, Ending, FinishReason, Replacement, Verdict};

use super::*;

fn verdicts(action: &str) -> Vec<Verdict> {
    let mut plugin = start("judges", &format!(r#"{{"action": "{action}"}}"#));
    plugin.open(&[opened(4), opened(9)]).unwrap();
    let columns = Columns {
        requests: &[4, 9],
        output_ids: &[10, -11, i64::MAX],
        output_ends: &[3, 3],
        ..Columns::default()
    };
    plugin.process(&columns).unwrap()
}

fn replace(ids: Vec<i64>, text: Option<&str>) -> Action {
    Action::Replace(Replacement { ids, text: text.map(str::to_owned) })
}

#[test]
fn ids_return_unchanged() {
    let expected = [
        Verdict { row: 0, action: replace(vec![10, -11, i64::MAX], None) },
        Verdict { row: 1, action: replace(vec![], None) },
    ];
    assert_eq!(verdicts("echo"), expected);
}

#[test]
fn a_drop_and_an_end_have_their_reason() {
    let reason = |reason: &str| reason.to_owned();
    assert_eq!(verdicts("drop")[1], Verdict { row: 1, action: Action::Drop(reason("dropped by judges")) });
    let ended = |row, reason, ids: Option<Vec<i64>>| {
        let replacement = ids.map(|ids| Replacement { ids, text: None });
        Verdict { row, action: Action::Finish(Ending { reason, replacement }) }
    };
    let stop = || FinishReason::Stop(reason("finished by judges"));
    assert_eq!(verdicts("finish")[0], ended(0, stop(), None));
    let cut = [ended(0, stop(), Some(vec![10, -11])), ended(1, stop(), Some(vec![]))];
    assert_eq!(verdicts("finish-with"), cut);
    assert_eq!(verdicts("length")[1], ended(1, FinishReason::Length, None));
    assert_eq!(verdicts("abort")[0], ended(0, FinishReason::Abort(reason("aborted by judges")), None));
}

#[test]
fn a_note_and_a_text_arrive_as_given() {
    assert_eq!(
        verdicts("annotate")[1],
        Verdict { row: 1, action: Action::Annotate("seen by judges".into()) }
    );
    assert_eq!(verdicts("rewrite")[0], Verdict { row: 0, action: replace(vec![7], Some("seven")) });
}

#[test]
fn a_schema_is_json() {
    let component = load("judges");
    let schema = component.description().settings_schema.as_ref().unwrap();
    assert_eq!(schema["required"][0], "action");
}
