//! `afterbay run --dev`: the projects that plugins come from are looked at, and built again when a source is saved. The
//! component that comes out is reloaded as any that changes.

use crate::project::{Output, Project, ProjectError};
use afterbay_config as config;
use afterbay_events::Events;
use afterbay_events::event::{PluginBuildFailed, PluginBuilt};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

/// How often the sources are looked at. By their metadata, not by events: a few hundred files take less than a millisecond, and
/// it works on every file system.
const LOOK_EVERY: Duration = Duration::from_millis(25);
/// Files of a project's sources. One with more is not looked at, and that is told.
const FILES_MAX: usize = 10_000;
/// Directories in which nobody writes sources.
const LEFT_OUT: [&str; 6] = ["target", "build", "node_modules", ".venv", "__pycache__", "dist"];

/// What is seen of a source file.
type Stamp = (SystemTime, u64);

/// What is seen of a project's sources.
type Sources = BTreeMap<PathBuf, Stamp>;

/// The projects of a configuration's plugins, each once.
pub(crate) fn projects(config: &config::Config) -> Result<Vec<Project>, ProjectError> {
    let mut projects: Vec<Project> = Vec::new();
    for plugin in config.streams.iter().flat_map(|stream| &stream.plugins) {
        let project = match &plugin.component {
            config::Component::Builtin(_) | config::Component::Registry(_) => None,
            config::Component::Project(dir) => Some(Project::of_dir(dir)?),
            config::Component::File(file) => Project::of_component(file),
        };
        projects.extend(project.filter(|project| !projects.contains(project)));
    }
    Ok(projects)
}

/// Builds each before anything is started. One that does not build is told; what an earlier build has left may do.
pub(crate) fn build_all(projects: &[Project], output: Output) {
    for project in projects {
        if let Err(error) = project.build_quickly(output) {
            tracing::error!(target: "afterbay", "dev: {}", why(&error));
        }
    }
}

/// Looks at the projects until the process ends, on a thread of its own. `output` is where compilers speak.
pub(crate) fn watch(projects: Vec<Project>, events: Events, output: Output) -> std::io::Result<()> {
    let seen: Vec<Watched> =
        projects.into_iter().filter_map(|project| Watched::new(project, &events)).collect();
    // Nobody waits for it: what it starts ends by itself.
    let thread = std::thread::Builder::new().name("dev".into());
    thread.spawn(move || look(seen, &events, output)).map(drop)
}

fn look(mut watched: Vec<Watched>, events: &Events, output: Output) {
    loop {
        std::thread::sleep(LOOK_EVERY);
        for project in &mut watched {
            if project.has_settled() {
                build(&project.project, events, output);
            }
        }
    }
}

fn build(project: &Project, events: &Events, output: Output) {
    let begun = Instant::now();
    let dir = project.dir().display().to_string();
    match project.build_quickly(output) {
        Ok(_) => {
            let took_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
            events.publish(PluginBuilt { project: dir, took_ms });
        }
        Err(error) => events.publish(PluginBuildFailed { project: dir, why: why(&error) }),
    }
}

/// What a compiler said where it was kept.
fn why(error: &ProjectError) -> String {
    match error {
        ProjectError::Failed { output, .. } if !output.is_empty() => output.trim_end().to_owned(),
        error => error.to_string(),
    }
}

/// A project, and what was last seen of its sources.
struct Watched {
    project: Project,
    dirs: Vec<PathBuf>,
    seen: Sources,
    /// Something was saved, and may be followed by more.
    changed: bool,
}

impl Watched {
    fn new(project: Project, events: &Events) -> Option<Watched> {
        let dirs = project.sources();
        match sources(&dirs) {
            Ok(seen) => {
                let dirs_told: Vec<String> = dirs.iter().map(|dir| dir.display().to_string()).collect();
                tracing::info!(target: "afterbay", "dev: builds again when a source is saved in {}", dirs_told.join(", "));
                Some(Watched { project, dirs, seen, changed: false })
            }
            Err(why) => {
                let project = project.dir().display().to_string();
                events.publish(PluginBuildFailed { project, why });
                None
            }
        }
    }

    /// Whether something was saved, and nothing more since the last look.
    fn has_settled(&mut self) -> bool {
        // A directory that is gone for a moment is no save.
        let Ok(now) = sources(&self.dirs) else { return false };
        if now != self.seen {
            (self.seen, self.changed) = (now, true);
            return false;
        }
        std::mem::take(&mut self.changed)
    }
}

/// The source files below some directories. The error is for people.
fn sources(dirs: &[PathBuf]) -> Result<Sources, String> {
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
        // A file that goes away meanwhile is none.
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

    #[test]
    fn a_save_is_built_once_nothing_more_is_saved() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("Cargo.toml"), "[package]\nname = \"x\"\n").unwrap();
        let project = Project::of_dir(dir.path()).unwrap();
        let dirs = vec![dir.path().to_owned()];
        let seen = sources(&dirs).unwrap();
        let mut watched = Watched { project, dirs, seen, changed: false };
        assert!(!watched.has_settled());
        std::fs::write(dir.path().join("a.rs"), "1").unwrap();
        assert!(!watched.has_settled(), "more may come");
        std::fs::write(dir.path().join("a.rs"), "22").unwrap();
        assert!(!watched.has_settled(), "more came");
        assert!(watched.has_settled());
        assert!(!watched.has_settled(), "it is told once");
    }
}
