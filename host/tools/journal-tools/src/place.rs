//! The options that select a journal.

use crate::LoadConfig;
use crate::source::{OpenSource, Source};
use afterbay_config::{Config, user_dirs};
use afterbay_journal::reader::{JournalReader, StreamReader};
use anyhow::{Context, bail, ensure};
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
