//! How what belongs to the contract is written for people and scripts: verdicts, columns, rows before and after. A new
//! verdict or column of `wit/transform.wit` has its name, its form and its effect here, and nowhere else in the tools.

use crate::play::Fate;
use crate::rows::Row;
use afterbay_terminal as screen;
use afterbay_runtime::{
    Action, CallSet, ColumnSet, Ending, FinishKind, IdShape, Level, Replacement, TokenId,
};
use serde_json::{Value, json};
use std::borrow::Cow;

/// The verdicts, as a scenario names them.
pub(crate) const VERDICTS: [&str; 12] = [
    "replace",
    "drop",
    "finish",
    "finish-as",
    "abort",
    "annotate",
    "route",
    "skip-detokenization",
    "hold",
    "release",
    "release-as",
    "release-and-hold",
];
/// Ids of a row that are shown on a line; the JSON has all.
const IDS_SHOWN_MAX: usize = 24;

/// The columns that a plugin asks for, as the contract names them.
pub(crate) fn columns(set: ColumnSet) -> Vec<&'static str> {
    let ColumnSet { output_ids, completion_tokens, finished, texts, waiting } = set;
    let all = [
        (output_ids, "output-ids"),
        (completion_tokens, "completion-tokens"),
        (finished, "finished"),
        (texts, "texts"),
        (waiting, "waiting"),
    ];
    all.into_iter().filter(|(asked, _)| *asked).map(|(_, name)| name).collect()
}

/// The calls that a plugin asks for beyond those that every plugin has.
pub(crate) fn calls(set: CallSet) -> Vec<&'static str> {
    let CallSet { pressure, changed, state } = set;
    let all = [(pressure, "pressure"), (changed, "changed"), (state, "state")];
    all.into_iter().filter(|(asked, _)| *asked).map(|(_, name)| name).collect()
}

/// The shape of the ids that it writes.
pub(crate) fn shape(shape: IdShape) -> &'static str {
    match shape {
        IdShape::Delta => "delta",
        IdShape::Cumulative => "cumulative",
    }
}

pub(crate) fn finish(kind: FinishKind) -> &'static str {
    match kind {
        FinishKind::Running => "running",
        FinishKind::Stop => "stop",
        FinishKind::Length => "length",
        FinishKind::Abort => "abort",
        FinishKind::Other => "other",
    }
}

pub(crate) fn level(level: Level) -> &'static str {
    match level {
        Level::Debug => "debug",
        Level::Info => "info",
        Level::Warn => "warn",
        Level::Error => "error",
    }
}

/// A verdict's name, and its reason, note or message.
pub(crate) fn name(action: &Action) -> (&'static str, Option<&str>) {
    match action {
        Action::Replace(_) => ("replace", None),
        Action::Drop(reason) => ("drop", Some(reason)),
        Action::Finish(matched) => ("finish", Some(matched)),
        Action::FinishAs(Ending { matched, .. }) => ("finish-as", Some(matched)),
        Action::Abort(message) => ("abort", Some(message)),
        Action::Annotate(note) => ("annotate", Some(note)),
        Action::Route(sink) => ("route", Some(sink)),
        Action::SkipDetokenization => ("skip-detokenization", None),
        Action::Hold(_) => ("hold", None),
        Action::Release => ("release", None),
        Action::ReleaseAs(_) => ("release-as", None),
        Action::ReleaseAndHold(_) => ("release-and-hold", None),
    }
}

/// A verdict as a scenario writes it: `{"drop": "why"}`, `{"replace": [1, 2], "text": "…"}`.
pub(crate) fn json(action: &Action) -> Value {
    match action {
        Action::Replace(Replacement { ids, text: None }) => json!({"replace": ids}),
        Action::Replace(Replacement { ids, text: Some(text) }) => json!({"replace": ids, "text": text}),
        Action::FinishAs(Ending { matched, instead: Replacement { ids, text: None } }) => {
            json!({"finish-as": matched, "ids": ids})
        }
        Action::FinishAs(Ending { matched, instead: Replacement { ids, text: Some(text) } }) => {
            json!({"finish-as": matched, "ids": ids, "text": text})
        }
        Action::SkipDetokenization => json!({"skip-detokenization": true}),
        Action::Hold(millis) => json!({"hold": millis}),
        Action::Release => json!({"release": true}),
        Action::ReleaseAs(Replacement { ids, text: None }) => json!({"release-as": ids}),
        Action::ReleaseAs(Replacement { ids, text: Some(text) }) => json!({"release-as": ids, "text": text}),
        Action::ReleaseAndHold(millis) => json!({"release-and-hold": millis}),
        action => {
            let (name, text) = name(action);
            json!({name: text})
        }
    }
}

/// Whether the row is its request's last by this verdict.
pub(crate) fn ends(action: &Action) -> bool {
    matches!(action, Action::Finish(_) | Action::FinishAs(_) | Action::Abort(_))
}

