//! A request on one stream: its rows with their content before and after each plugin, and its end.

use crate::asked;
use crate::content::{Absent, Content, ContentBounds, ContentReader};
use crate::ending::LegEnd;
use crate::output::{LegOutput, open_bytes};
use crate::time::json_time;
use crate::wording::{passage, verdict};
use afterbay_journal::reader::{JournalRow, RequestHistory, RowDelivery};
use afterbay_journal::{PluginAction, PluginComponent, StoredReplacement, Verdict};
use afterbay_text::TokenBytes;
use afterbay_wire::RequestRecord;
use serde_json::{Value, json};

/// Most rows after a held row in which its release is looked for.
const HELD_ROWS_MAX: usize = 1000;

/// A request on one stream.
pub struct LegView<'a> {
    /// Name of the stream.
    pub stream: &'a str,
    /// Totals and rows.
    pub life: &'a RequestHistory,
    /// The request's record, if the request came with one.
    pub record: Option<Result<RequestRecord, Absent>>,
    /// The received content of each row.
    pub contents: Vec<Result<Content, Absent>>,
    /// The end of the request: who ended it, and how.
    pub end: LegEnd<'a>,
    tokens: Option<TokenBytes>,
}

impl<'a> LegView<'a> {
    /// Reads the content of the rows. `sender` is the process that sends the stream's rows. `tokens` gives ids a text.
    pub fn read(
        reader: &ContentReader<'_>,
        (stream, life): (&'a str, &'a RequestHistory),
        sender: &'static str,
        tokens: Option<TokenBytes>,
        bounds: ContentBounds,
    ) -> LegView<'a> {
        let contents = reader.contents(life, bounds);
        let rows_absent = || reader.rows_absent(life);
        let end = LegEnd::new(stream, sender, life, &contents, tokens.as_ref(), rows_absent);
        let record = reader.record(life);
        LegView { stream, life, record, contents, end, tokens }
    }

    /// The request's record as JSON, with at most `ids_max` ids of the prompt; `null` without a record.
    pub fn record_json(&self, ids_max: usize) -> Value {
        self.record.as_ref().map(|record| asked::json(record, self.tokens.as_ref(), ids_max)).into()
    }

    /// The text of the prompt, if its ids and the tokenizer are known.
    pub fn prompt(&self) -> Option<String> {
        let ids: Vec<i64> = asked::ids(self.record.as_ref()?.as_ref().ok()?)?.collect();
        asked::text(Some(&ids), self.tokens.as_ref())
    }

    /// The first rows as JSON, at most `rows_max`.
    pub fn rows(&self, rows_max: usize) -> Vec<Value> {
        let mut received = TextOfTokens::new(self.tokens.as_ref());
        let rows = self.life.rows.iter().zip(&self.contents).take(rows_max);
        rows.map(|(row, content)| {
            let content = content.as_ref();
            let text =
                content.ok().and_then(|content| content.text.clone().or_else(|| received.next(&content.ids)));
            json!({
                "stream": self.stream,
                "time": json_time(row.received_unix_ns),
                "frame": row.frame.0,
                "row": row.row,
                "tokens": row.tokens,
                "tokens_forwarded": row.forwarded,
                "ids": content.ok().map(|content| &content.ids),
                "text": text,
                "engine": content.ok().map(|content| content.facts.json()),
                "missing": content.err().map(|why| why.words()),
                "passage": passage(&row.passage),
                "actions": row.actions.iter().map(|action| self.action(row, action)).collect::<Vec<_>>(),
                "finish_reason": row.finish.as_ref().map(|finish| &finish.reason),
                "gap": row.gap.as_ref().map(|gap| json!({"expected": gap.expected, "got": gap.got})),
                "taken_by": row.taken_by(),
                "deliveries": row.deliveries.iter().map(delivery).collect::<Vec<_>>(),
            })
        })
        .collect()
    }

    /// An action, with the content of the row after it: `null` if the action does not change the content.
    fn action(&self, row: &JournalRow, action: &PluginAction<'_>) -> Value {
        let component = row.component(action);
        let after = match action.replaced() {
            Some(StoredReplacement::Row { ids, text }) => {
                let text =
                    text.map(str::to_owned).or_else(|| TextOfTokens::new(self.tokens.as_ref()).next(ids));
                json!({"ids": ids, "text": text})
            }
            Some(StoredReplacement::Cumulative) | None => match action.verdict {
                Verdict::Drop | Verdict::Hold => json!({"ids": [], "text": ""}),
                _ => Value::Null,
            },
        };
        json!({
            "plugin": action.plugin,
            "version": component.map(|component| &component.version),
            "sha256": component.map(PluginComponent::sha256_text),
            "verdict": verdict(action.verdict),
            "text": action.text,
            "ids": if action.verdict == Verdict::Release { &[][..] } else { &action.ids },
            "rows_released": action.released(),
            "tokens_forwarded": action.forwarded,
            "after": after,
        })
    }

    /// The output for the reader, beside what was received where the two differ. `reader` is the one that read the rows.
    pub fn output(&self, reader: &ContentReader<'_>) -> LegOutput {
        LegOutput::read(reader, self.life, &self.contents, self.tokens.as_ref())
    }

    /// Whether rows have no content because of the bounds, or the request has more rows than `rows_max`.
    pub fn is_truncated(&self, rows_max: usize) -> bool {
        self.life.rows.len() > rows_max || self.contents.iter().any(|it| matches!(it, Err(Absent::NotShown)))
    }

    /// The way of each row, in the order of the rows, at most `events_max` stages.
    pub fn timeline(&self, events_max: usize) -> Vec<Value> {
        let rows = &self.life.rows;
        let events = rows.iter().enumerate().flat_map(|(at, row)| stages(row, &rows[at..]));
        let stream = |mut event: Value| {
            event["stream"] = self.stream.into();
            event
        };
        events.take(events_max).map(stream).collect()
    }
}

