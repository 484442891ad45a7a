//! Files that change, whatever they contain. All files that changed at once are reported at once. The caller acts on it.

use std::io::Read;
use std::path::{Path, PathBuf};

use crate::digest::Digest;
use crate::limits::COMPONENT_BYTES_MAX;
use crate::watching::{Look, Stamp, Watching, WithoutEvents};

/// A thread that watches files. It ends when this is dropped.
#[derive(Debug)]
pub struct FilesWatch(Watching);

impl FilesWatch {
    /// Watches these files until this is dropped. `on_look` runs on the watching thread after each look, once the files have
    /// settled. Its argument says whether a file has changed since the look before.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(
        paths: Vec<PathBuf>,
        mut on_look: impl FnMut(bool) + Send + 'static,
    ) -> std::io::Result<Self> {
        let mut files: Vec<File> = paths.iter().cloned().map(File::new).collect();
        let look = move |look: &Look<'_>| {
            // Every file is examined, also after one that has changed.
            let changed = files.iter_mut().filter_map(|file| file.has_changed(look.settled).then_some(()));
            let has_changed = changed.count() > 0;
            if !look.is_over() {
                on_look(has_changed);
            }
        };
        Watching::start("files-watch", paths.iter().map(PathBuf::as_path), look).map(Self)
    }

    /// The directories that could not be watched, for a report to the operator.
    pub fn without_events(&self) -> &[WithoutEvents] {
        self.0.without_events()
    }
}

/// The content that some files had.
#[derive(Clone, Debug)]
pub struct FileContents(Vec<(PathBuf, Option<Digest>)>);

impl FileContents {
    /// Reads the current content. A file that cannot be read has none.
    pub fn read(paths: &[PathBuf]) -> FileContents {
        FileContents(paths.iter().map(|path| (path.clone(), digest(path))).collect())
    }

    /// Whether the files have the same content now.
    pub fn is_still(&self) -> bool {
        self.0.iter().all(|(path, before)| digest(path) == *before)
    }
}

struct File {
    path: PathBuf,
    /// `None`: to be read at the next look, whatever its metadata.
    stamp: Option<Stamp>,
    /// `None`: the file cannot be read.
    digest: Option<Digest>,
}

impl File {
    fn new(path: PathBuf) -> File {
        let (stamp, digest) = (Some(Stamp::of(&path)), digest(&path));
        File { path, stamp, digest }
    }

    /// Whether the content differs from the last look.
    fn has_changed(&mut self, settled: bool) -> bool {
        let Some(stamp) = Stamp::other(&self.path, self.stamp.as_ref()) else { return false };
        self.stamp = settled.then_some(stamp);
        let now = digest(&self.path);
        std::mem::replace(&mut self.digest, now) != now
    }
}

fn digest(path: &Path) -> Option<Digest> {
    read_regular(path).ok().map(|bytes| Digest::of(&bytes))
}

/// Reads a regular file, at most [`COMPONENT_BYTES_MAX`] + 1 bytes. A pipe would block, and a device has no end.
pub(crate) fn read_regular(path: &Path) -> std::io::Result<Vec<u8>> {
    if !path.metadata()?.is_file() {
        return Err(std::io::Error::other("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(COMPONENT_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}
