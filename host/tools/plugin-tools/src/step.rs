//! `afterbay plugin run --step`, and the JSON of `plugin run`: each row in the order of its life. It arrived, the plugin saw it, said and logged something,
//! and something left.
//!
//! A line of the JSON has the key `step`: `batch` (what changed before the rows), `row`, or `effects` (what the plugin did
//! beside its verdicts). docs/src/plugins/testing.md describes the keys.

use crate::contract_names;
use crate::effects::Effects;
use crate::player::{PlayedBatch, PlayedRow};
use crate::row::{Batch, Row};
use crate::row_outcome::{RowOutcome, after};
use crate::show;
use afterbay_runtime::{
    Action, COLUMN_NAMES, ColumnSet, Component, FinishKind, LogLine, Replacement, TokenId, Tokens,
};
use afterbay_terminal as screen;
use serde_json::{Map, Value, json};
use std::collections::HashSet;
use std::sync::Arc;

/// The width of the words at the beginning of a block's lines, with the blanks around them.
const INDENT: usize = 11;
/// Most ids of a row on the screen; the JSON has all.
const IDS_SHOWN_MAX: usize = 64;
/// Most bytes of a text on the screen; the JSON has the whole text.
const TEXT_SHOWN_MAX: usize = 1024;

/// The steps of one plugin.
pub(crate) struct Steps {
    columns: ColumnSet,
    /// `None` if no tokenizer was given: the ids then have no text.
    tokens: Option<Arc<dyn Tokens>>,
}

impl Steps {
    pub(crate) fn new(component: &Component) -> Steps {
        let tokens = component.grants().tokenizer.clone().filter(|tokens| tokens.size() > 0);
        Steps { columns: component.description().columns, tokens }
    }

    /// The batch as JSON objects, with the rows whose outcome is shown.
    pub(crate) fn lines(
        &self,
        batch: &Batch,
        played: &PlayedBatch,
        effects: &Effects,
        is_shown: impl Fn(&RowOutcome) -> bool,
    ) -> Vec<Value> {
        let mut lines = Vec::new();
        if !batch.updates.attributes.is_empty() || batch.updates.signals.is_some() {
            let attributes = batch.updates.attributes.iter();
            let attributes: Map<String, Value> =
                attributes.map(|(rid, it)| (rid.clone(), parsed(it))).collect();
            let signals = batch.updates.signals.is_some();
            lines.push(
                json!({"step": "batch", "from": batch.from, "attributes": attributes, "signals": signals}),
            );
        }
        let rows = batch.rows.iter().zip(&played.rows).zip(&played.outcomes).enumerate();
        let rows: Vec<_> = rows.filter(|(_, (_, outcome))| is_shown(outcome)).collect();
        let rids: HashSet<&str> = rows.iter().map(|(_, ((row, _), _))| row.rid.as_str()).collect();
        lines.extend(rows.into_iter().map(|(index, ((row, seen), outcome))| {
            let log = self
                .log_of(played, &row.rid)
                .map(|line| json!({"level": contract_names::level(line.level), "message": line.message}));
            json!({
                "step": "row",
                "from": batch.from,
                "row": index,
                "rid": row.rid,
                "arrived": self.content(&row.ids, row.text.as_deref(), row.values.finished),
                "saw": self.seen_json(row, seen, outcome),
                "said": outcome.verdict().map(|action| self.said_json(action)),
                "log": log.collect::<Vec<_>>(),
                "outcome": state(outcome),
                "joined": seen.joined,
                "left": after(row, outcome)
                    .map(|after| self.content(&after.ids, after.text.as_deref(), after.finish)),
            })
        }));
        let log = logged_beside(played, &rids).map(|(rid, line)| {
            json!({"rid": rid, "level": contract_names::level(line.level), "message": line.message})
        });
        let log: Vec<Value> = log.collect();
        let faults = played.faults.iter().map(|fault| {
            let stack = fault.stack.iter();
            let stack =
                stack.map(|it| json!({"file": &*it.file, "line": it.line, "function": &*it.function}));
            json!({
                "kind": fault.cause.kind().word(),
                "message": fault.to_string(),
                "stack": stack.collect::<Vec<_>>(),
            })
        });
        let faults: Vec<Value> = faults.collect();
        let ended = played
            .ended
            .iter()
            .map(|(rid, action)| json!({"rid": rid, "verdict": contract_names::json(action)}));
        let ended: Vec<Value> = ended.collect();
        if !(log.is_empty() && faults.is_empty() && ended.is_empty() && effects.is_empty()) {
            lines.push(json!({
                "step": "effects",
                "from": batch.from,
                "ended": ended,
                "log": log,
                "metrics": effects.metrics_json(),
                "store": effects.store_json(),
                "faults": faults,
            }));
        }
        lines
    }

