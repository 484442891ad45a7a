//! Quick builds of Python projects, whose component has an interpreter.
//!
//! componentize-py needs seconds to make a component of CPython and the project, and the host needs seconds to compile that
//! component. So a quick build makes one component, the base, and puts later sources into its environment as data. An entry
//! module in the base runs these sources when an instance starts. The host compiles the base once.
//!
//! The base is built again if the contract, the tool or its own parts have changed, or if it does not start with the saved
//! sources: they may import a module that the base lacks, or read a file at the build.

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

/// The entry module.
const ENTRY: &str = include_str!("afterbay_dev.py");
/// Says for each file whether it is Python, with the place of a mistake.
const SYNTAX: &str =
    "import sys\nfor file in sys.argv[1:]:\n    compile(open(file, 'rb').read(), file, 'exec')";

/// Builds the component `made`, a path in the project. `starts` says whether a component starts.
pub(super) fn build(
    dir: &Path,
    made: &Path,
    output: Output,
    starts: &dyn Fn(&Path) -> bool,
) -> Result<(), ProjectError> {
    let sources = texts(dir)?;
    check_syntax(dir, &sources, output)?;
    let tool = tools::find(dir, ".venv/bin/componentize-py", Language::Python)?;
    let place = dir.join(PLACE);
    let io = |error: std::io::Error| ProjectError::Io { path: place.clone(), error };
    let base = place.join("base.wasm");
    let key = key(dir, &tool, &sources);
    let is_current = std::fs::read_to_string(place.join("base.key")).is_ok_and(|before| before == key);
    if is_current && base.is_file() {
        let component = with_environment(std::fs::read(&base).map_err(io)?, &sources);
        std::fs::write(dir.join(made), component).map_err(io)?;
        if starts(&dir.join(made)) {
            return Ok(());
        }
    }
    build_base(dir, &place, &tool, output)?;
    std::fs::write(place.join("base.key"), key).map_err(io)?;
    std::fs::copy(&base, dir.join(made)).map_err(io)?;
    // The base is compiled here once, before a watcher of the component and the next save both need its code. If the base
    // does not start, the host says so when it loads the component.
    let _starts = starts(&dir.join(made));
    Ok(())
}

/// A text that is the same as long as the base can run the project's sources: all but the texts of the sources.
fn key(dir: &Path, tool: &Path, sources: &[(String, String)]) -> String {
    let stamp = |path: &Path| {
        let modified = path.metadata().ok().and_then(|file| file.modified().ok());
        format!("{} {modified:?}\n", path.display())
    };
    // The same, whatever path leads to the project.
    let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    let wit = super::sources(&[dir.join("wit")]).unwrap_or_default();
    let wit: String = wit.keys().map(|path| stamp(path)).collect();
    let modules: String = sources.iter().map(|(name, _)| format!("{name}\n")).collect();
    format!("{}\n{}{wit}{modules}", Digest::of(ENTRY.as_bytes()), stamp(tool))
}

fn build_base(dir: &Path, place: &Path, tool: &Path, output: Output) -> Result<(), ProjectError> {
    let io = |error: std::io::Error| ProjectError::Io { path: place.to_owned(), error };
    // A base without its key is not used.
    let _before = std::fs::remove_dir_all(place);
    copy(&dir.join("wit"), &place.join("wit")).map_err(io)?;
    std::fs::create_dir_all(place.join("wit/deps/afterbay-dev")).map_err(io)?;
    std::fs::write(place.join("wit/afterbay-dev.wit"), WORLD).map_err(io)?;
    std::fs::write(place.join("wit/deps/afterbay-dev/environment.wit"), ENVIRONMENT).map_err(io)?;
    std::fs::write(place.join("afterbay_dev.py"), ENTRY).map_err(io)?;
    let mut command = Command::new(tool);
    command.args(["--wit-path", "build/dev/wit", "--world", "afterbay-dev", "componentize"]);
    command.args(["--python-path", PLACE, "--python-path", ".", "afterbay_dev"]);
    command.args(["--output", "build/dev/base.wasm"]);
    tools::run(dir, command.current_dir(dir), output)
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

/// The project's Python files: paths in the project, and texts.
fn texts(dir: &Path) -> Result<Vec<(String, String)>, ProjectError> {
    let io = |path: &Path| {
        let path = path.to_owned();
        move |error| ProjectError::Io { path, error }
    };
    let found = super::sources(&[dir.to_owned()]).map_err(std::io::Error::other).map_err(io(dir))?;
    let files = found.keys().filter(|path| path.extension().is_some_and(|it| it == "py"));
    files
        .map(|path| {
            let name = path.strip_prefix(dir).unwrap_or(path).to_string_lossy().into_owned();
            Ok((name, std::fs::read_to_string(path).map_err(io(path))?))
        })
        .collect()
}

/// Reports a mistake at once. Without a Python in the project's environment, componentize-py reports it after seconds.
fn check_syntax(dir: &Path, sources: &[(String, String)], output: Output) -> Result<(), ProjectError> {
    let Ok(python) = tools::find(dir, ".venv/bin/python", Language::Python) else { return Ok(()) };
    let mut command = Command::new(python);
    command.args(["-c", SYNTAX]).args(sources.iter().map(|(name, _)| name));
    tools::run(dir, command.current_dir(dir), output)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::project::Project;
    use std::cell::RefCell;
    use std::os::unix::fs::PermissionsExt;

    /// A new project whose tool writes a component without sections and counts its calls.
    fn project() -> (tempfile::TempDir, Project) {
        let dir = tempfile::tempdir().unwrap();
        for file in afterbay_kit::project(Language::Python, "my-own", &[]).unwrap() {
            let path = dir.path().join(file.path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, file.contents).unwrap();
        }
        let tool = dir.path().join(".venv/bin/componentize-py");
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
        let (dir, project) = project();
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
        assert_eq!((calls(), base.len()), (1, 8));
        assert_eq!(tried.take(), std::slice::from_ref(&base), "the base is compiled");
        let before = std::fs::read_to_string(dir.path().join("plugin.py")).unwrap();
        let marked = before.replace("stopped at token", "mark of the save");
        std::fs::write(dir.path().join("plugin.py"), &marked).unwrap();
        let saved = build(true);
        assert_eq!(calls(), 1, "no tool was called");
        assert!(saved.starts_with(&base) && contains(&saved, "mark of the save"));
        assert_eq!(*tried.borrow(), [saved]);

        assert_eq!(build(false), base, "it does not start, so the base is built again");
        assert_eq!(calls(), 2);
        std::fs::write(dir.path().join("wit/more.wit"), "").unwrap();
        assert_eq!(build(true), base, "the contract has changed");
        assert_eq!(calls(), 3);
    }

    fn contains(bytes: &[u8], text: &str) -> bool {
        String::from_utf8_lossy(bytes).contains(text)
    }

    #[test]
    fn a_python_file_that_was_added_is_in_the_next_base() {
        let (dir, project) = project();
        let build = || project.build_quickly(Output::Kept, &|_| true).unwrap();
        build();
        std::fs::write(dir.path().join("more.py"), "").unwrap();
        assert_eq!(std::fs::read(build()).unwrap().len(), 8);
        assert_eq!(std::fs::read(dir.path().join("build/calls")).unwrap().len(), 2);
    }
}
