//! The changes that a plugin makes beside its verdicts: its own metrics, and its store. They are recorded for `plugin run --step`.

use afterbay_plugin_loader::PluginStore;
use afterbay_runtime::{Labels, Meter, MeterError, Store, StoreError};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Most metrics with their labels, as in a stream.
const METRICS_MAX: usize = 1000;
/// Most changes of a batch that are recorded. More are counted.
const CHANGES_MAX: usize = 1000;

/// The recorded changes. Clones share the record.
#[derive(Clone, Default)]
pub(crate) struct Recorder(Arc<Mutex<Recorded>>);

#[derive(Default)]
struct Recorded {
    /// The value of each counter and gauge, and the number of values of each histogram.
    values: BTreeMap<Series, (MetricKind, f64)>,
    effects: Effects,
    store: PluginStore,
}

/// A metric's name and labels.
type Series = (String, Vec<(String, String)>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MetricKind {
    Counter,
    Gauge,
    Histogram,
}

/// The changes since the last look.
#[derive(Default)]
pub(crate) struct Effects {
    /// The last value of each changed metric, and the change of a counter or the last value of a histogram.
    metrics: BTreeMap<Series, MetricChange>,
    store: Vec<StoreChange>,
    more: u64,
}

struct MetricChange {
    kind: MetricKind,
    /// The sum of the additions to a counter in this batch; the last value that a histogram observed.
    change: f64,
    /// The value now; `None` if the metric was removed.
    value: Option<f64>,
}

struct StoreChange {
    key: String,
    /// `None` if the key was removed.
    value: Option<Vec<u8>>,
    /// The added number and the sum, if the value is a number.
    number: Option<(i64, i64)>,
}

impl Recorder {
    /// Takes the changes since the last time.
    pub(crate) fn take(&self) -> Effects {
        std::mem::take(&mut self.lock().effects)
    }

    fn lock(&self) -> MutexGuard<'_, Recorded> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, name: &str, labels: Labels<'_>, kind: MetricKind, value: f64) -> Result<(), MeterError> {
        let mut recorded = self.lock();
        let Recorded { values, effects, .. } = &mut *recorded;
        let series: Series = (name.to_owned(), labels.to_vec());
        let other = values.iter().find(|((other, _), (is, _))| other == name && *is != kind);
        if other.is_some() {
            return Err(MeterError::OtherKind);
        }
        if values.len() >= METRICS_MAX && !values.contains_key(&series) {
            return Err(MeterError::Full { limit: METRICS_MAX });
        }
        let (_, now) = values.entry(series.clone()).or_insert((kind, 0.0));
        match kind {
            MetricKind::Counter => *now += value,
            MetricKind::Gauge => *now = value,
            MetricKind::Histogram => *now += 1.0,
        }
        let change = MetricChange { kind, change: 0.0, value: None };
        let change = effects.metrics.entry(series).or_insert(change);
        change.value = Some(*now);
        change.change = if kind == MetricKind::Counter { change.change + value } else { value };
        Ok(())
    }
}

impl Meter for Recorder {
    fn add(&self, name: &str, labels: Labels<'_>, delta: u64) -> Result<(), MeterError> {
        #[allow(clippy::cast_precision_loss, reason = "for people; exact up to 2^53")]
        self.enter(name, labels, MetricKind::Counter, delta as f64)
    }

    fn set(&self, name: &str, labels: Labels<'_>, value: f64) -> Result<(), MeterError> {
        self.enter(name, labels, MetricKind::Gauge, value)
    }

    fn observe(&self, name: &str, labels: Labels<'_>, value: f64) -> Result<(), MeterError> {
        match value.is_finite() {
            true => self.enter(name, labels, MetricKind::Histogram, value),
            false => Err(MeterError::NotFinite { value }),
        }
    }

    fn remove(&self, name: &str, labels: Labels<'_>) {
        let mut recorded = self.lock();
        let series = (name.to_owned(), labels.to_vec());
        if let Some((kind, _)) = recorded.values.remove(&series) {
            recorded.effects.metrics.insert(series, MetricChange { kind, change: 0.0, value: None });
        }
    }
}

impl Store for Recorder {
    fn get(&self, key: &str) -> Option<Vec<u8>> {
        self.lock().store.get(key)
    }

    fn set(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        let mut recorded = self.lock();
        recorded.store.set(key, value)?;
        recorded.effects.stored(StoreChange {
            key: key.to_owned(),
            value: Some(value.to_vec()),
            number: None,
        });
        Ok(())
    }

    fn delete(&self, key: &str) {
        let mut recorded = self.lock();
        if recorded.store.get(key).is_some() {
            recorded.store.delete(key);
            recorded.effects.stored(StoreChange { key: key.to_owned(), value: None, number: None });
        }
    }