    fn content(&self, ids: &[TokenId], text: Option<&str>, finish: FinishKind) -> Value {
        json!({"ids": ids, "text": text, "decoded": self.decoded(ids), "finish": finish.word()})
    }

    /// The row as the plugin saw it: only the columns that it asks for.
    fn seen_json(&self, row: &Row, seen: &PlayedRow, outcome: &RowOutcome) -> Value {
        if matches!(outcome, RowOutcome::Swallowed) {
            return Value::Null;
        }
        let mut columns = Map::new();
        for (_, name) in COLUMN_NAMES.iter().filter(|(column, _)| self.columns.contains(*column)) {
            columns.insert((*name).to_owned(), value(name, row, seen));
        }
        json!({
            "request": seen.request,
            "columns": columns,
            "attributes": seen.attributes.as_deref().map(parsed),
        })
    }

    fn said_json(&self, action: &Action) -> Value {
        let mut said = contract_names::json(action);
        let decoded = contract_names::replacement(action).and_then(|it| self.decoded(&it.ids));
        if let (Some(said), Some(decoded)) = (said.as_object_mut(), decoded) {
            said.insert("decoded".to_owned(), decoded.into());
        }
        said
    }

    /// The text of tokens, if there is a tokenizer.
    fn decoded(&self, ids: &[TokenId]) -> Option<String> {
        let tokens = self.tokens.as_ref()?;
        let bytes: Vec<u8> = ids.iter().flat_map(|id| tokens.bytes(*id)).copied().collect();
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The batch as blocks of lines, one for each row.
    pub(crate) fn blocks(&self, batch: &Batch, played: &PlayedBatch, effects: &Effects) -> Vec<String> {
        let mut blocks = Vec::new();
        let mut before = Block::new(batch.from.clone());
        for (rid, attributes) in &batch.updates.attributes {
            before.line("set", format!("attributes of {rid} {attributes}"));
        }
        if batch.updates.signals.is_some() {
            before.line("set", "signals".to_owned());
        }
        blocks.extend(before.text());
        let rows = batch.rows.iter().zip(&played.rows).zip(&played.outcomes).enumerate();
        for (index, ((row, seen), outcome)) in rows {
            let of = if batch.rows.len() > 1 {
                format!(" row {} of {}", index + 1, batch.rows.len())
            } else {
                String::new()
            };
            let mut block = Block::new(format!("{}{of}  {}", batch.from, screen::marked(row.rid.clone())));
            block.line("arrived", self.shown(&row.ids, row.text.as_deref(), row.values.finished));
            block.line("saw", self.seen(row, seen, outcome));
            block.line("said", self.said(outcome));
            for line in self.log_of(played, &row.rid) {
                block.line("logged", format!("{}: {}", contract_names::level(line.level), line.message));
            }
            block.line("left", self.left(row, seen, outcome));
            blocks.extend(block.text());
        }
        let mut beside = Block::new(format!("{}  beside the rows", batch.from));
        let rids = batch.rows.iter().map(|row| row.rid.as_str()).collect();
        for (_, line) in logged_beside(played, &rids) {
            beside.line("logged", format!("{}: {}", contract_names::level(line.level), line.message));
        }
        effects.metrics().iter().for_each(|change| beside.line("metric", change.clone()));
        effects.store().iter().for_each(|change| beside.line("store", change.clone()));
        for (rid, action) in &played.ended {
            beside.line("ended", format!("{rid}: {}", contract_names::json(action)));
        }
        played.faults.iter().for_each(|fault| beside.line("fault", screen::bad(fault.to_string())));
        blocks.extend(beside.text());
        blocks
    }

    /// The content of a row: ids, text, and the finish reason of the last row.
    fn shown(&self, ids: &[TokenId], text: Option<&str>, finish: FinishKind) -> String {
        let mut shown = show::ids(ids, IDS_SHOWN_MAX);
        let decoded = self.decoded(ids);
        if let Some(text) = text.or(decoded.as_deref()) {
            shown += &format!("  {}", quoted(text));
        }
        match finish {
            FinishKind::Running => shown,
            kind => format!("{shown}, last ({})", kind.word()),
        }
    }

    fn seen(&self, row: &Row, seen: &PlayedRow, outcome: &RowOutcome) -> String {
        if matches!(outcome, RowOutcome::Swallowed) {
            return screen::faint("nothing: it ended the request earlier".to_owned());
        }
        let columns = COLUMN_NAMES.iter().filter(|(column, _)| self.columns.contains(*column));
        let mut parts: Vec<String> = columns
            .map(|(_, name)| match *name {
                // The line above has these.
                "output-ids" | "texts" => (*name).to_owned(),
                name => {
                    let value = value(name, row, seen);
                    format!("{name} {}", value.as_str().map_or_else(|| value.to_string(), str::to_owned))
                }
            })
            .collect();
        if parts.is_empty() {
            parts.push("no column".to_owned());
        }
        parts.extend(seen.attributes.as_ref().map(|attributes| format!("attributes {attributes}")));
        parts.join(", ")
    }

    fn said(&self, outcome: &RowOutcome) -> String {
        let Some(action) = outcome.verdict() else { return screen::faint("nothing".to_owned()) };
        let mut said = show::in_words(action);
        if let Some(Replacement { ids, text }) = contract_names::replacement(action) {
            said += &format!(": {}", self.shown(ids, text.as_deref(), FinishKind::Running));
        }
        screen::marked(said)
    }

    fn left(&self, row: &Row, seen: &PlayedRow, outcome: &RowOutcome) -> String {
        let others = match seen.joined.as_slice() {
            [] => String::new(),
            rows => format!(
                "together with the row{} of {}",
                if rows.len() == 1 { "" } else { "s" },
                rows.join(", ")
            ),
        };
        let Some(after) = after(row, outcome) else {
            return match outcome {
                RowOutcome::Swallowed => screen::bad("nothing: the row is dropped".to_owned()),
                _ if seen.waiting > 0 => screen::marked(format!(
                    "nothing yet: it waits behind {} of its request",
                    rows(seen.waiting)
                )),
                _ => screen::marked("nothing yet: it waits".to_owned()),
            };
        };
        let content = self.shown(&after.ids, after.text.as_deref(), after.finish);
        match outcome {
            RowOutcome::Released { .. } if matches!(outcome.verdict(), Some(Action::ReleaseAndHold(_))) => {
                screen::good(format!(
                    "the row{} of {}: {content}; this row waits",
                    if seen.joined.len() == 1 { "" } else { "s" },
                    seen.joined.join(", ")
                ))
            }
            RowOutcome::Released { .. } if !others.is_empty() => screen::good(format!("{content}, {others}")),
            _ if *after.ids == row.ids && after.text.as_deref() == row.text.as_deref() => {
                match after.finish == row.values.finished {
                    true => screen::faint("as it came".to_owned()),
                    false => screen::bad(content),
                }
            }
            _ if after.ids.is_empty() => screen::bad(content),
            _ => screen::good(content),
        }
    }

    /// The lines that the plugin logged about a request.
    fn log_of<'p>(&self, played: &'p PlayedBatch, rid: &'p str) -> impl Iterator<Item = &'p LogLine> {
        played.log.iter().filter(move |(of, _)| of.as_deref() == Some(rid)).map(|(_, line)| line)
    }
}

/// The lines that the plugin logged about none of these requests.
fn logged_beside<'p>(
    played: &'p PlayedBatch,
    rids: &HashSet<&str>,
) -> impl Iterator<Item = &'p (Option<String>, LogLine)> {
    played.log.iter().filter(|(of, _)| of.as_deref().is_none_or(|rid| !rids.contains(rid)))
}