/// What goes on of a row.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct After<'r> {
    ids: Cow<'r, [TokenId]>,
    text: Option<Cow<'r, str>>,
    finish: FinishKind,
}

/// `None`: nothing of it.
fn after<'r>(row: &'r Row, fate: &'r Fate) -> Option<After<'r>> {
    let as_it_came = After {
        ids: Cow::Borrowed(&row.ids),
        text: row.text.as_deref().map(Cow::Borrowed),
        finish: row.finish,
    };
    let action = match fate {
        Fate::AsItCame => return Some(as_it_came),
        Fate::Swallowed | Fate::Waits(_) => return None,
        Fate::Judged(action) => action,
        Fate::Released { by, ids, text } => {
            let finish = match by {
                Some(Action::Finish(_) | Action::FinishAs(_)) => FinishKind::Stop,
                Some(Action::Abort(_)) => FinishKind::Abort,
                _ => row.finish,
            };
            return Some(After { ids: Cow::Borrowed(ids), text: text.as_deref().map(Cow::Borrowed), finish });
        }
    };
    Some(match action {
        Action::Replace(instead) => replaced(row, instead, row.finish),
        Action::FinishAs(Ending { instead, .. }) => replaced(row, instead, FinishKind::Stop),
        Action::Drop(_) => After {
            ids: Cow::Borrowed(&[]),
            text: row.text.as_ref().map(|_| Cow::Borrowed("")),
            finish: row.finish,
        },
        Action::Finish(_) => After { finish: FinishKind::Stop, ..as_it_came },
        Action::Abort(_) => After { finish: FinishKind::Abort, ..as_it_came },
        Action::Annotate(_) | Action::Route(_) | Action::SkipDetokenization => as_it_came,
        Action::Hold(_) | Action::Release | Action::ReleaseAs(_) | Action::ReleaseAndHold(_) => as_it_came,
    })
}

fn replaced<'r>(row: &'r Row, instead: &'r Replacement, finish: FinishKind) -> After<'r> {
    // Before a detokenizer it is not looked at.
    let text = row.text.as_ref().map(|came| Cow::Borrowed(instead.text.as_ref().unwrap_or(came).as_str()));
    After { ids: Cow::Borrowed(&instead.ids), text, finish }
}

/// The ids and the text that go on of a row.
pub(crate) fn left(row: &Row, fate: &Fate) -> (Vec<TokenId>, Option<String>) {
    let after = after(row, fate);
    after.map_or_else(Default::default, |after| (after.ids.into_owned(), after.text.map(Cow::into_owned)))
}

/// How lines are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    /// To be looked at: cut, and coloured on a terminal.
    Screen,
    /// To be compared: whole, without colour.
    Golden,
}

/// What became of a row, in a word or two; the verdict's name and its text.
pub(crate) fn outcome(fate: &Fate) -> String {
    match fate {
        Fate::AsItCame => "as it came".to_owned(),
        Fate::Swallowed => "swallowed".to_owned(),
        Fate::Judged(action) => in_words(action),
        Fate::Waits(None) => "waits".to_owned(),
        Fate::Waits(Some(action)) => format!("{}, waits", in_words(action)),
        Fate::Released { by: None, .. } => "with what waited".to_owned(),
        Fate::Released { by: Some(action), .. } => in_words(action),
    }
}

fn in_words(action: &Action) -> String {
    match (action, name(action)) {
        (Action::Hold(millis) | Action::ReleaseAndHold(millis), (name, _)) => format!("{name} {millis} ms"),
        (_, (name, None)) => name.to_owned(),
        (_, (name, Some(text))) => format!("{name} {text:?}"),
    }
}

/// A row in a line: where it is from, its request, what became of it, before and after.
pub(crate) fn line(from: &str, row: &Row, fate: &Fate, style: Style) -> String {
    let paint =
        |text: String, how: fn(String) -> String| if style == Style::Screen { how(text) } else { text };
    let after = after(row, fate);
    let before_ids = ids(&row.ids, style);
    let mut change = match &after {
        None => paint(before_ids, screen::faint),
        Some(after) if *after.ids == row.ids => before_ids,
        Some(after) => {
            let new = ids(&after.ids, style);
            format!("{} -> {}", paint(before_ids, screen::bad), paint(new, screen::good))
        }
    };
    if let Some(text) = &row.text {
        let before = format!("{text:?}");
        change += ", ";
        change += &match after.as_ref().and_then(|after| after.text.as_deref()) {
            Some(new) if new != text => {
                format!("{} -> {}", paint(before, screen::bad), paint(format!("{new:?}"), screen::good))
            }
            _ => before,
        };
    }
    match after.as_ref().map_or(row.finish, |after| after.finish) {
        FinishKind::Running => {}
        kind => change += &format!(", last ({})", finish(kind)),
    }
    let outcome = match fate.said() {
        Some(_) => paint(outcome(fate), screen::marked),
        _ => paint(outcome(fate), screen::faint),
    };
    format!("{from} {}: {outcome}: {change}", row.rid)
}

