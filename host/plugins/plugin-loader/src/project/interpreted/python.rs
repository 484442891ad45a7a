//! Python projects: every file of the project is a source.

use super::{Interpreted, PLACE};
use crate::project::sources::sources;
use crate::project::{Output, ProjectError, tools};
use afterbay_kit::Language;
use std::path::Path;
use std::process::Command;

/// Says for each file whether it is Python, with the place of a mistake.
const SYNTAX: &str =
    "import sys\nfor file in sys.argv[1:]:\n    compile(open(file, 'rb').read(), file, 'exec')";

pub(super) fn read(dir: &Path, output: Output) -> Result<Interpreted, ProjectError> {
    let sources = texts(dir)?;
    check_syntax(dir, &sources, output)?;
    Ok(Interpreted {
        modules: sources.iter().map(|(name, _)| format!("{name}\n")).collect(),
        sources,
        entry: ("afterbay_dev.py", include_str!("afterbay_dev.py").to_owned()),
        tool: tools::find(dir, ".venv/bin/componentize-py", Language::Python)?,
        args: vec![
            "--wit-path",
            "build/dev/wit",
            "--world",
            "afterbay-dev",
            "componentize",
            "--python-path",
            PLACE,
            "--python-path",
            ".",
            "afterbay_dev",
            "--output",
            "build/dev/base.wasm",
        ],
    })
}

/// The project's Python files: paths in the project, and texts.
fn texts(dir: &Path) -> Result<Vec<(String, String)>, ProjectError> {
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

/// Reports a mistake at once. Without a Python in the project's environment, componentize-py reports it after seconds.
fn check_syntax(dir: &Path, sources: &[(String, String)], output: Output) -> Result<(), ProjectError> {
    let Ok(python) = tools::find(dir, ".venv/bin/python", Language::Python) else { return Ok(()) };
    let mut command = Command::new(python);
    command.args(["-c", SYNTAX]).args(sources.iter().map(|(name, _)| name));
    tools::run(dir, command.current_dir(dir), output)
}
