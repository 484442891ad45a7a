//! Builds projects that cargo does not build: finds the tools, calls them, and says how to install a missing one.
//!
//! The component of such a project is `build/NAME.wasm`. A rename puts it there, so that a watcher never reads half a file.

use super::sources::{self, sources as sources_below};
use super::{Output, ProjectError, keep, manifest, quick_python, setup};
use afterbay_kit::Language;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The extension of the file beside a component that lists the sources of its build.
const SOURCES: &str = "sources";
/// The same, if the build was a quick one.
const QUICK_SOURCES: &str = "quick-sources";
/// Most source files of a C project.
pub(super) const SOURCES_MAX: usize = 256;
/// The number of directories, from the project upwards, where tools are looked for.
const ABOVE_MAX: usize = 4;

/// The component file of a build.
pub(super) fn component(dir: &Path, language: Language) -> Result<PathBuf, ProjectError> {
    Ok(dir.join("build").join(format!("{}.wasm", name(dir, language)?)))
}

/// The name of the build tool, for people.
pub(super) fn tool(language: Language) -> &'static str {
    match language {
        Language::Rust => "cargo",
        Language::C => "a C compiler for wasm32-wasi, and wasm-tools",
        Language::JavaScript => "componentize-qjs",
        Language::Python => "componentize-py",
    }
}

/// The component of the last build, if the sources have not changed since. `quick`: of the last quick build.
pub(super) fn built(dir: &Path, language: Language, quick: bool) -> Result<Option<PathBuf>, ProjectError> {
    let component = component(dir, language)?;
    let before = std::fs::read_to_string(component.with_extension(extension(quick))).ok();
    let is_current = component.is_file() && before.is_some() && before == seen(dir);
    Ok(is_current.then_some(component))
}

fn extension(quick: bool) -> &'static str {
    if quick { QUICK_SOURCES } else { SOURCES }
}

/// The project's sources without its scenarios, as lines; `None` if they cannot be read.
fn seen(dir: &Path) -> Option<String> {
    let dir = dir.canonicalize().ok()?;
    let mut found = sources_below(std::slice::from_ref(&dir)).ok()?;
    let scenarios = dir.join("scenarios");
    found.retain(|path, _| !path.starts_with(&scenarios));
    Some(sources::lines(&found))
}

/// Builds the component. For somebody who waits, `starts` says whether a quickly made component starts.
pub(super) fn build(
    dir: &Path,
    language: Language,
    output: Output,
    starts: Option<&dyn Fn(&Path) -> bool>,
) -> Result<PathBuf, ProjectError> {
    let component = component(dir, language)?;
    let io = |error: std::io::Error| ProjectError::Io { path: dir.join("build"), error };
    std::fs::create_dir_all(dir.join("build")).map_err(io)?;
    // Read before the build, so that an edit during the build causes another one.
    let seen = seen(dir);
    let made = component.with_extension("new");
    // A relative path, because the tools run in the project's directory.
    let new = Path::new("build").join(made.file_name().unwrap_or_default());
    match starts.filter(|_| language == Language::Python) {
        Some(starts) => quick_python::build(dir, &new, output, starts)?,
        None => build_with_tool(dir, language, &new, starts.is_some(), output)?,
    }
    std::fs::rename(&made, &component).map_err(io)?;
    // If the list cannot be written, the next build is not skipped.
    let _before = std::fs::remove_file(component.with_extension(extension(starts.is_none())));
    let _written =
        seen.map(|seen| std::fs::write(component.with_extension(extension(starts.is_some())), seen));
    Ok(component)
}

