//! Rows before and after a plugin, as lines.

use crate::contract_names::name;
use crate::row::Row;
use crate::row_outcome::{RowOutcome, after};
use afterbay_runtime::{Action, FinishKind, TokenId};
use afterbay_terminal as screen;

/// Most ids of a row on a line; JSON has all.
const IDS_SHOWN_MAX: usize = 24;

/// The style of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    /// For people: cut, and coloured on a terminal.
    Screen,
    /// For comparison with a golden file: complete, without colour.
    Golden,
}

/// The outcome of a row in a few words: the verdict's name and its text.
pub(crate) fn outcome_text(outcome: &RowOutcome) -> String {
    match outcome {
        RowOutcome::AsReceived => "as it came".to_owned(),
        RowOutcome::Swallowed => "swallowed".to_owned(),
        RowOutcome::Verdict(action) => in_words(action),
        RowOutcome::Held(None) => "waits".to_owned(),
        RowOutcome::Held(Some(action)) => format!("{}, waits", in_words(action)),
        RowOutcome::Released { by: None, .. } => "with what waited".to_owned(),
        RowOutcome::Released { by: Some(action), .. } => in_words(action),
    }
}

pub(crate) fn in_words(action: &Action) -> String {
    match (action, name(action)) {
        (Action::Hold(millis) | Action::ReleaseAndHold(millis), (name, _)) => format!("{name} {millis} ms"),
        (_, (name, None)) => name.to_owned(),
        (_, (name, Some(text))) => format!("{name} {text:?}"),
    }
}

/// A row as a line: where it is from, its request, its outcome, and its content before and after.
pub(crate) fn line(from: &str, row: &Row, outcome: &RowOutcome, style: Style) -> String {
    let paint =
        |text: String, how: fn(String) -> String| if style == Style::Screen { how(text) } else { text };
    let after = after(row, outcome);
    let most = if style == Style::Screen { IDS_SHOWN_MAX } else { usize::MAX };
    let before_ids = ids(&row.ids, most);
    let mut change = match &after {
        None => paint(before_ids, screen::faint),
        Some(after) if *after.ids == row.ids => before_ids,
        Some(after) => {
            let new = ids(&after.ids, most);
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
    match after.as_ref().map_or(row.values.finished, |after| after.finish) {
        FinishKind::Running => {}
        kind => change += &format!(", last ({})", kind.word()),
    }
    let text = match outcome.verdict() {
        Some(_) => paint(outcome_text(outcome), screen::marked),
        _ => paint(outcome_text(outcome), screen::faint),
    };
    format!("{from} {}: {text}: {change}", row.rid)
}

/// Ids as text, at most `most` of them.
pub(crate) fn ids(ids: &[TokenId], most: usize) -> String {
    let shown: Vec<String> = ids.iter().take(most).map(TokenId::to_string).collect();
    match ids.len().saturating_sub(most) {
        0 if ids.is_empty() => "no ids".to_owned(),
        0 => shown.join(" "),
        more => format!("{} … {more} more", shown.join(" ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use afterbay_runtime::{Ending, FinishReason, PlainValues, Replacement, RowFacts};

    fn row(text: Option<&str>) -> Row {
        Row {
            rid: "r".to_owned(),
            ids: vec![1, 2],
            front_end: String::new(),
            sink: String::new(),
            text: text.map(str::to_owned),
            values: PlainValues::default(),
            facts: RowFacts::default(),
            prompt_tokens: 0,
        }
    }

    fn golden(row: &Row, outcome: &RowOutcome) -> String {
        line("batch 1", row, outcome, Style::Golden)
    }

    #[test]
    fn a_line_shows_the_outcome_of_a_row_and_its_content_before_and_after() {
        let replaced = |text: Option<&str>| {
            RowOutcome::Verdict(Action::Replace(Replacement { ids: vec![7], text: text.map(str::to_owned) }))
        };
        assert_eq!(golden(&row(None), &RowOutcome::AsReceived), "batch 1 r: as it came: 1 2");
        assert_eq!(golden(&row(None), &RowOutcome::Swallowed), "batch 1 r: swallowed: 1 2");
        assert_eq!(golden(&row(None), &replaced(Some("x"))), "batch 1 r: replace: 1 2 -> 7");
        assert_eq!(
            golden(&row(Some("a")), &replaced(Some("x"))),
            r#"batch 1 r: replace: 1 2 -> 7, "a" -> "x""#
        );
        assert_eq!(golden(&row(Some("a")), &replaced(None)), r#"batch 1 r: replace: 1 2 -> 7, "a""#);
        let dropped = RowOutcome::Verdict(Action::Drop("why".into()));
        assert_eq!(golden(&row(Some("a")), &dropped), r#"batch 1 r: drop "why": 1 2 -> no ids, "a" -> """#);
        let finish =
            |reason, replacement| RowOutcome::Verdict(Action::Finish(Ending { reason, replacement }));
        let finished = finish(FinishReason::Stop("loop".into()), None);
        assert_eq!(golden(&row(None), &finished), r#"batch 1 r: finish "loop": 1 2, last (stop)"#);
        let at_the_limit = finish(FinishReason::Length, None);
        assert_eq!(golden(&row(None), &at_the_limit), "batch 1 r: length: 1 2, last (length)");
        let replacement = Replacement { ids: vec![1], text: Some("a".into()) };
        let cut = finish(FinishReason::Stop("loop".into()), Some(replacement));
        assert_eq!(golden(&row(None), &cut), r#"batch 1 r: finish "loop": 1 2 -> 1, last (stop)"#);
        assert_eq!(
            golden(&row(Some("ab")), &cut),
            r#"batch 1 r: finish "loop": 1 2 -> 1, "ab" -> "a", last (stop)"#
        );
    }

    #[test]
    fn a_line_on_the_screen_is_cut_and_a_golden_line_is_complete() {
        let row = Row { ids: (0..100).collect(), ..row(None) };
        assert!(line("f", &row, &RowOutcome::AsReceived, Style::Screen).ends_with(" 23 … 76 more"));
        assert!(golden(&row, &RowOutcome::AsReceived).ends_with(" 98 99"));
    }
}
