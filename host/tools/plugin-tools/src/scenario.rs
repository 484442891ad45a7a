//! Reads a scenario: a plugin with its settings, batches to show it, and the expected verdicts, written in TOML.

use crate::contract_names;
use crate::plugin_args::{UsageError, default_limits, parse_deadline, parse_memory, with_files};
use crate::row::{self, Batch, Row};
use crate::updates::Updates;
use afterbay_runtime::signals::Snapshot;
use afterbay_runtime::{
    AskedRequest, FinishKind, Limits, PlainValues, RowFacts, Store, TokenId, TopLogprobs,
};
use afterbay_stream::WrittenSignals;
use serde::Deserialize;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

/// Most bytes of a scenario's file.
const BYTES_MAX: u64 = 16 << 20;
/// Most rows of a scenario, repetitions included. A batch without rows counts as one.
const ROWS_MAX: usize = 1 << 20;

/// A scenario, as its file has it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    plugin: String,
    #[serde(default)]
    settings: serde_json::Map<String, serde_json::Value>,
    #[serde(default)]
    limits: WrittenLimits,
    tokenizer: Option<PathBuf>,
    /// The values of the plugin's store at the beginning.
    #[serde(default)]
    store: BTreeMap<String, StoredValue>,
    #[serde(default)]
    batch: Vec<WrittenBatch>,
}

