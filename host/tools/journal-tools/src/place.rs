//! The options that select a journal, and the times that commands read.

use crate::LoadConfig;
use crate::source::{OpenSource, Source};
use afterbay_config::{Config, user_dirs};
use afterbay_journal::reader::{JournalReader, StreamReader};
use anyhow::{Context, bail, ensure};
use chrono::{DateTime, Local, LocalResult, NaiveDate, NaiveDateTime, NaiveTime, TimeZone, Utc};
use std::path::{Path, PathBuf};

/// The journal and the stream that a command reads.
#[derive(clap::Args)]
pub(crate) struct Place {
    /// The configuration that names the journal's directory; --from takes precedence
    #[arg(long, value_name = "FILE", env = "AFTERBAY_CONFIG")]
    config: Option<PathBuf>,
    /// The journal: its directory, a file that `journal pack` wrote (NAME.tar.zst), or the journals of a fleet (nats://HOST:PORT)
    #[arg(long, value_name = "SOURCE")]
    from: Option<Source>,
    /// Only this stream
    #[arg(long, value_name = "NAME")]
    stream: Option<String>,
}

/// A journal, its selected streams, and the configuration if --config named the journal.
pub(crate) struct Selected {
    /// Keeps a temporary directory.
    pub(crate) source: OpenSource,
    pub(crate) journal: JournalReader,
    /// In order of name.
    pub(crate) streams: Vec<StreamReader>,
    pub(crate) config: Option<Config>,
}

impl Place {
    /// Opens the selected journal and streams.
    pub(crate) fn select(&self, load: LoadConfig) -> anyhow::Result<Selected> {
        self.select_since(load, None)
    }

    /// As [`Place::select`], for a command that shows nothing from before this time, Unix nanoseconds.
    pub(crate) fn select_since(
        &self,
        load: LoadConfig,
        since_unix_ns: Option<u64>,
    ) -> anyhow::Result<Selected> {
        let (source, config) = self.source(load)?;
        let source = source.open_part(self.stream.as_deref(), since_unix_ns)?;
        let journal = source.journal()?;
        let mut names = journal.streams()?;
        if let Some(name) = &self.stream {
            ensure!(names.contains(name), "stream {name:?}: not in {}, which has {names:?}", source.name());
            names = vec![name.clone()];
        }
        let streams = names.iter().map(|name| journal.stream(name)).collect::<Result<_, _>>()?;
        Ok(Selected { source, journal, streams, config })
    }

    /// The directory of --from.
    pub(crate) fn directory(&self) -> Option<&Path> {
        match &self.from {
            Some(Source::Directory(dir)) => Some(dir),
            Some(Source::Pack(_) | Source::Nats(_)) | None => None,
        }
    }

    /// The stream of --stream.
    pub(crate) fn stream(&self) -> Option<&str> {
        self.stream.as_deref()
    }

    fn source(&self, load: LoadConfig) -> anyhow::Result<(Source, Option<Config>)> {
        if let Some(source) = &self.from {
            return Ok((source.clone(), None));
        }
        let Some(file) = &self.config else {
            let dir =
                user_dirs::journal().context("neither --from nor --config is given, and HOME is not set")?;
            ensure!(dir.exists(), "{}: no journal there, give --from or --config", dir.display());
            return Ok((Source::Directory(dir), None));
        };
        match load(file) {
            Ok(config) => Ok((Source::Directory(config.journal.dir.clone()), Some(config))),
            Err(problems) => bail!("{}", problems.join("\n")),
        }
    }
}

/// Parses a time: RFC 3339, local `2026-11-20 14:00:00`, an age (`10m`, `2h`), or the begin of a local day (`2026-11-20`, `today`,
/// `yesterday`). Returns Unix nanoseconds.
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
    local_time(text, Local::now().date_naive()).map_or_else(
        || {
            Err(format!(
                "{text:?} is no time; 2026-11-20T14:00:00Z, \"2026-11-20 14:00:00\", 2026-11-20, yesterday and 10m (ago) are"
            ))
        },
        |time| match Local.from_local_datetime(&time) {
            LocalResult::Single(time) | LocalResult::Ambiguous(time, _) => unix_ns(&time),
            LocalResult::None => Err(format!("{text:?} does not exist in the local time zone")),
        },
    )
}

/// A local time. A day stands for its begin.
fn local_time(text: &str, today: NaiveDate) -> Option<NaiveDateTime> {
    let day = match text {
        "today" => Some(today),
        "yesterday" => today.pred_opt(),
        text => NaiveDate::parse_from_str(text, "%Y-%m-%d").ok(),
    };
    let time = || NaiveDateTime::parse_from_str(text, "%Y-%m-%d %H:%M:%S").ok();
    day.map(|day| day.and_time(NaiveTime::MIN)).or_else(time)
}

fn unix_ns<Z: TimeZone>(time: &DateTime<Z>) -> Result<u64, String> {
    let nanos = time.timestamp_nanos_opt().and_then(|nanos| u64::try_from(nanos).ok());
    nanos.ok_or_else(|| "before 1970 or after 2262".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_is_its_begin_and_yesterday_is_the_day_before() {
        let today = NaiveDate::from_ymd_opt(2026, 3, 1).unwrap();
        let time = |text: &str| local_time(text, today).map(|time| time.to_string());
        assert_eq!(time("today").unwrap(), "2026-03-01 00:00:00");
        assert_eq!(time("yesterday").unwrap(), "2026-02-28 00:00:00");
        assert_eq!(time("2026-11-27").unwrap(), "2026-11-27 00:00:00");
        assert_eq!(time("2026-11-27 14:30:00").unwrap(), "2026-11-27 14:30:00");
        assert_eq!(time("2026-11-31"), None);
        assert!(parse_time("tomorrow").unwrap_err().contains("yesterday"), "names what is a time");
    }
}
