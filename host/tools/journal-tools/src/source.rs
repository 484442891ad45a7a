//! The places that a journal is read from: `--from`.

use crate::mirror::Mirror;
use crate::pack_file;
use afterbay_journal::reader::JournalReader;
use afterbay_terminal as screen;
use anyhow::{Context, ensure};
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Shortest and longest pause before NATS is asked again. Each pause is twice the one before.
const PAUSES: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(30));

/// A place that a journal is read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The directory of a journal.
    Directory(PathBuf),
    /// A file that `afterbay journal pack` wrote.
    Pack(PathBuf),
    /// The copies of all instances in NATS: the URLs of its servers, separated by commas.
    Nats(String),
}

impl Source {
    /// The source that a path names: a file whose name ends in `.tar.zst` is a pack, and `nats://` and `tls://` begin URLs of NATS.
    #[must_use]
    pub fn of(path: PathBuf) -> Source {
        if let Some(url) =
            path.to_str().filter(|text| text.starts_with("nats://") || text.starts_with("tls://"))
        {
            return Source::Nats(url.to_owned());
        }
        match pack_file::is_pack_name(&path) && !path.is_dir() {
            true => Source::Pack(path),
            false => Source::Directory(path),
        }
    }

    /// Makes the journal a directory. A pack is unpacked into a temporary directory, at most 1 GiB.
    ///
    /// # Errors
    /// There is no such file, the pack is damaged, foreign or too large, NATS cannot be read, or the disk.
    pub fn open(&self) -> anyhow::Result<OpenSource> {
        self.open_part(None, None)
    }

    /// As [`Source::open`]. From NATS, fetches only the stream of this name, and only segments since this time, Unix nanoseconds.
    ///
    /// # Errors
    /// As [`Source::open`].
    pub fn open_part(&self, stream: Option<&str>, since_unix_ns: Option<u64>) -> anyhow::Result<OpenSource> {
        let copy = match self {
            Source::Directory(dir) => {
                ensure!(
                    !dir.is_file(),
                    "{self}: neither the directory of a journal nor a pack (NAME.tar.zst)"
                );
                let (name, dir) = (self.to_string(), dir.clone());
                return Ok(OpenSource { name, dir, copy: None, mirror: None, outage: None });
            }
            Source::Pack(pack) => {
                let copy = temporary()?;
                pack_file::unpack(pack, copy.path())?;
                copy
            }
            Source::Nats(servers) => {
                let copy = temporary()?;
                let mirror = Mirror::open(servers, stream, since_unix_ns, copy.path())?;
                let (name, dir) = (self.to_string(), copy.path().to_owned());
                return Ok(OpenSource { name, dir, copy: Some(copy), mirror: Some(mirror), outage: None });
            }
        };
        let dir = copy.path().join(pack_file::JOURNAL);
        Ok(OpenSource { name: self.to_string(), dir, copy: Some(copy), mirror: None, outage: None })
    }
}

impl From<OsString> for Source {
    fn from(path: OsString) -> Source {
        Source::of(path.into())
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Directory(path) | Source::Pack(path) => path.display().fmt(f),
            Source::Nats(servers) => servers.fmt(f),
        }
    }
}

/// Makes a directory that only this user can enter, and that is removed at the end of the command.
pub(crate) fn temporary() -> anyhow::Result<tempfile::TempDir> {
    tempfile::Builder::new().prefix("afterbay-").tempdir().context("cannot make a temporary directory")
}

/// A journal as a directory. The directory of a copy is removed with this value.
pub struct OpenSource {
    /// The source as the user named it.
    name: String,
    dir: PathBuf,
    copy: Option<tempfile::TempDir>,
    mirror: Option<Mirror>,
    /// Set while NATS cannot be reached.
    outage: Option<Outage>,
}

/// An outage of NATS that was reported.
struct Outage {
    why: String,
    /// The pause before the next attempt.
    pause: Duration,
}

impl OpenSource {
    /// Opens the journal for reading.
    ///
    /// # Errors
    /// The directory is no journal, or cannot be read.
    pub fn journal(&self) -> anyhow::Result<JournalReader> {
        Ok(JournalReader::open(&self.dir)?)
    }

    /// The source as the user named it, for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The directory of the journal.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Whether the directory is a copy: changing it changes nothing.
    pub fn is_copy(&self) -> bool {
        self.copy.is_some()
    }

    /// Whether more may be appended to the directory.
    pub fn grows(&self) -> bool {
        self.copy.is_none() || self.mirror.is_some()
    }

    /// Waits for this time, and adds what NATS gets meanwhile. If NATS cannot be reached, waits longer from call to call, at most
    /// 30 s, and reports the outage and its end on standard error.
    ///
    /// # Errors
    /// The disk refuses the copy.
    pub fn wait(&mut self, time: Duration) -> anyhow::Result<()> {
        let Some(mirror) = &mut self.mirror else {
            std::thread::sleep(time);
            return Ok(());
        };
        match mirror.follow(time) {
            Ok(None) => {
                if self.outage.take().is_some() {
                    screen::complain(format!("{}: connected again", self.name));
                }
            }
            Ok(Some(why)) => {
                let known = self.outage.take();
                if known.as_ref().is_none_or(|known| known.why != why) {
                    screen::complain(format!("{}: {why}; trying again", self.name));
                }
                let pause = known.map_or(PAUSES.0, |known| known.pause);
                std::thread::sleep(pause);
                self.outage = Some(Outage { why, pause: (pause * 2).min(PAUSES.1) });
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// The bytes of a stream that NATS does not have, as sentences.
    pub fn holes(&self, stream: &str) -> Vec<String> {
        let holes = self.mirror.iter().flat_map(|mirror| &mirror.copy.holes);
        holes.filter(|(of, _)| of == stream).map(|(_, hole)| hole.clone()).collect()
    }

    /// Facts about a copy that are no problem, as sentences.
    pub fn notes(&self) -> Vec<String> {
        self.mirror.as_ref().map(|mirror| mirror.copy.notes.clone()).unwrap_or_default()
    }
}
