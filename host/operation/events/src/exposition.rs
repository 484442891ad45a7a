//! Prometheus' text format, which every tool reads.

use std::fmt::{Display, Write};

/// The `Content-Type` of the metrics.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// The metrics as text.
#[derive(Default)]
pub(crate) struct Page {
    pub text: String,
    /// The name of the metric that is written.
    name: String,
}

impl Page {
    /// Begins a metric. All its values follow. A counter's name ends with `_total`.
    pub fn metric(&mut self, name: &str, help: &str, kind: Kind) {
        let (suffix, kind) = match kind {
            Kind::Counter => ("_total", "counter"),
            Kind::Gauge => ("", "gauge"),
            Kind::Histogram => ("", "histogram"),
        };
        self.name = format!("afterbay_{name}{suffix}");
        let help = help.replace('\\', "\\\\");
        // Writing to a String cannot fail, here and below.
        let _ = writeln!(self.text, "# HELP {0} {help}\n# TYPE {0} {kind}", self.name);
    }

    /// Writes the value for these labels.
    pub fn value(&mut self, labels: &[(&str, &str)], value: impl Display) {
        self.sample("", labels, value);
    }

    /// Writes a number that is no integer.
    pub fn float(&mut self, labels: &[(&str, &str)], value: f64) {
        self.value(labels, format_args!("{value:?}"));
    }

    /// Writes a histogram. Each bucket has its upper bound and its own count.
    pub fn histogram(&mut self, labels: &[(&str, &str)], buckets: &[(f64, u64)], sum: f64) {
        let mut count = 0;
        for (bound, here) in buckets {
            // The count is that of the buckets, so that the two agree while the stream writes on.
            count += here;
            let bound = if bound.is_finite() { bound.to_string() } else { "+Inf".to_owned() };
            self.sample("_bucket", &[labels, &[("le", &bound)]].concat(), count);
        }
        self.sample("_sum", labels, format_args!("{sum:?}"));
        self.sample("_count", labels, count);
    }

    fn sample(&mut self, suffix: &str, labels: &[(&str, &str)], value: impl Display) {
        let escaped = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let labels = labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value)));
        let labels = labels.collect::<Vec<_>>().join(",");
        let labels = if labels.is_empty() { labels } else { format!("{{{labels}}}") };
        let _ = writeln!(self.text, "{}{suffix}{labels} {value}", self.name);
    }
}