/// Builds the component `new`, a path in the project, with the tool of the language. `quick`: a JavaScript component gets the
/// interpreter that is smaller, slower, and compiled in half the time.
fn build_with_tool(
    dir: &Path,
    language: Language,
    new: &Path,
    quick: bool,
    output: Output,
) -> Result<(), ProjectError> {
    let mut command = match language {
        Language::C => compiler(dir)?,
        Language::JavaScript => {
            let mut command = Command::new(find(dir, "node_modules/.bin/componentize-qjs", language)?);
            command.args(["--sync", "--wit", "wit", "--world", "component"]);
            command.args(quick.then_some("--opt-size"));
            command.args(["--js", "src/plugin.js", "--output"]).arg(new);
            command
        }
        Language::Python => {
            let mut command = Command::new(find(dir, ".venv/bin/componentize-py", language)?);
            command.args(["--wit-path", "wit", "--world", "component", "componentize"]);
            command.args(["--python-path", ".", "plugin", "--output"]).arg(new);
            command
        }
        Language::Rust => return Err(ProjectError::NotAProject { dir: dir.to_owned() }),
    };
    if language == Language::C {
        // A stack of 256 KiB, because zig's default takes 16 MiB of each instance's memory.
        let linking = ["-mexec-model=reactor", "-Wl,-z,stack-size=262144"];
        // The line tables let a fault name the author's line.
        command.args(["-O2", "-Wall", "-gline-tables-only"]).args(linking).arg("-o").arg(new);
        command.args(sources(dir)?);
    }
    run(dir, command.current_dir(dir), output)?;
    if language == Language::C {
        // Two steps make the core module a component: embed the world's type, then wrap it.
        let tools = find(dir, ".venv/bin/wasm-tools", language)?;
        for args in [&["embed", "wit", "--world", "transform"][..], &["new"]] {
            let mut command = Command::new(&tools);
            command.arg("component").args(args).arg(new).arg("--output").arg(new);
            run(dir, command.current_dir(dir), output)?;
        }
    }
    Ok(())
}

pub(super) fn run(dir: &Path, command: &mut Command, output: Output) -> Result<(), ProjectError> {
    let failed = |output| ProjectError::Failed { dir: dir.to_owned(), output };
    let no_tool = |command: &Command, error| ProjectError::NoTool {
        program: command.get_program().to_string_lossy().into_owned(),
        dir: dir.to_owned(),
        how: "is it executable?",
        error,
    };
    command.stdin(Stdio::null());
    if output == Output::Shown {
        // Standard output is for the component's name only.
        command.stdout(std::io::stderr());
        let status = command.status().map_err(|error| no_tool(command, error))?;
        return if status.success() { Ok(()) } else { Err(failed(String::new())) };
    }
    let mut child = command
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| no_tool(command, error))?;
    let said = child.stderr.take().map(keep).unwrap_or_default();
    let status = child.wait().map_err(|error| no_tool(command, error))?;
    if status.success() { Ok(()) } else { Err(failed(said)) }
}

/// The project's name, from its manifest.
fn name(dir: &Path, language: Language) -> Result<String, ProjectError> {
    let file = dir.join(manifest(language));
    let wrong = |message: &str| ProjectError::Manifest { file: file.clone(), message: message.to_owned() };
    let text = std::fs::read_to_string(&file).map_err(|error| wrong(&error.to_string()))?;
    let of_toml = || text.parse::<toml::Table>().map_err(|error| wrong(error.message()));
    let name = match language {
        Language::JavaScript => {
            let json: serde_json::Value =
                serde_json::from_str(&text).map_err(|error| wrong(&error.to_string()))?;
            json["name"].as_str().map(str::to_owned)
        }
        Language::Python => {
            of_toml()?.get("project").and_then(|it| Some(it.get("name")?.as_str()?.to_owned()))
        }
        Language::C | Language::Rust => {
            let table = of_toml()?;
            match table.get("language").and_then(toml::Value::as_str) {
                Some("c") => {}
                other => return Err(wrong(&format!("language is {other:?}, must be \"c\""))),
            }
            table.get("name").and_then(|it| Some(it.as_str()?.to_owned()))
        }
    };
    let is_name = |name: &String| {
        !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
    };
    name.filter(is_name).ok_or_else(|| wrong("has no name of a-z, 0-9, - and _"))
}