fn rows(count: u32) -> String {
    if count == 1 { "1 row".to_owned() } else { format!("{count} rows") }
}

/// The value of a row in the column of this name.
fn value(column: &str, row: &Row, seen: &PlayedRow) -> Value {
    match column {
        "output-ids" => json!(row.ids),
        "completion-tokens" => json!(row.values.completion_tokens),
        "finished" => json!(row.values.finished.word()),
        "texts" => json!(row.text),
        "waiting" => json!(seen.waiting),
        "logprobs" => json!(row.facts.logprobs),
        "top-logprobs" => {
            row.facts.top_logprobs.places().map(|place| json!(place.collect::<Vec<_>>())).collect()
        }
        "cached-tokens" => json!(row.values.cached_tokens),
        "reasoning-tokens" => json!(row.values.reasoning_tokens),
        "drafted-tokens" => json!(row.values.drafted_tokens),
        "accepted-tokens" => json!(row.values.accepted_tokens),
        "weight-versions" => json!(row.facts.weight_version),
        _ => Value::Null,
    }
}

/// The outcome of a row in a word.
fn state(outcome: &RowOutcome) -> &'static str {
    match outcome {
        RowOutcome::AsReceived => "passed",
        RowOutcome::Swallowed => "swallowed",
        RowOutcome::Verdict(_) => "judged",
        RowOutcome::Held(_) => "held",
        RowOutcome::Released { .. } => "released",
    }
}

