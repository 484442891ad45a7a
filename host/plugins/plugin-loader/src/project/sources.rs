//! The source files of a project with their metadata, which shows whether a file was saved, added or removed.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Most source files of a project. A larger project is not watched.
const FILES_MAX: usize = 10_000;
/// Directories without sources.
const LEFT_OUT: [&str; 6] = ["target", "build", "node_modules", ".venv", "__pycache__", "dist"];

/// The time and the length of a source file.
type Stamp = (SystemTime, u64);

/// The metadata of a project's sources.
pub type Sources = BTreeMap<PathBuf, Stamp>;

/// Finds the source files below these directories.
///
/// # Errors
/// A sentence for people: a directory cannot be read, or there are too many files.
pub fn sources(dirs: &[PathBuf]) -> Result<Sources, String> {
    let mut found = Sources::new();
    for dir in dirs {
        collect(dir, &mut found)?;
    }
    Ok(found)
}

fn collect(dir: &Path, found: &mut Sources) -> Result<(), String> {
    let entries = std::fs::read_dir(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        // Editors keep their own files beside the sources: hidden, or with a tilde.
        if name.starts_with('.') || name.ends_with('~') || LEFT_OUT.contains(&name.as_ref()) {
            continue;
        }
        // The file may have been removed meanwhile.
        let Ok(metadata) = entry.metadata() else { continue };
        if metadata.is_dir() {
            collect(&entry.path(), found)?;
        } else if let Ok(modified) = metadata.modified() {
            if found.len() >= FILES_MAX {
                return Err(format!("has more than {FILES_MAX} files, it is not built again by itself"));
            }
            found.insert(entry.path(), (modified, metadata.len()));
        }
    }
    Ok(())
}

/// The sources as lines, to compare with the list of the last build.
pub(super) fn lines(sources: &Sources) -> String {
    let mut lines = String::new();
    for (path, (modified, bytes)) in sources {
        let nanos = modified.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        // Writing to a String cannot fail.
        let _ = writeln!(lines, "{} {nanos} {bytes}", path.display());
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sources_are_looked_at() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str| {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, name).unwrap();
        };
        for name in [
            "Cargo.toml",
            "src/lib.rs",
            "src/a/b.rs",
            "target/x.wasm",
            ".git/HEAD",
            "src/.lib.rs.swp",
            "src/lib.rs~",
        ] {
            write(name);
        }
        let dirs = [dir.path().to_owned()];
        let names = |found: Sources| -> Vec<String> {
            let name = |path: PathBuf| path.strip_prefix(dir.path()).unwrap().display().to_string();
            found.into_keys().map(name).collect()
        };
        assert_eq!(names(sources(&dirs).unwrap()), ["Cargo.toml", "src/a/b.rs", "src/lib.rs"]);
    }
}
