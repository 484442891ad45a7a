//! Metrics that plugins name themselves: `afterbay_plugin_own_NAME`, by stream, plugin and the plugin's own labels.
//!
//! The numbers of names and of series are bounded per plugin and stream. A name has one kind in the whole process, because
//! `/metrics` shows it as one family.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::exposition::{Kind, Page};

/// The most names of one plugin in one stream.
pub const OWN_NAMES_MAX: usize = 64;

/// The most series of one plugin in one stream: combinations of a name and label values. A further one is counted under
/// [`OVERFLOW`].
pub const OWN_SERIES_MAX: usize = 1000;

/// The only label of the series that has the values of all series past [`OWN_SERIES_MAX`], as OpenTelemetry names it.
pub const OVERFLOW: (&str, &str) = ("otel_metric_overflow", "true");

/// The labels of a series: names and values. A label without a value is as if it were not there, as in Prometheus.
pub type OwnLabels<'a> = &'a [(String, String)];

/// 1, 2 and 5 times each power of ten from 0.000001 to 1000.
const BOUNDS: [f64; 30] = [
    1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.2, 0.5,
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0,
];

/// The reason why a metric is refused.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OwnError {
    /// The plugin already has [`OWN_NAMES_MAX`] names.
    Full,
    /// The name already has another kind.
    OtherKind,
    /// The value is infinite or not a number. A histogram refuses it, since its sum could never recover.
    NotFinite {
        /// The refused value.
        value: f64,
    },
}

/// The metrics of all plugins. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Own(Arc<Mutex<Counted>>);

#[derive(Clone, Debug, Default)]
struct Counted {
    /// Each plugin by its number. A removed plugin has no entry.
    plugins: BTreeMap<u64, OwnPlugin>,
    last_number: u64,
    /// The number of refused values, by plugin.
    refused: BTreeMap<u64, u64>,
    families: BTreeMap<String, Family>,
}

#[derive(Clone, Debug)]
struct OwnPlugin {
    stream: String,
    name: String,
    /// The number of its series, without those of [`OVERFLOW`].
    series: usize,
}

#[derive(Clone, Debug)]
struct Family {
    kind: Kind,
    /// The series, by plugin.
    plugins: BTreeMap<u64, BTreeMap<SeriesLabels, Value>>,
}

/// Sorted by name, so that the order in which a plugin gives them does not matter.
type SeriesLabels = Vec<(String, String)>;

fn series_labels(labels: OwnLabels<'_>) -> SeriesLabels {
    let mut labels: SeriesLabels = labels.iter().filter(|(_, value)| !value.is_empty()).cloned().collect();
    labels.sort();
    labels
}

fn overflow() -> SeriesLabels {
    vec![(OVERFLOW.0.to_owned(), OVERFLOW.1.to_owned())]
}

#[derive(Clone, Debug)]
enum Value {
    Counter(u64),
    Gauge(f64),
    Histogram { buckets: Box<[u64; BOUNDS.len() + 1]>, sum: f64 },
}

/// The metrics of one plugin.
#[derive(Clone, Debug)]
pub struct OwnMetrics {
    own: Own,
    plugin: u64,
}

impl Own {
    pub(crate) fn of(&self, stream: &str, plugin: &str) -> OwnMetrics {
        let mut counted = self.lock();
        let is_it = |known: &OwnPlugin| (known.stream.as_str(), known.name.as_str()) == (stream, plugin);
        let known = counted.plugins.iter().find(|(_, named)| is_it(named)).map(|(number, _)| *number);
        let plugin = known.unwrap_or_else(|| {
            counted.last_number += 1;
            let number = counted.last_number;
            let (stream, name) = (stream.to_owned(), plugin.to_owned());
            counted.plugins.insert(number, OwnPlugin { stream, name, series: 0 });
            number
        });
        OwnMetrics { own: self.clone(), plugin }
    }

    /// Removes plugins, by stream and name. A value from an instance of a removed plugin is ignored.
    pub(crate) fn forget(&self, is_gone: impl Fn(&str, &str) -> bool) {
        let Counted { plugins, families, refused, .. } = &mut *self.lock();
        plugins.retain(|_, plugin| !is_gone(&plugin.stream, &plugin.name));
        refused.retain(|plugin, _| plugins.contains_key(plugin));
        families.retain(|_, family| {
            family.plugins.retain(|plugin, _| plugins.contains_key(plugin));
            !family.plugins.is_empty()
        });
    }

    fn lock(&self) -> MutexGuard<'_, Counted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn write(&self, page: &mut Page) {
        // Copied first: a stream must not wait for a scrape to be written.
        let Counted { plugins, families, refused, .. } = self.lock().clone();
        if !refused.is_empty() {
            let help = "Figures that a plugin named and that were not counted";
            page.metric("plugin_metrics_refused", help, Kind::Counter);
            for (plugin, count) in &refused {
                let Some(plugin) = plugins.get(plugin) else { continue };
                page.value(&plugin.labels(), count);
            }
        }
        for (name, Family { kind, plugins: by_plugin }) in &families {
            page.metric(&format!("plugin_own_{name}"), "As the plugin names it", *kind);
            let series = by_plugin.iter().filter_map(|(plugin, series)| Some((plugins.get(plugin)?, series)));
            for (plugin, (own_labels, value)) in
                series.flat_map(|(plugin, series)| series.iter().map(move |each| (plugin, each)))
            {
                let mut labels = plugin.labels().to_vec();
                labels.extend(own_labels.iter().map(|(name, value)| (name.as_str(), value.as_str())));
                match value {
                    Value::Counter(count) => page.value(&labels, count),
                    Value::Gauge(value) => page.float(&labels, *value),
                    Value::Histogram { buckets, sum } => {
                        let bounds = BOUNDS.into_iter().chain([f64::INFINITY]);
                        let buckets: Vec<(f64, u64)> = bounds.zip(buckets.iter().copied()).collect();
                        page.histogram(&labels, &buckets, *sum);
                    }
                }
            }
        }
    }
}