/// Attributes as JSON.
fn parsed(json: &str) -> Value {
    serde_json::from_str(json).unwrap_or_else(|_| json.into())
}

/// A text in quotes, cut to [`TEXT_SHOWN_MAX`].
fn quoted(text: &str) -> String {
    let cut = text.floor_char_boundary(TEXT_SHOWN_MAX);
    match text.len() - cut {
        0 => format!("{text:?}"),
        more => format!("{:?} … {more} bytes more", &text[..cut]),
    }
}

/// A block on the screen: a head, and lines that begin with a word.
struct Block {
    head: String,
    lines: Vec<String>,
}

impl Block {
    fn new(head: String) -> Block {
        Block { head: screen::escaped(&head), lines: Vec::new() }
    }

    fn line(&mut self, word: &str, text: String) {
        let text = text.replace('\n', &format!("\n{:INDENT$}", ""));
        let word = screen::faint(format!("  {word:<width$}", width = INDENT - 3));
        self.lines.push(format!("{word} {}", screen::wrapped(&text, INDENT)));
    }

    /// The block with an empty line after it; `None` without lines.
    fn text(self) -> Option<String> {
        (!self.lines.is_empty()).then(|| format!("{}\n{}\n", self.head, self.lines.join("\n")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use afterbay_runtime::{PlainValues, RowFacts};

    #[test]
    fn every_column_of_the_contract_has_a_value() {
        let row = Row {
            rid: String::new(),
            ids: Vec::new(),
            text: Some(String::new()),
            values: PlainValues::default(),
            facts: RowFacts::default(),
            prompt_tokens: 0,
            front_end: String::new(),
            sink: String::new(),
        };
        for (_, name) in COLUMN_NAMES {
            assert_ne!(value(name, &row, &PlayedRow::default()), Value::Null, "{name}");
        }
    }
}
