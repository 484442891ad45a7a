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

/// The metrics of all plugins. Clones share them. A figure takes the lock of its plugin alone, in its stream; a new name, and a
/// name's end, also this one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Own(Arc<Mutex<Registry>>);

#[derive(Debug, Default)]
struct Registry {
    plugins: Vec<Arc<OwnPlugin>>,
    /// The kind of each name, and the number of plugins that have it.
    kinds: BTreeMap<String, (Kind, usize)>,
}

/// A plugin in a stream.
#[derive(Debug)]
struct OwnPlugin {
    stream: String,
    name: String,
    counted: Mutex<Counted>,
}

#[derive(Clone, Debug, Default)]
struct Counted {
    families: BTreeMap<String, Family>,
    /// The number of series, without those of [`OVERFLOW`].
    series: usize,
    /// The number of refused values.
    refused: u64,
    /// Whether the plugin was removed: values of an instance that still runs are ignored.
    is_removed: bool,
}

#[derive(Clone, Debug)]
struct Family {
    kind: Kind,
    series: BTreeMap<SeriesLabels, Value>,
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
    plugin: Arc<OwnPlugin>,
}

impl Own {
    pub(crate) fn of(&self, stream: &str, plugin: &str) -> OwnMetrics {
        let plugins = &mut self.lock().plugins;
        let is_it = |known: &&Arc<OwnPlugin>| (&*known.stream, &*known.name) == (stream, plugin);
        let known = plugins.iter().find(is_it).cloned();
        let plugin = known.unwrap_or_else(|| {
            let (stream, name) = (stream.to_owned(), plugin.to_owned());
            let new = Arc::new(OwnPlugin { stream, name, counted: Mutex::default() });
            plugins.push(new.clone());
            new
        });
        OwnMetrics { own: self.clone(), plugin }
    }

    /// Removes plugins, by stream and name.
    pub(crate) fn forget(&self, is_gone: impl Fn(&str, &str) -> bool) {
        let is_gone = |plugin: &mut Arc<OwnPlugin>| is_gone(&plugin.stream, &plugin.name);
        let gone: Vec<Arc<OwnPlugin>> = self.lock().plugins.extract_if(.., is_gone).collect();
        for plugin in gone {
            let counted = &mut *plugin.lock();
            counted.is_removed = true;
            std::mem::take(&mut counted.families).keys().for_each(|name| self.release(name));
        }
    }

    /// Notes that one more plugin has a name, which it does not have yet.
    fn reserve(&self, name: &str, kind: Kind, has_room: bool) -> Result<(), OwnError> {
        let kinds = &mut self.lock().kinds;
        match kinds.get_mut(name) {
            Some((known, _)) if *known != kind => Err(OwnError::OtherKind),
            _ if !has_room => Err(OwnError::Full),
            Some((_, plugins)) => {
                *plugins += 1;
                Ok(())
            }
            None => {
                kinds.insert(name.to_owned(), (kind, 1));
                Ok(())
            }
        }
    }

    /// Notes that one plugin less has a name.
    fn release(&self, name: &str) {
        let kinds = &mut self.lock().kinds;
        let Some((_, plugins)) = kinds.get_mut(name) else { return };
        *plugins -= 1;
        if *plugins == 0 {
            kinds.remove(name);
        }
    }

    /// A caller may hold the lock of one plugin, never the other way round.
    fn lock(&self) -> MutexGuard<'_, Registry> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn write(&self, page: &mut Page) {
        // Copied first: a stream must not wait for a scrape to be written.
        let plugins = self.lock().plugins.clone();
        let counted: Vec<Counted> = plugins.iter().map(|plugin| plugin.lock().clone()).collect();
        let counted = || plugins.iter().zip(&counted);
        if counted().any(|(_, counted)| counted.refused > 0) {
            let help = "Figures that a plugin named and that were not counted";
            page.metric("plugin_metrics_refused", help, Kind::Counter);
            for (plugin, Counted { refused, .. }) in counted().filter(|(_, counted)| counted.refused > 0) {
                page.value(&plugin.labels(), refused);
            }
        }
        let names: BTreeMap<&String, Kind> = counted()
            .flat_map(|(_, counted)| counted.families.iter().map(|(name, family)| (name, family.kind)))
            .collect();
        for (name, kind) in names {
            page.metric(&format!("plugin_own_{name}"), "As the plugin names it", kind);
            let series =
                counted().filter_map(|(plugin, counted)| Some((plugin, counted.families.get(name)?)));
            for (plugin, (own_labels, value)) in
                series.flat_map(|(plugin, family)| family.series.iter().map(move |each| (plugin, each)))
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

    fn lock(&self) -> MutexGuard<'_, Counted> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
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
        let counted = &mut *self.plugin.lock();
        let Some(family) = counted.families.get_mut(name) else { return };
        let labels = series_labels(labels);
        if family.series.remove(&labels).is_some() && labels != overflow() {
            counted.series -= 1;
        }
        if family.series.is_empty() {
            counted.families.remove(name);
            self.own.release(name);
        }
    }

    fn refuse(&self, why: OwnError) -> Result<(), OwnError> {
        self.plugin.lock().refused += 1;
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
        let counted = &mut *self.plugin.lock();
        if counted.is_removed {
            return Ok(());
        }
        match counted.families.get_mut(name) {
            Some(family) if family.kind != kind => return Err(OwnError::OtherKind),
            Some(family) => {
                if let Some(value) = family.series.get_mut(&labels) {
                    more(value);
                    return Ok(());
                }
            }
            None => self.own.reserve(name, kind, counted.families.len() < OWN_NAMES_MAX)?,
        }
        if counted.series < OWN_SERIES_MAX && labels != overflow() {
            counted.series += 1;
        } else {
            labels = overflow();
        }
        let new_family = || Family { kind, series: BTreeMap::new() };
        let family = counted.families.entry(name.to_owned()).or_insert_with(new_family);
        more(family.series.entry(labels).or_insert_with(new));
        Ok(())
    }
}
