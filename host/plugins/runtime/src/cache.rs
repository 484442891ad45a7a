//! Compiled code on disk, so that a component is compiled once and not at each start.
//!
//! A file's name is the digest of the component and of the compiler's version and settings. The file begins with the digest
//! of its content; a damaged file is compiled again. The cache is optional: without it a start is slower.

use std::fs::{DirBuilder, File, Metadata, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use wasmtime::Engine;
use wasmtime::component;

use crate::digest::Digest;
use crate::limits::CACHE_FILES_MAX;

const MAGIC: &[u8; 8] = b"ABCODE01";
const HEADER: usize = MAGIC.len() + Digest::BYTES;
const EXTENSION: &str = "cwasm";

/// The reason why a directory cannot be the cache.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// The directory cannot be created or read.
    #[error("cache directory {path}: {error}")]
    Io {
        /// The directory.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// Other users could write code to it that this process would run.
    #[error("cache directory {path}: must be a directory of user {user} with mode 0700, is {found}")]
    NotOurs {
        /// The directory.
        path: PathBuf,
        /// The user of this process.
        user: u32,
        /// The owner and mode of the directory.
        found: String,
    },
}

/// A directory to which only this user can write.
#[derive(Debug)]
pub(crate) struct Cache {
    directory: PathBuf,
    compiler: u64,
    writes: AtomicU64,
}

impl Cache {
    /// Invariant: only this user's processes wrote the files of the directory (checked: its owner, mode 0700).
    pub(crate) fn open(directory: &Path, engine: &Engine) -> Result<Self, CacheError> {
        let io_error = |error| CacheError::Io { path: directory.to_owned(), error };
        DirBuilder::new().mode(0o700).recursive(true).create(directory).map_err(io_error)?;
        let found = directory.symlink_metadata().map_err(io_error)?;
        let user = rustix::process::geteuid().as_raw();
        if !is_private(&found, user) {
            return Err(CacheError::NotOurs { path: directory.to_owned(), user, found: describe(&found) });
        }
        let mut hasher = DefaultHasher::new();
        engine.precompile_compatibility_hash().hash(&mut hasher);
        Ok(Self { directory: directory.to_owned(), compiler: hasher.finish(), writes: AtomicU64::new(0) })
    }

    /// The compiled code of a component, if it is stored and undamaged.
    pub(crate) fn get(&self, engine: &Engine, component: &Digest) -> Option<component::Component> {
        let path = self.path(component);
        let file = std::fs::read(&path).ok()?;
        let (header, code) = file.split_at_checked(HEADER)?;
        if !header.starts_with(MAGIC) || header[MAGIC.len()..] != Digest::of(code).0 {
            return None;
        }
        // The time of the last use, for `prune`. If this fails, the file only counts as older.
        let _ = File::open(&path).and_then(|file| file.set_modified(SystemTime::now()));
        revive(engine, code)
    }

    /// Stores the code of a component. A failure is not an error: the next start compiles it again.
    pub(crate) fn put(&self, digest: &Digest, component: &component::Component) -> io::Result<()> {
        let code = component.serialize().map_err(io::Error::other)?;
        let mut file = Vec::with_capacity(HEADER + code.len());
        file.extend_from_slice(MAGIC);
        file.extend_from_slice(&Digest::of(&code).0);
        file.extend_from_slice(&code);
        // The file is written under another name and renamed: another process reads either no file or a complete one.
        let write = self.writes.fetch_add(1, Ordering::Relaxed);
        let aside = self.directory.join(format!(".{}.{write}.{EXTENSION}", std::process::id()));
        let made = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&aside);
        let written = made
            .and_then(|mut made| made.write_all(&file))
            .and_then(|()| std::fs::rename(&aside, self.path(digest)));
        if written.is_err() {
            let _ = std::fs::remove_file(&aside);
        }
        written?;
        self.prune()
    }

    /// Deletes the files that were unused for the longest time, beyond [`CACHE_FILES_MAX`].
    fn prune(&self) -> io::Result<()> {
        let mut files: Vec<(SystemTime, PathBuf)> = std::fs::read_dir(&self.directory)?
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|extension| extension == EXTENSION))
            .filter_map(|path| Some((path.metadata().ok()?.modified().ok()?, path)))
            .collect();
        files.sort_unstable();
        let surplus = files.len().saturating_sub(CACHE_FILES_MAX);
        for (_, path) in &files[..surplus] {
            std::fs::remove_file(path)?;
        }
        Ok(())
    }

    fn path(&self, component: &Digest) -> PathBuf {
        self.directory.join(format!("{component}-{:016x}.{EXTENSION}", self.compiler))
    }
}

fn is_private(found: &Metadata, user: u32) -> bool {
    found.is_dir() && found.uid() == user && found.mode() & 0o077 == 0
}

fn describe(found: &Metadata) -> String {
    let kind = if found.is_dir() { "a directory" } else { "no directory" };
    format!("{kind} of user {} with mode {:04o}", found.uid(), found.mode() & 0o7777)
}

/// Loads machine code from the cache. This is the only place where this crate trusts stored data.
#[allow(unsafe_code, reason = "wasmtime cannot check machine code; see the invariant")]
fn revive(engine: &Engine, code: &[u8]) -> Option<component::Component> {
    // SAFETY: the code must be what `Component::serialize` wrote. It was read from a directory to which only this user can
    // write (`Cache::open`) and into which only `Cache::put` writes such files. Its digest is the one that was written with
    // it (`Cache::get`), so it is complete. wasmtime itself refuses code of another version or configuration.
    unsafe { component::Component::deserialize(engine, code) }.ok()
}
