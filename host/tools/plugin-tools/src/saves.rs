//! Notices saved files by their metadata, for `run --dev` and `plugin test --watch`. docs/decisions/dev-metadata.md gives the
//! reason.

use afterbay_plugin_loader::project::{Sources, sources};
use std::path::PathBuf;
use std::time::Duration;

/// The interval of looking at the metadata. A few hundred files take less than a millisecond, and polling works on every file
/// system.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(25);

/// Files, and their metadata at the last look.
pub(crate) struct Saves {
    dirs: Vec<PathBuf>,
    /// Files beside those of `dirs`.
    files: Vec<PathBuf>,
    /// The error is the reason why nothing is watched.
    seen: Result<Sources, String>,
    /// A file was saved, and more saves may follow.
    has_changed: bool,
}

impl Saves {
    /// Watches the source files below these directories, and these files.
    pub(crate) fn new(dirs: Vec<PathBuf>, files: Vec<PathBuf>) -> Saves {
        let seen = look(&dirs, &files);
        Saves { dirs, files, seen, has_changed: false }
    }

    /// The watched directories and files, or the reason why none is watched.
    pub(crate) fn watched(&self) -> Result<String, &str> {
        match &self.seen {
            Ok(_) => {
                let paths = self.dirs.iter().chain(&self.files).map(|path| path.display().to_string());
                Ok(paths.collect::<Vec<_>>().join(", "))
            }
            Err(why) => Err(why),
        }
    }

    /// Whether a file was saved, and nothing more since the last look.
    pub(crate) fn has_settled(&mut self) -> bool {
        // A directory that is missing for a moment is no save.
        let now = look(&self.dirs, &self.files);
        if now.is_err() {
            return false;
        }
        if now != self.seen {
            (self.seen, self.has_changed) = (now, true);
            return false;
        }
        std::mem::take(&mut self.has_changed)
    }

    /// Waits for a save.
    pub(crate) fn wait(&mut self) {
        while !self.has_settled() {
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

fn look(dirs: &[PathBuf], files: &[PathBuf]) -> Result<Sources, String> {
    let mut found = sources(dirs)?;
    for file in files {
        let stamp = file.metadata().and_then(|found| Ok((found.modified()?, found.len())));
        found.extend(stamp.ok().map(|stamp| (file.clone(), stamp)));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_save_is_noticed_once_no_more_saves_follow() {
        let dir = tempfile::tempdir().unwrap();
        let other = tempfile::NamedTempFile::new().unwrap();
        let mut saves = Saves::new(vec![dir.path().to_owned()], vec![other.path().to_owned()]);
        assert!(!saves.has_settled());
        std::fs::write(dir.path().join("a.rs"), "1").unwrap();
        assert!(!saves.has_settled(), "more may come");
        std::fs::write(dir.path().join("a.rs"), "22").unwrap();
        assert!(!saves.has_settled(), "more came");
        assert!(saves.has_settled());
        assert!(!saves.has_settled(), "it is noticed once");
        std::fs::write(other.path(), "333").unwrap();
        assert!(!saves.has_settled() && saves.has_settled(), "a file of its own");
        std::fs::rename(dir.path(), dir.path().with_extension("away")).unwrap();
        assert!(!saves.has_settled() && !saves.has_settled(), "the directory is missing for a moment");
        std::fs::rename(dir.path().with_extension("away"), dir.path()).unwrap();
        assert!(!saves.has_settled());
    }
}
