//! Quick builds of projects whose language has an interpreter in the component.
//!
//! componentize-py needs seconds to make a component of CPython and the project, and the host needs seconds to compile that
//! component. So a quick build makes one component, the base, and puts later sources into its environment as data. An entry
//! module in the base runs these sources when an instance starts. The host compiles the base once.
//!
//! The base is built again if the contract, the tool or its own parts have changed, or if it does not start with the saved
//! sources: they may import a module that the base lacks, or read a file at the build.

mod javascript;
mod python;

use super::sources::sources;
use super::{Output, ProjectError, tools};
use afterbay_kit::Language;
use afterbay_runtime::{Digest, with_environment};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The world that the base is built for: the project's, and the environment.
const WORLD: &str = "world afterbay-dev {\n  include component;\n  import wasi:cli/environment@0.2.0;\n}\n";
const ENVIRONMENT: &str = "package wasi:cli@0.2.0;\n\ninterface environment {\n  get-environment: func() -> list<tuple<string, string>>;\n}\n";
/// The directory for the base and the files beside it, in the project.
const PLACE: &str = "build/dev";

/// A project, as its language reads it.
struct Interpreted {
    /// The saved sources: paths in the project, and texts for the entry module.
    sources: Vec<(String, String)>,
    /// The name and the text of the entry module.
    entry: (&'static str, String),
    /// The names of the modules in the base, one a line.
    modules: String,
    tool: PathBuf,
    /// The arguments that make `build/dev/base.wasm` of the entry module.
    args: Vec<&'static str>,
}

/// Builds the component `made`, a path in the project. `starts` says whether a component starts. Returns false if the sources
/// cannot be given to a base.
pub(super) fn build(
    dir: &Path,
    language: Language,
    made: &Path,
    output: Output,
    starts: &dyn Fn(&Path) -> bool,
) -> Result<bool, ProjectError> {
    let project = match language {
        Language::Python => Some(python::read(dir, output)?),
        Language::JavaScript => javascript::read(dir)?,
        Language::Rust | Language::C => None,
    };
    let Some(project) = project else { return Ok(false) };
    let place = dir.join(PLACE);
    let io = |error: std::io::Error| ProjectError::Io { path: place.clone(), error };
    let base = place.join("base.wasm");
    let key = key(dir, &project);
    let is_current = std::fs::read_to_string(place.join("base.key")).is_ok_and(|before| before == key);
    if is_current && base.is_file() {
        let component = with_environment(std::fs::read(&base).map_err(io)?, &project.sources);
        std::fs::write(dir.join(made), component).map_err(io)?;
        if starts(&dir.join(made)) {
            return Ok(true);
        }
    }
    build_base(dir, &place, &project, output)?;
    std::fs::write(place.join("base.key"), key).map_err(io)?;
    std::fs::copy(&base, dir.join(made)).map_err(io)?;
    // The base is compiled here once, before a watcher of the component and the next save both need its code. If the base
    // does not start, the host says so when it loads the component.
    let _starts = starts(&dir.join(made));
    Ok(true)
}

/// A text that is the same as long as the base can run the project's sources: all but the texts of the sources.
fn key(dir: &Path, project: &Interpreted) -> String {
    let stamp = |path: &Path| {
        let modified = path.metadata().ok().and_then(|file| file.modified().ok());
        format!("{} {modified:?}\n", path.display())
    };
    // The same, whatever path leads to the project.
    let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    let wit = sources(&[dir.join("wit")]).unwrap_or_default();
    let wit: String = wit.keys().map(|path| stamp(path)).collect();
    let entry = Digest::of(project.entry.1.as_bytes());
    format!("{entry}\n{}{wit}{}", stamp(&project.tool), project.modules)
}

fn build_base(dir: &Path, place: &Path, project: &Interpreted, output: Output) -> Result<(), ProjectError> {
    let io = |error: std::io::Error| ProjectError::Io { path: place.to_owned(), error };
    // A base without its key is not used.
    let _before = std::fs::remove_dir_all(place);
    copy(&dir.join("wit"), &place.join("wit")).map_err(io)?;
    std::fs::create_dir_all(place.join("wit/deps/afterbay-dev")).map_err(io)?;
    std::fs::write(place.join("wit/afterbay-dev.wit"), WORLD).map_err(io)?;
    std::fs::write(place.join("wit/deps/afterbay-dev/environment.wit"), ENVIRONMENT).map_err(io)?;
    std::fs::write(place.join(project.entry.0), &project.entry.1).map_err(io)?;
    let mut command = Command::new(&project.tool);
    tools::run(dir, command.args(&project.args).current_dir(dir), output)
}

/// Copies a directory.
fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let (entry, to): (_, PathBuf) = (entry?.path(), to.to_owned());
        let Some(name) = entry.file_name() else { continue };
        match entry.is_dir() {
            true => copy(&entry, &to.join(name))?,
            false => std::fs::copy(&entry, to.join(name)).map(drop)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::project::Project;
    use std::cell::RefCell;
    use std::os::unix::fs::PermissionsExt;

    /// A new project whose tool writes a component without sections and counts its calls.
    fn project(language: Language, tool: &str) -> (tempfile::TempDir, Project) {
        let dir = tempfile::tempdir().unwrap();
        for file in afterbay_kit::project(language, "my-own", &[]).unwrap() {
            let path = dir.path().join(file.path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, file.contents).unwrap();
        }
        let tool = dir.path().join(tool);
        std::fs::create_dir_all(tool.parent().unwrap()).unwrap();
        let script = "#!/bin/sh\necho >> build/calls\nfor to in \"$@\"; do :; done\n\
            printf '\\0asm\\015\\0\\001\\0' > \"$to\"\n";
        std::fs::write(&tool, script).unwrap();
        std::fs::set_permissions(&tool, PermissionsExt::from_mode(0o755)).unwrap();
        let project = Project::of_dir(dir.path()).unwrap();
        (dir, project)
    }

    #[test]
    fn a_saved_source_goes_into_the_environment_of_a_component_that_is_built_once() {
        for (language, tool, source) in [
            (Language::Python, ".venv/bin/componentize-py", "plugin.py"),
            (Language::JavaScript, "node_modules/.bin/componentize-qjs", "src/plugin.js"),
        ] {
            let (dir, project) = project(language, tool);
            let calls = || std::fs::read(dir.path().join("build/calls")).unwrap().len();
            let tried = RefCell::new(Vec::new());
            let build = |starts: bool| {
                let starts = |file: &Path| {
                    tried.borrow_mut().push(std::fs::read(file).unwrap());
                    starts
                };
                std::fs::read(project.build_quickly(Output::Kept, &starts).unwrap()).unwrap()
            };
            let base = build(true);
            assert_eq!((calls(), base.len()), (1, 8), "{language:?}");
            assert_eq!(tried.take(), std::slice::from_ref(&base), "the base is compiled");
            let before = std::fs::read_to_string(dir.path().join(source)).unwrap();
            let marked = before.replace("stopped at token", "mark of the save");
            std::fs::write(dir.path().join(source), &marked).unwrap();
            let saved = build(true);
            assert_eq!(calls(), 1, "{language:?}: no tool was called");
            assert!(saved.starts_with(&base) && contains(&saved, "mark of the save"), "{language:?}");
            assert_eq!(*tried.borrow(), [saved]);

            assert_eq!(build(false), base, "it does not start, so the base is built again");
            assert_eq!(calls(), 2, "{language:?}");
            std::fs::write(dir.path().join("wit/more.wit"), "").unwrap();
            assert_eq!(build(true), base, "the contract has changed");
            assert_eq!(calls(), 3, "{language:?}");
        }
    }

    fn contains(bytes: &[u8], text: &str) -> bool {
        String::from_utf8_lossy(bytes).contains(text)
    }

    #[test]
    fn a_python_file_that_was_added_is_in_the_next_base() {
        let (dir, project) = project(Language::Python, ".venv/bin/componentize-py");
        let build = || project.build_quickly(Output::Kept, &|_| true).unwrap();
        build();
        std::fs::write(dir.path().join("more.py"), "").unwrap();
        assert_eq!(std::fs::read(build()).unwrap().len(), 8);
        assert_eq!(std::fs::read(dir.path().join("build/calls")).unwrap().len(), 2);
    }
}
