//! The local notes of one stream's archive: the last archived segment, and the file whose upload was begun. The manifests say what is
//! archived; the notes say what was tried.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::consumer::Failure;

const FILE: &str = "progress.json";
/// Mode of a directory: tokens of requests are private to the owner.
const DIR_MODE: u32 = 0o700;

/// The progress of one stream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Progress {
    /// The archive. The progress in another one says nothing.
    pub(crate) url: String,
    /// The last segment that is archived.
    pub(crate) archived: Option<String>,
    /// The oldest segment that a reader of the segments after it needs. `None`: only those.
    pub(crate) needs: Option<String>,
    /// The file whose upload was begun and that no manifest commits yet.
    pub(crate) pending: Option<Pending>,
}

/// A file whose upload was begun. A restart makes exactly this file again, so that an upload that a dead process left under way
/// cannot change what the manifests say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Pending {
    /// Names of the segments, in order.
    pub(crate) segments: Vec<String>,
    /// Names of the objects.
    pub(crate) objects: Vec<String>,
}

impl Progress {
    /// Reads the progress in this archive. A missing or damaged file is none: then the manifests alone say what is archived.
    pub(crate) fn read(dir: &Path, url: &str) -> Result<Progress, Failure> {
        let path = dir.join(FILE);
        let read: Option<Progress> = match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).ok(),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(Failure::local(&path, error)),
        };
        let of_url = read.filter(|read| read.url == url);
        Ok(of_url.unwrap_or_else(|| Progress { url: url.to_owned(), ..Progress::default() }))
    }

    /// Replaces the file durably.
    pub(crate) fn write(&self, dir: &Path) -> Result<(), Failure> {
        let (path, part) = (dir.join(FILE), dir.join("progress.json.part"));
        let written = || -> io::Result<()> {
            let mut file = File::create(&part)?;
            file.write_all(&serde_json::to_vec(self)?)?;
            file.sync_all()?;
            fs::rename(&part, &path)?;
            File::open(dir)?.sync_all()
        };
        written().map_err(|error| Failure::local(&path, error))
    }
}

/// Makes a stream's directory, and removes the files of an earlier process but its progress. An earlier process may still read its
/// files: they are removed, never overwritten.
pub(crate) fn clean(dir: &Path) -> Result<(), Failure> {
    let cleaned = || -> io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(DIR_MODE).create(dir)?;
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            if entry.file_name() != FILE {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    };
    cleaned().map_err(|error| Failure::local(dir, error))
}