impl OwnPlugin {
    fn labels(&self) -> [(&str, &str); 2] {
        [("stream", &self.stream), ("plugin", &self.name)]
    }
}

impl OwnMetrics {
    /// Adds to a counter.
    ///
    /// # Errors
    /// If the plugin has too many names, or the name has another kind.
    pub fn add(&self, name: &str, labels: OwnLabels<'_>, delta: u64) -> Result<(), OwnError> {
        self.enter(
            name,
            labels,
            Kind::Counter,
            || Value::Counter(0),
            |value| {
                if let Value::Counter(count) = value {
                    *count = count.wrapping_add(delta);
                }
            },
        )
    }

    /// Sets a gauge.
    ///
    /// # Errors
    /// As [`OwnMetrics::add`].
    pub fn set(&self, name: &str, labels: OwnLabels<'_>, to: f64) -> Result<(), OwnError> {
        self.enter(name, labels, Kind::Gauge, || Value::Gauge(to), |value| *value = Value::Gauge(to))
    }

    /// Adds a value to a histogram. The sum stops at the largest finite number.
    ///
    /// # Errors
    /// As [`OwnMetrics::add`], or if the value is infinite or not a number.
    pub fn observe(&self, name: &str, labels: OwnLabels<'_>, seen: f64) -> Result<(), OwnError> {
        if !seen.is_finite() {
            return self.refuse(OwnError::NotFinite { value: seen });
        }
        let new = || Value::Histogram { buckets: Box::new([0; BOUNDS.len() + 1]), sum: 0.0 };
        self.enter(name, labels, Kind::Histogram, new, |value| {
            if let Value::Histogram { buckets, sum } = value {
                let at = BOUNDS.iter().position(|bound| seen <= *bound).unwrap_or(BOUNDS.len());
                buckets[at] += 1;
                *sum = (*sum + seen).clamp(f64::MIN, f64::MAX);
            }
        })
    }

    /// Removes a series. Its place is free for another one.
    pub fn remove(&self, name: &str, labels: OwnLabels<'_>) {
        let Counted { plugins, families, .. } = &mut *self.own.lock();
        let (Some(plugin), Some(family)) = (plugins.get_mut(&self.plugin), families.get_mut(name)) else {
            return;
        };
        let Some(series) = family.plugins.get_mut(&self.plugin) else { return };
        let labels = series_labels(labels);
        if series.remove(&labels).is_some() && labels != overflow() {
            plugin.series -= 1;
        }
        if series.is_empty() {
            family.plugins.remove(&self.plugin);
        }
        if family.plugins.is_empty() {
            families.remove(name);
        }
    }

    fn refuse(&self, why: OwnError) -> Result<(), OwnError> {
        let Counted { plugins, refused, .. } = &mut *self.own.lock();
        if plugins.contains_key(&self.plugin) {
            *refused.entry(self.plugin).or_default() += 1;
        }
        Err(why)
    }

    fn enter(
        &self,
        name: &str,
        labels: OwnLabels<'_>,
        kind: Kind,
        new: impl FnOnce() -> Value,
        more: impl FnOnce(&mut Value),
    ) -> Result<(), OwnError> {
        match self.try_enter(name, series_labels(labels), kind, new, more) {
            Ok(()) => Ok(()),
            Err(why) => self.refuse(why),
        }
    }

    fn try_enter(
        &self,
        name: &str,
        mut labels: SeriesLabels,
        kind: Kind,
        new: impl FnOnce() -> Value,
        more: impl FnOnce(&mut Value),
    ) -> Result<(), OwnError> {
        let Counted { plugins, families, .. } = &mut *self.own.lock();
        let Some(plugin) = plugins.get_mut(&self.plugin) else { return Ok(()) };
        if let Some(family) = families.get_mut(name) {
            if family.kind != kind {
                return Err(OwnError::OtherKind);
            }
            if let Some(value) =
                family.plugins.get_mut(&self.plugin).and_then(|series| series.get_mut(&labels))
            {
                more(value);
                return Ok(());
            }
        }
        let has_name = |family: &Family| family.plugins.contains_key(&self.plugin);
        if !families.get(name).is_some_and(has_name)
            && families.values().filter(|family| has_name(family)).count() >= OWN_NAMES_MAX
        {
            return Err(OwnError::Full);
        }
        if plugin.series < OWN_SERIES_MAX && labels != overflow() {
            plugin.series += 1;
        } else {
            labels = overflow();
        }
        let family = families.entry(name.to_owned()).or_insert(Family { kind, plugins: BTreeMap::new() });
        let series = family.plugins.entry(self.plugin).or_default();
        more(series.entry(labels).or_insert_with(new));
        Ok(())
    }
}
