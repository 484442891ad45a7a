//! The configuration of the sources, and its validation.

use std::path::{Path, PathBuf};
use std::time::Duration;

use afterbay_http::{HttpTarget, redacted};
use blake2::digest::consts::U4;
use blake2::{Blake2s, Digest};

/// The sources, and the age at which their readings are stale.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadConfig {
    /// SGLang's LoadSnapshot file in shared memory (0.5.13 and later, always written).
    pub load_snapshot: Option<SnapshotLocation>,
    /// SGLang's LoadStat publisher of this rank (0.5.19 and later, `--load-publish-endpoint`): `tcp://HOST:PORT` or
    /// `ipc://PATH`.
    pub load_stat: Option<String>,
    /// SGLang's Prometheus metrics (`--enable-metrics`): `http://HOST:PORT/PATH`.
    pub metrics: Option<String>,
    /// Whether the owner of the stream hands on the statistics in its frames: see [`crate::signals::LoadReader::frames`].
    pub frames: bool,
    /// The scheduler's data parallel rank.
    pub dp_rank: u32,
    /// A reading older than this is stale.
    pub stale_after: Duration,
    /// The time between two reads of the LoadSnapshot file, each a few system calls on memory.
    pub load_snapshot_every: Duration,
    /// The time between two scrapes of the metrics.
    pub metrics_every: Duration,
    /// The longest scrape, from connecting to the last byte.
    pub metrics_timeout: Duration,
}

impl Default for LoadConfig {
    /// No source; rank 0; stale after 5 s; the file every 20 ms; a scrape every 1 s of at most 1 s.
    fn default() -> Self {
        LoadConfig {
            load_snapshot: None,
            load_stat: None,
            metrics: None,
            frames: false,
            dp_rank: 0,
            stale_after: Duration::from_secs(5),
            load_snapshot_every: Duration::from_millis(20),
            metrics_every: Duration::from_secs(1),
            metrics_timeout: Duration::from_secs(1),
        }
    }
}

/// The location of the LoadSnapshot file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SnapshotLocation {
    /// The path of the file.
    Path(PathBuf),
    /// The server's `PortArgs.instance_id`, see [`instance_path`].
    Instance(String),
}

impl SnapshotLocation {
    /// The file's path.
    pub fn path(&self) -> PathBuf {
        match self {
            SnapshotLocation::Path(path) => path.clone(),
            SnapshotLocation::Instance(id) => instance_path(id),
        }
    }
}

/// The path of the LoadSnapshot file of an SGLang server, as its `shm_path_for` makes it (sglang 0.5.23,
/// `srt/managers/load_snapshot.py`): `/dev/shm/sglang_loads_<name>_<blake2s of the id, 4 bytes, in hex>.shm`.
/// The name is the last path component of the id; characters other than letters, digits, `.`, `_` and `-`
/// become `_`.
pub fn instance_path(instance_id: &str) -> PathBuf {
    let name = instance_id.trim_end_matches('/').rsplit('/').next().filter(|name| !name.is_empty());
    let name: String = name
        .unwrap_or("default")
        .chars()
        .map(|c| if c.is_alphanumeric() || "._-".contains(c) { c } else { '_' })
        .collect();
    let digest: String =
        Blake2s::<U4>::digest(instance_id.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
    Path::new("/dev/shm").join(format!("sglang_loads_{name}_{digest}.shm"))
}

/// The reason why a [`LoadConfig`] is invalid or its thread could not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No source is given.
    #[error("signals: no source is given, expected load_snapshot, load_stat, metrics or frames")]
    NoSource,
    /// An instance id or path is empty.
    #[error("load_snapshot: the {name} is empty")]
    EmptyLocation {
        /// `path` or `instance id`.
        name: &'static str,
    },
    /// The endpoint is invalid.
    #[error("load_stat {endpoint:?}: expected tcp://HOST:PORT or ipc://PATH")]
    Endpoint {
        /// The given endpoint.
        endpoint: String,
    },
    /// The URL is invalid.
    #[error("metrics {url:?}: {why}, expected http://HOST:PORT/PATH")]
    Url {
        /// The given URL.
        url: String,
        /// The reason.
        why: String,
    },
    /// A duration is 0.
    #[error("{key}: 0 s, expected more")]
    Zero {
        /// The field of [`LoadConfig`].
        key: &'static str,
    },
    /// The background thread could not start.
    #[error("signals: cannot start a thread: {0}")]
    Thread(std::io::Error),
    /// The background thread's runtime could not start.
    #[error("signals: cannot start an event loop: {0}")]
    Runtime(std::io::Error),
}

