//! The cache of fetched files: one file per digest. Every read checks the digest.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::oci::digest::sha256;

/// Files in the cache. For a further one the least recently used file is deleted.
const FILES_MAX: usize = 64;

pub(crate) struct ComponentCache {
    dir: Option<PathBuf>,
}

impl ComponentCache {
    pub(crate) fn new(dir: Option<&Path>) -> ComponentCache {
        ComponentCache { dir: dir.map(Path::to_owned) }
    }

    fn file(&self, digest: &str) -> Option<PathBuf> {
        Some(self.dir.as_ref()?.join(digest.replace(':', "-")))
    }

    /// Returns the bytes with this digest, or `None` if they are missing or damaged.
    pub(crate) fn read(&self, of: &str, max: u64) -> Option<Vec<u8>> {
        let file = self.file(of)?;
        if fs::metadata(&file).ok()?.len() > max {
            return None;
        }
        let bytes = fs::read(&file).ok()?;
        if sha256(&bytes) != of {
            return None;
        }
        // The file's time orders the eviction.
        let _ = fs::File::open(&file).and_then(|file| file.set_modified(SystemTime::now()));
        Some(bytes)
    }

    /// Stores the bytes if the disk has room. Otherwise the next use fetches them again.
    pub(crate) fn store(&self, of: &str, bytes: &[u8]) {
        let (Some(dir), Some(file)) = (&self.dir, self.file(of)) else { return };
        let new = dir.join(format!("{}.{}", of.replace(':', "-"), std::process::id()));
        let written = fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir)
            .and_then(|()| fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new))
            .and_then(|mut made| made.write_all(bytes))
            .and_then(|()| fs::rename(&new, &file));
        if written.is_err() {
            let _ = fs::remove_file(&new);
        }
        self.evict();
    }

    fn evict(&self) {
        let Some(entries) = self.dir.as_ref().and_then(|dir| fs::read_dir(dir).ok()) else { return };
        let used = |entry: fs::DirEntry| Some((entry.metadata().ok()?.modified().ok()?, entry.path()));
        let mut files: Vec<_> = entries.flatten().filter_map(used).collect();
        files.sort_unstable();
        for (_, file) in files.iter().take(files.len().saturating_sub(FILES_MAX)) {
            let _ = fs::remove_file(file);
        }
    }
}