fn ids(ids: &[TokenId], style: Style) -> String {
    let most = if style == Style::Screen { IDS_SHOWN_MAX } else { usize::MAX };
    let shown: Vec<String> = ids.iter().take(most).map(TokenId::to_string).collect();
    match ids.len().saturating_sub(most) {
        0 if ids.is_empty() => "no ids".to_owned(),
        0 => shown.join(" "),
        more => format!("{} … {more} more", shown.join(" ")),
    }
}

/// The same as JSON, whole.
pub(crate) fn row_json(from: &str, index: usize, row: &Row, fate: &Fate) -> Value {
    let outcome = fate.said().map_or_else(|| outcome(fate).into(), json);
    let after = after(row, fate)
        .map(|after| json!({"ids": after.ids, "text": after.text, "finish": finish(after.finish)}));
    json!({
        "from": from,
        "row": index,
        "rid": row.rid,
        "verdict": outcome,
        "before": {"ids": row.ids, "text": row.text, "finish": finish(row.finish)},
        "after": after,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(text: Option<&str>) -> Row {
        Row {
            rid: "r".to_owned(),
            ids: vec![1, 2],
            http_worker_ipc: String::new(),
            sink: String::new(),
            text: text.map(str::to_owned),
            completion_tokens: 2,
            prompt_tokens: 0,
            finish: FinishKind::Running,
        }
    }

    fn golden(row: &Row, fate: &Fate) -> String {
        line("batch 1", row, fate, Style::Golden)
    }

    #[test]
    fn a_line_says_what_became_of_a_row_before_and_after() {
        let replaced = |text: Option<&str>| {
            Fate::Judged(Action::Replace(Replacement { ids: vec![7], text: text.map(str::to_owned) }))
        };
        assert_eq!(golden(&row(None), &Fate::AsItCame), "batch 1 r: as it came: 1 2");
        assert_eq!(golden(&row(None), &Fate::Swallowed), "batch 1 r: swallowed: 1 2");
        assert_eq!(golden(&row(None), &replaced(Some("x"))), "batch 1 r: replace: 1 2 -> 7");
        assert_eq!(
            golden(&row(Some("a")), &replaced(Some("x"))),
            r#"batch 1 r: replace: 1 2 -> 7, "a" -> "x""#
        );
        assert_eq!(golden(&row(Some("a")), &replaced(None)), r#"batch 1 r: replace: 1 2 -> 7, "a""#);
        let dropped = Fate::Judged(Action::Drop("why".into()));
        assert_eq!(golden(&row(Some("a")), &dropped), r#"batch 1 r: drop "why": 1 2 -> no ids, "a" -> """#);
        let finished = Fate::Judged(Action::Finish("loop".into()));
        assert_eq!(golden(&row(None), &finished), r#"batch 1 r: finish "loop": 1 2, last (stop)"#);
        let instead = Replacement { ids: vec![1], text: Some("a".into()) };
        let cut = Fate::Judged(Action::FinishAs(Ending { matched: "loop".into(), instead }));
        assert_eq!(golden(&row(None), &cut), r#"batch 1 r: finish-as "loop": 1 2 -> 1, last (stop)"#);
        assert_eq!(
            golden(&row(Some("ab")), &cut),
            r#"batch 1 r: finish-as "loop": 1 2 -> 1, "ab" -> "a", last (stop)"#
        );
    }

    #[test]
    fn a_line_on_the_screen_is_cut_and_a_golden_one_is_whole() {
        let row = Row { ids: (0..100).collect(), ..row(None) };
        assert!(line("f", &row, &Fate::AsItCame, Style::Screen).ends_with(" 23 … 76 more"));
        assert!(golden(&row, &Fate::AsItCame).ends_with(" 98 99"));
    }

    #[test]
    fn every_verdict_is_written_by_the_name_that_a_scenario_may_use() {
        let all = [
            Action::Replace(Replacement { ids: vec![1], text: None }),
            Action::Drop(String::new()),
            Action::Finish(String::new()),
            Action::FinishAs(Ending {
                matched: String::new(),
                instead: Replacement { ids: vec![1], text: None },
            }),
            Action::Abort(String::new()),
            Action::Annotate(String::new()),
            Action::Route(String::new()),
            Action::SkipDetokenization,
            Action::Hold(1),
            Action::Release,
            Action::ReleaseAs(Replacement { ids: vec![1], text: None }),
            Action::ReleaseAndHold(1),
        ];
        assert_eq!(all.each_ref().map(|action| name(action).0), VERDICTS);
        for action in &all {
            assert!(json(action).get(name(action).0).is_some(), "{action:?}");
        }
    }
}
