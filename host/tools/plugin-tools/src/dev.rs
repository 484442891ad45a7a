//! `afterbay run --dev`: builds the plugins' projects beside the running streams, and builds them again when a source is saved.
//! The server reloads the new component like any changed file.

use crate::plugin_args;
use crate::saves::{LOOK_EVERY, Saves};
use afterbay_config as config;
use afterbay_events::Events;
use afterbay_events::event::{PluginBuildFailed, PluginBuilt};
use afterbay_plugin_loader::project::{Output, Project, ProjectError};
use afterbay_runtime::Host;
use std::path::Path;
use std::time::Instant;

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
            config::Component::Project(dir) => {
                Some(Project::of_dir(&dir.canonicalize().unwrap_or_else(|_| dir.clone()))?)
            }
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
                if project.saves.has_settled() {
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
    saves: Saves,
}

impl Watched {
    fn new(project: Project) -> Watched {
        let saves = Saves::new(project.sources(), Vec::new());
        Watched { project, saves }
    }

    /// Reports which directories are watched, or why none is. Returns whether the project is watched.
    fn report(&self, events: &Events) -> bool {
        match self.saves.watched() {
            Ok(dirs) => {
                tracing::info!(target: "afterbay", "dev: builds again when a source is saved in {dirs}");
                true
            }
            Err(why) => {
                let project = self.project.dir().display().to_string();
                events.publish(PluginBuildFailed { project, why: why.to_owned() });
                false
            }
        }
    }
}