impl LoadConfig {
    /// All problems of the configuration; empty if [`crate::signals::LoadReader::start`] accepts it.
    pub fn problems(&self) -> Vec<Error> {
        let mut problems = Vec::new();
        let is_any = self.load_snapshot.is_some() || self.load_stat.is_some() || self.metrics.is_some();
        if !is_any && !self.frames {
            problems.push(Error::NoSource);
        }
        problems.extend(self.load_snapshot.as_ref().and_then(|location| location.problem()));
        if let Some(endpoint) = self.load_stat.as_ref().filter(|endpoint| !is_endpoint(endpoint)) {
            problems.push(Error::Endpoint { endpoint: redacted(endpoint) });
        }
        problems.extend(self.metrics.as_ref().and_then(|url| target(url).err()));
        let times = [
            ("stale_after", self.stale_after),
            ("load_snapshot_every", self.load_snapshot_every),
            ("metrics_every", self.metrics_every),
            ("metrics_timeout", self.metrics_timeout),
        ];
        let zero = times.into_iter().filter(|(_, time)| time.is_zero());
        problems.extend(zero.map(|(key, _)| Error::Zero { key }));
        problems
    }
}

impl SnapshotLocation {
    pub(crate) fn problem(&self) -> Option<Error> {
        match self {
            SnapshotLocation::Path(path) if path.as_os_str().is_empty() => {
                Some(Error::EmptyLocation { name: "path" })
            }
            SnapshotLocation::Instance(id) if id.is_empty() => {
                Some(Error::EmptyLocation { name: "instance id" })
            }
            _ => None,
        }
    }
}

fn is_endpoint(endpoint: &str) -> bool {
    match endpoint.split_once("://") {
        Some(("ipc", path)) => !path.is_empty(),
        Some(("tcp", address)) => address
            .rsplit_once(':')
            .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0)),
        _ => false,
    }
}

/// Parses the URL of `/metrics`.
pub(crate) fn target(url: &str) -> Result<HttpTarget, Error> {
    HttpTarget::new(url).map_err(|error| Error::Url { url: redacted(url), why: error.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_of_an_instance_is_that_of_sglang() {
        // The path that `shm_path_for` of sglang 0.5.23 makes.
        let path = "/dev/shm/sglang_loads_0123456789ab_042e6e5d.shm";
        assert_eq!(instance_path("0123456789ab"), Path::new(path));
    }

    #[test]
    fn all_problems_of_a_configuration_are_reported_at_once() {
        let config = LoadConfig {
            load_snapshot: Some(SnapshotLocation::Instance(String::new())),
            load_stat: Some("tcp://127.0.0.1".into()),
            metrics: Some("https://127.0.0.1/metrics".into()),
            stale_after: Duration::ZERO,
            ..LoadConfig::default()
        };
        let problems: Vec<String> = config.problems().iter().map(ToString::to_string).collect();
        let expected = [
            "load_snapshot: the instance id is empty",
            "load_stat \"tcp://127.0.0.1\": expected tcp://HOST:PORT or ipc://PATH",
            "metrics \"https://127.0.0.1/metrics\": the scheme is \"https\", expected http://HOST:PORT/PATH",
            "stale_after: 0 s, expected more",
        ];
        assert_eq!(problems, expected);
        let none: Vec<String> = LoadConfig::default().problems().iter().map(ToString::to_string).collect();
        assert_eq!(
            none,
            ["signals: no source is given, expected load_snapshot, load_stat, metrics or frames"]
        );
    }
}
