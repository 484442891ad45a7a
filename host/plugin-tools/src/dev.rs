//! `afterbay run --dev`: builds the plugins' projects beside the running streams, and builds them again when a source is saved.
//! The server reloads the new component like any changed file.

use crate::plugin_args;
use afterbay_config as config;
use afterbay_events::Events;
use afterbay_events::event::{PluginBuildFailed, PluginBuilt};
use afterbay_plugin_loader::project::{Output, Project, ProjectError, Sources, sources};
use afterbay_runtime::Host;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The interval of looking at the sources' metadata. A few hundred files take less than a millisecond, and polling works on
/// every file system.
const LOOK_EVERY: Duration = Duration::from_millis(25);

/// The projects of a configuration's plugins, each once. Records their sources before the first build, so that an edit during
/// that build causes another one.
///
/// # Errors
/// The directory of a plugin is no project.
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
    // The server watches the directory of a component that does not exist yet. If the directory cannot be made, the build says so.
    for component in projects.iter().filter_map(|project| project.component().ok()) {
        let _made = component.parent().map(std::fs::create_dir_all);
    }
    Ok(projects.into_iter().map(Watched::new).collect())
}

/// Builds the projects on a background thread, then watches them until the process ends. `output` says where compiler output
/// goes.
///
/// # Errors
/// The thread cannot be started.
pub fn watch(projects: Vec<Watched>, host: Host, events: Events, output: Output) -> std::io::Result<()> {
    // Nobody waits for the thread; it ends with the process.
    let thread = std::thread::Builder::new().name("dev".into());
    let builder = Builder { host, events, output };
    let run = move || {
        projects.iter().for_each(|Watched { project, .. }| builder.build(project, Occasion::Start));
        builder.look(projects.into_iter().filter(|project| project.report(&builder.events)).collect());
    };
    thread.spawn(run).map(drop)
}

/// The reason for a build.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Occasion {
    /// Afterbay starts. A component that is current is not built again.
    Start,
    /// A source was saved.
    Save,
}

/// Builds projects and reports each build.
struct Builder {
    host: Host,
    events: Events,
    output: Output,
}

impl Builder {
    fn look(&self, mut watched: Vec<Watched>) {
        loop {
            std::thread::sleep(LOOK_EVERY);
            for project in &mut watched {
                if project.has_settled() {
                    self.build(&project.project, Occasion::Save);
                }
            }
        }
    }

    fn build(&self, project: &Project, occasion: Occasion) {
        let begun = Instant::now();
        let dir = project.dir().display().to_string();
        let starts = |file: &Path| plugin_args::starts(&self.host, file);
        let built = match occasion {
            Occasion::Start => project.build_quickly_if_changed(self.output, &starts),
            Occasion::Save => project.build_quickly(self.output, &starts),
        };
        match built {
            Ok(_) => {
                let took_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
                self.events.publish(PluginBuilt { project: dir, took_ms });
            }
            Err(error) => self.events.publish(PluginBuildFailed { project: dir, why: explain(&error) }),
        }
    }
}

/// The compiler's output if it was captured, else the error.
fn explain(error: &ProjectError) -> String {
    match error {
        ProjectError::Failed { output, .. } if !output.is_empty() => output.trim_end().to_owned(),
        error => error.to_string(),
    }
}

/// A project, and its sources at the last look.
pub struct Watched {
    project: Project,
    dirs: Vec<PathBuf>,
    /// The error is the reason why the project is not watched.
    seen: Result<Sources, String>,
    /// A source was saved, and more saves may follow.
    changed: bool,
}

impl Watched {
    fn new(project: Project) -> Watched {
        let dirs = project.sources();
        let seen = sources(&dirs);
        Watched { project, dirs, seen, changed: false }
    }

    /// Reports which directories are watched, or why none is. Returns whether the project is watched.
    fn report(&self, events: &Events) -> bool {
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

    /// Whether a source was saved, and nothing more since the last look.
    fn has_settled(&mut self) -> bool {
        // A directory that is missing for a moment is no save.
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
    fn a_save_is_built_once_no_more_saves_follow() {
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
