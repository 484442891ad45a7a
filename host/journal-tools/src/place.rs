//! The options that select a journal, and the times that commands read.

use crate::LoadConfig;
use afterbay_config::{Config, user_dirs};
use afterbay_journal::reader::{JournalReader, StreamReader};
use anyhow::{Context, bail, ensure};
use chrono::{DateTime, Local, NaiveDateTime, TimeZone, Utc};
use std::path::PathBuf;

/// The journal and the stream that a command reads.
#[derive(clap::Args)]
pub(crate) struct Place {
    /// The configuration that names the journal's directory; --dir takes precedence
    #[arg(long, value_name = "FILE", env = "AFTERBAY_CONFIG")]
    config: Option<PathBuf>,
    /// The journal's directory
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Only this stream
    #[arg(long, value_name = "NAME")]
    stream: Option<String>,
}

/// A journal, its selected streams, and the configuration if --config named the journal.
pub(crate) struct Selected {
    pub(crate) journal: JournalReader,
    /// In order of name.
    pub(crate) streams: Vec<StreamReader>,
    pub(crate) config: Option<Config>,
}

impl Place {
    /// Opens the selected streams, in order of name.
    pub(crate) fn streams(&self, load: LoadConfig) -> anyhow::Result<Vec<StreamReader>> {
        Ok(self.select(load)?.streams)
    }

    /// Opens the selected journal and streams.
    pub(crate) fn select(&self, load: LoadConfig) -> anyhow::Result<Selected> {
        let (dir, config) = self.dir(load)?;
        let journal = JournalReader::open(&dir)?;
        let mut names = journal.streams()?;
        if let Some(name) = &self.stream {
            ensure!(names.contains(name), "stream {name:?}: not in {}, which has {names:?}", dir.display());
            names = vec![name.clone()];
        }
        let streams = names.iter().map(|name| journal.stream(name)).collect::<Result<_, _>>()?;
        Ok(Selected { journal, streams, config })
    }

    /// The stream of --stream.
    pub(crate) fn stream(&self) -> Option<&str> {
        self.stream.as_deref()
    }

    fn dir(&self, load: LoadConfig) -> anyhow::Result<(PathBuf, Option<Config>)> {
        if let Some(dir) = &self.dir {
            return Ok((dir.clone(), None));
        }
        let Some(file) = &self.config else {
            let dir =
                user_dirs::journal().context("neither --dir nor --config is given, and HOME is not set")?;
            ensure!(dir.exists(), "{}: no journal there, give --dir or --config", dir.display());
            return Ok((dir, None));
        };
        match load(file) {
            Ok(config) => Ok((config.journal.dir.clone(), Some(config))),
            Err(problems) => bail!("{}", problems.join("\n")),
        }
    }
}

/// Parses a time: RFC 3339, local `2026-11-20 14:00:00`, or an age (`10m`, `2h`). Returns Unix nanoseconds.
///
/// # Errors
/// The text is no time, or the time is before 1970 or after 2262. The error is a sentence.
pub fn parse_time(text: &str) -> Result<u64, String> {
    if let Some(age) = afterbay_config::parse_duration(text) {
        let then = Utc::now() - chrono::Duration::from_std(age).map_err(|error| error.to_string())?;
        return unix_ns(&then);
    }
    if let Ok(time) = DateTime::parse_from_rfc3339(text) {
        return unix_ns(&time);
    }
    let local = NaiveDateTime::parse_from_str(text, "%Y-%m-%d %H:%M:%S").ok();
    match local.and_then(|time| Local.from_local_datetime(&time).earliest()) {
        Some(time) => unix_ns(&time),
        None => Err(format!(
            "{text:?} is no time; 2026-11-20T14:00:00Z, \"2026-11-20 14:00:00\" and 10m (ago) are"
        )),
    }
}

fn unix_ns<Z: TimeZone>(time: &DateTime<Z>) -> Result<u64, String> {
    let nanos = time.timestamp_nanos_opt().and_then(|nanos| u64::try_from(nanos).ok());
    nanos.ok_or_else(|| "before 1970 or after 2262".to_owned())
}