/// The C files of the project, relative to its directory.
fn sources(dir: &Path) -> Result<Vec<PathBuf>, ProjectError> {
    let mut found = Vec::new();
    for part in ["src", "bindings"] {
        let entries = std::fs::read_dir(dir.join(part))
            .map_err(|error| ProjectError::Io { path: dir.join(part), error })?;
        let files = entries.flatten().map(|entry| Path::new(part).join(entry.file_name()));
        found.extend(files.filter(|file| file.extension().is_some_and(|it| it == "c")));
    }
    if found.len() > SOURCES_MAX {
        return Err(ProjectError::ManySources { dir: dir.to_owned(), found: found.len() });
    }
    found.sort();
    Ok(found)
}

/// Finds a C compiler for wasm32-wasi: a wasi-sdk, or zig.
fn compiler(dir: &Path) -> Result<Command, ProjectError> {
    let answers = |command: &mut Command| {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    if let Some(sdk) = std::env::var_os("WASI_SDK_PATH") {
        let clang = Path::new(&sdk).join("bin/clang");
        if !clang.is_file() {
            let what = format!("WASI_SDK_PATH is {}, which has no bin/clang", sdk.display());
            return Err(ProjectError::Missing { dir: dir.to_owned(), what, how: WASI_SDK.to_owned() });
        }
        let mut clang = Command::new(clang);
        clang.arg("--target=wasm32-wasi");
        return Ok(clang);
    }
    let pythons = above(dir, ".venv/bin/python").into_iter().filter(|it| it.exists());
    let pythons = pythons.chain([PathBuf::from("python3")]);
    let mut zigs = vec![(PathBuf::from("zig"), &[][..])];
    zigs.extend(pythons.map(|python| (python, &["-m", "ziglang"][..])));
    for (program, args) in zigs {
        if answers(Command::new(&program).args(args).arg("version")) {
            let mut zig = Command::new(program);
            zig.args(args).args(["cc", "-target", "wasm32-wasi"]);
            return Ok(zig);
        }
    }
    let what = "there is no C compiler for wasm32-wasi".to_owned();
    let zig = setup(Language::C).unwrap_or_default();
    let how = format!("{WASI_SDK}\n  or zig, here: {zig}");
    Err(ProjectError::Missing { dir: dir.to_owned(), what, how })
}

const WASI_SDK: &str =
    "a wasi-sdk: https://github.com/WebAssembly/wasi-sdk/releases, unpacked, and WASI_SDK_PATH set to it";

const WASM_TOOLS: &str = "https://github.com/bytecodealliance/wasm-tools/releases, or cargo install --locked wasm-tools, or, as somebody else packs it, ";

/// The paths of a file in the project and above it. The file itself is not resolved, because a Python environment depends on the
/// path by which its python is called.
fn above(dir: &Path, place: &str) -> Vec<PathBuf> {
    let here = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    here.ancestors().take(ABOVE_MAX).map(|dir| dir.join(place)).collect()
}

/// Finds a tool in the project, above it, or on PATH.
pub(super) fn find(dir: &Path, place: &str, language: Language) -> Result<PathBuf, ProjectError> {
    if let Some(found) = above(dir, place).into_iter().find(|it| it.is_file()) {
        return Ok(found);
    }
    let program = Path::new(place).file_name().unwrap_or_default();
    let paths = std::env::var_os("PATH").unwrap_or_default();
    if let Some(found) = std::env::split_paths(&paths).map(|dir| dir.join(program)).find(|it| it.is_file()) {
        return Ok(found);
    }
    let elsewhere = if language == Language::C { WASM_TOOLS } else { "" };
    let how = format!("{elsewhere}here: {}", setup(language).unwrap_or_default());
    let what = format!("{} is not there", program.display());
    Err(ProjectError::Missing { dir: dir.to_owned(), what, how })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::project::Project;

    #[test]
    fn a_tool_is_looked_for_above_the_project_also_where_its_path_has_dots() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("a/b/project/scenarios")).unwrap();
        std::fs::create_dir_all(dir.path().join("bin")).unwrap();
        std::fs::write(dir.path().join("bin/a-tool"), "").unwrap();
        let found = find(&dir.path().join("a/b/project/scenarios/.."), "bin/a-tool", Language::C).unwrap();
        assert_eq!(found, dir.path().canonicalize().unwrap().join("bin/a-tool"));
    }

    fn written(language: Language) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for file in afterbay_kit::project(language, "my-own", &[]).unwrap() {
            let path = dir.path().join(file.path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, file.contents).unwrap();
        }
        dir
    }

    #[test]
    fn a_new_project_has_a_language_and_a_component_path() {
        for language in [Language::C, Language::JavaScript, Language::Python] {
            let dir = written(language);
            let project = Project::of_dir(dir.path()).unwrap();
            assert_eq!(project.language, language);
            let component = dir.path().join("build/my-own.wasm");
            assert_eq!(project.component().unwrap(), component);
            assert_eq!(Project::of_component(&component), Some(project));
            assert_eq!(Project::of_component(&dir.path().join("build/other.wasm")), None);
        }
    }

    #[test]
    fn a_tool_that_is_missing_is_named_with_how_to_get_it() {
        let dir = written(Language::JavaScript);
        let error =
            find(dir.path(), "node_modules/.bin/no-such-tool-at-all", Language::JavaScript).unwrap_err();
        assert!(
            error.to_string().ends_with("no-such-tool-at-all is not there: here: npm install"),
            "{error}"
        );
    }

    #[test]
    fn more_sources_than_are_built_are_refused_with_the_limit() {
        let dir = written(Language::C);
        std::fs::create_dir_all(dir.path().join("bindings")).unwrap();
        let there = sources(dir.path()).unwrap().len();
        for file in there..SOURCES_MAX {
            std::fs::write(dir.path().join(format!("src/{file}.c")), "").unwrap();
        }
        assert_eq!(sources(dir.path()).unwrap().len(), SOURCES_MAX);
        std::fs::write(dir.path().join("src/more.c"), "").unwrap();
        let error = sources(dir.path()).unwrap_err().to_string();
        assert!(error.ends_with(": has 257 C files, at most 256 are built"), "{error}");
    }

    #[test]
    fn a_component_is_current_until_a_source_is_saved_added_or_removed() {
        let dir = written(Language::Python);
        let is_current = || built(dir.path(), Language::Python, false).unwrap().is_some();
        let leave = || {
            std::fs::create_dir_all(dir.path().join("build")).unwrap();
            std::fs::write(dir.path().join("build/my-own.wasm"), "").unwrap();
            std::fs::write(dir.path().join("build/my-own.sources"), seen(dir.path()).unwrap()).unwrap();
        };
        assert!(!is_current(), "nothing was built yet");
        leave();
        assert!(is_current());
        std::fs::write(dir.path().join("scenarios/stop.toml"), "another").unwrap();
        assert!(is_current(), "a scenario is no source");
        std::fs::write(dir.path().join("plugin.py"), "another").unwrap();
        assert!(!is_current(), "saved");
        leave();
        std::fs::write(dir.path().join("more.py"), "").unwrap();
        assert!(!is_current(), "added");
        leave();
        std::fs::remove_file(dir.path().join("more.py")).unwrap();
        assert!(!is_current(), "removed");
        leave();
        std::fs::remove_file(dir.path().join("build/my-own.wasm")).unwrap();
        assert!(!is_current(), "there is no component");
    }

    #[test]
    fn a_manifest_without_a_name_is_an_error() {
        let dir = written(Language::C);
        for (text, why) in [
            ("language = \"c\"", "has no name"),
            ("name = \"a/b\"\nlanguage = \"c\"", "has no name of"),
            ("name = \"a\"\nlanguage = \"cobol\"", "must be \"c\""),
            ("name = ", "afterbay-plugin.toml: "),
        ] {
            std::fs::write(dir.path().join("afterbay-plugin.toml"), text).unwrap();
            let error = component(dir.path(), Language::C).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
