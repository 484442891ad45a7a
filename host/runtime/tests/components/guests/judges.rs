//! The verdicts of a plugin that behaves.

use afterbay_runtime::{Action, Ending, Replacement, Verdict};

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
fn a_drop_and_a_finish_have_their_reason() {
    let reason = |reason: &str| reason.to_owned();
    assert_eq!(verdicts("drop")[1], Verdict { row: 1, action: Action::Drop(reason("dropped by judges")) });
    assert_eq!(
        verdicts("finish")[0],
        Verdict { row: 0, action: Action::Finish(reason("finished by judges")) }
    );
    let ending =
        |ids| Ending { matched: reason("finished by judges"), instead: Replacement { ids, text: None } };
    let ended = |row, ids| Verdict { row, action: Action::FinishAs(ending(ids)) };
    assert_eq!(verdicts("finish-as"), [ended(0, vec![10, -11]), ended(1, vec![])]);
}

#[test]
fn an_abort_a_note_and_a_text_arrive_as_given() {
    assert_eq!(verdicts("abort")[0], Verdict { row: 0, action: Action::Abort("aborted by judges".into()) });
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
