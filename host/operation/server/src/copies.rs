//! The copies of the journal that the configuration asks for, as the status shows them.

use crate::mutex::lock;
use afterbay_config as config;
use afterbay_events::{Health, Metrics};
use serde::Serialize;
use std::sync::{Arc, Mutex};

/// The copies of the configuration that the process follows. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Copies(Arc<Mutex<Vec<(Kind, String)>>>);

/// A table of the configuration. Its name is also the key of the condition while the copy fails.
#[derive(Clone, Copy)]
enum Kind {
    Archive,
    Replicate,
    Usage,
}

/// A copy in `/v1/status`. The figures are those of the metrics.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct CopyView {
    /// The table of the configuration.
    copy: &'static str,
    /// The URL or the directory of the copy.
    to: String,
    /// `working`, `connecting` (to NATS, for the first time) or `failing`.
    state: &'static str,
    /// The time for which the oldest data waits that the copy lacks. `None` for `replicate`.
    lag_seconds: Option<f64>,
    /// The bytes of the journal that the copy lacks. Only for `replicate`.
    lag_bytes: Option<u64>,
    /// The ended segments that the copy lacks. Only for `archive`.
    lag_segments: Option<u64>,
    /// The last error, while the copy fails.
    error: Option<String>,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Archive => "archive",
            Kind::Replicate => "replicate",
            Kind::Usage => "usage",
        }
    }
}

impl Copies {
    /// Follows a configuration.
    pub(crate) fn follow(&self, config: &config::Config) {
        let archive = config.archive.iter().map(|archive| (Kind::Archive, archive.url.clone()));
        let replicate = config.replicate.iter().map(|it| (Kind::Replicate, it.nats.join(",")));
        let usage = config.usage.kept_days.is_none();
        let usage = usage.then(|| (Kind::Usage, config.usage.dir.display().to_string()));
        *lock(&self.0) = archive.chain(replicate).chain(usage).collect();
    }

    /// The copies now.
    pub(crate) fn views(&self, metrics: &Metrics, health: &Health) -> Vec<CopyView> {
        let conditions = health.conditions();
        let view = |(kind, to): &(Kind, String)| {
            let error = conditions.iter().find(|(key, _)| key == kind.name());
            let error = error.map(|(_, condition)| condition.text.clone());
            let is_connecting = matches!(kind, Kind::Replicate) && metrics.replicate().connected.get() == 0;
            CopyView {
                copy: kind.name(),
                to: to.clone(),
                state: match (&error, is_connecting) {
                    (Some(_), _) => "failing",
                    (None, true) => "connecting",
                    (None, false) => "working",
                },
                lag_seconds: match kind {
                    Kind::Archive => Some(metrics.archive().lag_seconds.get().as_secs_f64()),
                    Kind::Usage => Some(metrics.usage().lag_seconds.get().as_secs_f64()),
                    Kind::Replicate => None,
                },
                lag_bytes: matches!(kind, Kind::Replicate).then(|| metrics.replicate().behind_bytes.get()),
                lag_segments: matches!(kind, Kind::Archive).then(|| metrics.archive().lag_segments.get()),
                error,
            }
        };
        lock(&self.0).iter().map(view).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use afterbay_config::{Archive, Config, Endpoint, Replicate, Stream, Usage};
    use afterbay_events::Events;
    use serde_json::json;
    use std::time::{Duration, SystemTime};

    #[test]
    fn each_configured_copy_has_its_state_its_lag_and_its_error() {
        let health = Health::default();
        let metrics = Metrics::new(Events::default(), health.clone());
        let endpoint = |text: &str| text.parse::<Endpoint>().unwrap();
        let stream = Stream::new("s".parse().unwrap(), endpoint("ipc:///a"), endpoint("ipc:///b"));
        let mut config = Config::new(stream, std::path::Path::new("/j"));
        let copies = Copies::default();
        copies.follow(&config);
        assert_eq!(copies.views(&metrics, &health), []);

        config.archive = Some(Archive { url: "s3://bucket".into() });
        config.replicate =
            Some(Replicate { nats: vec!["nats://a".into(), "nats://b".into()], credentials: None });
        config.usage = Usage { dir: "/u".into(), kept_days: None };
        copies.follow(&config);
        metrics.archive().lag_seconds.set(Duration::from_millis(1500));
        metrics.archive().lag_segments.set(2);
        metrics.replicate().behind_bytes.set(300);
        health.degraded("archive", "s3://bucket is not archived: 503", SystemTime::now());
        let views = || serde_json::to_value(copies.views(&metrics, &health)).unwrap();
        let (archive, usage) = (
            json!({"copy": "archive", "to": "s3://bucket", "state": "failing", "lag_seconds": 1.5, "lag_bytes": null,
                "lag_segments": 2, "error": "s3://bucket is not archived: 503"}),
            json!({"copy": "usage", "to": "/u", "state": "working", "lag_seconds": 0.0, "lag_bytes": null,
                "lag_segments": null, "error": null}),
        );
        let replica = |state: &str, error: Option<&str>| {
            json!({"copy": "replicate", "to": "nats://a,nats://b", "state": state, "lag_seconds": null, "lag_bytes": 300,
                "lag_segments": null, "error": error})
        };
        assert_eq!(views(), json!([archive, replica("connecting", None), usage]));
        metrics.replicate().connected.set(1);
        assert_eq!(views()[1], replica("working", None));
        metrics.replicate().connected.set(0);
        health.degraded("replicate", "lost", SystemTime::now());
        assert_eq!(views()[1], replica("failing", Some("lost")));
    }
}
