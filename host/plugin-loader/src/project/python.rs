//! Quick builds of Python projects.
//!
//! componentize-py needs seconds to make a component of CPython and the project, and the host needs seconds to compile that
//! component. So a quick build makes one component, the base, and puts later sources into its environment as data:
//! `afterbay_dev.py` in the base imports them when an instance starts. The host compiles the base once.
//!
//! The base is built again if the contract, the tool or the set of source files has changed, or if the base does not start with
//! the saved sources: they may import a module that the base lacks, or read a file at the build.

use super::sources::sources;
use super::{Output, ProjectError, tools};
use afterbay_kit::Language;
use afterbay_runtime::{Digest, with_environment};
use std::path::{Path, PathBuf};
use std::process::Command;

const ENTRY: &str = include_str!("afterbay_dev.py");
/// The module of [`ENTRY`].
const MODULE: &str = "afterbay_dev";
/// The world that the base is built for: the project's, and the environment.
const WORLD: &str = "world afterbay-dev {\n  include component;\n  import wasi:cli/environment@0.2.0;\n}\n";
const ENVIRONMENT: &str = "package wasi:cli@0.2.0;\n\ninterface environment {\n  get-environment: func() -> list<tuple<string, string>>;\n}\n";
/// Says for each file that it is Python, with the place of a mistake.
const SYNTAX: &str =
    "import sys\nfor file in sys.argv[1:]:\n    compile(open(file, 'rb').read(), file, 'exec')";
/// The directory for the base and the files beside it, in the project.
const PLACE: &str = "build/dev";

/// Builds the component `made`, a path in the project. `starts` says whether a component starts.
pub(super) fn build(
    dir: &Path,
    made: &Path,
    output: Output,
    starts: &dyn Fn(&Path) -> bool,
) -> Result<(), ProjectError> {
    let place = dir.join(PLACE);
    let sources = python_sources(dir)?;
    check_syntax(dir, &sources, output)?;
    let io = |error: std::io::Error| ProjectError::Io { path: place.clone(), error };
    let base = place.join("base.wasm");
    let key = key(dir, &sources)?;
    let is_current = std::fs::read_to_string(place.join("base.key")).is_ok_and(|before| before == key);
    if is_current && base.is_file() {
        let component = with_environment(std::fs::read(&base).map_err(io)?, &sources);
        std::fs::write(dir.join(made), component).map_err(io)?;
        if starts(&dir.join(made)) {
            return Ok(());
        }
    }
    build_base(dir, &place, output)?;
    std::fs::write(place.join("base.key"), key).map_err(io)?;
    std::fs::copy(&base, dir.join(made)).map(drop).map_err(io)
}

/// The project's Python files: paths in the project, and texts.
fn python_sources(dir: &Path) -> Result<Vec<(String, String)>, ProjectError> {
    let io = |path: &Path| {
        let path = path.to_owned();
        move |error| ProjectError::Io { path, error }
    };
    let found = sources(&[dir.to_owned()]).map_err(std::io::Error::other).map_err(io(dir))?;
    let files = found.keys().filter(|path| path.extension().is_some_and(|it| it == "py"));
    files
        .map(|path| {
            let name = path.strip_prefix(dir).unwrap_or(path).to_string_lossy().into_owned();
            Ok((name, std::fs::read_to_string(path).map_err(io(path))?))
        })
        .collect()
}

/// Reports a mistake at once. Without the project's own Python, componentize-py reports it after seconds.
fn check_syntax(dir: &Path, sources: &[(String, String)], output: Output) -> Result<(), ProjectError> {
    let Ok(python) = tools::find(dir, ".venv/bin/python", Language::Python) else { return Ok(()) };
    let mut command = Command::new(python);
    command.args(["-c", SYNTAX]).args(sources.iter().map(|(name, _)| name));
    tools::run(dir, command.current_dir(dir), output)
}

/// A text that is the same as long as the base can run the project's sources: all but the texts of the sources.
fn key(dir: &Path, texts: &[(String, String)]) -> Result<String, ProjectError> {
    let tool = tools::find(dir, ".venv/bin/componentize-py", Language::Python)?;
    let stamp = |path: &Path| {
        let modified = path.metadata().ok().and_then(|file| file.modified().ok());
        format!("{} {modified:?}\n", path.display())
    };
    let wit = sources(&[dir.join("wit")]).unwrap_or_default();
    let names: String = texts.iter().map(|(name, _)| format!("{name}\n")).collect();
    let wit: String = wit.keys().map(|path| stamp(path)).collect();
    Ok(format!("{}\n{}{wit}{names}", Digest::of(ENTRY.as_bytes()), stamp(&tool)))
}

fn build_base(dir: &Path, place: &Path, output: Output) -> Result<(), ProjectError> {
    let io = |error: std::io::Error| ProjectError::Io { path: place.to_owned(), error };
    // A base without its key is not used.
    let _before = std::fs::remove_dir_all(place);
    copy(&dir.join("wit"), &place.join("wit")).map_err(io)?;
    std::fs::create_dir_all(place.join("wit/deps/afterbay-dev")).map_err(io)?;
    std::fs::write(place.join("wit/afterbay-dev.wit"), WORLD).map_err(io)?;
    std::fs::write(place.join("wit/deps/afterbay-dev/environment.wit"), ENVIRONMENT).map_err(io)?;
    std::fs::write(place.join(MODULE).with_extension("py"), ENTRY).map_err(io)?;
    let mut command = Command::new(tools::find(dir, ".venv/bin/componentize-py", Language::Python)?);
    command.args(["--wit-path", "build/dev/wit", "--world", "afterbay-dev", "componentize"]);
    command.args(["--python-path", PLACE, "--python-path", ".", MODULE, "--output", "build/dev/base.wasm"]);
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
