//! Files that change, whatever is in them: told once for all that changed at once. What is done about it is the caller's.

use std::path::{Path, PathBuf};

use crate::component::Digest;
use crate::host;
use crate::watching::{Look, Stamp, Watching, WithoutEvents};

/// A thread that watches files. Ends when this is dropped.
#[derive(Debug)]
pub struct FilesWatch(Watching);

impl FilesWatch {
    /// Watches these files until dropped. `on_look` runs on the watching thread after each look, when the files have come to
    /// rest; it is given whether any of them has changed since the look before.
    ///
    /// # Errors
    /// If there can be no thread.
    pub fn start(
        paths: Vec<PathBuf>,
        mut on_look: impl FnMut(bool) + Send + 'static,
    ) -> std::io::Result<Self> {
        let mut files: Vec<File> = paths.iter().cloned().map(File::new).collect();
        let look = move |look: &Look<'_>| {
            // Each is looked at, also behind one that has changed.
            let changed = files.iter_mut().filter_map(|file| file.has_changed(look.settled).then_some(()));
            let has_changed = changed.count() > 0;
            if !look.is_over() {
                on_look(has_changed);
            }
        };
        Watching::start("files-watch", paths.iter().map(PathBuf::as_path), look).map(Self)
    }

    /// The directories that could not be watched, to be told to the operator.
    pub fn without_events(&self) -> &[WithoutEvents] {
        self.0.without_events()
    }
}

/// What some files held.
#[derive(Clone, Debug)]
pub struct Held(Vec<(PathBuf, Option<Digest>)>);

impl Held {
    /// What they hold now. One that cannot be read holds nothing.
    pub fn by(paths: &[PathBuf]) -> Held {
        Held(paths.iter().map(|path| (path.clone(), digest(path))).collect())
    }

    /// Whether they hold the same now.
    pub fn is_still(&self) -> bool {
        self.0.iter().all(|(path, held)| digest(path) == *held)
    }
}

struct File {
    path: PathBuf,
    /// None: to be read at the next look, whatever its metadata.
    stamp: Option<Stamp>,
    /// None: it cannot be read.
    digest: Option<Digest>,
}

impl File {
    fn new(path: PathBuf) -> File {
        let (stamp, digest) = (Some(Stamp::of(&path)), digest(&path));
        File { path, stamp, digest }
    }

    /// Whether it holds something else than at the last look.
    fn has_changed(&mut self, settled: bool) -> bool {
        let Some(stamp) = Stamp::other(&self.path, self.stamp.as_ref()) else { return false };
        self.stamp = settled.then_some(stamp);
        let now = digest(&self.path);
        std::mem::replace(&mut self.digest, now) != now
    }
}

fn digest(path: &Path) -> Option<Digest> {
    host::read_regular(path).ok().map(|bytes| Digest::of(&bytes))
}
