//! `afterbay run --dev`: the projects that plugins come from are looked at, and built again when a source is saved. The
//! component that comes out is reloaded as any that changes.

use afterbay_config as config;
use afterbay_events::Events;
use afterbay_events::event::{PluginBuildFailed, PluginBuilt};
use afterbay_plugin_loader::project::{Output, Project, ProjectError, Sources, sources};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How often the sources are looked at. By their metadata, not by events: a few hundred files take less than a millisecond, and
/// it works on every file system.
const LOOK_EVERY: Duration = Duration::from_millis(25);
/// The projects of a configuration's plugins, each once, and their sources as they are now: before any build, so that an edit
/// that is saved during the first build is built, too.
pub fn projects(config: &config::Config) -> Result<Vec<Watched>, ProjectError> {
    let mut projects: Vec<Project> = Vec::new();
    for plugin in config.streams.iter().flat_map(|stream| &stream.plugins) {
        let project = match &plugin.component {
            config::Component::Builtin(_) | config::Component::Registry(_) => None,
            config::Component::Project(dir) => Some(Project::of_dir(dir)?),
            config::Component::File(file) => Project::of_component(file),
        };
        projects.extend(project.filter(|project| !projects.contains(project)));
    }
    Ok(projects.into_iter().map(Watched::new).collect())
}

/// Builds each project before anything is started. Logs a project that does not build: its last component may do.
pub fn build_all(projects: &[Watched], output: Output) {
    for Watched { project, .. } in projects {
        if let Err(error) = project.build_quickly(output) {
            tracing::error!(target: "afterbay", "dev: {}", why(&error));
        }
    }
}

/// Looks at the projects until the process ends, on a thread of its own. `output` is where compilers speak.
pub fn watch(projects: Vec<Watched>, events: Events, output: Output) -> std::io::Result<()> {
    let watched = projects.into_iter().filter(|project| project.is_seen(&events)).collect();
    // Nobody waits for it: what it starts ends by itself.
    let thread = std::thread::Builder::new().name("dev".into());
    thread.spawn(move || look(watched, &events, output)).map(drop)
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
pub struct Watched {
    project: Project,
    dirs: Vec<PathBuf>,
    /// The error says why the project is not watched.
    seen: Result<Sources, String>,
    /// Something was saved, and may be followed by more.
    changed: bool,
}

impl Watched {
    fn new(project: Project) -> Watched {
        let dirs = project.sources();
        let seen = sources(&dirs);
        Watched { project, dirs, seen, changed: false }
    }

    /// Reports which directories are watched, or why none is.
    fn is_seen(&self, events: &Events) -> bool {
        match &self.seen {
            Ok(_) => {
                let dirs: Vec<String> = self.dirs.iter().map(|dir| dir.display().to_string()).collect();
                tracing::info!(target: "afterbay", "dev: builds again when a source is saved in {}", dirs.join(", "));
            }
            Err(why) => {
                let project = self.project.dir().display().to_string();
                events.publish(PluginBuildFailed { project, why: why.clone() });
            }
        }
        self.seen.is_ok()
    }

    /// Whether something was saved, and nothing more since the last look.
    fn has_settled(&mut self) -> bool {
        // A directory that is gone for a moment is no save.
        let now = sources(&self.dirs);
        if now.is_err() {
            return false;
        }
        if now != self.seen {
            (self.seen, self.changed) = (now, true);
            return false;
        }
        std::mem::take(&mut self.changed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_save_is_built_once_nothing_more_is_saved() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("Cargo.toml"), "[package]\nname = \"x\"\n").unwrap();
        let project = Project::of_dir(dir.path()).unwrap();
        let mut watched = Watched::new(project);
        assert!(!watched.has_settled());
        std::fs::write(dir.path().join("a.rs"), "1").unwrap();
        assert!(!watched.has_settled(), "more may come");
        std::fs::write(dir.path().join("a.rs"), "22").unwrap();
        assert!(!watched.has_settled(), "more came");
        assert!(watched.has_settled());
        assert!(!watched.has_settled(), "it is told once");
    }
}