/// A frame that carried a row to a sink.
fn delivery(delivery: &RowDelivery) -> Value {
    json!({
        "sink": delivery.sink,
        "sequence": delivery.sequence,
        "sent": json_time(delivery.sent_unix_ns),
        "taken": json_time(delivery.taken_unix_ns),
    })
}

/// The stages of a row. `from` are the rows from this one on. A stage has the time of the row's receipt, but for the sent frame,
/// which has its own times. The journal has no time for itself, and none for what a start settled.
fn stages<'r>(row: &'r JournalRow, from: &'r [JournalRow]) -> impl Iterator<Item = Value> {
    let (time, frame) = (json_time(row.received_unix_ns), row.frame.0);
    let received = json!({"stage": "received", "time": time, "frame": frame});
    let journaled = row.position.map(|_| json!({"stage": "journaled", "time": null, "frame": frame}));
    let plugins = row.actions.iter().map(move |action| match action.verdict {
        Verdict::Hold => {
            // The plugin's release is a later row's.
            let released = from.iter().skip(1).take(HELD_ROWS_MAX).find(|later| {
                later.actions.iter().any(|it| it.plugin == action.plugin && it.verdict == Verdict::Release)
            });
            let until = released.and_then(|later| json_time(later.received_unix_ns));
            json!({"stage": "held", "time": time, "frame": frame, "plugin": action.plugin, "until": until})
        }
        other => {
            json!({"stage": "plugin", "time": time, "frame": frame, "plugin": action.plugin, "verdict": verdict(other)})
        }
    });
    // The sink's record is of the whole frame.
    let is_dropped = row
        .actions
        .iter()
        .any(|action| action.is_swallowed() || (action.verdict == Verdict::Drop && row.finish.is_none()));
    let deliveries = row.deliveries.iter().filter(move |_| !is_dropped);
    let sent = deliveries.flat_map(move |delivery| {
        // This row travels inside the next one if the same frame to the sink carries both.
        let is_joined = from.get(1).is_some_and(|later| {
            later.deliveries.iter().any(|it| (&it.sink, it.sequence) == (&delivery.sink, delivery.sequence))
        });
        let stage = if is_joined { "joined" } else { "sent" };
        let event = move |stage, unix_ns| {
            json!({"stage": stage, "time": json_time(unix_ns), "frame": frame, "sink": delivery.sink})
        };
        let taken = delivery.taken.then(|| event("taken", delivery.taken_unix_ns));
        [Some(event(stage, delivery.sent_unix_ns)), taken].into_iter().flatten()
    });
    [Some(received), journaled].into_iter().flatten().chain(plugins).chain(sent)
}

/// The text of ids, row by row. The end of a row may be inside a character, which then belongs to the next row.
struct TextOfTokens<'a> {
    tokens: Option<&'a TokenBytes>,
    open: Vec<u8>,
}

impl<'a> TextOfTokens<'a> {
    fn new(tokens: Option<&'a TokenBytes>) -> TextOfTokens<'a> {
        TextOfTokens { tokens, open: Vec::new() }
    }

    /// The text of further ids; `None` without a tokenizer.
    fn next(&mut self, ids: &[i64]) -> Option<String> {
        let mut bytes = std::mem::take(&mut self.open);
        bytes.extend(self.tokens?.decode(ids));
        self.open = bytes.split_off(bytes.len() - open_bytes(&bytes));
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests as sample;

    /// The stages of a row received at 1 µs, as `stage time`.
    fn stages_of(deliveries: Vec<RowDelivery>) -> Vec<String> {
        let row = JournalRow { deliveries, ..sample::row(1000) };
        let shown = |stage: Value| format!("{} {}", stage["stage"], stage["time"]).replace('"', "");
        stages(&row, std::slice::from_ref(&row)).map(shown).collect()
    }

    #[test]
    fn sent_and_taken_rows_have_their_own_times_in_the_timeline() {
        let delivery = RowDelivery {
            sink: "reader".into(),
            sequence: 1,
            sent_unix_ns: 2000,
            taken: true,
            taken_unix_ns: 3000,
        };
        assert_eq!(
            stages_of(vec![delivery.clone()]),
            [
                "received 1970-01-01T00:00:00.000001000Z",
                "sent 1970-01-01T00:00:00.000002000Z",
                "taken 1970-01-01T00:00:00.000003000Z",
            ]
        );
        let settled = RowDelivery { sent_unix_ns: 0, taken_unix_ns: 0, ..delivery };
        assert_eq!(
            stages_of(vec![settled]),
            ["received 1970-01-01T00:00:00.000001000Z", "sent null", "taken null"],
            "a start settled the frame"
        );
    }
}