/// A value of the store at the beginning of a scenario.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub(crate) enum StoredValue {
    /// A number, as `increment` writes it.
    Number(i64),
    /// The bytes of this text.
    Text(String),
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenLimits {
    memory: Option<String>,
    deadline: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenBatch {
    #[serde(default = "once")]
    times: usize,
    /// The time of receipt, in milliseconds since 1970; that of the batch before if it is not given.
    time_ms: Option<u64>,
    fault: Option<String>,
    #[serde(default)]
    attributes: BTreeMap<String, serde_json::Map<String, serde_json::Value>>,
    #[serde(default)]
    asked: BTreeMap<String, WrittenAsked>,
    signals: Option<WrittenSignals>,
    /// The ends of requests whose timers are due by the time of the batch, by rid.
    #[serde(default)]
    ended: BTreeMap<String, serde_json::Value>,
    rows: Vec<WrittenRow>,
}

/// The record of a request. Its fields are those of the message, and `prompt_ids`.
#[derive(Debug, Deserialize)]
struct WrittenAsked {
    prompt_ids: Option<Vec<TokenId>>,
    #[serde(flatten)]
    asked: serde_json::Map<String, serde_json::Value>,
}

impl WrittenAsked {
    /// As the host gives it for a request with this rid.
    fn into_asked(self, rid: &str) -> AskedRequest {
        let WrittenAsked { prompt_ids, mut asked } = self;
        asked.insert("rid".to_owned(), rid.into());
        if let Some(ids) = &prompt_ids {
            asked.insert("prompt_tokens".to_owned(), ids.len().into());
        }
        AskedRequest { asked: serde_json::Value::Object(asked).to_string(), prompt_ids }
    }
}

fn once() -> usize {
    1
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenRow {
    rid: String,
    #[serde(default)]
    ids: Vec<TokenId>,
    text: Option<String>,
    finish: Option<WrittenFinish>,
    completion_tokens: Option<u64>,
    #[serde(default)]
    logprobs: Vec<f32>,
    /// For each id, its candidates: ids and logprobs.
    #[serde(default)]
    top_logprobs: Vec<Vec<(TokenId, f32)>>,
    #[serde(default)]
    cached_tokens: u64,
    #[serde(default)]
    reasoning_tokens: u64,
    #[serde(default)]
    drafted_tokens: u64,
    #[serde(default)]
    accepted_tokens: u64,
    #[serde(default)]
    weight_version: String,
    #[serde(default)]
    prompt_tokens: u64,
    #[serde(default)]
    front_end: String,
    #[serde(default)]
    sink: String,
    expect: Option<serde_json::Value>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum WrittenFinish {
    Stop,
    Length,
    Abort,
}

/// The expected outcome of a row.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Expected {
    AsReceived,
    Swallowed,
    /// A verdict, as [`contract_names::json`] writes it.
    Verdict(serde_json::Value),
}

/// The expected outcome of a batch.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Expectation {
    /// One entry for each row.
    pub(crate) rows: Vec<Expected>,
    /// The kind of the expected fault.
    pub(crate) fault: Option<String>,
    /// The ends of requests between two batches, by rid, as [`contract_names::json`] writes them.
    pub(crate) ended: BTreeMap<String, serde_json::Value>,
}

/// A scenario that was read.
#[derive(Debug)]
pub(crate) struct Scenario {
    pub(crate) file: PathBuf,
    pub(crate) plugin: String,
    /// JSON.
    pub(crate) settings: String,
    pub(crate) limits: Limits,
    pub(crate) tokenizer: Option<PathBuf>,
    store: BTreeMap<String, StoredValue>,
    /// Whether the scenario contains expectations; else a golden file does.
    pub(crate) expects: bool,
    /// Each batch, and its expected outcome.
    pub(crate) batches: Vec<(Batch, Expectation)>,
}

impl Scenario {
    pub(crate) fn read(file: &Path) -> Result<Scenario, UsageError> {
        let wrong = |why: String| UsageError(format!("{}: {why}", file.display()));
        let bytes = file.metadata().map_err(|error| wrong(error.to_string()))?.len();
        if bytes > BYTES_MAX {
            return Err(wrong(format!("has {bytes} bytes, at most {BYTES_MAX} are allowed")));
        }
        let text = std::fs::read_to_string(file).map_err(|error| wrong(error.to_string()))?;
        Scenario::parse(file, &text).map_err(wrong)
    }

    fn parse(file: &Path, text: &str) -> Result<Scenario, String> {
        let written: Written = toml::from_str(text).map_err(|error| error.to_string())?;
        let limits = limits(&written.plugin, &written.limits)?;
        let expects = written
            .batch
            .iter()
            .any(|batch| batch.fault.is_some() || batch.rows.iter().any(|row| row.expect.is_some()));
        let batches = batches(written.batch)?;
        let base = file.parent().unwrap_or(Path::new(""));
        let mut settings = serde_json::Value::Object(written.settings);
        with_files(&mut settings, base).map_err(|why| format!("settings: {why}"))?;
        Ok(Scenario {
            file: file.to_owned(),
            plugin: written.plugin,
            settings: settings.to_string(),
            limits,
            tokenizer: written.tokenizer.map(|path| base.join(path)),
            store: written.store,
            expects,
            batches,
        })
    }

    /// The directory that paths in the scenario are relative to.
    pub(crate) fn dir(&self) -> &Path {
        self.file.parent().unwrap_or(Path::new(""))
    }

    /// Writes the scenario's values into an empty store.
    pub(crate) fn fill(&self, store: &dyn Store) -> Result<(), UsageError> {
        for (key, value) in &self.store {
            let stored = match value {
                StoredValue::Number(number) => store.increment(key, *number).map(drop),
                StoredValue::Text(text) => store.set(key, text.as_bytes()),
            };
            stored.map_err(|error| {
                UsageError(format!("{}: store: key {key:?}: {error}", self.file.display()))
            })?;
        }
        Ok(())
    }

    pub(crate) fn rows(&self) -> usize {
        self.batches.iter().map(|(batch, _)| batch.rows.len()).sum()
    }

    /// The golden file beside the scenario.
    pub(crate) fn golden(&self) -> PathBuf {
        self.file.with_extension("expected")
    }
}

fn limits(plugin: &str, written: &WrittenLimits) -> Result<Limits, String> {
    let mut limits = default_limits(plugin);
    if let Some(memory) = &written.memory {
        limits.memory_bytes = parse_memory(memory).map_err(|why| format!("limits.memory: {why}"))?;
    }
    if let Some(deadline) = &written.deadline {
        limits.deadline = parse_deadline(deadline).map_err(|why| format!("limits.deadline: {why}"))?;
    }
    Ok(limits)
}

fn batches(written: Vec<WrittenBatch>) -> Result<Vec<(Batch, Expectation)>, String> {
    if written.is_empty() {
        return Err("has no [[batch]]".to_owned());
    }
    let rows = |batch: &WrittenBatch| batch.times.saturating_mul(batch.rows.len().max(1));
    let all = written.iter().map(rows).fold(0, usize::saturating_add);
    if all > ROWS_MAX {
        return Err(format!("has {all} rows with their batches' times, at most {ROWS_MAX} are allowed"));
    }
    let mut tokens: HashMap<String, u64> = HashMap::new();
    let mut batches = Vec::new();
    let mut time_ms = 0;
    for written in written {
        time_ms = written.time_ms.unwrap_or(time_ms);
        let expectation = Expectation {
            rows: written.rows.iter().map(expected).collect::<Result<_, _>>()?,
            fault: written.fault,
            ended: written.ended,
        };
        let json = |(rid, attributes): (_, serde_json::Map<_, _>)| {
            (rid, serde_json::Value::Object(attributes).to_string().into())
        };
        let attributes = written.attributes.into_iter().map(json).collect();
        let asked = written.asked.into_iter().map(|(rid, asked)| (rid.clone(), asked.into_asked(&rid)));
        let (asked, signals) = (asked.collect(), written.signals.map(Snapshot::from));
        let mut updates = Updates { attributes, asked, signals };
        for _ in 0..written.times {
            let from = format!("batch {}", batches.len() + 1);
            let rows = written.rows.iter().map(|row| self::row(row, &mut tokens)).collect();
            let batch = Batch { from, time_ms, rows, updates: std::mem::take(&mut updates) };
            row::check(&batch).map_err(|error| error.to_string())?;
            batches.push((batch, expectation.clone()));
        }
    }
    Ok(batches)
}

/// Makes a row. If it does not state the tokens of its request, they are counted in `tokens`.
fn row(written: &WrittenRow, tokens: &mut HashMap<String, u64>) -> Row {
    let count = tokens.entry(written.rid.clone()).or_default();
    *count = written.completion_tokens.unwrap_or(*count + written.ids.len() as u64);
    let values = PlainValues {
        completion_tokens: *count,
        finished: match written.finish {
            None => FinishKind::Running,
            Some(WrittenFinish::Stop) => FinishKind::Stop,
            Some(WrittenFinish::Length) => FinishKind::Length,
            Some(WrittenFinish::Abort) => FinishKind::Abort,
        },
        waiting: 0,
        cached_tokens: written.cached_tokens,
        reasoning_tokens: written.reasoning_tokens,
        drafted_tokens: written.drafted_tokens,
        accepted_tokens: written.accepted_tokens,
    };
    if written.finish.is_some() {
        tokens.remove(&written.rid);
    }
    Row {
        rid: written.rid.clone(),
        ids: written.ids.clone(),
        text: written.text.clone(),
        values,
        facts: written.facts(),
        prompt_tokens: written.prompt_tokens,
        front_end: written.front_end.clone(),
        sink: written.sink.clone(),
    }
}

impl WrittenRow {
    fn facts(&self) -> RowFacts {
        let mut top_logprobs = TopLogprobs::default();
        for place in &self.top_logprobs {
            let (ids, logprobs): (Vec<_>, Vec<_>) = place.iter().copied().unzip();
            let ends = vec![ids.len() as u32];
            top_logprobs.append(&TopLogprobs { ids, logprobs, ends });
        }
        RowFacts {
            logprobs: self.logprobs.clone(),
            top_logprobs,
            weight_version: self.weight_version.clone(),
        }
    }
}

fn expected(row: &WrittenRow) -> Result<Expected, String> {
    let known = contract_names::VERDICTS.join(", ");
    match &row.expect {
        None => Ok(Expected::AsReceived),
        Some(serde_json::Value::String(word)) if word == "as it came" => Ok(Expected::AsReceived),
        Some(serde_json::Value::String(word)) if word == "swallowed" => Ok(Expected::Swallowed),
        Some(serde_json::Value::Object(verdict))
            if verdict.keys().any(|key| contract_names::VERDICTS.contains(&key.as_str())) =>
        {
            Ok(Expected::Verdict(verdict.clone().into()))
        }
        Some(other) => Err(format!(
            "row of {:?}: expect is {other}, must be \"as it came\", \"swallowed\" or a verdict, as {{ drop = \"why\" }}: \
             {known}",
            row.rid
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Scenario, String> {
        Scenario::parse(Path::new("dir/s.toml"), text)
    }

    #[test]
    fn tokens_are_counted_over_repetitions_and_again_after_the_last_row() {
        let scenario = parse(
            "plugin = \"p.wasm\"\n\
             [[batch]]\ntimes = 2\nrows = [{ rid = \"a\", ids = [1, 2] }]\n\
             [[batch]]\nrows = [{ rid = \"a\", ids = [3], finish = \"stop\", expect = { drop = \"x\" } }]\n\
             [[batch]]\nrows = [{ rid = \"a\", ids = [4] }, { rid = \"b\", completion_tokens = 9 }]\n",
        )
        .unwrap();
        let counts: Vec<Vec<u64>> = scenario
            .batches
            .iter()
            .map(|(batch, _)| batch.rows.iter().map(|row| row.values.completion_tokens).collect())
            .collect();
        assert_eq!(counts, [vec![2], vec![4], vec![5], vec![1, 9]]);
        assert!(scenario.expects);
        assert_eq!((scenario.rows(), scenario.golden()), (5, PathBuf::from("dir/s.expected")));
        assert_eq!(scenario.batches.last().unwrap().0.from, "batch 4");
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place_or_its_limit() {
        let wrong = |text: &str| parse(text).unwrap_err();
        assert!(wrong("plugin = \"p\"\nbatches = []").contains("unknown field `batches`"));
        assert_eq!(wrong("plugin = \"p\""), "has no [[batch]]");
        let row = |row: &str| format!("plugin = \"p\"\n[[batch]]\nrows = [{row}]");
        let twice = wrong(&row("{ rid = \"a\" }, { rid = \"a\" }"));
        assert_eq!(twice, "batch 1: two rows of request \"a\", a batch has at most one");
        assert!(
            wrong(&row("{ rid = \"a\", text = \"x\" }, { rid = \"b\" }")).contains("1 of 2 rows have a text")
        );
        let unknown = wrong(&row("{ rid = \"a\", expect = { dorp = \"x\" } }"));
        assert!(unknown.ends_with(&format!(": {}", contract_names::VERDICTS.join(", "))), "{unknown}");
        let limits = "plugin = \"p\"\nlimits = { deadline = \"1h\" }";
        assert_eq!(wrong(limits), "limits.deadline: 1h is not from 100µs to 10s");
        let many = wrong(&format!("{}\ntimes = 2000000", "plugin = \"p\"\n[[batch]]\nrows = []"));
        assert_eq!(many, "has 2000000 rows with their batches' times, at most 1048576 are allowed");
    }
}