    fn increment(&self, key: &str, delta: i64) -> Result<i64, StoreError> {
        let mut recorded = self.lock();
        let sum = recorded.store.increment(key, delta)?;
        if delta != 0 {
            let value = Some(sum.to_le_bytes().to_vec());
            recorded.effects.stored(StoreChange { key: key.to_owned(), value, number: Some((delta, sum)) });
        }
        Ok(sum)
    }

    fn keys(&self, prefix: &str, after: Option<&str>, count: usize) -> Vec<String> {
        self.lock().store.keys(prefix, after, count)
    }
}

impl Effects {
    fn stored(&mut self, change: StoreChange) {
        match self.store.len() < CHANGES_MAX {
            true => self.store.push(change),
            false => self.more += 1,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.metrics.is_empty() && self.store.is_empty()
    }

    /// The changed metrics, a text each.
    pub(crate) fn metrics(&self) -> Vec<String> {
        let texts = self.metrics.iter().map(|((name, labels), change)| {
            let labels: Vec<String> =
                labels.iter().map(|(name, value)| format!("{name}={value:?}")).collect();
            let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
            let MetricChange { kind, change, value } = change;
            match (kind, value) {
                (_, None) => format!("{name}{labels} removed"),
                (MetricKind::Counter, Some(value)) => format!("{name}{labels} +{change} = {value}"),
                (MetricKind::Gauge, Some(value)) => format!("{name}{labels} = {value}"),
                (MetricKind::Histogram, Some(count)) => {
                    format!("{name}{labels} observed {change}, {count} values")
                }
            }
        });
        texts.collect()
    }

    pub(crate) fn metrics_json(&self) -> Vec<Value> {
        let changes = self.metrics.iter().map(|((name, labels), change)| {
            let labels: BTreeMap<&str, &str> =
                labels.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
            let kind = match change.kind {
                MetricKind::Counter => "counter",
                MetricKind::Gauge => "gauge",
                MetricKind::Histogram => "histogram",
            };
            let MetricChange { change, value, .. } = change;
            json!({"name": name, "labels": labels, "kind": kind, "change": change, "value": value})
        });
        changes.collect()
    }

    /// The changes of the store, a text each.
    pub(crate) fn store(&self) -> Vec<String> {
        let changes = self.store.iter().map(|StoreChange { key, value, number }| match (number, value) {
            (Some((delta, sum)), _) => format!("{key:?} {delta:+} = {sum}"),
            (None, Some(value)) => format!("{key:?} = {:?}", String::from_utf8_lossy(value)),
            (None, None) => format!("{key:?} removed"),
        });
        let more = (self.more > 0).then(|| format!("{} changes more", self.more));
        changes.chain(more).collect()
    }

    pub(crate) fn store_json(&self) -> Vec<Value> {
        let changes = self.store.iter().map(|StoreChange { key, value, number }| {
            json!({
                "key": key,
                "value": value.as_ref().map(|value| String::from_utf8_lossy(value).into_owned()),
                "added": number.map(|(delta, _)| delta),
                "sum": number.map(|(_, sum)| sum),
            })
        });
        changes.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_of_a_batch_are_recorded_with_the_value_after_them() {
        let recorder = Recorder::default();
        let labels = [("tenant".to_owned(), "red".to_owned())];
        recorder.add("tokens", &labels, 3).unwrap();
        recorder.take();
        recorder.add("tokens", &labels, 2).unwrap();
        recorder.add("tokens", &labels, 2).unwrap();
        Meter::set(&recorder, "left", &[], 0.5).unwrap();
        recorder.observe("size", &[], 7.0).unwrap();
        recorder.increment("red", -4).unwrap();
        Store::set(&recorder, "since", b"today").unwrap();
        recorder.delete("nothing");
        let effects = recorder.take();
        assert_eq!(
            effects.metrics(),
            ["left = 0.5", "size observed 7, 1 values", r#"tokens{tenant="red"} +4 = 7"#]
        );
        assert_eq!(effects.store(), [r#""red" -4 = -4"#, r#""since" = "today""#]);
        assert!(recorder.take().is_empty());
        assert_eq!(Meter::set(&recorder, "tokens", &[], 1.0), Err(MeterError::OtherKind));
    }

    #[test]
    fn metrics_and_recorded_changes_are_bounded() {
        let recorder = Recorder::default();
        for number in 0..METRICS_MAX {
            recorder.add(&format!("n{number}"), &[], 1).unwrap();
        }
        assert_eq!(recorder.add("more", &[], 1), Err(MeterError::Full { limit: METRICS_MAX }));
        for _ in 0..CHANGES_MAX + 3 {
            recorder.increment("key", 1).unwrap();
        }
        assert_eq!(recorder.take().store().last().unwrap(), "3 changes more");
    }
}
