//! The record of a request and its prompt, as JSON and in words.

use afterbay_text::TokenBytes;
use afterbay_wire::RequestRecord;
use serde_json::{Map, Value, json};

use crate::content::Absent;
use crate::time::json_time;

/// Most characters of a value in words; JSON has all.
const VALUE_CHARS_MAX: usize = 400;
/// Fields that are shown apart.
const OWN: [&str; 3] = ["rid", "arrived_unix_ns", "prompt_tokens"];

/// The request's record as JSON, as far as the journal has it: its fields, `arrived`, at most `ids_max` ids of the prompt in `prompt_ids`, and
/// their text in `prompt` if the tokenizer is known.
pub fn json(record: &Result<RequestRecord, Absent>, tokens: Option<&TokenBytes>, ids_max: usize) -> Value {
    let record = match record {
        Ok(record) => record,
        Err(why) => return json!({"missing": why.words()}),
    };
    // Texts, numbers and lists always serialize.
    let mut fields = serde_json::to_value(record).unwrap_or_default();
    fields["arrived"] = record.arrived_unix_ns.and_then(json_time).into();
    let ids: Option<Vec<i64>> = ids(record).map(|ids| ids.take(ids_max).collect());
    fields["prompt"] = text(ids.as_deref(), tokens).into();
    fields["prompt_ids"] = ids.into();
    fields
}

/// The ids of the prompt, if the record has them.
pub fn ids(record: &RequestRecord) -> Option<impl Iterator<Item = i64>> {
    record.prompt_ids().map(|ids| ids.map(i64::from))
}

/// The text of ids.
pub fn text(ids: Option<&[i64]>, tokens: Option<&TokenBytes>) -> Option<String> {
    Some(String::from_utf8_lossy(&tokens?.decode(ids?)).into_owned())
}

/// The other fields in words, by name. Single values stand together in `request`.
pub fn fields(record: &RequestRecord) -> Vec<(String, String)> {
    let Ok(Value::Object(fields)) = serde_json::to_value(record) else { return Vec::new() };
    let (mut single, mut lists) = (Vec::new(), Vec::new());
    for (name, value) in fields.iter().filter(|(name, _)| !OWN.contains(&&***name)) {
        match value {
            Value::Object(pairs) => lists.push((name.replace('_', " "), words(pairs))),
            Value::Array(items) => {
                let items = items.iter().map(|item| match item {
                    Value::Object(pairs) => words(pairs),
                    other => word(other),
                });
                lists.push((name.replace('_', " "), items.collect::<Vec<_>>().join("; ")));
            }
            value => single.push(format!("{name}={}", word(value))),
        }
    }
    let single = (!single.is_empty()).then(|| ("request".to_owned(), single.join(", ")));
    single.into_iter().chain(lists).collect()
}

fn words(pairs: &Map<String, Value>) -> String {
    pairs.iter().map(|(name, value)| format!("{name}={}", word(value))).collect::<Vec<_>>().join(", ")
}

fn word(value: &Value) -> String {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    match text.char_indices().nth(VALUE_CHARS_MAX) {
        Some((end, _)) => format!("{} …", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use afterbay_wire::{Grammar, Sampling};

    #[test]
    fn a_record_is_shown_by_its_fields_and_the_prompt_by_its_ids() {
        let record = RequestRecord {
            rid: "r".into(),
            arrived_unix_ns: Some(1_700_000_000_000_000_000),
            prompt_tokens: Some(3),
            lora: Some("sql".into()),
            priority: Some(2),
            sampling: Some(Sampling {
                temperature: Some(0.5),
                stop: vec!["\n".into()],
                ..Sampling::default()
            }),
            grammar: Some(Grammar { kind: "regex".into(), value: "a".repeat(500), enforced: true }),
            ..RequestRecord::default()
        };
        let record = record.with_prompt(&[7, 8, 9]);
        let shown = fields(&record);
        assert_eq!(shown[0], ("request".into(), "lora=sql, priority=2".into()));
        assert!(shown[1].1.len() < 500 && shown[1].1.contains("kind=regex"), "{shown:?}");
        assert_eq!(shown[2], ("sampling".into(), "stop=[\"\\n\"], temperature=0.5".into()));
        let json = json(&Ok(record), None, 2);
        assert_eq!(json["arrived"], "2023-11-14T22:13:20.000000000Z");
        assert_eq!((&json["prompt_ids"], &json["prompt"]), (&json!([7, 8]), &Value::Null));
        assert_eq!(super::json(&Err(Absent::Erased), None, 2), json!({"missing": "erased"}));
    }
}
