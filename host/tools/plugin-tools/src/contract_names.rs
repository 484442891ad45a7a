//! The names of the plugin contract, for people and scripts: columns, calls, verdicts, log levels.
//!
//! A new verdict of `wit/transform.wit` has its name here, and nowhere else in the tools. The names of columns and
//! finish reasons are the runtime's.

use afterbay_runtime::{
    Action, COLUMN_NAMES, CallSet, ColumnSet, Ending, Failure, FinishReason, IdShape, Level, Replacement,
};
use serde_json::{Value, json};

/// The names of the verdicts in a scenario, in the order of `VerdictKind`.
pub(crate) const VERDICTS: [&str; 13] = [
    "replace",
    "drop",
    "finish",
    "length",
    "abort",
    "error",
    "annotate",
    "route",
    "skip-text",
    "hold",
    "release",
    "release-as",
    "release-and-hold",
];

/// The names of the columns that a plugin asks for.
pub(crate) fn columns(set: ColumnSet) -> Vec<&'static str> {
    COLUMN_NAMES.iter().filter(|(column, _)| set.contains(*column)).map(|(_, name)| *name).collect()
}

/// The names of the optional calls that a plugin asks for.
pub(crate) fn calls(set: CallSet) -> Vec<&'static str> {
    let all = [
        (CallSet::PRESSURE, "pressure"),
        (CallSet::CHANGED, "changed"),
        (CallSet::STATE, "state"),
        (CallSet::TIMER, "timer"),
    ];
    all.into_iter().filter(|(call, _)| set.contains(*call)).map(|(_, name)| name).collect()
}

/// The name of the shape of the ids that a plugin writes.
pub(crate) fn shape(shape: IdShape) -> &'static str {
    match shape {
        IdShape::Delta => "delta",
        IdShape::Cumulative => "cumulative",
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

/// The tokens that a verdict gives in place of those of the row.
pub(crate) fn replacement(action: &Action) -> Option<&Replacement> {
    match action {
        Action::Replace(replacement) | Action::ReleaseAs(replacement) => Some(replacement),
        Action::Finish(Ending { replacement, .. }) => replacement.as_ref(),
        _ => None,
    }
}

/// A verdict's name, and its reason, note or message.
pub(crate) fn name(action: &Action) -> (&'static str, Option<&str>) {
    (VERDICTS[action.kind() as usize], action.text())
}

/// A verdict as a scenario writes it: `{"drop": "why"}`, `{"replace": [1, 2], "text": "…"}`.
pub(crate) fn json(action: &Action) -> Value {
    match action {
        Action::Replace(Replacement { ids, text: None }) => json!({"replace": ids}),
        Action::Replace(Replacement { ids, text: Some(text) }) => json!({"replace": ids, "text": text}),
        Action::Finish(Ending { reason, replacement }) => {
            let reason = match reason {
                FinishReason::Stop(matched) => json!({"finish": matched}),
                FinishReason::Length => json!({"length": true}),
                FinishReason::Abort(message) => json!({"abort": message}),
                FinishReason::Error(Failure { status, message }) => {
                    json!({"error": message, "status": status})
                }
            };
            with_tokens(reason, replacement.as_ref())
        }
        Action::SkipText => json!({"skip-text": true}),
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

/// Adds the tokens of a request's last row to its end.
fn with_tokens(mut ending: Value, replacement: Option<&Replacement>) -> Value {
    if let Some(Replacement { ids, text }) = replacement {
        ending["ids"] = json!(ids);
        if let Some(text) = text {
            ending["text"] = json!(text);
        }
    }
    ending
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verdict_is_written_by_the_name_that_a_scenario_may_use() {
        let finish = |reason| Action::Finish(Ending { reason, replacement: None });
        let all = [
            Action::Replace(Replacement { ids: vec![1], text: None }),
            Action::Drop(String::new()),
            finish(FinishReason::Stop(String::new())),
            finish(FinishReason::Length),
            finish(FinishReason::Abort(String::new())),
            finish(FinishReason::Error(Failure { status: 503, message: String::new() })),
            Action::Annotate(String::new()),
            Action::Route(String::new()),
            Action::SkipText,
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

    #[test]
    fn an_end_has_the_tokens_of_the_last_row() {
        let end = |reason, text: Option<&str>| {
            let replacement = Some(Replacement { ids: vec![1], text: text.map(str::to_owned) });
            json(&Action::Finish(Ending { reason, replacement }))
        };
        assert_eq!(end(FinishReason::Stop("x".into()), None), json!({"finish": "x", "ids": [1]}));
        assert_eq!(end(FinishReason::Length, Some("a")), json!({"length": true, "ids": [1], "text": "a"}));
    }
}
